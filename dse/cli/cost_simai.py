"""`dse cost --profile simai`: an AICB workload by SimAI's closed forms."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.cli.options import positive

if TYPE_CHECKING:
    from costmodel.profiles.simai import Busbw, Links, Report
    from costmodel.profiles.simai.files.aicb import WorkloadFile

#: Revisions by name, and "simai": the newest one that takes the bandwidths given.
PROFILES = ("simai", "simai-2024-10", "simai-2024-12", "simai-2025-07")

#: The newest revisions that take a file of bus bandwidths, and the links of a machine.
WITH_FILE, WITH_LINKS = "simai-2024-12", "simai-2025-07"

GPU_TYPES = ("A100", "A800", "H100", "H20", "H800")
NIC_TYPES = ("cx6", "cx7", "bf3")


#: Options of these profiles alone.
OPTIONS = (
    *("gpus", "gpus_per_server", "busbw", "gpu_type", "nvlink_bandwidth", "nics_per_server", "nic_type"),
    *("nic_bandwidth", "dp_overlap", "tp_overlap", "ep_overlap", "pp_overlap", "strict_compat"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What these profiles take beside the file."""
    group = parser.add_argument_group("simai", "the machine of an AICB workload, and how it is priced")
    group.add_argument("--gpus", metavar="N", type=positive, help="GPUs of the run (default: the file's)")
    group.add_argument("--gpus-per-server", metavar="N", type=positive, default=8, help="default: 8")
    group.add_argument("--busbw", metavar="FILE", type=Path, help="bus bandwidths; else they follow from:")
    group.add_argument("--gpu-type", choices=GPU_TYPES, help="settles the NVLink bandwidth")
    group.add_argument(
        "--nvlink-bandwidth", metavar="X", type=bandwidth, help="of a GPU: 360 (GiB/s), 386GB/s"
    )
    group.add_argument("--nics-per-server", metavar="N", type=positive, help="default: one per GPU")
    group.add_argument(
        "--nic-type", choices=NIC_TYPES, default="cx7", help="settles its bandwidth; default: cx7"
    )
    group.add_argument("--nic-bandwidth", metavar="X", type=bandwidth, help="of a NIC: 48.5 (GiB/s), 50GB/s")
    for name, what, default in (
        ("dp", "data-parallel communication", 0.0),
        ("tp", "tensor-parallel communication", 0.0),
        ("ep", "communication among experts", 0.0),
        ("pp", "messages between stages", 1.0),
    ):
        group.add_argument(
            f"--{name}-overlap",
            metavar="X",
            type=share,
            default=default,
            help=f"hidden share of {what} (default: {default:g})",
        )
    group.add_argument(
        "--strict-compat",
        action="store_true",
        help="where SimAI overflows or divides by zero, show its value",
    )


def bandwidth(text: str) -> float:
    """A bandwidth in B/s; a number alone is in GiB/s, as SimAI has it."""
    from costmodel.formats.quantity import si_value

    try:
        value = float(text) * 2.0**30
    except ValueError:
        try:
            value = si_value(text, "B/s")
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a bandwidth above 0")
    return value


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share from 0 to 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Read, price, write."""
    from costmodel.profiles.simai import Overlap, missing, price
    from costmodel.profiles.simai.files.aicb import load_workload

    file = load_workload(args.file)
    network, revision = network_of(args)
    overlap = Overlap(dp=args.dp_overlap, tp=args.tp_overlap, ep=args.ep_overlap, pp=args.pp_overlap)
    check_header(file, revision, args)
    report = price(
        file.executed,
        network,
        revision=revision,
        world_size=args.gpus,
        gpus_per_server=args.gpus_per_server,
        overlap=overlap,
        strict=args.strict_compat,
    )
    told = missing(report, network, revision=revision, overlap=overlap)
    for text in told:
        print(f"dse: {args.file}: {text}", file=sys.stderr)
    write(args, report, revision, told)
    return 0


def network_of(args: argparse.Namespace) -> tuple[Busbw | Links, str]:
    """The bandwidths that the arguments give, and the revision that takes them."""
    from costmodel.errors import DseError
    from costmodel.profiles.simai import REVISIONS, Links
    from costmodel.profiles.simai.bandwidth import GPU_TYPES, NIC_TYPES
    from costmodel.profiles.simai.files.busbw import load_busbw

    revision = args.profile
    if revision == "simai":
        revision = WITH_FILE if args.busbw else WITH_LINKS
    if REVISIONS[revision].bandwidth == "file":
        if not args.busbw:
            raise DseError(f"{revision}: takes its bandwidths from a file; name one with --busbw")
        return load_busbw(args.busbw), revision
    if args.busbw:
        raise DseError(f"{revision}: takes no --busbw any more; leave it out, or take --profile {WITH_FILE}")
    if args.nvlink_bandwidth is None and args.gpu_type is None:
        raise DseError(f"{revision}: name the GPU with --gpu-type, or say its --nvlink-bandwidth")
    links = Links.of(
        gpus_per_server=args.gpus_per_server,
        nics_per_server=args.nics_per_server or args.gpus_per_server,
        nvlink_bandwidth=args.nvlink_bandwidth or GPU_TYPES[args.gpu_type] * 2.0**30,
        nic_bandwidth=args.nic_bandwidth or NIC_TYPES[args.nic_type] * 2.0**30,
    )
    return links, revision


def check_header(file: WorkloadFile, revision: str, args: argparse.Namespace) -> None:
    """Refuse a header that the revision cannot read; note GPUs that are not those of the file."""
    from costmodel.errors import DseError
    from costmodel.profiles.simai.files.aicb import GPUS, REQUIRED

    lacking = [token for token in REQUIRED[revision] if token not in file.tokens]
    if lacking:
        raise DseError(f"{args.file}:1: {', '.join(lacking)}: missing; {revision} needs them")
    if args.gpus is None and GPUS not in file.tokens:
        raise DseError(f"{args.file}:1: {GPUS}: missing; say how many there are with --gpus")
    written = file.tokens.get(GPUS)
    if args.gpus is not None and written is not None and int(float(written)) != args.gpus:
        print(f"dse: {args.file}:1: {GPUS}: {written} there, and {args.gpus} counted", file=sys.stderr)


def write(args: argparse.Namespace, report: Report, revision: str, told: list[str]) -> None:
    """The report, as a person, a program or SimAI's own tools read it."""
    if args.format == "csv":
        from costmodel.profiles.simai.files.endtoend import endtoend_csv

        sys.stdout.write(endtoend_csv(report, args.file.stem, revision=revision))
        return
    from dse.report.simai_report import simai_record, simai_report

    if args.format == "json":
        from dse.export.tables import json_text

        head: dict[str, Any] = {
            "file": str(args.file),
            "profile": revision,
            "gpus": int(report.world_size[0]),
        }
        print(json_text({**head, "missing": told, **simai_record(report, strict=args.strict_compat)}))
        return
    from dse.report.text import show

    show(sys.stdout, lambda width: simai_report(report, revision))
