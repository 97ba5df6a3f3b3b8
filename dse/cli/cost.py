"""`dse cost`: price a workload file by the rules of a reference model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli.options import Commands, command

#: Rules that a file can be priced by, the default first.
PROFILES = ("deepflow",)


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "cost",
        run,
        summary="price a workload file",
        about="Price a workload file by the rules of a reference model: where the time and the memory go.",
        examples=[
            "dse cost lstm.yaml --profile deepflow",
            "dse cost lstm.yaml --profile deepflow --format json | jq .figures.Time",
        ],
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a DeepFlow configuration (docs/deepflow.md)")
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default=PROFILES[0],
        help=f"reference model whose rules price the file (default: {PROFILES[0]})",
    )
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="a report to read, or one JSON object (default: table)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, price, write."""
    from costmodel.formats.deepflow import load_configuration
    from costmodel.profiles.deepflow import price

    report = price(load_configuration(args.file))
    if args.format == "json":
        from dse.deepflow_report import figures
        from dse.export import json_text

        print(json_text({"file": str(args.file), "profile": args.profile, "figures": figures(report)}))
        return 0
    from dse.deepflow_report import deepflow_report
    from dse.text import show

    show(sys.stdout, lambda width: deepflow_report(report))
    return 0
