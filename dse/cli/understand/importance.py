"""`dse importance`: which parameters matter for each objective."""

from __future__ import annotations

import argparse
import sys

from dse.library.study import Study
from dse.records.tables import json_text
from dse.records.text import show
from dse.reporting.designs.sensitivity_report import importance_report


def run(args: argparse.Namespace) -> int:
    """Print which parameters matter for each objective."""
    study = Study.load(args.study, storage=args.storage)
    found = study.importance()
    if args.format == "json":
        print(json_text({"study": study.name, **found.to_json()}))
        return 0
    show(sys.stdout, lambda width: importance_report(study.name, found, width))
    return 0
