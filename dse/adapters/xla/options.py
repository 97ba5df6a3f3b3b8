"""Options of `dse evaluate` for HLO modules."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of HLO modules."""
    options = parser.add_argument_group("HLO modules")
    options.add_argument(
        "--barriers",
        choices=["barrier", "element"],
        help="optimization barriers synchronize all operands (barrier, default) or each one (element)",
    )
