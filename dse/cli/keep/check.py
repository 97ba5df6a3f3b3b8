"""`dse check`: price the trials of a study again, and say which stored figures are others."""

from __future__ import annotations

import argparse
import sys

from dse.cli.options import Commands, add_storage, add_study, add_workers, command


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "check",
        run,
        summary="price the trials of a study again and say what differs",
        about="Price all trials of a study again, and say which stored figures are not what the cost\n"
        "model gives: after an update of dse, or where somebody may have changed the database. Nothing\n"
        "is written; `dse resume STUDY --reprice` stores what the model gives now. Exit code 1 if any\n"
        "figure differs by more than 1e-9 of itself.",
        examples=["dse check gpt3_175b_1024_a100", "dse check gpt3_175b_1024_a100 --format json"],
    )
    add_study(parser)
    parser.add_argument("--format", choices=["table", "json"], default="table", help="default: table")
    add_workers(parser)
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Check the study; 1 when a stored figure is not what the model gives."""
    from dse.library.study import Study
    from dse.pricing.workers import Workers
    from dse.records.text import show
    from dse.reporting.studies.check_report import CheckedStudy, check_json, check_report, checked

    study = Study.load(args.study, storage=args.storage)
    changes, foreign, workers = (
        study.content_changes(),
        study.foreign,
        Workers(args.jobs, args.backend, args.scheduler),
    )
    found = CheckedStudy()
    if args.format == "json":
        sys.stdout.writelines(check_json(study, changes, foreign, workers, found))
    else:
        found = checked(study, workers)
        show(sys.stdout, lambda _: check_report(study, found, changes, foreign))
    return 1 if found.differing else 0
