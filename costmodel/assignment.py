"""The cheapest choice for every node of a graph whose costs sit on nodes and on pairs of nodes; exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.errors import DseError

#: A cost of two nodes: (node, other node, cost of their options (options, options of the other)).
Link = tuple[int, int, FloatArray]

#: The most entries of one table; 41 kernels of a transformer layer need 32.
LARGEST_TABLE = 10_000_000


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least cost, how many assignments have it, and the one that the tie-break takes."""

    cost: float
    count: int
    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    """Least cost, and number of ways to it, for each combination of options of the nodes in scope."""

    scope: tuple[int, ...]
    cost: FloatArray
    ways: FloatArray

    def over(self, scope: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Cost and ways with one axis for each node of a larger scope."""
        axes = sorted(range(len(self.scope)), key=lambda axis: scope.index(self.scope[axis]))
        shape = [self.cost.shape[self.scope.index(node)] if node in self.scope else 1 for node in scope]
        return self.cost.transpose(axes).reshape(shape), self.ways.transpose(axes).reshape(shape)


def optimum(costs: Sequence[FloatArray], links: Sequence[Link]) -> Optimum:
    """The assignment of least total cost; among several, the first in the order of nodes and options.

    Parameters
    ----------
    costs : sequence of (options,) array
        For each node, what each of its options costs. [cost]
    links : sequence of (node, node, (options, options) array)
        What pairs of options cost, in the order of the two nodes. [cost]

    Notes
    -----
    Nodes are eliminated one after another, the one with the fewest neighbours first; a table over its
    neighbours keeps the least cost and the number of ways to it. Time and memory grow with the options
    to the power of the graph's width, not of its nodes. Ties are those of equal float64 sums: exact for
    whole numbers, such as bytes, below 2^53, as is the count.

    >>> costs = [np.array([0.0, 1.0]), np.array([1.0, 0.0])]
    >>> optimum(costs, [(0, 1, np.array([[0.0, 1.0], [1.0, 0.0]]))])
    Optimum(cost=1.0, count=3, choices=(0, 0))
    """
    best = found = _eliminated(costs, links)
    kept = list(costs)
    for node, cost in enumerate(costs):
        for option in range(found.choices[node]):
            trial = _eliminated([*kept[:node], _only(cost, option), *kept[node + 1 :]], links)
            if trial.cost == best.cost:
                found = trial
                break
        kept[node] = _only(cost, found.choices[node])
    return Optimum(best.cost, best.count, found.choices)


def _only(cost: FloatArray, option: int) -> FloatArray:
    """Costs that leave one option."""
    return np.where(np.arange(cost.size) == option, cost, np.inf)


def _eliminated(costs: Sequence[FloatArray], links: Sequence[Link]) -> Optimum:
    """The least cost and its count; the choices are some of those that attain it."""
    tables = [_Table((node,), cost, np.ones(cost.shape)) for node, cost in enumerate(costs)]
    for node, other, pairs in links:
        if node == other:
            tables.append(_Table((node,), np.diagonal(pairs), np.ones(pairs.shape[0])))
        else:
            tables.append(_Table((node, other), pairs, np.ones(pairs.shape)))
    answers: list[tuple[int, tuple[int, ...], IntArray]] = []
    left = set(range(len(costs)))
    while left:
        node = min(left, key=lambda candidate: (len(_neighbours(tables, candidate)), candidate))
        tables, answer = _without(tables, node)
        answers.append((node, *answer))
        left.remove(node)
    choices = [0] * len(costs)
    for node, scope, best in reversed(answers):
        choices[node] = int(best[tuple(choices[other] for other in scope)])
    total = sum(float(table.cost) for table in tables)
    return Optimum(total, int(np.prod([float(table.ways) for table in tables])), tuple(choices))


def _neighbours(tables: Sequence[_Table], node: int) -> set[int]:
    return {other for table in tables if node in table.scope for other in table.scope} - {node}


def _without(tables: Sequence[_Table], node: int) -> tuple[list[_Table], tuple[tuple[int, ...], IntArray]]:
    """The tables once a node has taken its best option, and that option for each case of its neighbours."""
    scope = (*sorted(_neighbours(tables, node)), node)
    size = {n: s for table in tables for n, s in zip(table.scope, table.cost.shape, strict=True)}
    entries = float(np.prod([float(size[other]) for other in scope]))
    if entries > LARGEST_TABLE:
        raise DseError(
            f"kernels are too densely connected: a table of {entries:,.0f} entries, "
            f"where {LARGEST_TABLE:,} is the most; pin the sharding of some"
        )
    cost, ways = np.zeros(()), np.ones(())
    for table in tables:
        if node in table.scope:
            more_cost, more_ways = table.over(scope)
            cost, ways = cost + more_cost, ways * more_ways
    least = cost.min(axis=-1)
    ways = np.where(cost == least[..., np.newaxis], ways, 0.0).sum(axis=-1)
    left = [table for table in tables if node not in table.scope]
    return [*left, _Table(scope[:-1], least, ways)], (scope[:-1], cost.argmin(axis=-1))
