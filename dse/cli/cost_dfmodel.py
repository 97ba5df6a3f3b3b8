"""`dse cost` of a DFModel set-up, text or binary, by the rules of one of its generations."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli.options import positive

#: Choices of published runs that `--prefer` names.
PREFERRED = ("gpt_1t", "megatron", "inference")

#: Options of these profiles alone.
OPTIONS = ("resolve", "prefer", "groups", "tile_size")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What these profiles take beside the file."""
    group = parser.add_argument_group(
        "dfmodel", "what to find anew of a DFModel set-up, instead of the file's own"
    )
    group.add_argument(
        "--resolve",
        action="store_true",
        help="the sharding that moves least; where the file fuses kernels, the fastest groups and tiles too",
    )
    group.add_argument(
        "--prefer",
        choices=PREFERRED,
        help="among equally good shardings that of a published run; implies a new sharding",
    )
    group.add_argument(
        "--groups",
        metavar="N|alone",
        type=_most_groups,
        help="the fastest groups of kernels, at most N of them, and the fastest tiles where the file has "
        "none; or each kernel alone",
    )
    group.add_argument(
        "--tile-size",
        metavar="TOKENS|best",
        type=_tile_size,
        help="tokens of a tile, or the fastest number of them",
    )


def _most_groups(text: str) -> int:
    """A number, or 0 for ``alone``."""
    return 0 if text == "alone" else positive(text)


def _tile_size(text: str) -> int:
    """A number, or 0 for ``best``."""
    return 0 if text == "best" else positive(text)


def told_profile(file: Path) -> str | None:
    """The generation that a file's content asks for, the later of two; None where it is no set-up."""
    from costmodel.profiles.dfmodel.files import is_setup, load_setup
    from costmodel.profiles.dfmodel.files.setup_files import ROOTS

    if file.suffix in (".yaml", ".yml") or not is_setup(file.read_bytes()):
        return None
    roots = {root: generation for generation, root in ROOTS.items()}
    return f"dfmodel-{roots[type(load_setup(file)).__name__]}"


def run(args: argparse.Namespace, profile: str) -> int:
    """Read, price, write."""
    from costmodel.errors import DseError
    from dse.export.tables import json_text
    from dse.report.dfmodel_report import Wanted, dfmodel_report, figures, priced_file, shortages
    from dse.report.text import show

    if args.format == "csv":
        raise DseError(f"{profile}: has no csv; ask for json or table")
    generation = profile.removeprefix("dfmodel-")
    wanted = Wanted(args.resolve, args.prefer, args.groups, args.tile_size)
    report = priced_file(args.file, generation=generation, wanted=wanted)
    for line in shortages(report.file.graph, report.setup, report.groups, report.evaluation):
        print(f"dse: {args.file}: does not fit: {line}", file=sys.stderr)
    if args.format in ("dot", "svg"):
        from costmodel.profiles.dfmodel.files import picture
        from dse.report.picture import svg

        text = picture(report.file.graph, report.sharding)
        print(svg(text).decode() if args.format == "svg" else text, end="")
        return 0
    if args.format == "json":
        print(json_text({"file": str(args.file), "profile": profile, **figures(report)}))
        return 0
    show(sys.stdout, lambda width: dfmodel_report(report))
    return 0
