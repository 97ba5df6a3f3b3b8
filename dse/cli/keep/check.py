"""`dse check`: price the trials of a study again, and say which stored figures are others."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from dse.cli.options import Commands, add_storage, add_study, add_workers, command

#: Trials that are evaluated where not all are. [-]
SAMPLE: Final = 100


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "check",
        run,
        summary="evaluate trials of a study again and say what differs",
        about="Evaluate 100 trials of a study again, from its first to its last, or all of them, and say\n"
        "which stored figures are not, to the last bit, what the cost model gives: after an update of\n"
        "dse, or where somebody may have changed the database. Nothing is written. Exit code 1 if any\n"
        "figure differs.",
        examples=["dse check gpt3_175b_1024_a100", "dse check gpt3_175b_1024_a100 --all --format json"],
    )
    add_study(parser)
    parser.add_argument("--all", action="store_true", help="evaluate every trial")
    parser.add_argument("--format", choices=["table", "json"], default="table", help="default: table")
    add_workers(parser)
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Check the study; 1 when a stored figure is not what the model gives."""
    from dse.library.study import Study
    from dse.pricing.workers import Workers
    from dse.records.text import show
    from dse.reporting.studies.check_report import CheckedStudy, check_json, check_report

    study = Study.load(args.study, storage=args.storage)
    workers = Workers(args.jobs, args.backend, args.scheduler)
    found = CheckedStudy(study, study.differing(workers, most=None if args.all else SAMPLE))
    if args.format == "json":
        sys.stdout.writelines(check_json(found))
    else:
        show(sys.stdout, lambda _: check_report(found))
    return 1 if found.differing else 0
