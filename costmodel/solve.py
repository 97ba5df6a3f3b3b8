"""The cheapest choice for every node of a graph whose costs sit on nodes and on pairs of nodes; exact.

A node has a few options with a cost each, and a pair of neighbours has a cost for each pair of options. Nodes are
eliminated one after another: a table keeps, for each choice of its neighbours, the cost of the best option. A chain of
n nodes with k options takes n k^2 sums instead of k^n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.errors import DseError

#: A cost of two nodes: (node, other node, cost of their options). One graph has (options, options of the
#: other); many graphs of one structure have (options, options of the other, points).
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
    """Least cost, and perhaps how many assignments have it, for each combination of options of some nodes.

    Arrays are (options of the first node in scope, ..., points): the points of a combination stand together
    in memory, so that sums and comparisons run along them.
    """

    scope: tuple[int, ...]
    cost: FloatArray
    counts: FloatArray | None

    def over(self, values: FloatArray, scope: Sequence[int]) -> FloatArray:
        """Costs or counts of a table, with one axis for each node of a larger scope."""
        places = sorted(range(len(self.scope)), key=lambda position: scope.index(self.scope[position]))
        size = dict(zip(self.scope, values.shape, strict=False))
        shape = [*(size.get(node, 1) for node in scope), -1]
        return values.transpose([*places, len(places)]).reshape(shape)


def optimum(costs: Sequence[FloatArray], links: Sequence[Link]) -> Optimum:
    """The assignment of least total cost; among several, the first in the order of nodes and options.

    Parameters
    ----------
    costs : sequence of (options,) array
        For each node, the cost of each of its options. [cost]
    links : sequence of (node, node, (options, options) array)
        Costs of pairs of options, in the order of the two nodes. [cost]

    Notes
    -----
    Nodes are eliminated one after another, the one with the fewest neighbours first; a table over its
    neighbours keeps the least cost and how many have it. Time and memory grow with the options
    to the power of the graph's width, not of its nodes. Ties are those of equal float64 sums: exact for
    whole numbers, such as bytes, below 2^53, as is the count.

    >>> costs = [np.array([0.0, 1.0]), np.array([1.0, 0.0])]
    >>> optimum(costs, [(0, 1, np.array([[0.0, 1.0], [1.0, 0.0]]))])
    Optimum(cost=1.0, count=3, choices=(0, 0))
    """
    kept = [cost[:, np.newaxis] for cost in costs]
    pairs = [(node, other, cost[..., np.newaxis]) for node, other, cost in links]
    cost, counts, choices = _eliminated(kept, pairs, counting=True)
    best = choices[:, 0]
    for node in range(len(kept)):
        for option in range(best[node]):
            trial = [*kept[:node], _only(kept[node], option), *kept[node + 1 :]]
            other_cost, _, other_choices = _eliminated(trial, pairs)
            if other_cost[0] == cost[0]:
                best = other_choices[:, 0]
                break
        kept[node] = _only(kept[node], int(best[node]))
    return Optimum(float(cost[0]), int(counts[0]), tuple(best.tolist()))


def optima(costs: Sequence[FloatArray], links: Sequence[Link], *, in_order: bool = True) -> tuple[FloatArray, IntArray]:
    """Least total costs of many graphs of one structure, (points,) [cost], and their assignments, (nodes, points). [-]

    `costs` and `links` are those of `optimum`, with a last axis of points. With `in_order`, nodes are eliminated from
    the last to the first: the first of equally good assignments is taken, as there. That order suits graphs whose edges
    join nodes that are near each other. Otherwise any is taken, by the order that suits the graph.
    """
    cost, _, choices = _eliminated(costs, links, in_order=in_order)
    return cost, choices


def _only(cost: FloatArray, option: int) -> FloatArray:
    """Costs that leave one option."""
    return np.where(np.arange(cost.shape[0])[:, np.newaxis] == option, cost, np.inf)


def _eliminated(
    costs: Sequence[FloatArray], links: Sequence[Link], *, in_order: bool = False, counting: bool = False
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Least cost, how many have it where they are counted, and choices that do: the first, if in order."""
    scopes: list[tuple[tuple[int, ...], FloatArray]] = [((node,), cost) for node, cost in enumerate(costs)]
    neighbours: dict[int, set[int]] = {node: set() for node in range(len(costs))}
    for node, other, pairs in links:
        if node == other:
            scopes.append(((node,), np.moveaxis(np.diagonal(pairs), -1, 0)))
        else:
            scopes.append(((node, other), pairs))
            neighbours[node].add(other)
            neighbours[other].add(node)
    points = np.broadcast_shapes(*(cost.shape[-1:] for _, cost in scopes))[0]
    tables = [_Table(scope, cost, np.ones(cost.shape) if counting else None) for scope, cost in scopes]
    answers: list[tuple[int, tuple[int, ...], IntArray]] = []
    while neighbours:
        node = max(neighbours) if in_order else min(neighbours, key=lambda n: (len(neighbours[n]), n))
        joined = neighbours.pop(node)
        tables, answer = _without(tables, node, joined)
        answers.append((node, *answer))
        for other in joined:
            neighbours[other] = (neighbours[other] | joined) - {node, other}
    choices = np.zeros((len(costs), points), dtype=np.intp)
    every = np.arange(points)
    for node, scope, best in reversed(answers):
        rows = every if best.shape[-1] > 1 else 0
        choices[node] = best[(*(choices[other] for other in scope), rows)]
    cost, counts = np.zeros(points), np.ones(points)
    for table in tables:
        cost = cost + table.cost
        if table.counts is not None:
            counts = counts * table.counts
    return cost, counts, choices


def _without(
    tables: Sequence[_Table], node: int, neighbours: set[int]
) -> tuple[list[_Table], tuple[tuple[int, ...], IntArray]]:
    """The tables once a node has taken its best option, and that option for each case of its neighbours."""
    scope = (*sorted(neighbours), node)
    size = {n: s for table in tables for n, s in zip(table.scope, table.cost.shape, strict=False)}
    points = max(table.cost.shape[-1] for table in tables)
    entries = points * float(np.prod([float(size[other]) for other in scope]))
    if entries > LARGEST_TABLE:
        raise DseError(
            f"kernels are too densely connected: a table of {entries:,.0f} entries, "
            f"where {LARGEST_TABLE:,} is the most; pin the sharding of some"
        )
    tables_of_node = [table for table in tables if node in table.scope]
    cost: FloatArray = reduce(np.add, [table.over(table.cost, scope) for table in tables_of_node])
    least, best = cost[..., 0, :], np.zeros(cost[..., 0, :].shape, dtype=np.intp)
    for option in range(1, cost.shape[-2]):
        better = cost[..., option, :] < least
        least, best = np.where(better, cost[..., option, :], least), np.where(better, option, best)
    counted = [table.over(table.counts, scope) for table in tables_of_node if table.counts is not None]
    counts = None
    if counted:
        ties = cost == least[..., np.newaxis, :]
        counts = np.where(ties, reduce(np.multiply, counted), 0.0).sum(axis=-2)
    left = [table for table in tables if node not in table.scope]
    return [*left, _Table(scope[:-1], least, counts)], (scope[:-1], best)
