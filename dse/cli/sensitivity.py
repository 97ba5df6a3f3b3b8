"""`dse sensitivity`: how much a step follows each parameter and each quantity of the hardware."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli.explain import named_design
from dse.cli.options import Commands, add_changes, add_profile, add_storage, command, natural


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "sensitivity",
        run,
        summary="say which parameters and quantities a design's step follows",
        about="Take each parameter of a design one step up and down, and each quantity of its machine a\n"
        "hundredth up and down, and say what that does to the step time: a tornado of bars. An elasticity\n"
        "is the percentage of step time that one per cent more of a quantity adds.",
        examples=[
            "dse sensitivity gpt3_175b_1024_a100 --trial 12",
            "dse sensitivity gpt3_175b_1024_a100 -o tornado.svg",
            "dse sensitivity llama3_70b_512_h100 --set tp=4 --format json | jq .elasticities",
        ],
    )
    parser.add_argument("study", metavar="STUDY", help="name of a study; with --set or --layout, a space")
    parser.add_argument(
        "--trial", metavar="N", type=natural, help="which trial (default: the best of the first objective)"
    )
    parser.add_argument("--all", action="store_true", help="every parameter and quantity")
    parser.add_argument("--format", choices=["table", "json", "csv"], default="table", help="default: table")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write there, not to stdout: a picture if FILE ends in .svg",
    )
    add_changes(parser)
    add_profile(parser, " (of a study: the study's own)")
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Sweep."""
    from dse.explain.sensitivity import sensitivity
    from dse.export.tables import json_text, write_file
    from dse.report.sensitivity_report import sensitivity_report, table_text, tornado_svg
    from dse.report.text import PLAIN_WIDTH, plain_text, show

    found = sensitivity(named_design(args))
    if args.output and args.output.suffix == ".svg":
        write_file(args.output, tornado_svg(found).encode())
        return 0
    text = ""
    if args.format == "json":
        text = json_text(found.to_json()) + "\n"
    elif args.format == "csv":
        text = table_text(found)
    elif args.output:
        text = plain_text(sensitivity_report(found, everything=args.all), PLAIN_WIDTH)
    else:
        show(sys.stdout, lambda _: sensitivity_report(found, everything=args.all))
        return 0
    if args.output:
        write_file(args.output, text.encode())
    else:
        sys.stdout.write(text)
    return 0
