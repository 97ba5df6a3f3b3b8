"""`dse calibrate`: constants of one's own machine."""

from __future__ import annotations

import argparse
import sys

from dse.cli.chosen import refuse_same
from dse.cli.output import checked_ending, checked_place, write_content, write_result
from dse.library.files import calibrate
from dse.records.tables import json_text
from dse.records.text import show
from dse.reporting.measurements.calibration_report import calibration_record, calibration_report


def run(args: argparse.Namespace) -> int:
    """Fit constants of a system to measurements, and write its file."""
    refuse_same(args.file, args.out)
    checked_ending(args.out, (".yaml", ".yml"))
    checked_place(args.out)
    found = calibrate(args.file, system=args.system, framework=args.framework)
    if args.out:
        text = found.text.encode()
        write_result(lambda where: write_content([text], "yaml", where), args.out, ".yaml")
    if args.format == "json":
        print(json_text(calibration_record(found)))
    else:
        show(sys.stdout, lambda width: calibration_report(found, width))
    return 0
