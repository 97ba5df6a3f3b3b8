"""The two sides of a design: its layout, and its machine; and the machines of a space as trees of boxes.

A component of the legal designs is of the machine where all that its parameters decide are quantities of the
system: nothing of how the model is laid out. Its rows form trees. A node is some of the rows; its box holds
all of their quantities; its two children share the rows out, down to single ones. Where a node of every
component's trees is taken, that is a set of machines, the product of the nodes' rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.pricing.workers import Pricer
from dse.spaces.formulas.names import MODEL_SETTINGS
from dse.spaces.legal import Component
from dse.spaces.space import Space

#: Most rows of a component of which trees are made.
MOST_TREE_ROWS: Final = 200_000


@dataclass(frozen=True)
class Forest:
    """The rows of a component of machines as trees: nodes by number, each behind its parent.

    A tree holds rows that agree in every quantity of which more may be slower.
    """

    component: Component
    names: tuple[str, ...]  #: parameters, and columns derived from them
    low: FloatArray  #: (nodes, names) ends of each node's box [SI units]
    high: FloatArray
    below: IntArray  #: (nodes,) the first of two children; -1 of a single row [-]
    sample: IntArray  #: (nodes,) one of the node's rows, near the middle [-]
    spread: FloatArray  #: (nodes,) how much objectives may differ within the box [-]
    inherits: BoolArray  #: (nodes,) whether the box has as much of every rising quantity as its parent's
    roots: IntArray  #: (trees,) [-]

    def of(self, ends: FloatArray, nodes: IntArray) -> dict[str, FloatArray]:
        """Columns of one of the ends of the boxes of some nodes."""
        return {name: ends[nodes, column] for column, name in enumerate(self.names)}

    @property
    def agrees(self) -> bool:
        """True if all rows agree in every quantity of which more may be slower, so that one tree serves all."""
        return self.roots.size == 1


class _Grower:
    """Grows the trees of one component."""

    def __init__(self, values: FloatArray, rising: IntArray, weights: FloatArray) -> None:
        self.values, self.rising, self.weights = values, rising, weights
        self.low: list[FloatArray] = []
        self.high: list[FloatArray] = []
        self.sample: list[int] = []
        self.spread: list[float] = []
        self.inherits: list[bool] = []
        self.below: list[int] = []

    def add(self, rows: IntArray, parent: int = -1) -> int:
        """A node of some rows."""
        values = self.values[rows]
        low, high = values.min(axis=0), values.max(axis=0)
        side = np.where(high > low, high - low, 1.0)
        self.low.append(low)
        self.high.append(high)
        self.sample.append(int(rows[np.argmin((((values - low) / side - 0.5) ** 2).sum(axis=1))]))
        self.spread.append(float(self.spreads(low, high).sum()))
        self.inherits.append(parent >= 0 and bool((high == self.high[parent])[self.rising].all()))
        self.below.append(-1)
        return len(self.below) - 1

    def grow(self, rows: IntArray) -> int:
        """A tree of some rows; its root."""
        root = self.add(rows)
        waiting = [(root, rows)]
        while waiting:
            node, rows = waiting.pop()
            if rows.size > 1:
                halves = self.halves(node, rows)
                self.below[node] = self.add(halves[0], node)
                self.add(halves[1], node)
                waiting += [(self.below[node], halves[0]), (self.below[node] + 1, halves[1])]
        return root

    def spreads(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """Share of each rising quantity in the spread of a box. [-]"""
        low, high = low[self.rising], high[self.rising]
        return np.asarray(self.weights * (high - low) / np.where(high > 0, high, 1.0))

    def halves(self, node: int, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Rows below and above the middle of the quantity that decides most."""
        spread = self.spreads(self.low[node], self.high[node])
        if not (spread > 0).any():
            return rows[: rows.size // 2], rows[rows.size // 2 :]
        column = self.values[rows, self.rising[int(np.argmax(spread))]]
        options = np.unique(column)
        upper = column >= options[options.size // 2]
        return rows[~upper], rows[upper]


def forest_of(space: Space, component: Component, weights: Mapping[str, float]) -> Forest:
    """The trees of a component of machines.

    `weights` has the quantities of which more is never slower, with their effects; a large effect is halved early. [-]
    A quantity that is 0 in a row is not taken as one of them: more of it may be slower than none.
    """
    columns = columns_of(space, [component], component.columns(np.arange(component.rows)))
    names, quantities = tuple(columns), space.system.units()
    values = np.stack([np.broadcast_to(column, (component.rows,)) for column in columns.values()], axis=1)
    lawful = [name in weights and bool((values[:, at] > 0).all()) for at, name in enumerate(names)]
    rising = np.flatnonzero(lawful)
    others = [at for at, name in enumerate(names) if name in quantities and not lawful[at]]
    grower = _Grower(values, rising, np.array([weights[names[column]] for column in rising]))
    kinds = np.unique(values[:, others], axis=0, return_inverse=True)[1].ravel()
    roots = [grower.grow(np.flatnonzero(kinds == kind)) for kind in range(kinds.max() + 1)]
    return Forest(
        component,
        names,
        low=np.stack(grower.low),
        high=np.stack(grower.high),
        below=np.array(grower.below),
        sample=np.array(grower.sample),
        spread=np.array(grower.spread),
        inherits=np.array(grower.inherits),
        roots=np.array(roots),
    )


def columns_of(
    space: Space, components: Collection[Component], columns: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Parameters of some components, and all that is derived from them alone and needs no evaluation."""
    decided = {parameter.name for component in components for parameter in component.parameters}
    values = {**space.constants, **columns}
    derived = {}
    for column in space.derived:
        if not column.evaluated and column.parameters <= decided:
            values[column.name] = derived[column.name] = column.formula(values)
    return {**columns, **derived}


def sides(pricer: Pricer) -> tuple[list[Component], list[Component]]:
    """Components of the layout, and of the machine."""
    space = pricer.space
    read = {*pricer.rules.columns, *MODEL_SETTINGS}
    layout = {name for name in space.by_name if name in read}
    for derived in space.derived:
        if derived.name in read and not derived.evaluated:
            layout |= derived.parameters
    layouts: list[Component] = []
    machines: list[Component] = []
    for component in space.legal.components:
        of_layout = any(parameter.name in layout for parameter in component.parameters)
        (layouts if of_layout or component.rows > MOST_TREE_ROWS else machines).append(component)
    return layouts, machines


def rows_at(components: Sequence[Component], numbers: IntArray) -> list[IntArray]:
    """Rows of some components whose product is numbered, the last fastest. [-]"""
    rows: list[IntArray] = []
    for component in reversed(components):
        numbers, component_rows = np.divmod(numbers, component.rows)
        rows.append(component_rows)
    return rows[::-1]
