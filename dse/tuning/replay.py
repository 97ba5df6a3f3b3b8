"""Replays of measured sweeps: runs of tuning until the best layout of each group.

Every row of a table of measurements is a candidate of its group. A proposal is answered by the row, nothing is run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.columns import concatenated
from costmodel.errors import DseError
from costmodel.training.run import Run
from dse.tuning.belief import UNLIKELY, RunCandidates, Told, choice, decide, doubt_of, ensemble
from dse.validation.comparison import ComparedRow, compared, run_interval, usable_memory
from dse.validation.expressed import Expressed, systems
from dse.validation.table import MeasuredRow, read_table

#: A row, its run, and the columns of its breakdown.
Evaluated = tuple[ComparedRow, Expressed, Mapping[str, float]]
#: Types of rows that are whole runs; one out of memory has no time.
RUN_TYPES: Final = ("train_step", "memory")
#: Numbers of runs after which shares are reported. [-]
AFTER: Final = (1, 3, 5, 10)
#: Candidates of a group: the memory for their likeness grows with the square. [-]
MOST_CANDIDATES: Final = 5_000
#: Runs of a replay where nothing else is said. [-]
RUNS: Final = 10


def shares_after(best: float, times: Sequence[float]) -> dict[str, float]:
    """Number of runs -> the best step time of a group over the best so far; `times` are those of runs in turn. [s]"""
    shares = best / np.fmin.accumulate([math.inf, *times])[1:]
    return {str(count): float(shares[min(count, len(shares)) - 1]) for count in AFTER}


def replay(file: str | Path, runs: int = RUNS) -> dict[str, Any]:
    """Replays of each group of a table of measured runs, as JSON has them.

    At most `runs` of each group are evaluated; `not_candidates` has the reason for each row that is none, by identity.
    Raises `DseError` if the file cannot be read, or no group has a run with a time. [-]
    """
    groups: dict[str, list[MeasuredRow]] = {}
    left: dict[str, str] = {}
    for row in read_table(Path(file)):
        if row.group and row.row_type in RUN_TYPES and not row.mistake:
            groups.setdefault(row.group, []).append(row)
        else:
            left[row.id] = row.mistake or (f"a {row.row_type}" if row.group else "no group")
    if large := next((name for name, rows in groups.items() if len(rows) > MOST_CANDIDATES), None):
        raise DseError(f"{file}: group {large}: {len(groups[large]):,} rows, at most {MOST_CANDIDATES:,} are replayed")
    replayed = [one for name, rows in groups.items() if (one := _replayed(name, rows, runs, left))]
    if not replayed:
        raise DseError(f"no group of runs with a time: a row needs a `group`, and `row_type` {' or '.join(RUN_TYPES)}")

    def mean(name: str) -> dict[str, float]:
        return {str(count): float(np.mean([group[name][str(count)] for group in replayed])) for count in AFTER}

    return {
        "groups": replayed,
        "mean": mean("share"),
        "model_only_mean": mean("model_only"),
        "out_of_memory": sum(group["out_of_memory"] for group in replayed),
        "not_candidates": left,
    }


def _replayed(name: str, rows: Sequence[MeasuredRow], runs: int, left: dict[str, str]) -> dict[str, Any] | None:
    """One group, as JSON has it; None if none of its runs has a time."""
    known = _evaluated(rows, left)
    answers = [_answer(one) for one, *_ in known]
    best = min((time for time, _ in answers if time > 0), default=math.nan)
    if math.isnan(best):
        return None
    machine = systems([run.machine for _, run, _ in known])
    design = concatenated([run.design() for _, run, _ in known])
    memory, predicted = (np.array([cost[key] for *_, cost in known]) for key in ("peak_memory", "step_time"))
    capacity = usable_memory(known[0][1].machine.system, known[0][0].row.hw_mem_gb)
    ends = [run_interval(run) for _, run, _ in known]
    expected = np.concatenate([end.expected(cost) for end, (*_, cost) in zip(ends, known, strict=True)])
    doubt = doubt_of(np.array([one.low[0] for one in ends]), np.array([one.high[0] for one in ends]))
    machines = ensemble(Run(known[0][1].model, machine, design), expected)
    candidates = RunCandidates(machines, design, memory, capacity, doubt)
    told, stopped = list[Told](), None
    for count in range(min(runs, len(known))):
        decision = decide(candidates, told)
        if decision.best is not None and decision.chance < UNLIKELY and stopped is None:
            stopped = count
        tried = np.isin(np.arange(len(known)), [one.candidate for one in told])
        at = choice(decision.belief, decision.best_time, tried)
        time, needed = answers[at]
        told.append(Told(at, time, needed * memory[at], math.isnan(time)))
    order = np.lexsort([predicted, memory > capacity])[: len(told)]
    return {
        "group": name,
        "candidates": len(known),
        "ran": sum(time > 0 for time, _ in answers),
        "order": [known[one.candidate][0].row.id for one in told],
        "out_of_memory": sum(one.out_of_memory for one in told),
        "share": shares_after(best, [one.step_time for one in told]),
        "model_only": shares_after(best, [answers[at][0] for at in order.tolist()]),
        "stopped_after": stopped,
    }


def _evaluated(rows: Sequence[MeasuredRow], left: dict[str, str]) -> list[Evaluated]:
    """Rows of a group that the model evaluates, all of one model, each with its run and its costs."""
    known = list[Evaluated]()
    for one in compared(rows):
        if one.evaluated is None:
            left[one.row.id] = one.why_not
            continue
        run, cost = one.evaluated
        if known and replace(run.model, name=known[0][1].model.name) != known[0][1].model:
            left[one.row.id] = "another model than that of its group"
        else:
            known.append((one, run, cost))
    return known


def _answer(one: ComparedRow) -> tuple[float, float]:
    """Measured step time, nan for a run out of memory, and measured over predicted memory. [s], [-]"""
    if math.isinf(one.measured_bytes):
        return math.nan, math.nan
    return one.measured_s, one.measured_bytes / one.predicted_bytes
