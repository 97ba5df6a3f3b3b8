"""`dse evaluate`: one design of a space, a launch script, a workload file; or a sweep of designs."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any, Final

from rich.text import Text

from costmodel.errors import DseError
from costmodel.profiles.files import kind_named
from costmodel.profiles.registry import PROFILES, design_profiles
from dse.cli.chosen import changed_space, changes_of, launched_space, note, say_what_was_open
from dse.cli.files.options import COSTS, add_dfmodel, add_hlo, add_launch_files, add_simai
from dse.cli.options import add_changes, add_output, add_workers, describe
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
from dse.library.design_files import SPACE, TITLES, kind_of_design
from dse.library.designs import evaluate_design, fit, sweep
from dse.library.workload_files import checked_kind
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

#: Options of every design.
SHARED: Final = ("profile", "format", "output", "sweep")
#: Options of layouts, be they of a space or of a launch script.
OF_LAYOUTS: Final = (*SHARED, "set", "objective", "tokens", "best", "designs", "jobs", "backend", "scheduler")
#: Options of a space, and of a launch script.
OF_SPACES: Final = (*OF_LAYOUTS, "layout", "fit")
OF_LAUNCHES: Final = (*OF_LAYOUTS, "launch", "system", "gpus", "framework")


ABOUT: Final = (
    "Evaluate one design: step time, memory and where they go. DESIGN is recognized by content:\n"
    "  a space         built-in or YAML; --set names the design, --best completes it, --sweep a table\n"
    "  a launch file   Megatron-LM script or log, Megatron-Bridge, torchtitan, MaxText; needs --system\n"
    "  a program       HLO text of XLA; --sweep: on several systems\n"
    "  a workload      AICB (SimAI), DFModel set-up, DeepFlow configuration\n"
    "Exits with 1 if the design does not fit."
)
EXAMPLES: Final = (
    "dse evaluate train.sh --system h100",
    "dse evaluate train.sh --system h100 --set tp=4",
    "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set pp=16 --best",
    "dse evaluate gpt3_175b_1024_a100 --fit --set tp=8 --set pp=4 --set recompute=none",
    "dse evaluate gpt3_175b_1024_a100 --set tp=8 --sweep pp=8,16,32 --sweep micro_batch_size=1,2,4",
    "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set recompute=full --sweep pp -o sweep.svg",
    "dse evaluate gpt_1t_codesign --designs designs.csv -o evaluated.parquet --jobs 4",
    "dse evaluate step.hlo --sweep h100,tpu_v5p_pod -o systems.csv",
    "dse evaluate workload.txt --gpus 1024 --gpu-type H100 --nic-type cx7",
    "dse evaluate setup.txt --profile dfmodel-gen1 --format json | jq .final_s",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse evaluate`; those that are not given are left out of the result."""
    describe(parser, about=ABOUT, examples=EXAMPLES)
    parser.add_argument("design", metavar="DESIGN", nargs="?", help="space, launch file or workload file")
    add_launch_files(parser)
    add_changes(parser)
    parser.add_argument(
        "--best", action="store_true", help="fill unset parameters with the best feasible values"
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="change as few of the --set values as possible until the design fits; prints the changes",
    )
    add_sweeps(parser)
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv", "parquet", "trace", "dfmodel"],
        help="table or json; csv and parquet of several designs; trace and dfmodel of programs "
        "(default: by the ending of FILE, else table)",
    )
    add_output(parser, "; FILE.svg is a picture of a --sweep")
    add_hlo(parser)
    add_simai(parser)
    add_dfmodel(parser)
    advanced = parser.add_argument_group("advanced")
    advanced.add_argument(
        "--profile",
        choices=[*dict.fromkeys([*design_profiles(), *(own.name for own in PROFILES.values() if own.file)])],
        help="cost model: native (default for layouts and HLO), simai, or a generation of DFModel",
    )
    add_workers(advanced)
    parser.set_defaults(defaults=suppressed(parser))


def suppressed(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The defaults of a parser, which it leaves out of its results from now on."""
    defaults = {}
    for action in parser._actions:
        if action.dest != "help":
            defaults[action.dest], action.default = action.default, argparse.SUPPRESS
    return defaults


def add_sweeps(parser: argparse._ActionsContainer) -> None:
    """``--sweep`` and ``--designs``."""
    parser.add_argument(
        "--sweep",
        metavar="NAME=VALUES",
        nargs="?",
        const="",
        action="append",
        default=[],
        type=sweep_text,
        help="evaluate every value: 1,2,4 or 64:512:64 or 64:1024:x2, with units; NAME alone: all options; "
        "repeatable. Of an HLO module: systems, or all",
    )
    parser.add_argument(
        "--designs",
        metavar="FILE",
        type=Path,
        help="evaluate the designs of a CSV or Parquet file: one row each, columns named as parameters",
    )


def sweep_text(text: str) -> str:
    """``NAME=VALUES`` or ``NAME``, checked."""
    name, equals, values = (part.strip() for part in text.partition("="))
    if not name or bool(equals) != bool(values):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUES, such as tp=1,2,4")
    return text


def run(args: argparse.Namespace) -> int:
    """Evaluate the design, the designs of a sweep, or a file.

    Raises
    ------
    DseError
        If the design is not recognized, or options do not belong to it.
    """
    launches = vars(args).get("launch", [])
    if len(launches) + ("design" in args) != 1:
        raise DseError(
            "evaluate: name one DESIGN: a space (`dse list spaces`), a launch script with --system, or a file"
        )
    kind, design = (
        launches[0] if launches else (kind_of_design(args.design, vars(args).get("profile")), args.design)
    )
    refuse_foreign(args, kind, str(design))
    asked = "profile" in args
    known = {**args.defaults, **COSTS[kind].defaults} if kind in COSTS else args.defaults
    args = argparse.Namespace(**{**known, **vars(args), "design": Path(design) if kind != SPACE else design})
    if kind in COSTS:
        return run_file(args, kind, asked)
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
    say_why_no_number(args.profile or NATIVE, space, record)
    has_number = math.isfinite(record["breakdown"]["step_time_s"])
    asks = has_number and not record["feasible"] and kind == SPACE and args.set
    instead = nearest_text(args, record) if asks else ""
    if instead and form == "json":
        print(f"dse: {instead}", file=sys.stderr)
    words = "".join(f" --set {quote(f'{name}={value}')}" for name, value in args.set)
    commands = [f"dse explain {quote(str(args.design))}{words}"] if kind == SPACE and words else []
    write_result(
        lambda where: write(space, record, form, where, instead, commands), args.output, ENDINGS[form]
    )
    return 0 if record["feasible"] else 1


def refuse_foreign(args: argparse.Namespace, kind: str, design: str) -> None:
    """Refuse options that do not belong to a kind of design; a `DseError` that names them."""
    own = {SPACE: OF_SPACES}.get(kind) or (
        (*SHARED[:2], *COSTS[kind].defaults) if kind in COSTS else OF_LAUNCHES
    )
    given = [name for name in vars(args) if name in args.defaults and name not in (*own, "design")]
    if given:
        words = ", ".join("--" + name.replace("_", "-") for name in given)
        more = "; the space names its own system" if given == ["system"] and kind == SPACE else ""
        raise DseError(f"{design}: is {TITLES[kind]}, which does not take {words}{more}")


def run_file(args: argparse.Namespace, kind: str, asked: bool) -> int:
    """Evaluate a file of another program, by the module of its kind."""
    reader, title = COSTS[kind], kind_named(kind).title
    args.format = form_of(args.format, args.output if "output" in reader.defaults else None)
    if args.format not in reader.formats:
        raise DseError(f"{args.design}: {title} has no {args.format}; use {', '.join(reader.formats)}")
    args.profile_is_asked_for = asked
    args.profile = args.profile or checked_kind(args.design, None).profile(args.design)
    return int(import_module(reader.module).run(args))


def run_fit(args: argparse.Namespace, form: str) -> int:
    """Find the nearest design that fits, and evaluate it."""
    if args.best or args.sweep or args.designs or form not in ("table", "json"):
        raise DseError("--fit: changes one design; leave out --best, --sweep, --designs and tables")
    found = fit(args.design, profile=args.profile, **changes_of(args))
    if form == "json":
        write_content([f"{json_text(found.to_json())}\n".encode()], form, args.output)
        return 0
    changes = [Text(str(found)), Text()]
    write_report(lambda width: [*changes, *evaluation_report(found.space, found.record, width)], args.output)
    return 0


def write(
    space: Space, record: Record, form: str, output: Path | None, instead: str, commands: list[str]
) -> None:
    """The design as a report, or as one JSON object."""
    if form == "json":
        text = json_text({key: record[key] for key in EVALUATION_KEYS if key in record})
        write_content([f"{text}\n".encode()], form, output)
        return
    write_report(
        lambda width: evaluation_report(space, record, width, instead=instead, commands=commands), output
    )


def say_why_no_number(profile: str, space: Space, record: Record) -> None:
    """Name what the cost model does not cover."""
    has_none = math.isnan(record["breakdown"]["step_time_s"])
    found = reasons(space, profile, record["params"]) if has_none else []
    if found:
        print(f"dse: profile {profile}: no number: {'; '.join(found)}", file=sys.stderr)


def nearest_text(args: argparse.Namespace, record: Record) -> str:
    """The design nearest to one that does not fit, or the command that finds it in a large space."""
    own, asked = loaded_space(args.design), record["params"]
    if own.legal.count > SOON:
        words = " ".join(f"--set {quote(f'{name}={value}')}" for name, value in args.set)
        return f"dse evaluate {quote(str(args.design))} --fit {words} finds the nearest design that fits"
    fixed = {name: value for name, value in args.set if name not in own.by_name}
    named = {name: own.in_file(name, value) for name, value in asked.items() if name in own.by_name}
    try:
        found = fit(own, profile=args.profile, **changes_of(args) | {"set": named | fixed, "layout": None})
    except DseError as error:
        return str(error)
    changed = design_text(own, {name: value for name, (_, value) in found.changed.items()})
    here, there = (one["breakdown"]["step_time_s"] for one in (record, found.record))
    return f"{changed} would fit, {100 * (there / here - 1):+.1f} % step time"


#: Most legal designs among which the nearest is looked for unasked.
SOON: Final = 200_000
#: Ending of a file -> what is written there.
FORMS: Final = {**TABLE_ENDINGS, ".svg": "svg"}


def run_sweep(args: argparse.Namespace, space: Space, form: str) -> int:
    """Evaluate all named designs; 1 where none is feasible."""
    values = [(name.strip(), own.strip()) for name, _, own in (word.partition("=") for word in args.sweep)]
    refuse_together(args, form, [name for name, _ in values])
    workers = Workers(args.jobs, args.backend, args.scheduler)
    if args.designs:
        table, rows = read_designs(space, args.designs, note)
        found = priced(space, table, rows, profile=args.profile or NATIVE, jobs=workers)
    else:
        found = sweep(space, dict(values), profile=args.profile, jobs=workers)
    write_result(lambda where: write_sweep(found, form, where), args.output, ENDINGS[form])
    if found.feasible:
        return 0
    note(f"nothing feasible among {counted(len(found), 'design')}, {found.legal:,} of them legal")
    return 1


def refuse_together(args: argparse.Namespace, form: str, names: list[str]) -> None:
    """Refuse options that do not go together; a `DseError`."""
    if args.best:
        raise DseError(
            "--best: completes one design, as text or JSON; leave out --sweep, --designs and tables"
        )
    if args.designs and args.sweep:
        raise DseError("--designs and --sweep: name designs by a file or by values, not both")
    if args.designs and form == "svg":
        raise DseError("-o FILE.svg: is a picture of a --sweep; --designs have no order to draw them in")
    if "" in names:
        raise DseError("--sweep: name a parameter, such as --sweep tp=1,2,4")
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
