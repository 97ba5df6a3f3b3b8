"""Options of `dse evaluate` for AICB workloads."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from costmodel.errors import suggestion
from costmodel.formats.quantity import plain_number, si_value
from dse.adapters.simai import ADAPTER
from dse.cli.options import bounded, positive
from dse.registry import WorkloadKind

[KIND] = (kind for kind in ADAPTER.files if isinstance(kind, WorkloadKind))
#: The GPU of a workload for which none is named.
USUAL_GPU = "H100"


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
    from dse.adapters.simai.bandwidth import GPU_TYPES

    return known(text, GPU_TYPES)


def nic_type(text: str) -> str:
    """A NIC of SimAI."""
    from dse.adapters.simai.bandwidth import NIC_TYPES

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
