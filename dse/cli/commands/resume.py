"""`dse resume`: continue a study, whose database holds its space, model and system."""

from __future__ import annotations

import argparse

from dse.api.study import Study
from dse.cli.commands.search import prepare, run_study


def run(args: argparse.Namespace) -> int:
    """Continue a study by its name; 1 when nothing feasible was found."""
    study = Study.load(args.study, storage=args.storage)
    prepare(args, study.space)
    return run_study(study, args)
