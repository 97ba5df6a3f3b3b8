"""`dse evaluate`: price one named design, or a sweep of them."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from dse.cli.act.launch_options import asked_space
from dse.cli.chosen import changes_of, say_what_was_open
from dse.cli.output import (
    ENDINGS,
    TABLE_ENDINGS,
    checked_place,
    form_of,
    write_content,
    write_report,
    write_result,
)
from dse.library.chosen_space import loaded_space
from dse.library.designs import evaluate_design, fit, sweep
from dse.pricing.evaluation import reasons
from dse.pricing.space_rules import NATIVE
from dse.pricing.workers import Workers
from dse.records.tables import EVALUATION_KEYS, csv_pieces, json_text, only_finite, parquet_pieces
from dse.records.text import Record, counted, design_text
from dse.reporting.designs.sweep_report import sweep_report
from dse.reporting.study_report import evaluation_report
from dse.searching.named.design_file import read_designs
from dse.searching.named.sweep import NamedDesigns, priced
from dse.spaces.space import Space


def run(args: argparse.Namespace) -> int:
    """Evaluate the design, or the designs."""
    form = form_of(args.format, args.output, FORMS)
    checked_place(args.output)
    if args.sweep or args.designs or form not in ("table", "json"):
        return run_sweep(args)
    space = asked_space(args)
    record = evaluate_design(space, best=args.best, profile=args.profile)
    say_what_was_open(space, record["params"])
    say_why_no_number(args.profile or NATIVE, space, record)
    has_number = math.isfinite(record["breakdown"]["step_time_s"])
    if has_number and not record["feasible"] and args.space and args.set:
        say_the_nearest(args, record)
    write_result(lambda where: write(space, record, form, where), args.output, ENDINGS[form])
    return 0 if record["feasible"] else 1


def write(space: Space, record: Record, form: str, output: Path | None) -> None:
    """The design as a report, or as one JSON object."""
    if form == "json":
        text = json_text({key: record[key] for key in EVALUATION_KEYS if key in record})
        write_content([f"{text}\n".encode()], form, output)
        return
    write_report(lambda width: evaluation_report(space, record, width), output)


def say_why_no_number(profile: str, space: Space, record: Record) -> None:
    """Name what the profile has no number for, and what would do."""
    has_none = math.isnan(record["breakdown"]["step_time_s"])
    found = reasons(space, profile, record["params"]) if has_none else []
    if found:
        print(f"dse: profile {profile}: no number: {'; '.join(found)}", file=sys.stderr)


def say_the_nearest(args: argparse.Namespace, record: Record) -> None:
    """Name the legal design nearest to one that breaks a limit, and its step; where it is soon found."""
    own, asked = loaded_space(args.space), record["params"]
    if own.legal.count > SOON:
        words = " ".join(f"--set {name}={value}" for name, value in args.set)
        print(f"dse: dse fit {args.space} {words}: the nearest that keeps all limits", file=sys.stderr)
        return
    fixed = {name: value for name, value in args.set if name not in own.by_name}
    named = {name: own.in_file(name, value) for name, value in asked.items() if name in own.by_name}
    try:
        found = fit(own, profile=args.profile, **changes_of(args) | {"set": named | fixed, "layout": None})
    except DseError as error:
        print(f"dse: {error}", file=sys.stderr)
        return
    changed = design_text(own, {name: value for name, (_, value) in found.changed.items()})
    here, there = (one["breakdown"]["step_time_s"] for one in (record, found.record))
    print(f"dse: {changed} keeps all limits, {100 * (there / here - 1):+.1f} % step time", file=sys.stderr)


#: Most legal designs among which the nearest is looked for unasked.
SOON: Final = 200_000
#: Ending of a file -> what is written there.
FORMS: Final = {**TABLE_ENDINGS, ".svg": "svg"}


def run_sweep(args: argparse.Namespace) -> int:
    """Evaluate all designs that were named; the exit code is 1 where none is feasible."""
    form = form_of(args.format, args.output, FORMS)
    space = asked_space(args)
    refuse_together(args, form)
    workers = Workers(args.jobs, args.backend, args.scheduler)
    if args.designs:
        table, rows = read_designs(space, args.designs, note)
        found = priced(space, table, rows, profile=args.profile or NATIVE, jobs=workers)
    else:
        found = sweep(space, dict(args.sweep), profile=args.profile, jobs=workers)
    write_result(lambda where: write_sweep(found, form, where), args.output, ENDINGS[form])
    if found.feasible:
        return 0
    note(f"nothing feasible among {counted(len(found), 'design')}, {found.legal:,} of them legal")
    return 1


def refuse_together(args: argparse.Namespace, form: str) -> None:
    """Refuse options that do not go together; a `DseError`."""
    if args.best:
        raise DseError(
            "--best: completes one design, as text or JSON; leave out --sweep, --designs and tables"
        )
    if args.designs and args.sweep:
        raise DseError("--designs and --sweep: name designs by a file or by values, not both")
    if args.designs and form == "svg":
        raise DseError("-o FILE.svg: is a picture of a --sweep; --designs have no order to draw them in")
    names = [name for name, _ in args.sweep]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DseError(f"--sweep: {twice}: given twice")
    if both := next((name for name in names if name in dict(args.set)), None):
        raise DseError(f"{both}: --set holds it fixed, so there is nothing to --sweep")


def write_sweep(found: NamedDesigns, form: str, output: Path | None) -> None:
    """The designs in one of the forms."""
    if form == "table":
        write_report(lambda width: sweep_report(found, width), output)
    elif form == "svg":
        from costmodel.plotting import svg
        from dse.reporting.pictures.sweep_plot import sweep_plot

        write_content([svg(sweep_plot(found)).encode()], form, output)
    elif form == "json":
        write_content(json_pieces(found), form, output)
    else:
        pieces = csv_pieces if form == "csv" else parquet_pieces
        write_content(pieces([found.to_frame()]), form, output)


def json_pieces(found: NamedDesigns) -> Iterator[bytes]:
    """One JSON object, a design to a line."""
    head = {
        "space": found.space.name,
        "directions": {objective.key: objective.direction for objective in found.space.objectives},
        "named": list(found.names),
        "n_legal": found.legal,
        "n_feasible": found.feasible,
    }
    yield json_text({**head, "designs": []}).removesuffix("]\n}").encode()
    separator = ""
    for record in found.records:
        own = {key: record[key] for key in ("reason", *EVALUATION_KEYS) if key in record}
        yield f"{separator}\n    {json.dumps(only_finite(own), allow_nan=False)}".encode()
        separator = ","
    yield b"\n  ]\n}\n"


def note(text: str) -> None:
    """Say what the user should know beside the results."""
    print(f"dse: {text}", file=sys.stderr)
