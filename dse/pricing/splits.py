"""What the cost model solved the sharding of designs to be, beside their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dse.spaces.space import Space

Record = dict[str, Any]


def with_splits(space: Space, records: Sequence[Record]) -> list[Record]:
    """The same records of designs; `splits` says how each kernel is split, where that was solved for."""
    if "sharding" not in space.chosen or not records or space.workloads:
        return [*records]
    from costmodel.steps.transformer import resolve_sharding
    from costmodel.training.design import SOLVE, SOLVE_BYTES, DesignPoints
    from costmodel.training.run import rank_run
    from dse.pricing.evaluation import transformer_run

    columns = space.encode([record["params"] for record in records])
    run = transformer_run(space, columns, DesignPoints)
    solved = np.isin(run.design.sharding, (SOLVE, SOLVE_BYTES))
    if not solved.any():
        return [*records]
    shape = rank_run(run.of(resolve_sharding(run.model, run.system, run.design))).design
    return [
        {**record, "splits": shape.assignments.words(float(number))} if is_solved else record
        for record, is_solved, number in zip(records, solved, shape.assignment, strict=True)
    ]


def splits_text(record: Mapping[str, Any]) -> str:
    """The splits of a record in words."""
    shardings = " ".join(f"{kernel}={option}" for kernel, option in record["splits"].items())
    return f"sharding as solved: {shardings}"
