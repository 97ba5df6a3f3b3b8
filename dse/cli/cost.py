"""`dse cost`: price a workload file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli.options import Commands, command

#: Rules that a file can be priced by.
PROFILES = ("native", "deepflow")


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "cost",
        run,
        summary="price a workload file",
        about="Price a workload file: where the time and the memory go. What a file is shows in its content.",
        examples=[
            "dse cost step.hlo --system a100_80g_dgx",
            "dse cost step.hlo.gz --format json | jq .figures",
            "dse cost step.hlo --system h100_80g_dgx --format trace > step.json",
            "dse cost lstm.yaml --profile deepflow",
            "dse cost lstm.yaml --profile deepflow --format json | jq .figures.Time",
        ],
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="an HLO module as XLA prints it, also packed by gzip (docs/hlo.md), "
        "or a DeepFlow configuration (docs/deepflow.md)",
    )
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        help="whose rules price the file (default: native for HLO, deepflow for its configurations)",
    )
    parser.add_argument(
        "--system",
        metavar="NAME",
        help="machine that an HLO module runs on: name of a shipped one (`dse systems`), or a YAML file",
    )
    parser.add_argument(
        "--barriers",
        choices=["barrier", "element"],
        default="barrier",
        help="whether arrays that pass a barrier of an HLO module wait for all of them, or for themselves",
    )
    parser.add_argument(
        "--format",
        choices=["table", "json", "trace"],
        default="table",
        help="a report to read, one JSON object, or a timeline for Chrome's trace viewer (default: table)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, price, write."""
    from costmodel.errors import DseError
    from costmodel.formats.hlo import is_hlo

    profile, priced = ("native", cost_of_module) if is_hlo(args.file) else ("deepflow", cost_of_configuration)
    if args.profile not in (None, profile):
        raise DseError(f"{args.file}: --profile {args.profile} does not price such a file; {profile} does")
    return priced(args)


def cost_of_module(args: argparse.Namespace) -> int:
    """Price an HLO module."""
    from dse.export import json_text
    from dse.hlo_cost import ModuleCost

    cost = ModuleCost.of(args.file, args.barriers, args.system)
    if args.format == "trace":
        print(json_text(cost.trace()))
        return 0
    record = cost.record()
    if args.format == "json":
        print(json_text(record))
        return 0
    from dse.hlo_report import hlo_report
    from dse.text import show

    show(sys.stdout, lambda width: hlo_report(record, width))
    return 0


def cost_of_configuration(args: argparse.Namespace) -> int:
    """Price a DeepFlow configuration."""
    from costmodel.errors import DseError
    from costmodel.formats.deepflow import load_configuration
    from costmodel.profiles.deepflow import price

    for option, used in (("--system", args.system), ("--format trace", args.format == "trace")):
        if used:
            raise DseError(f"{args.file}: {option} is for HLO modules, and this is none")
    report = price(load_configuration(args.file))
    if args.format == "json":
        from dse.deepflow_report import figures
        from dse.export import json_text

        print(json_text({"file": str(args.file), "profile": "deepflow", "figures": figures(report)}))
        return 0
    from dse.deepflow_report import deepflow_report
    from dse.text import show

    show(sys.stdout, lambda width: deepflow_report(report))
    return 0
