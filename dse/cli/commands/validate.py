"""`dse validate`: compare predictions with measurements."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from costmodel.errors import DseError
from dse.api.files import validate
from dse.cli.options import describe, refuse_same
from dse.cli.output import checked_ending
from dse.output import json_text, show, write_file
from dse.reporting.measurements.validation_report import pairs_report, validation_report
from dse.reporting.pages.validation_page import validation_page
from dse.validation.pairs import PUBLISHED, compared_pairs, pairs_record
from dse.validation.summary import validation_record


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse validate`."""
    describe(
        parser,
        about="Compare predictions with measured runs, layers, memory and kernels: errors of each data set,\n"
        "the order of layouts, and the rows that cannot be evaluated, with the reason. Without a file, the\n"
        "published measurements that come with dse. docs/validation.md lists the columns.",
        examples=[
            "dse validate",
            "dse validate measured.csv -o report.html",
            "dse validate --page accuracy.html",
            "dse validate --pairs",
            "dse validate mine.csv --system my_cluster.yaml --format json | jq .datasets",
        ],
    )
    parser.add_argument(
        "file",
        metavar="MEASUREMENTS.csv",
        nargs="?",
        type=Path,
        help="one row for each run, layer or kernel (default: the built-in measurements with their sources)",
    )
    parser.add_argument(
        "--pairs", metavar="PAIRS.csv", nargs="?", const=PUBLISHED, type=Path,
        help="instead, compare effects: one row for two runs that differ in a setting (default: built-in pairs)",
    )  # fmt: skip
    parser.add_argument(
        "--system",
        metavar="SYSTEM",
        help="system of all rows: built-in (`dse list systems`) or a file (default: the column hw)",
    )
    parser.add_argument(
        "--format", choices=["text", "json"], default="text", help="tables (default), or one JSON object"
    )
    parser.add_argument(
        "-o", "--page", dest="out", metavar="FILE", type=Path,
        help="also write an HTML page, such as accuracy.html, with errors by machine, release and model",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a row cannot be evaluated (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Compare predictions with measurements."""
    if args.pairs:
        return show_pairs(args)
    refuse_same(args.file, args.out)
    checked_ending(args.out, (".html", ".htm"))
    compared_rows = validate(args.file, system=args.system)
    if args.out:
        title = args.file.name if args.file else "published figures"
        write_file(args.out, validation_page(compared_rows, title).encode())
    if args.format == "json":
        print(json_text(validation_record(compared_rows)))
    else:
        show(sys.stdout, lambda width: validation_report(compared_rows, width))
    return int(args.strict and not all(one.expressed for one in compared_rows))


def show_pairs(args: argparse.Namespace) -> int:
    """Compare predicted effects with measured ones."""
    for option, value in (("MEASUREMENTS.csv", args.file), ("--system", args.system), ("-o", args.out)):
        if value:
            raise DseError(f"dse validate --pairs: leave out {option}")
    pairs = compared_pairs(args.pairs)
    if args.format == "json":
        print(json_text(pairs_record(pairs)))
    else:
        show(sys.stdout, lambda width: pairs_report(pairs, width))
    return int(args.strict and any(pair.why_not for pair in pairs))
