"""`dse validate`: compare predictions with measurements."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from costmodel.errors import DseError
from dse.api.files import validate, validate_kernels
from dse.cli.options import describe, positive, refuse_same
from dse.cli.output import checked_ending, write_answer
from dse.output import write_file
from dse.reporting.measurements.kernel_tables_report import kernel_tables_report
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
            "dse validate --kernels aiconfigurator/data --system h100",
            "dse validate mine.csv --system my_cluster.yaml --format json | jq .datasets",
        ],
    )
    parser.add_argument(
        "file", metavar="MEASUREMENTS.csv", nargs="?", type=Path,
        help="one row for each run, layer or kernel (default: the built-in measurements with their sources)",
    )  # fmt: skip
    parser.add_argument(
        "--pairs", metavar="PAIRS.csv", nargs="?", const=PUBLISHED, type=Path,
        help="instead, compare effects: one row for two runs that differ in a setting (default: built-in pairs)",
    )  # fmt: skip
    add_tables(parser)
    parser.add_argument(
        "--system", metavar="SYSTEM",
        help="system of all rows: built-in (`dse list systems`) or a file (default: the column hw)",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=["text", "json"], default="text", help="tables (default), or one JSON object"
    )
    parser.add_argument(
        "-o", "--page", dest="out", metavar="FILE", type=Path,
        help="also write an HTML page, such as accuracy.html, with errors by machine, release and model",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a row cannot be evaluated (default: 0)")


def add_tables(parser: argparse.ArgumentParser) -> None:
    """Arguments of comparisons with kernel tables."""
    parser.add_argument(
        "--kernels", metavar="DIR", type=Path,
        help="instead, compare kernels of aiconfigurator's Parquet tables below a folder (docs/validation.md)",
    )  # fmt: skip
    parser.add_argument(
        "--library", metavar="NAME", default="",
        help="with --kernels, tables of one library, such as trtllm, and of NCCL (default: of all libraries)",
    )  # fmt: skip
    parser.add_argument(
        "--rows", metavar="N", type=positive, default=2000,
        help="with --kernels, rows of each system and kind, drawn from strata (default: 2000)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Compare predictions with measurements."""
    if args.pairs:
        return show_pairs(args)
    if args.kernels:
        refuse_with("--kernels", {"MEASUREMENTS.csv": args.file, "-o": args.out, "--strict": args.strict})
        record = validate_kernels(args.kernels, system=args.system, library=args.library, rows=args.rows)
        write_answer(args.format, record, lambda width: kernel_tables_report(record, width))
        return 0
    refuse_same(args.file, args.out)
    checked_ending(args.out, (".html", ".htm"))
    compared_rows = validate(args.file, system=args.system)
    if args.out:
        title = args.file.name if args.file else "published figures"
        write_file(args.out, validation_page(compared_rows, title).encode())
    write_answer(args.format, validation_record(compared_rows), lambda width: validation_report(compared_rows, width))
    return int(args.strict and not all(one.expressed for one in compared_rows))


def show_pairs(args: argparse.Namespace) -> int:
    """Compare predicted effects with measured ones."""
    given = {"MEASUREMENTS.csv": args.file, "--system": args.system, "-o": args.out, "--kernels": args.kernels}
    refuse_with("--pairs", given)
    pairs = compared_pairs(args.pairs)
    write_answer(args.format, pairs_record(pairs), lambda width: pairs_report(pairs, width))
    return int(args.strict and any(pair.why_not for pair in pairs))


def refuse_with(option: str, others: Mapping[str, object]) -> None:
    """Refuse options that have no meaning beside one that asks for another comparison."""
    for other, value in others.items():
        if value:
            raise DseError(f"dse validate {option}: leave out {other}")
