"""AICB workloads in `dse evaluate`: options, the command, and the JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from costmodel.errors import suggestion
from costmodel.formats.quantity import plain_number, si_value
from dse.adapters.simai import ADAPTER
from dse.adapters.simai.bandwidth import GPU_TYPES, NIC_TYPES
from dse.adapters.simai.cost import USUAL_GPU, simai_cost
from dse.adapters.simai.files.endtoend import endtoend_csv
from dse.adapters.simai.report import simai_report
from dse.cli.options import bounded, positive
from dse.cli.terminal import say
from dse.output.tables import json_text
from dse.output.text import show
from dse.registry import WorkloadKind

[KIND] = (kind for kind in ADAPTER.files if isinstance(kind, WorkloadKind))


def run(args: argparse.Namespace) -> int:
    """Evaluate an AICB workload by SimAI's closed forms."""
    cost = simai_cost(
        args.design,
        profile=args.profile,
        asked=args.profile_is_asked_for,
        note=say,
        **{name: getattr(args, name) for name in KIND.defaults},
    )
    if args.format == "csv":
        sys.stdout.write(endtoend_csv(cost.report, args.design.stem, revision=cost.revision))
    elif args.format == "json":
        print(json_text(cost.to_json()))
    else:
        show(sys.stdout, lambda width: simai_report(cost.report, cost.revision))
    return 0


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a workload; `options` are keyword arguments of `simai_cost`."""
    return simai_cost(path, profile=profile, asked=asked, note=note, **options).to_json()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of AICB workloads."""
    group = parser.add_argument_group("AICB workloads (SimAI)")
    option = group.add_argument
    option("--gpus-per-server", metavar="N", type=positive, help="GPUs of a server (default: 8)")
    option("--busbw", metavar="FILE", type=Path, help="file of bus bandwidths; without it they follow from:")
    option(
        "--gpu-type",
        metavar="NAME",
        type=gpu_type,
        help=f"A100, A800, H100, H800 or H20; sets the NVLink bandwidth (default: {USUAL_GPU})",
    )
    option("--nvlink-bandwidth", metavar="X", type=bandwidth, help="NVLink bandwidth of a GPU: 360 (GiB/s), 386GB/s")
    option("--nics-per-server", metavar="N", type=positive, help="NICs of a server (default: one per GPU)")
    option("--nic-type", metavar="NAME", type=nic_type, help="cx6, cx7 or bf3; sets the NIC bandwidth (default: cx7)")
    option("--nic-bandwidth", metavar="X", type=bandwidth, help="bandwidth of a NIC: 48.5 (GiB/s), 50GB/s")
    add_overlaps(group)


def add_overlaps(group: argparse._ActionsContainer) -> None:
    """Add the overlapped shares of communication, and SimAI's arithmetic."""
    option = group.add_argument
    for name, what in (
        ("dp", "data-parallel communication"),
        ("tp", "tensor-parallel communication"),
        ("ep", "expert-parallel communication"),
        ("pp", "pipeline communication"),
    ):
        option(
            f"--{name}-overlap",
            metavar="X",
            type=partial(bounded, 0, 1, "a share from 0 to 1"),
            help=f"overlapped share of {what} (default: {KIND.defaults[f'{name}_overlap']:g})",
        )
    option(
        "--strict-compat", action="store_true", help="print the values of SimAI where it overflows or divides by zero"
    )


def gpu_type(text: str) -> str:
    """A GPU of SimAI."""
    return known(text, GPU_TYPES)


def nic_type(text: str) -> str:
    """A NIC of SimAI."""
    return known(text, NIC_TYPES)


def known(text: str, names: Iterable[str]) -> str:
    """One of some names."""
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is not one{suggestion(text, names)}")
    return text


def bandwidth(text: str) -> float:
    """A bandwidth [B/s]; a bare number is in GiB/s, as in SimAI."""
    try:
        value = plain_number(text) * 2.0**30
    except ValueError:
        try:
            value = si_value(text, "B/s")
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a bandwidth above 0")
    return value
