"""`dse cost`: price a workload file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli import cost_dfmodel, cost_hlo, cost_simai
from dse.cli.options import Commands, command
from dse.pricing.profiles import DFMODEL, NATIVE

#: Rules that a file can be priced by, the first being the default where the file does not tell.
PROFILES = ("deepflow", *cost_simai.PROFILES, *DFMODEL, NATIVE)

#: Kind of file -> options that are for it alone, by their names in the namespace.
HLO, AICB, SETUP, DEEPFLOW = (
    "an HLO module",
    "an AICB workload",
    "a DFModel set-up",
    "a DeepFlow configuration",
)
OPTIONS = {HLO: cost_hlo.OPTIONS, AICB: cost_simai.OPTIONS, SETUP: cost_dfmodel.OPTIONS, DEEPFLOW: ()}

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
    names = [name for own in OPTIONS.values() for name in own]
    parser.set_defaults(unasked={name: parser.get_default(name) for name in names})


def run(args: argparse.Namespace) -> int:
    """Read, price, write."""
    from costmodel.errors import DseError
    from costmodel.hlo import is_hlo

    if is_hlo(args.file):
        only_own_options(args, HLO)
        return cost_hlo.run(args)
    for asked, taken in (
        (f"--profile {NATIVE}", args.profile == NATIVE),
        (f"--format {args.format}", args.format in ("trace", "dfmodel")),
    ):
        if taken:
            raise DseError(f"{args.file}: {asked} is for HLO modules, and this is none; leave it out")
    dfmodel = args.profile if args.profile else cost_dfmodel.told_profile(args.file)
    if dfmodel in DFMODEL:
        only_own_options(args, SETUP)
        return cost_dfmodel.run(args, dfmodel)
    if args.format in ("dot", "svg"):
        raise DseError(f"{args.file}: has no graph to draw; DFModel set-ups and HLO modules have")
    if args.profile in cost_simai.PROFILES:
        only_own_options(args, AICB)
        return cost_simai.run(args)
    only_own_options(args, DEEPFLOW)
    return deepflow(args)


def only_own_options(args: argparse.Namespace, kind: str) -> None:
    """Refuse options that are for files of another kind.

    Raises
    ------
    DseError
        Naming them, and what they are for.
    """
    from costmodel.errors import DseError

    for other, names in OPTIONS.items():
        asked = [name for name in names if getattr(args, name) != args.unasked[name]]
        if asked and other != kind:
            words = ", ".join("--" + name.replace("_", "-") for name in asked)
            raise DseError(f"{args.file}: {words}: for {other}, and this is priced as {kind}; leave it out")


def deepflow(args: argparse.Namespace) -> int:
    """Read, price and write a DeepFlow configuration."""
    from costmodel.errors import DseError

    profile = PROFILES[0]
    if args.format == "csv":
        raise DseError(f"{profile}: has no csv; ask for json or table")
    from costmodel.profiles.deepflow import price
    from costmodel.profiles.deepflow.file import load_configuration

    report = price(load_configuration(args.file))
    if args.format == "json":
        from dse.export.tables import json_text
        from dse.report.deepflow_report import figures

        print(json_text({"file": str(args.file), "profile": profile, "figures": figures(report)}))
        return 0
    from dse.report.deepflow_report import deepflow_report
    from dse.report.text import show

    show(sys.stdout, lambda width: deepflow_report(report))
    return 0
