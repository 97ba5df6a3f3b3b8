"""`dse fit`: the nearest design that works to one that may not."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dse.cli.options import Commands, add_profile, add_space, changed_space, command

if TYPE_CHECKING:
    from dse.searching.named.nearest_design import FittedDesign
    from dse.spaces.space import Space


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "fit",
        run,
        summary="the nearest design that fits to one that may not",
        about="Find the legal design nearest to some values that fits in memory and keeps all other limits:\n"
        "as few of them changed as can be, each by as little, and of such designs the best. What is not\n"
        "named is chosen for the best, too. Says what it changed, and why.",
        examples=[
            "dse fit gpt3_175b_1024_a100 --set tp=8 --set pp=4 --set recompute=none",
            "dse fit llama3_70b_512_h100 --set tp=2 --set pp=1 --format json",
        ],
    )
    add_space(parser)
    add_profile(parser)
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="a report to read, or one JSON object (default: table)",
    )


def run(args: argparse.Namespace) -> int:
    """Find the design, and price it."""
    from costmodel.errors import DseError
    from dse.pricing.space_rules import NATIVE, rules_for
    from dse.searching.exact.exact_front import priced_design
    from dse.searching.named.nearest_design import nearest_feasible

    space, named = asked(args)
    rules = rules_for(space, args.profile or NATIVE)
    found = nearest_feasible(space, named, rules)
    if found is None:
        raise DseError(nothing_near(space))
    record = priced_design(space, found.params, rules=rules)
    if args.format == "json":
        from dse.records.tables import EVALUATION_KEYS, json_text

        changed = {name: {"asked": before, "is": now} for name, (before, now) in found.changed.items()}
        own = {key: record[key] for key in EVALUATION_KEYS if key in record}
        print(json_text(own | {"changed": changed, "broken": found.broken, "exhaustive": found.exhaustive}))
        return 0
    from rich.text import Text

    from dse.records.text import show
    from dse.reporting.study_report import evaluation_report

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
    from costmodel.errors import DseError
    from dse.spaces.sections.parameters import written_value
    from dse.spaces.space import Space

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
    from costmodel.formats.quantity import readable
    from dse.records.text import design_text
    from dse.searching.named.planned_study import closest

    found = closest(space)
    return (
        f"space {space.name}: no design keeps all limits, near these values or far from them; the closest "
        f"breaks {found.limit} by {readable(-found.margin, found.unit)}: {design_text(space, found.params)}"
    )


def change_text(space: Space, named: dict[str, Any], found: FittedDesign) -> str:
    """What was changed of what was asked, and why."""
    from costmodel.errors import DseError
    from costmodel.formats.quantity import readable

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
