"""Evaluated designs as nested records: what JSON output holds of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from costmodel.columns import FloatArray
from costmodel.rules.rules import WorkloadRules
from dse.pricing.evaluated import Evaluation
from dse.pricing.evaluation import evaluate
from dse.pricing.kernel_choices import with_kernels
from dse.pricing.record_columns import with_intervals, with_runs
from dse.pricing.several_workloads import layouts_of, prefixed_columns
from dse.pricing.space_rules import NATIVE
from dse.spaces.space import Space


def design_records(space: Space, designs: Mapping[str, FloatArray], evaluation: Evaluation) -> list[dict[str, Any]]:
    """One nested record per evaluated design, as in JSON output; names end in their units."""
    points = len(evaluation.values)

    def rows(columns: Mapping[str, FloatArray]) -> list[dict[str, float]]:
        lists = {name: np.broadcast_to(values, (points,)).tolist() for name, values in columns.items()}
        return [{name: values[row] for name, values in lists.items()} for row in range(points)]

    records = [
        {"feasible": feasible, "params": params, "derived": derived, "values": values, "margins": margins}
        | {"breakdown": breakdown}
        for feasible, params, derived, values, margins, breakdown in zip(
            evaluation.feasible.tolist(),
            space.decode(designs),
            rows(evaluation.derived),
            rows(dict(zip((o.key for o in space.objectives), evaluation.values.T, strict=True))),
            rows({limit.key: evaluation.margins[:, i] for i, limit in enumerate(space.limits)}),
            rows(evaluation.breakdown.by_key()),
            strict=True,
        )
    ]
    if space.workloads:
        layouts, parts = layouts_of(space, evaluation), rows(prefixed_columns(evaluation))
        for record, layout, part in zip(records, layouts, parts, strict=True):
            record["layouts"], record["breakdown"] = layout, {**record["breakdown"], **part}
    return with_runs(space, records)


def priced_design(space: Space, params: Mapping[str, Any], *, rules: WorkloadRules | None = None) -> dict[str, Any]:
    """The record of one design, with what was solved for it."""
    columns = space.encode([params])
    records = with_kernels(space, design_records(space, columns, evaluate(space, columns, rules=rules)))
    return with_intervals(space, records, rules.profile if rules else NATIVE)[0]
