"""`dse sensitivity`: how much a step follows each parameter and each quantity of the hardware."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from dse.cli.options import Commands, add_changes, add_profile, add_storage, add_trial, command
from dse.cli.output import form_of, write_content, write_report
from dse.cli.understand.explain import named_design

#: Ending of a file -> what is written there.
ENDINGS: Final = {".txt": "table", ".csv": "csv", ".json": "json", ".svg": "svg"}


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
    add_trial(parser)
    parser.add_argument("--all", action="store_true", help="every parameter and quantity")
    parser.add_argument(
        "--format", choices=["table", "json", "csv"], help="default: what the ending of FILE says, else table"
    )
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
    from dse.explaining.sensitivity import sensitivity
    from dse.records.tables import json_text
    from dse.reporting.designs.sensitivity_report import sensitivity_report, table_text

    form = form_of(args.format, args.output, ENDINGS)
    found = sensitivity(named_design(args))
    if form == "table":
        write_report(lambda _: sensitivity_report(found, everything=args.all), args.output)
        return 0
    if form == "svg":
        from costmodel.plotting import svg
        from dse.reporting.pictures.tornado import tornado

        text = svg(tornado(found))
    else:
        text = table_text(found) if form == "csv" else json_text(found.to_json()) + "\n"
    write_content([text.encode()], form, args.output)
    return 0
