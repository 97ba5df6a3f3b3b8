"""`dse cost --profile simai`: an AICB workload by SimAI's closed forms."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dse.cli.options import positive

if TYPE_CHECKING:
    from costmodel.profiles.simai import Busbw, Links, SimaiReport
    from costmodel.profiles.simai.files.aicb import WorkloadFile
    from costmodel.profiles.simai.workload_rows import StepRows

#: The newest revisions that take a file of bus bandwidths, and the links of a machine.
WITH_FILE, WITH_LINKS = "simai-2024-12", "simai-2025-07"


FORMATS: Final = ("table", "json", "csv")

#: Options of these files alone, and what they are unless given.
DEFAULTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("gpus", "busbw", "gpu_type", "nvlink_bandwidth", "nics_per_server", "nic_bandwidth")),
    "gpus_per_server": 8,
    "nic_type": "cx7",
    "strict_compat": False,
    "dp_overlap": 0.0,
    "tp_overlap": 0.0,
    "ep_overlap": 0.0,
    "pp_overlap": 1.0,
}

#: The GPU of a workload for which none is named.
USUAL_GPU: Final = "H100"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What these profiles take beside the file."""
    group = parser.add_argument_group("simai", "the machine of an AICB workload, and how it is priced")
    option = partial(group.add_argument, default=argparse.SUPPRESS)
    option("--gpus", metavar="N", type=positive, help="GPUs of the run (default: the file's)")
    option("--gpus-per-server", metavar="N", type=positive, help="default: 8")
    option("--busbw", metavar="FILE", type=Path, help="bus bandwidths; else they follow from:")
    option(
        "--gpu-type",
        metavar="NAME",
        type=gpu_type,
        help=f"A100, A800, H100, H800 or H20: gives the NVLink bandwidth (default: {USUAL_GPU})",
    )
    option("--nvlink-bandwidth", metavar="X", type=bandwidth, help="of a GPU: 360 (GiB/s), 386GB/s")
    option("--nics-per-server", metavar="N", type=positive, help="default: one per GPU")
    option(
        "--nic-type",
        metavar="NAME",
        type=nic_type,
        help="cx6, cx7 or bf3: gives its bandwidth (default: cx7)",
    )
    option("--nic-bandwidth", metavar="X", type=bandwidth, help="of a NIC: 48.5 (GiB/s), 50GB/s")
    for name, what in (
        ("dp", "data-parallel communication"),
        ("tp", "tensor-parallel communication"),
        ("ep", "communication among experts"),
        ("pp", "messages between stages"),
    ):
        option(
            f"--{name}-overlap",
            metavar="X",
            type=share,
            help=f"hidden share of {what} (default: {DEFAULTS[f'{name}_overlap']:g})",
        )
    option(
        "--strict-compat",
        action="store_true",
        help="where SimAI overflows or divides by zero, show its value",
    )


def gpu_type(text: str) -> str:
    """A GPU that SimAI knows."""
    from costmodel.profiles.simai.bandwidth import GPU_TYPES

    return known(text, GPU_TYPES)


def nic_type(text: str) -> str:
    """A NIC that SimAI knows."""
    from costmodel.profiles.simai.bandwidth import NIC_TYPES

    return known(text, NIC_TYPES)


def known(text: str, names: Iterable[str]) -> str:
    """One of some names."""
    from costmodel.errors import suggestion

    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is not one{suggestion(text, names)}")
    return text


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
    """Read, evaluate, write."""
    from costmodel.profiles.simai import Overlap, missing, price
    from costmodel.profiles.simai.files.aicb import load_workload

    file = load_workload(args.file)
    network, revision = network_of(args)
    overlap = Overlap(dp=args.dp_overlap, tp=args.tp_overlap, ep=args.ep_overlap, pp=args.pp_overlap)
    check_header(file, revision, args)
    report = price(
        usual_chunks(file, args),
        network,
        revision=revision,
        world_size=args.gpus,
        gpus_per_server=args.gpus_per_server,
        overlap=overlap,
        strict=args.strict_compat,
    )
    lacking = missing(report, network, revision=revision, overlap=overlap)
    for text in lacking:
        print(f"dse: {args.file}: {text}", file=sys.stderr)
    write(args, report, revision, lacking)
    return 0


def usual_chunks(file: WorkloadFile, args: argparse.Namespace) -> StepRows:
    """The rows to price; without vpp in the header one chunk a stage, unless a revision is asked for.

    SimAI leaves the number of chunks undefined there, and so its bubble.
    """
    import numpy as np

    from costmodel.profiles.simai.files.aicb import VPP

    rows = file.executed
    if args.profile_is_asked_for or VPP in file.tokens:
        return rows
    print(f"dse: {args.file}: header: {VPP}: missing, so taken to be 1", file=sys.stderr)
    return replace(rows, layout=replace(rows.layout, vpp=np.ones_like(rows.layout.pp)))


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
    gpu = args.gpu_type or USUAL_GPU
    if args.nvlink_bandwidth is None and args.gpu_type is None:
        print(f"dse: {args.file}: no --gpu-type named, so priced on {gpu}s", file=sys.stderr)
    links = Links.of(
        gpus_per_server=args.gpus_per_server,
        nics_per_server=args.nics_per_server or args.gpus_per_server,
        nvlink_bandwidth=args.nvlink_bandwidth or GPU_TYPES[gpu] * 2.0**30,
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


def write(args: argparse.Namespace, report: SimaiReport, revision: str, lacking: list[str]) -> None:
    """The report, as a person, a program or SimAI's own tools read it."""
    if args.format == "csv":
        from costmodel.profiles.simai.files.endtoend import endtoend_csv

        sys.stdout.write(endtoend_csv(report, args.file.stem, revision=revision))
        return
    from dse.reporting.programs.simai_report import simai_record, simai_report

    if args.format == "json":
        from dse.records.tables import json_text

        head: dict[str, Any] = {
            "file": str(args.file),
            "profile": revision,
            "gpus": int(report.world_size[0]),
        }
        print(json_text({**head, "missing": lacking, **simai_record(report, strict=args.strict_compat)}))
        return
    from dse.records.text import show

    show(sys.stdout, lambda width: simai_report(report, revision))
