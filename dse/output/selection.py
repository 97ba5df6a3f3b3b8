"""Rows of a study's table by condition, order and number."""

from __future__ import annotations

import numpy as np
import pandas as pd

from costmodel.columns import BoolArray
from costmodel.errors import DseError, ParameterError, suggestion
from dse.output.text import UNITS
from dse.pricing.evaluation import evaluate
from dse.pricing.records import with_kernels
from dse.pricing.space_rules import rules_for
from dse.searching.study import BaseStudy
from dse.searching.trials.trial_table import Selection, TrialTable
from dse.spaces.formulas.expressions import Expression
from dse.spaces.sections.objectives import keyed
from dse.spaces.space import FOCUS, Space


def selected(
    study: BaseStudy,
    part: Selection,
    *,
    where: str | None = None,
    sort: str | None = None,
    descending: bool = False,
    top: int | None = None,
) -> TrialTable:
    """The front or the trials of a study, filtered by a condition, sorted by a column and cut to `top` rows. [-]

    `where` is a condition on columns, such as ``"step_time < 15 s"``; infeasible designs may satisfy it, too. `sort` is
    a column with or without its unit. Raises `DseError` if the condition is invalid, or a column is unknown.
    """
    table = study.table.front() if part == "front" else study.table
    if where and len(table):
        table = table.take(np.flatnonzero(satisfied(study, table, where)))
    if sort and len(table):
        frame = table.to_frame()
        names = column_names(study.space, frame)
        if sort not in names:
            raise ParameterError(f"{{sort}}: {sort}: no column of this study{suggestion(sort, names)}")
        order = frame[names[sort]].reset_index(drop=True).sort_values(ascending=not descending, kind="stable")
        table = table.take(order.index.to_numpy())
    return table if top is None else table.take(np.arange(min(top, len(table))))


def satisfied(study: BaseStudy, table: TrialTable, condition: str) -> BoolArray:
    """(trials,) True for the designs of a table that satisfy a condition. [-]"""
    space, trials = study.space, [{"params": trial.params} for trial in table.trials]
    if names_solved(space, condition):  # a sampled space has these names as parameters
        solved = {"sharding" if parameter.words else "tiling" for parameter in space.solved}
        trials, space = with_kernels(space, trials), space.set_to(dict.fromkeys(sorted(solved), "sample"))
    space = space.focused(condition)
    designs = space.encode([trial["params"] for trial in trials])
    known = space.known_values(designs)
    for rule in space.rules:
        if rule.name == FOCUS:  # a condition on parameters alone
            margin, _ = rule.formula.margins(known)
            return np.broadcast_to(margin >= 0, len(table))
    margins = evaluate(space, designs, rules=rules_for(space, study.profile)).margins
    place = [limit.name for limit in space.limits].index(FOCUS)
    return np.asarray(margins[:, place] >= 0)


def names_solved(space: Space, condition: str) -> bool:
    """True if a condition names shardings or tiles that are solved for each design."""
    try:
        named = Expression.parse(condition).names
    except DseError:  # `Space.focused` says what is wrong
        return False
    return not named.isdisjoint(parameter.name for parameter in space.solved)


def column_names(space: Space, frame: pd.DataFrame) -> dict[str, str]:
    """Name of a column, with or without its unit -> the name in a table of a study."""
    known = {str(column): str(column) for column in frame.columns}
    units = UNITS | {own.key: own.unit for own in space.objectives}
    units |= {limit.key: limit.unit for limit in space.limits}
    return {bare_name(key, unit): key for key, unit in units.items() if key in known} | known


def bare_name(key: str, unit: str) -> str:
    """A name in tables without its unit."""
    suffix = keyed("", unit)
    return key.removesuffix(suffix) if suffix else key
