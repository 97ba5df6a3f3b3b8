"""Options of `dse evaluate` for DFModel set-ups."""

from __future__ import annotations

import argparse
from functools import partial

from dse.cli.options import positive

#: Choices of published runs that `--prefer` names.
PREFERRED = ("gpt_1t", "megatron", "inference")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of DFModel set-ups."""
    group = parser.add_argument_group(
        "DFModel set-ups", "solve parts of the set-up again instead of using the values of the file"
    )
    group.add_argument(
        "--resolve",
        action="store_true",
        help="sharding with the least communication, and the fastest groups and tiles of fused kernels",
    )
    group.add_argument("--prefer", choices=PREFERRED, help="among equally good shardings, take that of a published run")
    group.add_argument(
        "--groups",
        metavar="N|alone",
        type=partial(_number_or, "alone"),
        help="fastest fusion into at most N groups, or each kernel alone",
    )
    group.add_argument(
        "--tile-size",
        metavar="TOKENS|best",
        type=partial(_number_or, "best"),
        help="tokens of a tile, or best: the fastest (default: as in the file, else best)",
    )


def _number_or(word: str, text: str) -> int:
    """A number, or 0 for a word."""
    return 0 if text == word else positive(text)
