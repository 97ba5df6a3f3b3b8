"""The answer of `dse tune` in sentences: the layout to run next and why, results of runs, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.calibration.constants import LearnedConstant
from dse.output import Record, counted, percent, percent_more
from dse.reporting.answers import Line, joined, layout_text, next_lines, study_words, wrapped
from dse.reporting.design_table import ruled_table
from dse.searching.study import BaseStudy
from dse.searching.trials.measured_runs import MeasuredRun
from dse.tuning.belief import WORTH
from dse.tuning.study_candidates import Proposal, Tuning

#: Steps of a test run, for its price: warm-up and enough for a median. [-]
STEPS = 50


def tuning_report(study: BaseStudy, tuned: Tuning, width: int, storage: str | None = None) -> list[Text]:
    """Lines that name the next runs with their commands, and results of earlier runs."""
    words = study_words(study.name, storage)
    rows = np.flatnonzero(np.isin(study.table.numbers, [one.trial for one in tuned.proposals]))
    records = {record["trial"]: record for record in study.table.take(rows).records()}
    lines: list[Line] = []
    for one in tuned.proposals:
        record = records[one.trial]
        lines.append(("Again" if one.repeats else "Run", f"trial {one.trial}: {layout_text(study.space, record)}"))
        lines.append((" ", expected_text(study, one, record)))
    if tuned.proposals:
        lines.append(("Why", reason(tuned)))
    elif tuned.best is None:
        lines.append(("Stop", "each layout of this study failed; plan more GPUs, or set less (--set)"))
    else:
        lines.append(("Stop", f"trial {tuned.best} ({readable(tuned.best_time, 's')} a step) is the one to use: a "
                      f"layout {percent(WORTH)} faster has a chance of {percent(tuned.chance)}"))  # fmt: skip
    lines += [("Runs" if not at else " ", run_line(one, tuned.expected)) for at, one in enumerate(tuned.runs)]
    lines += [("Learned" if not at else " ", learned_line(one)) for at, one in enumerate(tuned.learned)]
    commands = [f"dse export {words} --trial {one.trial} --format megatron -o train.sh" for one in tuned.proposals[:1]]
    commands += [f"dse tune {words} --tell {one.trial} --log run.log" for one in tuned.proposals]
    if tuned.best is not None and not tuned.proposals:
        commands = [f"dse export {words} --trial {tuned.best} --format megatron -o train.sh"]
    return wrapped([*lines, *next_lines(commands)], width)


def expected_text(study: BaseStudy, one: Proposal, record: Record) -> str:
    """Expected step time with its interval, the chance to fit, and the price of a test run."""
    chips = {**study.space.constants, **record["derived"], **record["params"]}.get("world_size", math.nan)
    hours = one.step_time * STEPS * chips / 3600
    return joined([
        f"{readable(one.step_time, 's')} a step (90 %: {readable(one.low, 's')} to {readable(one.high, 's')})",
        f"fits with a chance of {percent(one.fits)}",
        f"{STEPS} steps take {readable(one.step_time * STEPS, 's')} and {hours:,.1f} GPU-hours",
    ])  # fmt: skip


def reason(tuned: Tuning) -> str:
    """The reason for the first proposal."""
    one = tuned.proposals[0]
    if tuned.best is None:
        return "the fastest layout that is likely to fit, for slower links and hosts than those of the system file too"
    if one.repeats:
        return "the two best layouts differ by less than their repeats do"
    return (
        f"expected gain of {percent(one.gain)} over trial {tuned.best} ({readable(tuned.best_time, 's')}); a layout "
        f"{percent(WORTH)} faster has a chance of {percent(tuned.chance)}"
    )


def run_line(run: MeasuredRun, expected: Mapping[int, float]) -> str:
    """A recorded run compared with its prediction."""
    if run.failed:
        what = "ran out of memory" if run.failed == "oom" else "died"
    else:
        predicted = expected[run.trial]
        error = percent_more(run.step_time / predicted)
        what = f"{readable(run.step_time, 's')} a step, {readable(predicted, 's')} predicted ({error})"
    memory = f", {readable(run.peak_memory, 'B')} reserved" if run.peak_memory > 0 else ""
    return f"trial {run.trial}: {what}{memory}{f', {run.software}' if run.software else ''} (run {run.id})"


def learned_line(one: LearnedConstant) -> str:
    """A constant that runs moved away from the built-in value."""
    values = (one.after, one.before, *one.interval)
    after, before, low, high = (f"{value:.2f}" if one.unit == "-" else readable(value, one.unit) for value in values)
    within = "at its bound: the cause is something else" if one.at_bound else f"90 %: {low} to {high}"
    return f"{one.name} is {after} rather than {before} ({within})"


def replay_report(record: Mapping[str, Any], width: int) -> list[RenderableType]:
    """Shares of the best throughput after some runs, of each group and in the mean."""
    table = ruled_table("group", "layouts", *record["mean"], "stopped")
    for group in record["groups"]:
        shares = [f"{share:.3f}" for share in group["share"].values()]
        table.add_row(group["group"], str(group["candidates"]), *shares, str(group["stopped_after"] or ""))
    for name, key in (("mean", "mean"), ("mean, model alone", "model_only_mean")):
        table.add_row(name, "", *(f"{share:.3f}" for share in record[key].values()), "")
    runs = counted(sum(len(group["order"]) for group in record["groups"]), "run")
    note = f"{record['out_of_memory']} of {runs} ran out of memory"
    if left := len(record["not_candidates"]):
        note += f"; {counted(left, 'row')} could not be used (--format json has the reasons)"
    return [Text("Share of the best measured throughput, by number of runs:"), Text(), table, Text(), Text(note)]
