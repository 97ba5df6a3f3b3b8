"""`dse check`: price the trials of a study again, and say which stored figures are others."""

from __future__ import annotations

import argparse
import sys

from dse.library.study import SAMPLE, Study
from dse.pricing.workers import Workers
from dse.records.text import show
from dse.reporting.studies.check_report import CheckedStudy, check_json, check_report


def run(args: argparse.Namespace) -> int:
    """Check the study; 1 when a stored figure is not what the model gives."""
    study = Study.load(args.study, storage=args.storage)
    workers = Workers(args.jobs, args.backend, args.scheduler)
    found = CheckedStudy(study, study.differing(workers, most=None if args.all else SAMPLE))
    if args.format == "json":
        sys.stdout.writelines(check_json(found))
    else:
        show(sys.stdout, lambda _: check_report(found))
    return 1 if found.differing else 0
