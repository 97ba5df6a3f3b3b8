"""`dse validate`: predictions beside measurements."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli.options import Commands, command, refuse_same
from dse.cli.output import checked_ending


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "validate",
        run,
        summary="compare predictions with measurements",
        about="Price measured runs, layers, memory and kernels, and say how far off the predictions are:\n"
        "errors of each data set, the order of layouts, and which rows cannot be priced and why.\n"
        "Without a file, the published figures that ship. docs/validation.md lists the columns.",
        examples=[
            "dse validate",
            "dse validate measured.csv -o report.html",
            "dse validate mine.csv --system my_cluster.yaml --format json | jq .datasets",
        ],
    )
    parser.add_argument(
        "file",
        metavar="MEASUREMENTS.csv",
        nargs="?",
        type=Path,
        help="a row for each run, layer or kernel (default: the figures that ship, each with its source)",
    )
    parser.add_argument(
        "--system",
        metavar="SYSTEM",
        help="price all rows on this machine: name of a shipped one (`dse systems`), or a YAML file "
        "(default: the one that a row's column hw names)",
    )
    parser.add_argument(
        "--format",
        choices=["text", "json"],
        default="text",
        help="tables to read, or one JSON object with every row (default: text)",
    )
    parser.add_argument(
        "-o",
        dest="out",
        metavar="FILE",
        type=Path,
        help="write a page too, such as report.html: pictures, tables, every row",
    )


def run(args: argparse.Namespace) -> int:
    """Read, price, write."""
    refuse_same(args.file, args.out)
    checked_ending(args.out, (".html", ".htm"))
    from dse.validation.comparison import compared
    from dse.validation.table import SHIPPED, read_table

    rows = [row for path in ([args.file] if args.file else SHIPPED) for row in read_table(path)]
    found = compared(rows, args.system)
    if args.out:
        from dse.records.tables import write_file
        from dse.reporting.pages.validation_page import validation_page

        title = args.file.name if args.file else "published figures"
        write_file(args.out, validation_page(found, title).encode())
    if args.format == "json":
        from dse.records.tables import json_text
        from dse.validation.summary import validation_record

        print(json_text(validation_record(found)))
    else:
        from dse.records.text import show
        from dse.reporting.measurements.validation_report import validation_report

        show(sys.stdout, lambda width: validation_report(found, width))
    return 0
