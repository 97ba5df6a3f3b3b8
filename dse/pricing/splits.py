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
    from costmodel.steps.transformer import settled_sharding
    from costmodel.training.design import SOLVE, SOLVE_BYTES, DesignPoints
    from costmodel.training.model import ModelShape
    from dse.pricing.evaluation import priced_inputs

    if "sharding" not in space.chosen or not isinstance(space.model, ModelShape) or not records:
        return [*records]
    system, design = priced_inputs(space, space.encode([record["params"] for record in records]))
    assert isinstance(design, DesignPoints)
    solved = np.isin(design.sharding, (SOLVE, SOLVE_BYTES))
    settled = settled_sharding(space.model, system, design) if solved.any() else design
    return [
        {**record, "splits": settled.ways(point)} if solved[point] else record
        for point, record in enumerate(records)
    ]


def splits_text(record: Mapping[str, Any]) -> str:
    """The splits of a record in words."""
    ways = " ".join(f"{kernel}={way}" for kernel, way in record["splits"].items())
    return f"solved to be split: {ways}"
