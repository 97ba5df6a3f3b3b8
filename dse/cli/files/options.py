"""Options that `dse evaluate` has for launch scripts and for files of other programs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from costmodel.errors import suggestion
from costmodel.formats.quantity import plain_number, si_value
from dse.cli.options import add_launch, bounded, positive
from dse.library.design_files import LAUNCHES


def add_launch_files(parser: argparse._ActionsContainer) -> None:
    """Add the system and the framework of a launch script."""
    text = "system of a launch file or an HLO module, such as h100 (`dse list systems`), or a file"
    add_launch(parser, text)
    for form in LAUNCHES:  # earlier spellings: ``--from-megatron FILE``
        parser.add_argument(
            f"--from-{form}", dest="launch", action="append", type=partial(_launch_file, form), help=argparse.SUPPRESS
        )


def _launch_file(form: str, text: str) -> tuple[str, Path]:
    """A launch file of a form."""
    return form, Path(text)


@dataclass(frozen=True)
class CostedFile:
    """The module that evaluates files of a kind, the formats it writes, and the defaults of its options."""

    action: str  #: module and function of `dse.cli.files`
    formats: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


#: Kind of file -> how `dse evaluate` evaluates it.
COSTS: Final[Mapping[str, CostedFile]] = {
    "hlo": CostedFile(
        "hlo:run",
        ("table", "json", "csv", "parquet", "trace", "dfmodel"),
        {"system": None, "barriers": "barrier", "sweep": None, "output": None},
    ),
    "aicb": CostedFile(
        "workloads:aicb",
        ("table", "json", "csv"),
        {
            **dict.fromkeys(("gpus", "busbw", "gpu_type", "nvlink_bandwidth", "nics_per_server", "nic_bandwidth")),
            "gpus_per_server": 8,
            "nic_type": "cx7",
            "strict_compat": False,
            "dp_overlap": 0.0,
            "tp_overlap": 0.0,
            "ep_overlap": 0.0,
            "pp_overlap": 1.0,
        },
    ),
    "dfmodel": CostedFile(
        "workloads:dfmodel", ("table", "json"), {"resolve": False, "prefer": None, "groups": None, "tile_size": None}
    ),
    "deepflow": CostedFile("workloads:deepflow", ("table", "json")),
}


def add_hlo(parser: argparse.ArgumentParser) -> None:
    """Add the options of HLO modules."""
    options = parser.add_argument_group("HLO modules")
    options.add_argument(
        "--barriers",
        choices=["barrier", "element"],
        help="optimization barriers synchronize all operands (barrier, default) or each one (element)",
    )


#: The GPU of a workload for which none is named.
USUAL_GPU: Final = "H100"
#: The machine of an HLO module for which none is named.
USUAL_SYSTEM: Final = "a100_80g_dgx"


def add_simai(parser: argparse.ArgumentParser) -> None:
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
            help=f"overlapped share of {what} (default: {COSTS['aicb'].defaults[f'{name}_overlap']:g})",
        )
    option(
        "--strict-compat", action="store_true", help="print the values of SimAI where it overflows or divides by zero"
    )


def gpu_type(text: str) -> str:
    """A GPU of SimAI."""
    from costmodel.profiles.simai.bandwidth import GPU_TYPES

    return known(text, GPU_TYPES)


def nic_type(text: str) -> str:
    """A NIC of SimAI."""
    from costmodel.profiles.simai.bandwidth import NIC_TYPES

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


#: Choices of published runs that `--prefer` names.
PREFERRED = ("gpt_1t", "megatron", "inference")


def add_dfmodel(parser: argparse.ArgumentParser) -> None:
    """Add the options of DFModel set-ups."""
    group = parser.add_argument_group(
        "DFModel set-ups", "solve parts of the set-up again instead of using the values of the file"
    )
    group.add_argument(
        "--resolve",
        action="store_true",
        help="sharding with the least communication, and the fastest groups and tiles of fused kernels",
    )
    group.add_argument("--prefer", choices=PREFERRED, help="among equally good shardings, take that of a published run")
    group.add_argument(
        "--groups",
        metavar="N|alone",
        type=partial(_number_or, "alone"),
        help="fastest fusion into at most N groups, or each kernel alone",
    )
    group.add_argument(
        "--tile-size",
        metavar="TOKENS|best",
        type=partial(_number_or, "best"),
        help="tokens of a tile, or best: the fastest (default: as in the file, else best)",
    )


def _number_or(word: str, text: str) -> int:
    """A number, or 0 for a word."""
    return 0 if text == word else positive(text)
