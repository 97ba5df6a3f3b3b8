"""`dse report`: a study as one HTML page, or its Pareto front as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from dse.api.study import Study
from dse.cli.options import add_storage, add_study, describe
from dse.cli.output import PICTURES, checked_ending


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse report`."""
    describe(
        parser,
        about="Write a study as one HTML page that needs no network. It begins with the answer: step time, memory,\n"
        "cost, layout and launch files. Each design of the front opens by click, key or address (#trial=17)\n"
        "and shows its time and memory in parts, its kernels and the designs near it. A FILE.svg, .png or .pdf\n"
        "is a picture of the front.",
        examples=["dse report gpt3_175b_1024_a100", "dse report gpt3_175b_1024_a100 -o front.svg"],
    )
    add_study(parser)
    parser.add_argument(
        "-o",
        dest="out",
        metavar="FILE",
        type=Path,
        help="page (.html) or picture (.svg, .png, .pdf) to write (default: STUDY.html)",
    )
    add_storage(parser.add_argument_group("advanced"))


def run(args: argparse.Namespace) -> int:
    """Write a study as one page."""
    checked_ending(args.out, (".html", *PICTURES))
    print(Study.load(args.study, storage=args.storage).report(args.out))
    return 0
