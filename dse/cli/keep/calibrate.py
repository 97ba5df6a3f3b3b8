"""`dse calibrate`: constants of one's own machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli.options import Commands, command, refuse_same
from dse.cli.output import checked_ending, checked_place, write_content, write_result


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "calibrate",
        run,
        summary="fit the constants of a machine to measurements",
        about="Fit a few physical constants of a system to products, collectives and steps of one machine:\n"
        "as many as predict rows that are held out better, and none that the rows cannot tell apart.\n"
        "Writes a system file in which each says its standard error and the rows that it rests on.\n"
        "docs/validation.md lists the columns; benchmarks/measure_gpu.py fills them.",
        examples=[
            "dse calibrate mine.csv --system h100_80g_dgx -o my_system.yaml",
            "dse calibrate mine.csv --system a100_80g_dgx --framework nanotron -o my_system.yaml",
            "dse calibrate mine.csv --system my_system.yaml --format json | jq .constants",
        ],
    )
    parser.add_argument(
        "file", metavar="MEASUREMENTS.csv", type=Path, help="a row for each product, collective or step"
    )
    parser.add_argument(
        "--system",
        metavar="SYSTEM",
        required=True,
        help="what the machine is like: name of a shipped one (`dse systems`), or a YAML file",
    )
    parser.add_argument(
        "--framework",
        metavar="NAME",
        help="software of steps whose rows name none (`dse frameworks`); also where its constants begin",
    )
    parser.add_argument(
        "--format",
        choices=["text", "json"],
        default="text",
        help="tables, or one JSON object (default: text)",
    )
    parser.add_argument(
        "-o", dest="out", metavar="FILE", type=Path, help="system file to write, such as my_system.yaml"
    )


def run(args: argparse.Namespace) -> int:
    """Read, fit, write."""
    refuse_same(args.file, args.out)
    checked_ending(args.out, (".yaml", ".yml"))
    checked_place(args.out)
    from dse.calibration.calibration import calibrated
    from dse.validation.table import read_table

    found = calibrated(read_table(args.file), args.system, framework=args.framework, table=args.file.name)
    if args.out:
        text = found.text.encode()
        write_result(lambda where: write_content([text], "yaml", where), args.out, ".yaml")
    if args.format == "json":
        from dse.records.tables import json_text
        from dse.reporting.measurements.calibration_report import calibration_record

        print(json_text(calibration_record(found)))
    else:
        from dse.records.text import show
        from dse.reporting.measurements.calibration_report import calibration_report

        show(sys.stdout, lambda width: calibration_report(found, width))
    return 0
