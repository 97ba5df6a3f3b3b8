"""`dse columns`: every name that a formula, an option or a table of a space may use."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Final

import pandas as pd

from dse.cli.output import form_of, write_content
from dse.library.designs import names_with
from dse.records.tables import json_text
from dse.spaces.listed_names import ListedName
from dse.spaces.space import Space

#: Ending of a file -> what is written there.
ENDINGS: Final = {".txt": "table", ".csv": "csv", ".json": "json"}
#: What stands above each group.
HEADINGS = {
    "parameters": "Parameters, which designs choose; --set pins one",
    "given": "Given, the same for all designs; --set changes one",
    "derived": "Derived, from other names",
    "margins": "Margins of limits, in tables and JSON",
    "results": "Results of pricing; --objective and constraints may take them",
    "machine": "Quantities of the machine; --set changes one, a parameter opens one",
    "model": "Dimensions of the model, in formulas",
    "design": "Columns of designs that the space leaves at their defaults; --set sets one",
}


def run(args: argparse.Namespace) -> int:
    """List the names; 1 where none has the word."""
    form, space = form_of(args.format, args.output, ENDINGS), Space.load(args.space)
    found = names_with(space, args.word)
    write_content([written(space.name, found, form).encode()], form, args.output)
    if found:
        return 0
    print(f"dse: no name of space {space.name} has {args.word!r} in it or in its meaning", file=sys.stderr)
    return 1


def written(space: str, found: list[ListedName], form: str) -> str:
    """The names as a table, CSV or JSON."""
    if form == "json":
        return json_text({"space": space, "columns": [asdict(own) for own in found]}) + "\n"
    if form == "csv":
        columns = ["group", "name", "unit", "value", "meaning"]
        return str(pd.DataFrame([asdict(own) for own in found], columns=columns).to_csv(index=False))
    return table(found)


def table(found: list[ListedName]) -> str:
    """A table for each group, columns aligned through all."""
    names = max((len(own.name) for own in found), default=0)
    units = max((len(own.unit) for own in found), default=0)
    lines: list[str] = []
    for group, heading in HEADINGS.items():
        rows = [own for own in found if own.group == group]
        if rows:
            lines += ["", heading, ""] if lines else [heading, ""]
        for own in rows:
            said = own.meaning if not own.value else f"{own.meaning} [{shortened(own.value)}]"
            lines.append(
                f"  {own.name:<{names}}  {'' if own.unit == '-' else own.unit:<{units}}  {said}".rstrip()
            )
    return "".join(f"{line}\n" for line in lines)


def shortened(value: str, most: int = 60) -> str:
    """A value in a line.

    >>> shortened("a" * 70)[-5:], shortened("8")
    ('aa...', '8')
    """
    return value if len(value) <= most else value[: most - 3] + "..."
