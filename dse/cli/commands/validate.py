"""`dse validate`: compare predictions with measurements."""

from __future__ import annotations

import argparse

from dse.api.files import validate, validate_kernels
from dse.cli.options import refuse_same
from dse.cli.output import checked_ending, write_answer
from dse.cli.terminal import say
from dse.output import write_file
from dse.registry import measurement_reader
from dse.reporting.measurements.validation_report import pairs_report, validation_report
from dse.reporting.pages.validation_page import validation_page
from dse.validation.pairs import compared_pairs, pairs_record
from dse.validation.summary import validation_record
from dse.validation.table import unread_columns


def run(args: argparse.Namespace) -> int:
    """Compare predictions with measurements; of pairs of runs, the predicted effects with the measured ones."""
    if args.pairs:
        pairs = compared_pairs(args.pairs)
        write_answer(args.format, pairs_record(pairs), lambda width: pairs_report(pairs, width))
        return int(args.strict and any(pair.why_not for pair in pairs))
    if args.kernels:
        record = validate_kernels(args.kernels, system=args.system, library=args.library, rows=args.rows)
        write_answer(args.format, record, lambda width: measurement_reader("kernel_report")(record, width))
        return 0
    refuse_same(args.file, args.out)
    checked_ending(args.out, (".html", ".htm"))
    compared_rows = validate(args.file, system=args.system)
    if args.file and (unread := unread_columns(args.file)):
        say(f"{args.file}: not read: {', '.join(unread)}; docs/validation.md lists the columns")
    if args.out:
        title = args.file.name if args.file else "published figures"
        write_file(args.out, validation_page(compared_rows, title).encode())
    write_answer(args.format, validation_record(compared_rows), lambda width: validation_report(compared_rows, width))
    return int(args.strict and not all(one.expressed for one in compared_rows))
