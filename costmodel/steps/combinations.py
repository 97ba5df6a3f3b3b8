"""Designs on machines, all with all: each number is worked out once for what it depends on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self

import numpy as np

from costmodel.columns import FloatArray, IntArray, distinct_rows, is_long
from costmodel.steps.assembly import CELLS, in_chunks
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.microbatch import quantities_of_kernels
from costmodel.training.run import TransformerRun

#: Most combinations for each point that is asked for: some may be missing.
MOST_CELLS: Final = 1.25


@dataclass(frozen=True, slots=True, eq=False)
class Combinations:
    """Some designs, some chips, and some surroundings of chips: all combinations of them.

    Quantities that kernels read are (chips, 1), others (surroundings, 1, 1), and columns of designs
    (designs,): they broadcast against each other, and each result has the axes of what it depends on alone.
    """

    run: TransformerRun
    shape: tuple[int, ...]  #: surroundings, chips, designs
    cells: IntArray  #: of each point, among all combinations; (points,) [-]

    @classmethod
    def of(cls, run: TransformerRun) -> Self | None:
        """The combinations that points make up, in any order; None where they do not, or have one machine."""
        quantities, points = run.system.quantities(), run.num_points
        long = {name for name, values in quantities.items() if is_long(values)}
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
        own = replace(run, system=run.system.with_quantities(axes), design=design.take(rows[2]))
        return cls(own, shape, np.ravel_multi_index(np.broadcast_arrays(*places), shape))

    def evaluated(self, chunk: Callable[[TransformerRun], Breakdown], alike: Sequence[str]) -> Breakdown:
        """Costs of the points; arguments are those of `in_chunks`."""
        surroundings, *others = self.shape
        step, tables = max(CELLS // self.shape[1], 1), []
        for start in range(0, surroundings, step):
            system = self.run.system.map(partial(_of_surroundings, slice(start, start + step)))
            costs = in_chunks(chunk, replace(self.run, system=system), alike)
            tables.append((min(step, surroundings - start), costs.columns()))
        columns = {}
        for name in tables[0][1]:
            parts = [np.broadcast_to(table[name], (count, *others)) for count, table in tables]
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            columns[name] = whole.reshape(-1)[self.cells]
        return costs.with_columns(columns)


def _behind(axes: int, values: FloatArray) -> FloatArray:
    """A quantity with so many axes behind its own; one value has none."""
    return values.reshape(-1, *[1] * axes) if values.size > 1 else values.reshape(())


def _of_surroundings(some: slice, values: FloatArray) -> FloatArray:
    """A quantity in some surroundings alone."""
    return values[some] if values.ndim > 2 else values
