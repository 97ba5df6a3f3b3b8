"""Arguments of the commands that use designs and files: evaluate, fit, export, cost, import."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from costmodel.errors import suggestion
from costmodel.formats.quantity import plain_number, si_value
from costmodel.profiles.registry import PROFILES
from dse.cli.options import (
    EXPORTED,
    add_format,
    add_profile,
    add_space,
    add_storage,
    add_study,
    add_trial,
    add_workers,
    bounded,
    describe,
    exported,
    natural,
    positive,
)


def evaluate(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse evaluate`."""
    describe(
        parser,
        about="Price one legal design of a space, named by --set: what a step costs, and what binds it.\n"
        "Or price many: every combination of values (--sweep), or the rows of a file (--designs).\n"
        "Parameters that are not named take the simplest value that is legal beside the others, or with\n"
        "--best those of the best design that keeps all limits.\n"
        "Or the run of a launch file, on any system: model, layout and chips are read from it.",
        examples=[
            "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set pp=16 --best",
            "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set pp=16 --set sequence_parallel=true",
            "dse evaluate --from-megatron train.sh --system h100_80g_dgx",
            *EXAMPLES,
        ],
    )
    add_space(parser, optional=True)
    add_launch_files(parser)
    parser.add_argument(
        "--best", action="store_true", help="choose what is not named for the best feasible design"
    )
    add_profile(parser)
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv", "parquet"],
        help="a report to read, one JSON object, or a table with a row for each design (default: what the "
        "ending of FILE says, else table)",
    )
    add_sweeps(parser)


EXAMPLES: Final = (
    "dse evaluate gpt3_175b_1024_a100 --set tp=8 --sweep pp=8,16,32 --sweep micro_batch_size=1,2,4",
    "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set recompute=full --sweep pp -o sweep.svg",
    "dse evaluate gpt_1t_codesign --designs designs.csv -o priced.parquet --jobs 4",
)


def add_sweeps(parser: argparse.ArgumentParser) -> None:
    """``--sweep``, ``--designs``, ``-o`` and who prices."""
    parser.add_argument(
        "--sweep",
        metavar="NAME=VALUES",
        action="append",
        default=[],
        type=sweep,
        help="price the design at each of some values: 1,2,4 or 64:512:64 or 64:1024:x2, with units where "
        "there are any; NAME alone takes all options; repeatable: every combination",
    )
    parser.add_argument(
        "--designs",
        metavar="FILE",
        type=Path,
        help="price the designs of a CSV or Parquet file, one a row, in columns named as parameters",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write there, not to stdout; FILE.svg is a picture of a sweep",
    )
    add_workers(parser)


def sweep(text: str) -> tuple[str, str]:
    """``tp=1,2`` -> ``("tp", "1,2")``; ``tp`` -> ``("tp", "")``: all options."""
    name, equals, values = (part.strip() for part in text.partition("="))
    if not name or bool(equals) != bool(values):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUES, such as tp=1,2,4")
    return name, values


_HELP: Final = {
    "from_megatron": "the run of a shell script of Megatron-LM, or of its flags alone",
    "from_nemo": "the run of a YAML configuration of NeMo's Megatron-Bridge",
    "from_torchtitan": "the run of a configuration of torchtitan: FILE.py or FILE.py:FUNCTION",
    "from_maxtext": "the run of a YAML configuration of MaxText",
}


def add_launch_files(parser: argparse.ArgumentParser) -> None:
    """``--from-megatron FILE`` and its kin, with the machine that they run on."""
    for name, text in _HELP.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="FILE", type=Path, help=text)
    parser.add_argument(
        "--system", metavar="NAME", help="machine of a launch file: one of `dse systems`, or a YAML file"
    )
    parser.add_argument(
        "--gpus", metavar="N", type=positive, help="chips of a launch file, where it does not say how many"
    )
    parser.add_argument(
        "--framework", metavar="NAME", default="", help="software of a launch file (default: as it says)"
    )


def fit(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse fit`."""
    describe(
        parser,
        about="Find the legal design nearest to some values that fits in memory and keeps all other limits:\n"
        "as few of them changed as can be, each by as little, and of such designs the best. What is not\n"
        "named is chosen for the best, too. Says what it changed, and why.",
        examples=[
            "dse fit gpt3_175b_1024_a100 --set tp=8 --set pp=4 --set recompute=none",
            "dse fit llama3_70b_512_h100 --set tp=2 --set pp=1 --format json",
        ],
    )
    add_space(parser)
    add_profile(parser)
    add_format(parser)


def export(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse export`."""
    describe(
        parser,
        about="Write a design of a study as a file for another program. Launch files: megatron, nemo\n"
        "(Megatron-Bridge), torchtitan and maxtext. Simulators: aicb is\n"
        "the workload of the slowest stage for SimAI, astra-sim a folder that ASTRA-sim runs, dfmodel the\n"
        "graph of a layer with its sharding and machine. Traces of one step: trace is for Perfetto, chakra\n"
        "is a folder with a file for one rank of each stage.",
        examples=[
            "dse export gpt3_175b_1024_a100 --trial 12 --format aicb -o workload.txt",
            "dse export chips --trial 12 --winner 3       a space with parameters `by: exact`",
            "dse export gpt3_175b_1024_a100 --trial 12 --format trace -o step.json",
            "dse export gpt3_175b_1024_a100 --trial 12 --format megatron -o train.sh",
        ],
    )
    add_study(parser)
    add_trial(parser)
    parser.add_argument(
        "--winner",
        metavar="K",
        type=natural,
        help="which of the designs that the trial has found, as `dse pareto` numbers them (default: 0)",
    )
    parser.add_argument(
        "--workload", metavar="NAME", help="which workload, of a space that has several (docs/runs.md)"
    )
    parser.add_argument(
        "--format", type=exported, choices=EXPORTED, default=EXPORTED[0], help=f"default: {EXPORTED[0]}"
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="write a launch file of a model that the framework cannot train; lists the losses",
    )
    parser.add_argument(
        "-o", "--output", metavar="PATH", type=Path, help="write there (chakra, astra-sim: a folder)"
    )
    add_storage(parser)


@dataclass(frozen=True)
class CostedFile:
    """How files of a kind are priced: by which module, in which forms, and their options unless given."""

    module: str
    formats: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


#: Kind of file that `dse cost` takes -> how it is priced.
COSTS: Final[Mapping[str, CostedFile]] = {
    "hlo": CostedFile(
        "dse.cli.act.cost_hlo",
        ("table", "json", "csv", "parquet", "trace", "dfmodel"),
        {"system": None, "barriers": "barrier", "sweep": None, "output": None},
    ),
    "aicb": CostedFile(
        "dse.cli.act.cost_simai",
        ("table", "json", "csv"),
        {
            **dict.fromkeys(
                ("gpus", "busbw", "gpu_type", "nvlink_bandwidth", "nics_per_server", "nic_bandwidth")
            ),
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
        "dse.cli.act.cost_dfmodel",
        ("table", "json"),
        {"resolve": False, "prefer": None, "groups": None, "tile_size": None},
    ),
    "deepflow": CostedFile("dse.cli.act.cost_deepflow", ("table", "json")),
}


#: What the help of `dse cost` shows.
COST_EXAMPLES = [
    "dse cost step.hlo --system a100_80g_dgx",
    "dse cost step.hlo --sweep",
    "dse cost step.hlo --sweep h100_80g_dgx,tpu_v5p_pod -o systems.csv",
    "dse cost step.hlo --system h100_80g_dgx --format trace > step.json",
    "dse cost lstm.yaml",
    "dse cost workload.txt --gpus 1024 --gpu-type H100 --nic-type cx7",
    "dse cost workload.txt --profile simai-2024-12 --busbw busbw.yaml --gpus 1024 --format csv",
    "dse cost setup.txt --profile dfmodel-gen1 --format json | jq .final_s",
    "dse cost setup.txt --groups 40 --tile-size best",
]


def cost(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse cost`."""
    describe(
        parser,
        about="Price a workload file: where time and memory go. Its content tells what it is: an HLO\n"
        "module is priced by the native model, other files by the rules of a reference model.",
        examples=COST_EXAMPLES,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="an HLO module, perhaps packed by gzip (docs/hlo.md), a DeepFlow configuration "
        "(docs/deepflow.md), an AICB workload (docs/aicb.md), or a DFModel set-up (docs/dfmodel.md)",
    )
    parser.add_argument(
        "--profile",
        choices=[profile.name for profile in PROFILES.values() if profile.file],
        help="whose rules price the file (default: native for HLO, simai for AICB, DFModel's by their "
        "generation)",
    )
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv", "parquet", "trace", "dfmodel"],
        help="a report to read, one JSON object, SimAI's EndToEnd.csv or a row for each system of a --sweep, "
        "of an HLO module a timeline for Chrome's trace viewer or its graph for DFModel, or a picture of the "
        "graph of either; svg needs Graphviz (default: what the ending of OUT says, else table)",
    )
    add_hlo(parser)
    add_simai(parser)
    add_dfmodel(parser)


def add_hlo(parser: argparse.ArgumentParser) -> None:
    """What only an HLO module takes."""
    options = parser.add_argument_group("HLO modules")
    options.add_argument(
        "--system",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="machine that the module runs on: name of a shipped one (`dse systems`), or a YAML file "
        f"(default: {USUAL_SYSTEM})",
    )
    options.add_argument(
        "--sweep",
        metavar="NAMES",
        nargs="?",
        const="",
        default=argparse.SUPPRESS,
        help="the module on each of these systems, names or YAML files apart by commas, one row each; stands "
        "after FILE, and by itself means all that ship",
    )
    options.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        default=argparse.SUPPRESS,
        help="write a --sweep there, not to stdout: .txt, .csv, .json or .parquet",
    )
    options.add_argument(
        "--barriers",
        choices=["barrier", "element"],
        default=argparse.SUPPRESS,
        help="whether arrays that pass a barrier wait for all of them, or for themselves (default: barrier)",
    )


#: The GPU of a workload for which none is named.
USUAL_GPU: Final = "H100"
#: The machine of an HLO module for which none is named.
USUAL_SYSTEM: Final = "a100_80g_dgx"


def add_simai(parser: argparse.ArgumentParser) -> None:
    """What SimAI's profiles take beside the file."""
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
            type=partial(bounded, 0, 1, "a share from 0 to 1"),
            help=f"hidden share of {what} (default: {COSTS['aicb'].defaults[f'{name}_overlap']:g})",
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
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is not one{suggestion(text, names)}")
    return text


def bandwidth(text: str) -> float:
    """A bandwidth in B/s; a number alone is in GiB/s, as SimAI has it."""
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
    """What DFModel's profiles take beside the file."""
    group = parser.add_argument_group(
        "dfmodel", "what to find anew of a DFModel set-up, instead of the file's own"
    )
    group.add_argument(
        "--resolve",
        action="store_true",
        default=argparse.SUPPRESS,
        help="the sharding that moves least; where the file fuses kernels, the fastest groups and tiles too",
    )
    group.add_argument(
        "--prefer",
        choices=PREFERRED,
        default=argparse.SUPPRESS,
        help="among equally good shardings that of a published run; implies a new sharding",
    )
    group.add_argument(
        "--groups",
        metavar="N|alone",
        type=partial(_number_or, "alone"),
        default=argparse.SUPPRESS,
        help="the fastest groups of kernels, at most N of them; or each kernel alone",
    )
    group.add_argument(
        "--tile-size",
        metavar="TOKENS|best",
        type=partial(_number_or, "best"),
        default=argparse.SUPPRESS,
        help="tokens of a tile, or the fastest number of them (default: the file's, or the fastest)",
    )


def _number_or(word: str, text: str) -> int:
    """A number, or 0 for a word."""
    return 0 if text == word else positive(text)


def import_model(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse import`."""
    describe(
        parser,
        about="Write the model that a Hugging Face config.json describes as a model file, which spaces and\n"
        "`dse plan` take. Known are Llama, GPT-2, GPT-NeoX, Mistral, Mixtral, Qwen2 and Qwen3 with their\n"
        "mixtures of experts, Gemma 1 to 3, DeepSeek-V2 and V3, and gpt-oss.",
        examples=[
            "dse import Llama-3.1-405B/config.json -o llama.yaml",
            "dse import config.json --format json | jq .parameters",
        ],
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="a config.json, or the folder of one")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout")
    parser.add_argument(
        "--format",
        choices=["yaml", "json"],
        help="a model file, or one JSON object of its fields and its number of parameters (default: what the "
        "ending of FILE says, else yaml)",
    )
    parser.add_argument(
        "--seq-len",
        metavar="TOKENS",
        type=positive,
        help="length of a training sequence (default: what the model was first trained for, if the file "
        "says it, and 8192 at most)",
    )
