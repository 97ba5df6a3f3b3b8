"""`dse cost` of a DFModel set-up, text or binary, by the rules of one of its generations."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

#: Choices of published runs that `--prefer` names.
PREFERRED = ("gpt_1t", "megatron", "inference")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What these profiles take beside the file."""
    group = parser.add_argument_group("dfmodel", "the sharding of a DFModel set-up")
    group.add_argument("--resolve", action="store_true", help="the one that moves least, not the file's own")
    group.add_argument(
        "--prefer",
        choices=PREFERRED,
        help="among equally good ones that of a published run; implies --resolve",
    )


def told_profile(file: Path) -> str | None:
    """The generation that a file's content asks for, the later of two; None where it is no set-up."""
    from costmodel.formats.dfmodel import is_setup, load_setup
    from costmodel.formats.dfmodel.files import ROOTS

    if file.suffix in (".yaml", ".yml") or not is_setup(file.read_bytes()):
        return None
    roots = {root: generation for generation, root in ROOTS.items()}
    return f"dfmodel-{roots[type(load_setup(file)).__name__]}"


def run(args: argparse.Namespace, profile: str) -> int:
    """Read, price, write."""
    from costmodel.errors import DseError
    from dse.dfmodel_report import dfmodel_report, figures, priced_file
    from dse.export import json_text
    from dse.text import show

    if args.format == "csv":
        raise DseError(f"{profile}: has no csv; ask for json or table")
    generation = profile.removeprefix("dfmodel-")
    resolve = args.resolve or args.prefer is not None
    report = priced_file(args.file, generation=generation, resolve=resolve, prefer=args.prefer)
    if args.format in ("dot", "svg"):
        from costmodel.formats.dfmodel import picture
        from dse.picture import svg

        text = picture(report.file.graph, report.sharding)
        print(svg(text).decode() if args.format == "svg" else text, end="")
        return 0
    if args.format == "json":
        print(json_text({"file": str(args.file), "profile": profile, **figures(report)}))
        return 0
    show(sys.stdout, lambda width: dfmodel_report(report))
    return 0
