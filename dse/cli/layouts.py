"""Layouts of a space or of a launch script: one design, the nearest that fits, or a sweep of designs.

A space file leaves values open, which options such as ``--set tp=8`` give; a launch file gives all of them. For a
design that does not fit in memory, the nearest one that fits is named."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from rich.text import Text

from costmodel.errors import DseError
from costmodel.rules.registry import NATIVE
from dse.api.design_files import SPACE
from dse.api.designs import evaluate_design, fit, loaded_space, sweep
from dse.cli.options import changed_space, changes_of, launched_space, say_what_was_open, set_words
from dse.cli.output import (
    ENDINGS,
    MOST_ROWS,
    PICTURES,
    TABLE_ENDINGS,
    checked_place,
    form_of,
    write_answer,
    write_content,
    write_report,
    write_result,
)
from dse.cli.terminal import say
from dse.output import EVALUATION_KEYS, Record, counted, design_text, json_line, json_object, table_pieces
from dse.pricing.evaluation import reasons
from dse.pricing.workers import Workers
from dse.reporting.study_report import evaluation_report
from dse.spaces.space import Space

if TYPE_CHECKING:
    from dse.pricing.sweep import NamedDesigns


def run(args: argparse.Namespace, kind: str) -> int:
    """Evaluate the design, or the designs of a sweep; 1 where none is feasible."""
    form = form_of(args.format, args.output, FORMS)
    checked_place(args.output)
    if args.best and kind != SPACE:
        raise DseError("--best: a launch file leaves nothing open; change it with --set or --sweep")
    if args.fit:
        return run_fit(args, form)
    space = changed_space(args) if kind == SPACE else launched_space(args, kind)
    if args.sweep or args.designs or form not in ("table", "json"):
        return run_sweep(args, space, form)
    record = evaluate_design(space, best=args.best, profile=args.profile)
    say_what_was_open(space, record["params"])
    has_number, profile = math.isfinite(record["breakdown"]["step_time_s"]), args.profile or NATIVE
    if not has_number and (why_not := reasons(space, profile, record["params"])):
        say(f"profile {profile}: no number: {'; '.join(why_not)}")
    asks = has_number and not record["feasible"] and kind == SPACE and args.set
    instead = nearest_text(args, record) if asks else ""
    if instead and form == "json":
        say(instead)
    brief = kind != SPACE
    has_parts = space.workload.work.reads_system and (brief or args.set)
    commands = [f"dse explain {quote(str(args.design))}{set_words(args)}"] if has_parts else []
    kept = {key: record[key] for key in EVALUATION_KEYS if key in record}
    report = partial(evaluation_report, space, record, instead=instead, commands=commands, brief=brief)
    write_result(lambda where: write_answer(form, kept, report, where), args.output, ENDINGS[form])
    return 0 if record["feasible"] else 1


def run_fit(args: argparse.Namespace, form: str) -> int:
    """Find the nearest design that fits, and evaluate it."""
    if args.best or args.sweep or args.designs or form not in ("table", "json"):
        raise DseError("--fit: changes one design; leave out --best, --sweep, --designs and tables")
    fitted = fit(args.design, profile=args.profile, **changes_of(args))
    changes = [Text(str(fitted)), Text()]
    report = partial(evaluation_report, fitted.space, fitted.record)
    write_answer(form, fitted.to_json(), lambda width: [*changes, *report(width)], args.output)
    return 0


def nearest_text(args: argparse.Namespace, record: Record) -> str:
    """The design nearest to one that does not fit, or the command that finds it in a large space."""
    named_space, asked = loaded_space(args.design), record["params"]
    if named_space.legal.count > SOON:
        command = f"dse evaluate {quote(str(args.design))} --fit{set_words(args)}"
        return f"{command} finds the nearest design that fits"
    fixed = {name: value for name, value in args.set if name not in named_space.by_name}
    named = {name: named_space.in_file(name, value) for name, value in asked.items() if name in named_space.by_name}
    try:
        fitted = fit(named_space, profile=args.profile, **changes_of(args) | {"set": named | fixed, "layout": None})
    except DseError as error:
        return str(error)
    changed = design_text(named_space, {name: value for name, (_, value) in fitted.changed.items()})
    here, of_fitted = (one["breakdown"]["step_time_s"] for one in (record, fitted.record))
    return f"{changed} would fit, {100 * (of_fitted / here - 1):+.1f} % step time"


#: Most legal designs among which the nearest is looked for unasked.
SOON: Final = 200_000
#: Ending of a file -> its format.
FORMS: Final = {**TABLE_ENDINGS, **PICTURES}


def run_sweep(args: argparse.Namespace, space: Space, form: str) -> int:
    """Evaluate all named designs; 1 where none is feasible."""
    values = [(name.strip(), texts.strip()) for name, _, texts in (word.partition("=") for word in args.sweep)]
    refuse_together(args, form, [name for name, _ in values])
    workers = Workers(args.jobs, args.backend, args.scheduler)
    if args.designs:
        from dse.pricing.sweep import evaluated_designs, read_designs

        table, rows = read_designs(space, args.designs, say)
        designs = evaluated_designs(space, table, rows, profile=args.profile or NATIVE, jobs=workers)
    else:
        designs = sweep(space, dict(values), profile=args.profile, jobs=workers)
    write_result(lambda where: write_sweep(designs, form, where), args.output, ENDINGS[form])
    if designs.feasible:
        return 0
    say(f"nothing feasible among {counted(len(designs), 'design')}, {designs.legal:,} of them legal")
    return 1


def refuse_together(args: argparse.Namespace, form: str, names: list[str]) -> None:
    """Refuse options that do not go together; a `DseError`."""
    if args.best:
        raise DseError("--best: completes one design, as text or JSON; leave out --sweep, --designs and tables")
    if args.designs and args.sweep:
        raise DseError("--designs and --sweep: name designs by a file or by values, not both")
    if args.designs and form in PICTURES.values():
        raise DseError(f"-o FILE.{form}: is a picture of a --sweep; --designs have no order to draw them in")
    if "" in names:
        raise DseError("--sweep: name a parameter, such as --sweep tp=1,2,4")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DseError(f"--sweep: {twice}: given twice")
    if both := next((name for name in names if name in dict(args.set)), None):
        raise DseError(f"{both}: --set holds it fixed, so there is nothing to --sweep")


def write_sweep(designs: NamedDesigns, form: str, output: Path | None) -> None:
    """The designs in one of the forms."""
    if form == "table":
        from dse.reporting.designs.sweep_report import sweep_report

        most = None if output else MOST_ROWS
        write_report(lambda width: sweep_report(designs, width, most=most), output)
    elif form in PICTURES.values():
        from dse.reporting.pictures.design_figures import sweep_plot
        from dse.reporting.pictures.style import picture

        write_content([picture(sweep_plot(designs), form)], form, output)
    elif form == "json":
        write_content(json_pieces(designs), form, output)
    else:
        write_content(table_pieces([designs.to_frame()], form), form, output)


def json_pieces(designs: NamedDesigns) -> Iterator[bytes]:
    """One JSON object, a design to a line."""
    head = {
        "space": designs.space.name,
        "directions": {objective.key: objective.direction for objective in designs.space.objectives},
        "named": list(designs.names),
        "n_legal": designs.legal,
        "n_feasible": designs.feasible,
    }
    kept = ({key: record[key] for key in ("reason", *EVALUATION_KEYS) if key in record} for record in designs.records)
    return json_object(head, "designs", map(json_line, kept))
