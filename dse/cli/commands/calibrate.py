"""`dse calibrate`: fit the constants of a system to measurements."""

from __future__ import annotations

import argparse
from pathlib import Path

from costmodel.errors import DseError
from dse.api.files import calibrate
from dse.cli.options import describe, refuse_same
from dse.cli.output import checked_ending, checked_place, write_answer, write_content, write_result
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
            "dse calibrate --nccl-tests all_reduce.log all_gather.log --system h100 -o my_system.yaml",
            "dse calibrate --tables aiconfigurator/data --system h100 -o my_h100.yaml",
            "dse calibrate mine.csv --system a100_80g_dgx --framework nanotron -o my_system.yaml",
            "dse calibrate mine.csv --system my_system.yaml --format json | jq .constants",
        ],
    )
    parser.add_argument(
        "file", metavar="MEASUREMENTS.csv", type=Path, nargs="?", help="one row for each product, collective or step"
    )
    parser.add_argument(
        "--nccl-tests", metavar="LOG", type=Path, nargs="+", default=[],
        help="output of all_reduce_perf and the like, one test after the other in a file",
    )  # fmt: skip
    parser.add_argument(
        "--tables", metavar="DIR", type=Path,
        help="instead of measurements, fit Parquet tables of aiconfigurator below a folder (docs/calibration.md)",
    )  # fmt: skip
    parser.add_argument("--library", default="trtllm", help="with --tables, library to fit (default: trtllm)")
    parser.add_argument(
        "--system", metavar="SYSTEM", required=True,
        help="system to start from: built-in (`dse list systems`) or a file",
    )  # fmt: skip
    parser.add_argument(
        "--framework", metavar="NAME", help="training framework of steps whose rows name none (`dse list frameworks`)"
    )
    parser.add_argument(
        "--format", choices=["text", "json"], default="text", help="tables (default), or one JSON object"
    )
    parser.add_argument("-o", dest="out", metavar="FILE", type=Path, help="system file to write: my_system.yaml")


def run(args: argparse.Namespace) -> int:
    """Fit constants of a system to measurements, and write its file."""
    if not (args.file or args.nccl_tests or args.tables):
        raise DseError("calibrate needs measurements: MEASUREMENTS.csv, --nccl-tests LOG, or --tables DIR")
    if args.tables and (args.file or args.nccl_tests or args.framework):
        raise DseError("calibrate --tables: leave out MEASUREMENTS.csv, --nccl-tests and --framework")
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
