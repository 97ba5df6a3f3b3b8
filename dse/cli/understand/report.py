"""`dse report`: a study as one page, or its front as a picture."""

from __future__ import annotations

import argparse

from dse.cli.output import checked_ending
from dse.library.study import Study


def run(args: argparse.Namespace) -> int:
    """Write a study as one page."""
    checked_ending(args.out, (".html", ".svg"))
    print(Study.load(args.study, storage=args.storage).report(args.out))
    return 0
