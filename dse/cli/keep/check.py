"""`dse check`: price the trials of a study again, and say which stored figures are others."""

from __future__ import annotations

import argparse
import sys

from dse.library.study import Study
from dse.pricing.workers import Workers
from dse.records.text import show
from dse.reporting.studies.check_report import CheckedStudy, check_json, check_report, checked


def run(args: argparse.Namespace) -> int:
    """Check the study; 1 when a stored figure is not what the model gives."""
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
