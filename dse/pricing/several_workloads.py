"""Several workloads on machines: the best layout of each, and their steps together.

Beside each machine every legal layout of a workload is priced. Of those that keep all limits the best stands
for the workload; where none does, the one that breaks them least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.columns import FloatArray, column_units
from costmodel.steps.breakdown import ResultTable
from dse.fronts.pareto import as_costs
from dse.pricing.evaluated import NAN_VIOLATION, Evaluation

if TYPE_CHECKING:
    from dse.spaces.space import Space

#: Units of what a step takes, of which steps that follow each other take the sum.
TAKEN = ("s", "J", "FLOP")
#: Columns that are rates or shares of a step's time.
RATES = ("tokens_per_second", "tokens_per_second_per_gpu", "mfu", "average_power")


def first_of_each(space: Space, owner: np.ndarray[Any, Any], evaluation: Evaluation) -> Any:
    """Row of the best design of each owner; of equal ones the first."""
    cost = as_costs(evaluation.values, [objective.direction for objective in space.objectives])[:, 0]
    broken = np.maximum(evaluation.violations, 0.0).sum(axis=1)
    missing = np.where(np.isfinite(cost), 0.0, NAN_VIOLATION)
    broken = np.where(evaluation.feasible, 0.0, broken + missing)
    order = np.lexsort((cost, broken, owner))
    return order[np.unique(owner[order], return_index=True)[1]]


def without(evaluation: Evaluation, missing: Any) -> Evaluation:
    """Evaluation without a number for some designs, which break every limit."""
    if not missing.any():
        return evaluation
    rows = missing[:, None]
    return replace(
        evaluation,
        values=np.where(rows, np.nan, evaluation.values),
        margins=np.where(rows, -np.inf, evaluation.margins),
        violations=np.where(rows, NAN_VIOLATION, evaluation.violations),
        feasible=evaluation.feasible & ~missing,
        breakdown=evaluation.breakdown.map(lambda values: np.where(missing, np.nan, values)),
    )


def combined(parts: Sequence[ResultTable], weights: Sequence[float], *, worst: bool) -> ResultTable:
    """Weighted steps of several workloads on the same machines; columns are (points,).

    With `worst`, the workload whose weighted step takes longest stands for all; else times, energies and FLOPs add up
    by weight, and rates and shares are those over that time.

    Memory is that of the workload that needs most, whichever is the slowest.
    """
    scale = np.array(weights)[:, None]
    tables = [part.columns() for part in parts]
    times = scale * np.stack([part.time for part in parts])
    slowest, fullest = times.argmax(axis=0), np.stack([part.memory for part in parts]).argmax(axis=0)
    points = np.arange(times.shape[1])

    def column(name: str, unit: str) -> FloatArray:
        every = np.stack([table[name] for table in tables])
        if unit == "B":
            return np.asarray(every[fullest, points])
        taken = scale * every if unit in TAKEN else every
        if worst:
            return np.asarray(taken[slowest, points])
        if unit in TAKEN:
            return np.asarray(taken.sum(axis=0))
        if name in RATES:
            return np.asarray((times * every).sum(axis=0) / times.sum(axis=0))
        return np.asarray(every.max(axis=0))

    units = column_units(type(parts[0]))
    return parts[0].with_columns({name: column(name, unit) for name, unit in units.items()})


def prefixed_columns(evaluation: Evaluation) -> dict[str, FloatArray]:
    """Breakdowns of the workloads of machines: ``dense.step_time_s``; (points,) each. [SI units]"""
    return {
        f"{name}.{key}": values
        for name, workload in evaluation.workloads.items()
        for key, values in workload.evaluation.breakdown.by_key().items()
    }


def layouts_of(space: Space, evaluation: Evaluation) -> list[dict[str, dict[str, Any]]]:
    """For each machine, the layout of each workload that has one."""
    layouts: list[dict[str, dict[str, Any]]] = [{} for _ in range(evaluation.num_points)]
    for workload in space.workloads:
        part = evaluation.workloads[workload.name]
        names = [parameter.name for parameter in workload.space.inner]
        has_layout = np.isfinite(part.evaluation.values[:, 0]).tolist()
        for layout, params, is_there in zip(layouts, workload.space.decode(part.designs), has_layout, strict=True):
            if is_there:
                layout[workload.name] = {name: params[name] for name in names}
    return layouts
