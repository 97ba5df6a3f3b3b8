"""`dse report`: a study as one HTML page, or its Pareto front as a picture."""

from __future__ import annotations

import argparse

from dse.api.study import Study
from dse.cli.output import PICTURES, checked_ending


def run(args: argparse.Namespace) -> int:
    """Write a study as one page."""
    checked_ending(args.out, (".html", *PICTURES))
    print(Study.load(args.study, storage=args.storage).report(args.out))
    return 0
