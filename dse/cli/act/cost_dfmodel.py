"""`dse cost` of a DFModel set-up, text or binary, by the rules of one of its generations."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from dse.cli.options import positive

#: Choices of published runs that `--prefer` names.
PREFERRED = ("gpt_1t", "megatron", "inference")

FORMATS: Final = ("table", "json", "dot", "svg")

#: Options of these files alone, and what they are unless given.
DEFAULTS: Final[dict[str, Any]] = {"resolve": False, "prefer": None, "groups": None, "tile_size": None}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What these profiles take beside the file."""
    group = parser.add_argument_group(
        "dfmodel", "what to find anew of a DFModel set-up, instead of the file's own"
    )
    group.add_argument(
        "--resolve",
        action="store_true",
        default=argparse.SUPPRESS,
        help="the sharding that moves least; where the file fuses kernels, the fastest groups and tiles too",
    )
    group.add_argument(
        "--prefer",
        choices=PREFERRED,
        default=argparse.SUPPRESS,
        help="among equally good shardings that of a published run; implies a new sharding",
    )
    group.add_argument(
        "--groups",
        metavar="N|alone",
        type=_most_groups,
        default=argparse.SUPPRESS,
        help="the fastest groups of kernels, at most N of them; or each kernel alone",
    )
    group.add_argument(
        "--tile-size",
        metavar="TOKENS|best",
        type=_tile_size,
        default=argparse.SUPPRESS,
        help="tokens of a tile, or the fastest number of them (default: the file's, or the fastest)",
    )


def _most_groups(text: str) -> int:
    """A number, or 0 for ``alone``."""
    return 0 if text == "alone" else positive(text)


def _tile_size(text: str) -> int:
    """A number, or 0 for ``best``."""
    return 0 if text == "best" else positive(text)


def run(args: argparse.Namespace) -> int:
    """Read, evaluate, write."""
    from costmodel.profiles.registry import profile_named
    from dse.records.tables import json_text
    from dse.records.text import show
    from dse.reporting.programs.dfmodel_report import (
        Wanted,
        dfmodel_report,
        figures,
        priced_file,
        shortages,
    )

    generation = profile_named(args.profile).version
    wanted = Wanted(args.resolve, args.prefer, args.groups, args.tile_size)
    report = priced_file(args.file, generation=generation, wanted=wanted)
    for line in shortages(report.file.graph, report.setup, report.groups, report.evaluation):
        print(f"dse: {args.file}: does not fit: {line}", file=sys.stderr)
    if args.format in ("dot", "svg"):
        from costmodel.profiles.dfmodel.files import picture
        from dse.exporting.graphviz import svg

        text = picture(report.file.graph, report.sharding)
        print(svg(text).decode() if args.format == "svg" else text, end="")
        return 0
    if args.format == "json":
        print(json_text({"file": str(args.file), "profile": args.profile, **figures(report)}))
        return 0
    show(sys.stdout, lambda width: dfmodel_report(report))
    return 0
