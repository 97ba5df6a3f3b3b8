"""`dse cost`: price a workload file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli import cost_dfmodel, cost_hlo, cost_simai
from dse.cli.options import Commands, command
from dse.profiles import DFMODEL, NATIVE

#: Rules that a file can be priced by, the first being the default where the file does not tell.
PROFILES = ("deepflow", *cost_simai.PROFILES, *DFMODEL, NATIVE)

#: What the help shows.
EXAMPLES = [
    "dse cost step.hlo --system a100_80g_dgx",
    "dse cost step.hlo.gz --format json | jq .figures",
    "dse cost step.hlo --system h100_80g_dgx --format trace > step.json",
    "dse cost lstm.yaml --profile deepflow",
    "dse cost lstm.yaml --profile deepflow --format json | jq .figures.Time",
    "dse cost workload.txt --profile simai --gpus 1024 --gpu-type H100 --nic-type cx7",
    "dse cost workload.txt --profile simai-2024-12 --busbw busbw.yaml --gpus 1024 --format csv",
    "dse cost setup.txt --profile dfmodel-gen1 --format json | jq .final_s",
    "dse cost setup.txt --resolve --prefer gpt_1t",
    "dse cost setup.txt --format svg > layer.svg",
    "dse cost step.hlo --format dfmodel > graph.txt",
    "dse cost setup.txt --groups 40 --tile-size best",
]


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "cost",
        run,
        summary="price a workload file",
        about="Price a workload file: where the time and the memory go. An HLO module is known by its\n"
        "content and priced by the native model, other files by the rules of a reference model.",
        examples=EXAMPLES,
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
        choices=PROFILES,
        help=f"whose rules price the file (default: {NATIVE} for HLO, DFModel's by their generation, "
        f"else {PROFILES[0]})",
    )
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv", "trace", "dfmodel", "dot", "svg"],
        default="table",
        help="a report to read, one JSON object, SimAI's EndToEnd.csv, of an HLO module a timeline for "
        "Chrome's trace viewer or its graph for DFModel, or a picture of the graph of either; svg needs "
        "Graphviz (default: table)",
    )
    cost_hlo.add_options(parser)
    cost_simai.add_options(parser)
    cost_dfmodel.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read, price, write."""
    from costmodel.errors import DseError
    from costmodel.formats.hlo import is_hlo

    if is_hlo(args.file):
        return cost_hlo.run(args)
    if args.profile == NATIVE or args.system or args.format in ("trace", "dfmodel"):
        raise DseError(f"{args.file}: not an HLO module; --system, trace and dfmodel are for those")
    dfmodel = args.profile if args.profile else cost_dfmodel.told_profile(args.file)
    if dfmodel in DFMODEL:
        return cost_dfmodel.run(args, dfmodel)
    if args.format in ("dot", "svg"):
        raise DseError(f"{args.file}: has no graph to draw; DFModel set-ups and HLO modules have")
    if cost_dfmodel.asked(args):
        raise DseError(
            f"{args.file}: not a DFModel set-up; --resolve, --prefer, --groups and --tile-size are for those"
        )
    if args.profile in cost_simai.PROFILES:
        return cost_simai.run(args)
    profile = PROFILES[0]
    if args.format == "csv":
        raise DseError(f"{profile}: has no csv; ask for json or table")
    from costmodel.formats.deepflow import load_configuration
    from costmodel.profiles.deepflow import price

    report = price(load_configuration(args.file))
    if args.format == "json":
        from dse.deepflow_report import figures
        from dse.export import json_text

        print(json_text({"file": str(args.file), "profile": profile, "figures": figures(report)}))
        return 0
    from dse.deepflow_report import deepflow_report
    from dse.text import show

    show(sys.stdout, lambda width: deepflow_report(report))
    return 0
