"""Designs on machines, all with all: each number is worked out once for what it depends on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self

import numpy as np

from costmodel.columns import FloatArray, IntArray, distinct_rows, is_long
from costmodel.steps.micro_batch.micro_batch import quantities_of_kernels
from costmodel.steps.result.assembly import CELLS, in_chunks
from costmodel.steps.result.breakdown import Breakdown
from costmodel.training.design import DesignPoints
from costmodel.training.run import TransformerRun

#: Most combinations for each point that is asked for: some may be missing.
MOST_CELLS: Final = 1.25


@dataclass(frozen=True, slots=True, eq=False)
class Combinations:
    """All combinations of some designs, some chips and some surroundings of chips.

    Quantities that kernels read are (chips, 1), others (surroundings, 1, 1), and columns of designs
    (designs,): they broadcast against each other, and each result has the axes of what it depends on alone.
    """

    run: TransformerRun
    shape: tuple[int, ...]  #: surroundings, chips, designs
    places: tuple[IntArray, ...]  #: of each point along them; (points,) each [-]

    @classmethod
    def of(cls, run: TransformerRun) -> Self | None:
        """The combinations that points make up, in any order; None where they do not, or have one machine."""
        quantities, points = run.system.quantities(), run.num_points
        long = {name for name, values in quantities.items() if is_long(values)}
        if not long:
            return None
        chips = long & quantities_of_kernels(run.system)
        surroundings = long - chips
        design = run.design.map(lambda values: np.broadcast_to(values, (points,)))
        tables = [[quantities[name] for name in names] for names in (surroundings, chips)]
        rows: list[IntArray] = []
        places: list[IntArray] = []
        shape: tuple[int, ...] = ()
        for columns in (*tables, [*design.columns().values()]):
            different, back = distinct_rows(*columns)
            rows, places, shape = [*rows, different], [*places, back], (*shape, different.size)
            if math.prod(shape) > MOST_CELLS * points:
                return None
        if math.prod(shape[:-1]) == 1 or shape[1] > CELLS:
            return None
        axes = {name: _behind(1, quantities[name][rows[1]]) for name in chips}
        axes |= {name: _behind(2, quantities[name][rows[0]]) for name in surroundings}
        combined = replace(run, system=run.system.with_quantities(axes), design=design.take(rows[2]))
        return cls(combined, shape, tuple(np.broadcast_arrays(*places)))

    def evaluated(
        self, chunk: Callable[[TransformerRun], Breakdown], grouping: Callable[[DesignPoints], Sequence[FloatArray]]
    ) -> Breakdown:
        """Costs of the points; arguments are those of `in_chunks`."""
        surroundings, *others = self.shape
        step, tables = max(CELLS // self.shape[1], 1), []
        for start in range(0, surroundings, step):
            system = self.run.system.map(partial(_of_surroundings, slice(start, start + step)))
            tables.append(in_chunks(chunk, replace(self.run, system=system), grouping))
        sizes = [min(step, surroundings - start) for start in range(0, surroundings, step)]
        columns, known = {}, {}
        for name in tables[0].columns():
            parts = [getattr(table, name) for table in tables]
            if len(parts) > 1:
                full = zip(parts, sizes, strict=True)
                parts = [np.concatenate([np.broadcast_to(part, (size, *others)) for part, size in full])]
            [whole] = parts
            if whole.shape not in known:
                known[whole.shape] = self._cells(whole.shape)
            columns[name] = whole.reshape(-1)[known[whole.shape]]
        return tables[0].with_columns(columns)

    def _cells(self, shape: tuple[int, ...]) -> IntArray:
        """Where each point stands in a column that has some of the axes alone; (points,) [-]"""
        axes = (1,) * (len(self.shape) - len(shape)) + shape
        indices = [np.minimum(index, size - 1) for index, size in zip(self.places, axes, strict=True)]
        return np.ravel_multi_index(indices, axes)


def _behind(axes: int, values: FloatArray) -> FloatArray:
    """A quantity with so many axes behind its own; one value has none."""
    return values.reshape(-1, *[1] * axes) if values.size > 1 else values.reshape(())


def _of_surroundings(rows: slice, values: FloatArray) -> FloatArray:
    """A quantity in some surroundings alone."""
    return values[rows] if values.ndim > 2 else values
