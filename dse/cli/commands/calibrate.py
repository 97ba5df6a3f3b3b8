"""`dse calibrate`: fit the constants of a system to measurements."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.api.files import calibrate
from dse.cli.options import describe, refuse_same
from dse.cli.output import checked_ending, checked_place, write_content, write_result
from dse.output import json_text, show
from dse.reporting.measurements.calibration_report import calibration_record, calibration_report


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse calibrate`."""
    describe(
        parser,
        about="Fit physical constants of a system to measured matrix products, collectives and steps.\n"
        "Constants are added only while they improve the cross-validated error; each gets a standard\n"
        "error. docs/validation.md lists the columns; benchmarks/measure_gpu.py measures them.",
        examples=[
            "dse calibrate mine.csv --system h100 -o my_system.yaml",
            "dse calibrate mine.csv --system a100_80g_dgx --framework nanotron -o my_system.yaml",
            "dse calibrate mine.csv --system my_system.yaml --format json | jq .constants",
        ],
    )
    parser.add_argument(
        "file", metavar="MEASUREMENTS.csv", type=Path, help="one row for each product, collective or step"
    )
    parser.add_argument(
        "--system",
        metavar="SYSTEM",
        required=True,
        help="system to start from: built-in (`dse list systems`) or a file",
    )
    parser.add_argument(
        "--framework", metavar="NAME", help="training framework of steps whose rows name none (`dse list frameworks`)"
    )
    parser.add_argument(
        "--format", choices=["text", "json"], default="text", help="tables (default), or one JSON object"
    )
    parser.add_argument(
        "-o", dest="out", metavar="FILE", type=Path, help="system file to write, such as my_system.yaml"
    )


def run(args: argparse.Namespace) -> int:
    """Fit constants of a system to measurements, and write its file."""
    refuse_same(args.file, args.out)
    checked_ending(args.out, (".yaml", ".yml"))
    checked_place(args.out)
    calibration = calibrate(args.file, system=args.system, framework=args.framework)
    if args.out:
        text = calibration.text.encode()
        write_result(lambda where: write_content([text], "yaml", where), args.out, ".yaml")
    if args.format == "json":
        print(json_text(calibration_record(calibration)))
    else:
        show(sys.stdout, lambda width: calibration_report(calibration, width))
    return 0
