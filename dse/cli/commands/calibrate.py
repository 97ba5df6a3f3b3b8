"""`dse calibrate`: fit the constants of a system to measurements."""

from __future__ import annotations

import argparse

from dse.api.files import calibrate
from dse.cli.options import refuse_same
from dse.cli.output import checked_ending, checked_place, write_answer, write_content, write_result
from dse.reporting.measurements.calibration_report import calibration_record, calibration_report


def run(args: argparse.Namespace) -> int:
    """Fit constants of a system to measurements, and write its file."""
    for path in (args.file, *args.nccl_tests):
        refuse_same(path, args.out)
    checked_ending(args.out, (".yaml", ".yml"))
    checked_place(args.out)
    names = ("system", "framework", "nccl_tests", "tables", "library")
    calibration = calibrate(args.file, **{name: getattr(args, name) for name in names})
    if args.out:
        text = calibration.text.encode()
        write_result(lambda where: write_content([text], "yaml", where), args.out, ".yaml")
    record = calibration_record(calibration)
    write_answer(args.format, record, lambda width: calibration_report(calibration, width))
    return 0
