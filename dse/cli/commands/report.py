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
        about="Write a study as one HTML page that needs no network: the Pareto front, its notable designs\n"
        "with their bottlenecks, the parameters, the course of the search, infeasible designs, and the\n"
        "space. A FILE that ends in .svg, .png or .pdf becomes a picture of the front.",
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
