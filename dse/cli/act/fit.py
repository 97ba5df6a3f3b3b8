"""`dse fit`: the nearest design that works to one that may not."""

from __future__ import annotations

import argparse
import sys

from rich.text import Text

from dse.cli.chosen import changes_of
from dse.library.designs import fit
from dse.records.tables import json_text
from dse.records.text import show
from dse.reporting.study_report import evaluation_report


def run(args: argparse.Namespace) -> int:
    """Find the design, and price it."""
    found = fit(args.space, profile=args.profile, **changes_of(args))
    if args.format == "json":
        print(json_text(found.to_json()))
        return 0
    report = [Text(str(found)), Text()]
    show(sys.stdout, lambda width: [*report, *evaluation_report(found.space, found.record, width)])
    return 0
