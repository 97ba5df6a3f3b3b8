"""`dse validate`: predictions beside measurements."""

from __future__ import annotations

import argparse
import sys

from dse.cli.chosen import refuse_same
from dse.cli.output import checked_ending
from dse.library.files import validate
from dse.records.tables import json_text, write_file
from dse.records.text import show
from dse.reporting.measurements.validation_report import validation_report
from dse.reporting.pages.validation_page import validation_page
from dse.validation.summary import validation_record


def run(args: argparse.Namespace) -> int:
    """Write predictions beside measurements."""
    refuse_same(args.file, args.out)
    checked_ending(args.out, (".html", ".htm"))
    found = validate(args.file, system=args.system)
    if args.out:
        title = args.file.name if args.file else "published figures"
        write_file(args.out, validation_page(found, title).encode())
    if args.format == "json":
        print(json_text(validation_record(found)))
    else:
        show(sys.stdout, lambda width: validation_report(found, width))
    return int(args.strict and not all(one.expressed for one in found))
