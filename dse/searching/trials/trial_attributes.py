"""A trial from the evaluation of a design: values, violations and attributes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from costmodel.columns import FloatArray
from dse.pricing.evaluated import Evaluation
from dse.pricing.evaluation import layouts_of, prefixed_columns
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED
from dse.spaces.space import Space

#: Trial attributes: what the evaluation of a design says beside the objectives.
BREAKDOWN, DERIVED, MARGINS = "breakdown", "derived", "margins"
#: The same of several workloads: the layout of each.
LAYOUTS = "layouts"

#: Stands for a value that is not finite; its square does not overflow.
WORST = 1e150


def check_trials(trials: Iterable[FrozenTrial]) -> None:
    """Refuse trials whose attributes are not what dse stores.

    Raises the error of reading the first one that is not.
    """
    for trial in trials:
        attributes = trial.user_attrs
        for table in (BREAKDOWN, DERIVED, MARGINS):
            math.fsum(attributes.get(table, {}).values())
        for layout in attributes.get(LAYOUTS, {}).values():
            layout.keys()
        operator.index(attributes.get(DESIGNS_PRICED, 0))


def is_feasible(trial: FrozenTrial) -> bool:
    """True if a finished trial keeps every limit."""
    return all(violation <= 0 for violation in trial.constraints.values())


def lesson(trial: FrozenTrial) -> FrozenTrial:
    """A trial without what samplers do not read."""
    learned = copy(trial)
    learned.user_attrs = {}
    return learned


def told_columns(space: Space, evaluation: Evaluation) -> dict[str, Mapping[str, FloatArray]]:
    """Breakdown, derived columns and margins of designs, (points,), under names that end in their units."""
    breakdown = evaluation.breakdown.by_key()
    return {
        BREAKDOWN: breakdown | (prefixed_columns(evaluation) if space.workloads else {}),
        DERIVED: evaluation.derived,
        MARGINS: {limit.key: evaluation.margins[:, i] for i, limit in enumerate(space.limits)},
    }


def trial_attributes(space: Space, evaluation: Evaluation) -> list[dict[str, dict[str, Any]]]:
    """Results of `told_columns` for each design, where they are finite; with several workloads also their layouts."""
    tables = told_columns(space, evaluation)
    points = len(evaluation.values)
    rows: list[dict[str, dict[str, Any]]] = [{table: {} for table in tables} for _ in range(points)]
    for table, columns in tables.items():
        for name, values in columns.items():
            for row, value in zip(rows, np.broadcast_to(values, (points,)).tolist(), strict=True):
                if math.isfinite(value):  # JSON, and so PostgreSQL, knows no other numbers
                    row[table][name] = value
    if space.workloads:
        for row, layouts in zip(rows, layouts_of(space, evaluation), strict=True):
            row[LAYOUTS] = layouts
    return rows


def finite(evaluation: Evaluation, minimize: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[FloatArray, FloatArray]:
    """Values and violations with what is not finite made very bad: Optuna stores no NaN, and ranks no inf."""
    worst = np.where(minimize, WORST, -WORST)
    values = np.where(np.isfinite(evaluation.values), evaluation.values, worst)
    return values, np.nan_to_num(evaluation.violations, nan=WORST, posinf=WORST, neginf=0.0)
