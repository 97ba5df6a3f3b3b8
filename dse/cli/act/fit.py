"""`dse fit`: the nearest design that works to one that may not."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.text import Text

from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from dse.cli.chosen import changed_space
from dse.pricing.space_rules import NATIVE, rules_for
from dse.records.tables import EVALUATION_KEYS, json_text
from dse.records.text import design_text, show
from dse.reporting.study_report import evaluation_report
from dse.searching.exact.exact_front import priced_design
from dse.searching.named.nearest_design import FittedDesign, nearest_feasible
from dse.searching.named.planned_study import closest
from dse.spaces.sections.parameters import written_value
from dse.spaces.space import Space


def run(args: argparse.Namespace) -> int:
    """Find the design, and price it."""
    space, named = asked(args)
    rules = rules_for(space, args.profile or NATIVE)
    found = nearest_feasible(space, named, rules)
    if found is None:
        raise DseError(nothing_near(space))
    record = priced_design(space, found.params, rules=rules)
    if args.format == "json":
        changed = {name: {"asked": before, "is": now} for name, (before, now) in found.changed.items()}
        own = {key: record[key] for key in EVALUATION_KEYS if key in record}
        print(json_text(own | {"changed": changed, "broken": found.broken, "exhaustive": found.exhaustive}))
        return 0
    said = change_text(space, named, found)
    show(sys.stdout, lambda width: [Text(said), Text(), *evaluation_report(space, record, width)])
    return 0


def asked(args: argparse.Namespace) -> tuple[Space, dict[str, Any]]:
    """The space with what `--set` says of its fixed names, and what it says of its parameters.

    Raises
    ------
    DseError
        If a name is none, or a value no such thing.
    """
    own = Space.load(args.space).by_name
    pins = [pair for pair in args.set if pair[0] not in own]
    space = changed_space(argparse.Namespace(**{**vars(args), "set": pins, "layout": None}))
    named: dict[str, Any] = dict(space.layouts[args.layout]) if args.layout in space.layouts else {}
    for name, text in args.set:
        if name not in own:
            continue
        parameter = space.by_name[name]
        try:
            written = space.in_file(name, text)
            named[name] = written_value(written, parameter.unit, parameter.words, parameter.boolean)
        except ValueError as error:
            raise DseError(f"{name}: {error}; {name} can be {parameter.described()}") from None
    if not named:
        raise DseError("fit: name what you would like with --set, such as --set tp=8 --set pp=16")
    return space, named


def nothing_near(space: Space) -> str:
    """Why nothing fits, near or far."""
    found = closest(space)
    return (
        f"space {space.name}: no design keeps all limits, near these values or far from them; the closest "
        f"breaks {found.limit} by {readable(-found.margin, found.unit)}: {design_text(space, found.params)}"
    )


def change_text(space: Space, named: dict[str, Any], found: FittedDesign) -> str:
    """What was changed of what was asked, and why."""
    wish = " ".join(f"{name}={space.by_name[name].shown(value)}" for name, value in named.items())
    seen = "" if found.exhaustive else " Of many designs looked at: the space is too large to list."
    if not found.changed:
        return f"{wish} fits as it is; what is not named is the best beside it.{seen}"
    changes = ", ".join(
        f"{name} {space.by_name[name].shown(now)} in place of {space.by_name[name].shown(before)}"
        for name, (before, now) in found.changed.items()
    )
    units = {limit.name: limit.unit for limit in space.limits}
    if found.broken:
        broken = (f"{name} by {readable(-by, units[name])}" for name, by in found.broken.items())
        why = f"whatever else is chosen, {wish} breaks {', '.join(broken)} or more"
    else:
        try:
            space.pinned(named)
            why = f"{wish} keeps no limit together with others"
        except DseError as error:
            why = str(error).removeprefix(f"space {space.name}: ")
    return f"Changed: {changes}, since {why}.{seen}"
