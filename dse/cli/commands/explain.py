"""`dse explain`: parts of the step time and the memory of a design, and changes that would reduce them.

Parts of time and memory form a tree that adds up to the totals. Sensitivities evaluate the design again with one value
changed. A profiler trace adds measured kernels to the predicted ones."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import numpy as np

from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.quantity import readable
from dse.api.designs import explain, with_number
from dse.cli.options import changed_space, changes_of, launched_space, pin, say_what_was_open, set_words
from dse.cli.output import PICTURES, form_of, write_answer, write_content, write_json, write_report
from dse.cli.terminal import say
from dse.explaining import explanation as explaining
from dse.explaining.explanation import Difference, Explanation, csv_text
from dse.explaining.neighbours import Neighbour, neighbourhoods, sensitivity
from dse.output import design_text
from dse.reporting.answers import wrapped
from dse.reporting.designs.changes_report import (
    difference_report,
    explained_report,
    importance_report,
    sensitivity_report,
)

if TYPE_CHECKING:
    from dse.api.study import Study
    from dse.searching.trials.measured_runs import MeasuredRun

#: Ending of a file -> its format.
ENDINGS: Final = {".txt": "table", ".csv": "csv", ".json": "json", **PICTURES}


def run(args: argparse.Namespace) -> int:
    """Explain a design, or print sensitivities or importances."""
    form = form_of(args.format, args.output, ENDINGS)
    if args.sensitivity:
        return sensitivities(args, form)
    if form == "csv" or form in PICTURES.values():
        raise DseError(f"--format {form}: only with --sensitivity; use table or json")
    if args.measured_mfu or args.measured_step_time:
        return gap(args, form)
    if args.trace:
        return traced(args, form)
    return importance(args, form) if args.importance else explanation(args, form)


def sensitivities(args: argparse.Namespace, form: str) -> int:
    """Print how the step time changes with each parameter and each constant of the system."""
    result = sensitivity(named_design(args))
    if form in PICTURES.values():
        from dse.reporting.pictures.design_figures import tornado
        from dse.reporting.pictures.style import picture

        write_content([picture(tornado(result), form)], form, args.output)
    elif form == "csv":
        write_content([csv_text(result.records()).encode()], form, args.output)
    else:
        report = partial(sensitivity_report, result, everything=args.all)
        write_answer(form, result.to_json(), report, args.output)
    return 0


def importance(args: argparse.Namespace, form: str) -> int:
    """Print which parameters matter for each objective."""
    study = stored_study(args)
    importances = study.importance()
    record = {"study": study.name, **importances.to_json()}
    write_answer(form, record, lambda width: importance_report(study.name, importances, width), args.output)
    return 0


def explanation(args: argparse.Namespace, form: str) -> int:
    """Explain where time and memory of a design go."""
    explained = named_design(args)
    difference = Difference(explained, other_design(args, explained)) if args.against else None
    [(near, bound)] = neighbourhoods([explained])
    study = None if explained.trial is None else stored_study(args)
    runs = [] if study is None else [run for run in study.told_runs() if run.trial == explained.trial]
    if form == "json":
        record = {
            **explained.to_json(),
            "binding": bound.to_json(),
            "levers": [lever.to_json() for lever in bound.levers],
            "neighbours": [design.to_json() for design in near],
            "runs": [run.to_json() for run in runs],
            **(difference.to_json() if difference else {}),
        }
        write_json(record, args.output)
        return 0
    if difference:
        write_report(lambda width: difference_report(difference, width, everything=args.all), args.output)
        return 0
    ran, commands = run_lines(runs, explained), next_commands(args, explained, near)
    before = [] if study is None else stored_lines(study, explained)
    write_report(
        lambda width: [
            *explained_report(explained, near, bound, width, everything=args.all, commands=commands),
            *wrapped([*(("Ran", line) for line in ran), *(("Stored", line) for line in before)], width),
        ],
        args.output,
    )
    return 0


def stored_lines(study: Study, explained: Explanation) -> list[str]:
    """The step time that the study has of the trial, where another version of the cost model predicted it."""
    from dse.searching.trials.trial_table import BREAKDOWN

    table = study.table
    [trial] = table.take(np.flatnonzero(table.numbers == explained.trial)).trials
    stored = trial.user_attrs[BREAKDOWN]["step_time_s"]
    if trial.params != explained.params or math.isclose(stored, explained.step_time, rel_tol=1e-9):
        return []
    return [
        f"as {readable(stored, 's')} a step, by another version of the cost model; all figures here are of this one"
    ]


def run_lines(runs: Sequence[MeasuredRun], explained: Explanation) -> list[str]:
    """Real runs of the trial, with the prediction."""
    if not runs:
        return []
    from dse.reporting.tuning_report import run_line

    return [run_line(one, {one.trial: explained.step_time}) for one in runs]


def next_commands(args: argparse.Namespace, explained: Explanation, near: Sequence[Neighbour]) -> list[str]:
    """The command that compares the design with the best design one step away."""
    if not near:
        return []
    storage = f" --storage {quote(args.storage)}" if args.storage else ""
    trial = "" if explained.trial is None else f" --trial {explained.trial}"
    changed = {name: new for name, (_, new) in near[0].changes.items() if new is not None}
    against = quote(design_text(explained.space, changed))
    return [f"dse explain {quote(str(args.design))}{set_words(args)}{trial}{storage} --against {against}"]


def gap(args: argparse.Namespace, form: str) -> int:
    """Hold a measured step against the prediction, and rank causes of the gap."""
    from dse.explaining.measured_gap import measured_gap
    from dse.reporting.designs.side_by_side_report import gap_report

    why = measured_gap(named_design(args), measured_step_time=args.measured_step_time, measured_mfu=args.measured_mfu)
    write_answer(form, why.to_json(), lambda width: gap_report(why, width), args.output)
    return 0


def traced(args: argparse.Namespace, form: str) -> int:
    """Hold traces of a profiler against the prediction, and say where time is lost."""
    from dse.explaining.measured_gap import trace_gap

    result = trace_gap(named_design(args), args.trace)
    write_answer(form, result.to_json(), result.report, args.output)
    return 0


def named_design(args: argparse.Namespace) -> Explanation:
    """The design that the arguments name: a trial of a study, or a design of a space.

    Raises `DseError` if there is no such design, or the cost model has no number for it.
    """
    text, files = args.design, partial(import_module, "dse.api.design_files")  # not loaded for names of studies
    is_file = Path(text.partition(":")[0]).is_file() and files().kind_of_design(text) != "space"
    if args.system or is_file or (" " in text and files().launch_form(text)):
        return explain(launched_space(args), profile=args.profile)
    if not (args.set or args.layout):
        return stored_study(args).explain(args.trial, objective=args.objective, profile=args.profile)
    if args.trial is not None:
        raise DseError(f"--trial {args.trial}: names a design; leave out --set and --layout, or use --against")
    if not Path(args.design).exists() and args.design not in shipped.names("spaces"):
        raise DseError(f"{args.design}: no space or file, which --set and --layout change; of a study use --against")
    pinned = changed_space(args)
    say_what_was_open(pinned, pinned.completed({}))
    return explain(args.design, profile=args.profile, **changes_of(args))


def stored_study(args: argparse.Namespace) -> Study:
    """The study that the arguments name."""
    from dse.api.study import Study  # loads Optuna, which a design of a space does not need

    return Study.load(args.design, storage=args.storage)


def other_design(args: argparse.Namespace, explanation: Explanation) -> Explanation:
    """The design that ``--against`` names: a trial of the same study, or the same design with some values changed.

    Raises `DseError` if there is no such design.
    """
    text, profile = args.against.strip(), explanation.profile
    if text.isascii() and text.isdigit():
        if explanation.trial is None:
            raise DseError(f"--against {text}: needs a study; name changed values, such as tp=8")
        number, params = stored_study(args).design(int(text))
        return with_number(explaining.explain(explanation.space, params, profile=profile, trial=number))
    try:
        pins = dict(pin(word) for word in re.split(r"[\s,]+(?=\w+\s*=)", text))
    except argparse.ArgumentTypeError as error:
        raise DseError(f"--against {text!r}: {error}, or the number of a trial") from None
    space = explanation.space.pinned(pins, replace=bool(args.system))
    kept = explanation.params if not args.system else {}  # a launch file opens nothing
    params = space.completed(kept)
    moved = {n: v for n, v in params.items() if v != explanation.params.get(n, v) and n not in pins}
    if moved:
        say(f"changed too, to be legal: {design_text(space, moved)}")
    return with_number(explaining.explain(space, params, profile=profile))
