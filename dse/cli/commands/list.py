"""`dse list`: built-in models, systems, spaces and frameworks, and the columns of a space."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import pandas as pd

from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.input_files import data_beside
from dse.cli.output import form_of, write_answer, write_content, write_json
from dse.cli.terminal import say
from dse.reporting import catalogue
from dse.reporting.study_report import listing
from dse.spaces.listed_names import ListedName, listed_names
from dse.spaces.space import Space

#: Ending of a file -> its format.
ENDINGS: Final = {".txt": "table", ".csv": "csv", ".json": "json"}
#: Kinds of built-in files.
KINDS: Final = ("models", "systems", "spaces", "frameworks")
#: Heading of each group of columns.
HEADINGS: Final[Mapping[str, str]] = data_beside(__file__)["headings"]


def plural(kind: str) -> str:
    """A kind by its plural: ``model`` is models."""
    return f"{kind}s" if f"{kind}s" in (*KINDS, "columns") else kind


def run(args: argparse.Namespace) -> int:
    """List built-in files or columns; 1 where nothing is found."""
    if args.kind == "columns":
        return columns(args)
    if args.text:
        raise DseError(f"dse list {args.kind} {args.name}: unexpected argument {args.text!r}")
    form = form_of(args.format, args.output, ENDINGS)
    if args.kind is None:
        kinds = [(kind, str(len(shipped.names(kind))), f"dse list {kind}") for kind in KINDS]
        print("\n".join(f"{count:>4} {kind:<11} {command}" for kind, count, command in kinds))
        return 0
    name = args.name and shipped.current_name(args.name, args.kind)
    known = name in shipped.names(args.kind)
    rows: list[dict[str, Any]] = [] if known else catalogue.LISTS[args.kind]()
    if name:
        rows = [row for row in rows if args.name.lower() in " ".join(map(str, row.values())).lower()]
        if not rows:
            write_content([catalogue.text_of(args.name, args.kind).encode()], "yaml", args.output)
            return 0
    if form == "csv":
        write_csv(pd.DataFrame(rows), args.output)
    else:
        write_answer(form, {args.kind: rows}, lambda width: listing(rows, width), args.output)
    return 0


def columns(args: argparse.Namespace) -> int:
    """List the names of a space; 1 where none has the text."""
    if not args.name:
        raise DseError("dse list columns: name a space, such as `dse list columns gpt3_175b_1024_a100`")
    form, space = form_of(args.format, args.output, ENDINGS), Space.load(args.name)
    listed = listed_names(space, args.text)
    if form == "csv":
        write_csv(pd.DataFrame(listed, columns=[field.name for field in fields(ListedName)]), args.output)
    elif form == "json":
        write_json({"space": space.name, "columns": [asdict(entry) for entry in listed]}, args.output)
    else:
        write_content([table(listed).encode()], form, args.output)
    if listed:
        return 0
    say(f"no name of space {space.name} contains {args.text!r}, nor does a meaning")
    return 1


def write_csv(rows: pd.DataFrame, output: Path | None) -> None:
    """A table as CSV, to the file or to stdout."""
    write_content([str(rows.to_csv(index=False)).encode()], "csv", output)


def table(entries: list[ListedName]) -> str:
    """A table for each group, columns aligned through all."""
    names = max((len(entry.name) for entry in entries), default=0)
    units = max((len(entry.unit) for entry in entries), default=0)
    lines: list[str] = []
    for group, heading in HEADINGS.items():
        rows = [entry for entry in entries if entry.group == group]
        if rows:
            lines += ["", heading, ""] if lines else [heading, ""]
        for row in rows:
            said = row.meaning if not row.value else f"{row.meaning} [{shortened(row.value)}]"
            lines.append(f"  {row.name:<{names}}  {'' if row.unit == '-' else row.unit:<{units}}  {said}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def shortened(value: str, most: int = 60) -> str:
    """A value in a line.

    >>> shortened("a" * 70)[-5:], shortened("8")
    ('aa...', '8')
    """
    return value if len(value) <= most else value[: most - 3] + "..."
