"""`dse columns`: every name that a formula, an option or a table of a space may use."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dse.cli.options import Commands, command
from dse.cli.output import form_of, write_content

if TYPE_CHECKING:
    from dse.spaces.listed_names import ListedName

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


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "columns",
        run,
        summary="every name that formulas, options and tables may use",
        about="List every name that formulas of a space, --set, --objective and --columns may use, by\n"
        "group, with its unit, what it is, and what it means.",
        examples=["dse columns gpt3_175b_1024_a100", "dse columns gpt_1t_codesign memory",
                  "dse columns my_space.yaml --format csv -o columns.csv"],
    )  # fmt: skip
    parser.add_argument(
        "space", metavar="SPACE", help="name of a shipped space (`dse spaces`), or a YAML file"
    )
    parser.add_argument(
        "word", metavar="WORD", nargs="?", default="", help="only those that have it in name or meaning"
    )
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv"],
        help="default: what the ending of FILE says, else table",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout")


def run(args: argparse.Namespace) -> int:
    """List the names; 1 where none has the word."""
    from dse.spaces.listed_names import listed_names
    from dse.spaces.space import Space

    form, word = form_of(args.format, args.output, ENDINGS), args.word.lower()
    space = Space.load(args.space)
    found = [own for own in listed_names(space) if word in own.name.lower() or word in own.meaning.lower()]
    write_content([written(space.name, found, form).encode()], form, args.output)
    if found:
        return 0
    print(f"dse: no name of space {space.name} has {args.word!r} in it or in its meaning", file=sys.stderr)
    return 1


def written(space: str, found: list[ListedName], form: str) -> str:
    """The names as a table, CSV or JSON."""
    from dataclasses import asdict

    if form == "json":
        from dse.records.tables import json_text

        return json_text({"space": space, "columns": [asdict(own) for own in found]}) + "\n"
    if form == "csv":
        import pandas as pd

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
