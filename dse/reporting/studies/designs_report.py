"""The designs of a study as tables to read: the front, all trials, or columns that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.formats.quantity import readable
from dse.output import STEP_TIME, UNITS, Record, Report, bare_name, column_names, column_text
from dse.pricing.evaluated import RECORD_KEYS
from dse.reporting.design_table import Column, design_table, drawn, rest_text, trial_columns
from dse.searching.trials.measured_runs import by_trial
from dse.spaces.sections.parameters import keyed
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

    from dse.searching.study import BaseStudy
    from dse.searching.trials.trial_table import Selection, TrialTable


def designs_report(
    study: BaseStudy, table: TrialTable, part: Selection, width: int, *, most: int | None = None
) -> Report:
    """Designs of the front, or trials, as one table: at most the first `most`."""
    if not len(table):
        return [Text(f"Study {study.name}: no such design.")]
    first = table.take(np.arange(min(most or len(table), len(table))))
    notes = {row: "infeasible" for row, kept in enumerate(first.feasible.tolist()) if not kept}
    runs = study.told_runs()
    died = {run.trial: "ran out of memory" if run.failed == "oom" else "run died" for run in runs if run.failed}
    ran = died | {trial: f"ran: {readable(time, 's')}" for trial, time in by_trial(runs, "step_time", median).items()}
    notes |= {row: ran[trial] for row, trial in enumerate(first.numbers.tolist()) if trial in ran}
    records = [in_short(record) for record in first.records()]
    varying = [p.name for p in study.space.parameters if p.options is None or p.options.size > 1]
    return [
        *design_table(study.space, records, width, notes, varying=varying if len(first) < len(table) else None),
        *rest_lines(study, table, part, most),
    ]


def rest_lines(study: BaseStudy, table: TrialTable, part: Selection, most: int | None) -> list[Text]:
    """Commands that show the rows of a table beyond `most`; no line if it shows all."""
    if most is None or len(table) <= most:
        return []
    words, file = (study.name, "front") if part == "front" else (f"{study.name} --trials", "trials")
    return [
        Text(rest_text(len(table), most, f"--top {len(table)} shows all, dse show {words} -o {file}.csv writes them"))
    ]


def in_short(record: Record) -> Record:
    """The columns of a design that a table shows."""
    names = ("trial", "winner", "params", "derived", "values", "run", "layouts", *RECORD_KEYS)
    kept = {name: record[name] for name in names if name in record}
    shown = {n: v for n, v in record["breakdown"].items() if n in ("mfu", STEP_TIME) or n.endswith(".step_time_s")}
    return {**kept, "breakdown": shown}


def chosen_report(
    study: BaseStudy, table: TrialTable, names: Sequence[str], part: Selection, most: int | None = None
) -> Report:
    """Designs of a study with some columns, in the order in which they are named, at most the first `most`.

    Raises `DseError` if one is not a column.
    """
    records = table.take(np.arange(min(most or len(table), len(table)))).records()
    if not records:
        raise DseError(f"study {study.name!r}: no such design")
    columns = [column_of(study.space, records, name) for name in names if name != "trial"]
    return [*drawn([*trial_columns(records), *columns]), *rest_lines(study, table, part, most)]


def column_of(space: Space, records: Sequence[Record], name: str) -> Column:
    """A column of a table."""
    cells = [_cell(space, record, name) for record in records]
    if all(cell is None for cell in cells):
        known = [key for part in ("params", "breakdown", "derived", "values", "margins") for key in records[0][part]]
        raise ParameterError(f"{{columns}}: {name}: no column of this study{suggestion(name, known)}")
    parameter = space.recorded_by_name.get(name)
    words = parameter is not None and bool(parameter.words)
    return Column(name, ["-" if cell is None else cell for cell in cells], left=words)


def _cell(space: Space, record: Record, name: str) -> str | None:
    """A value of a design for people; None where it has none of this name."""
    if name in record["params"]:
        return space.recorded_by_name[name].shown(record["params"][name])
    tables = (
        (record["breakdown"], UNITS),
        (record["derived"], {derived.name: derived.unit for derived in space.derived}),
        (record["values"], {objective.key: objective.unit for objective in space.objectives}),
        (record["margins"], {limit.key: limit.unit for limit in space.limits}),
        (record, dict.fromkeys(("step_time_low_s", "step_time_high_s"), "s")),
    )
    for values, units in tables:
        for key, unit in units.items():
            if key in values and name in (key, bare_name(key, unit), keyed(key, unit)):
                return column_text(record, key) if units is UNITS else readable(values[key], unit)
    return None


def chosen_frame(space: Space, frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Chosen columns of a study's table, with the number of the trial.

    Raises `DseError` if one is not a column.
    """
    known = column_names(space, frame)
    for name in names:
        if name not in known:
            raise ParameterError(f"{{columns}}: {name}: no column of this study{suggestion(name, known)}")
    chosen = dict.fromkeys(["trial", *(known[name] for name in names)])
    return frame[[name for name in chosen if name in frame.columns]]
