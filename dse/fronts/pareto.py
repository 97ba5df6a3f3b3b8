"""Non-dominated points of a table of objective values, how far others are behind them, and the hypervolume of a front.

Rows are sorted once, then an algorithm for their number of objectives removes dominated ones: a sweep for two, divide
and conquer for three [Kung1975], culling for more. A cheap grid sieve goes first. The hypervolume is the share of the
objective space that a front dominates: one number for the progress of a search.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import FloatArray

#: Rows of several objectives that are worth a sieve before the exact methods, and its cells at most.
SIEVED_ROWS, MOST_CELLS = 4096, 2**16

#: Rows whose quantiles divide the sides of the sieve.
SAMPLE = 4096


def as_costs(values: FloatArray, directions: Sequence[str]) -> FloatArray:
    """Values, (points, objectives), with the sign of every maximized objective turned, so that less is better.

    `directions` has "minimize" or "maximize" for each objective.

    >>> as_costs(np.array([[2.0, 5.0]]), ["minimize", "maximize"])
    array([[ 2., -5.]])
    """
    signs = np.where([direction == "maximize" for direction in directions], -1.0, 1.0)
    return np.asarray(values * signs, dtype=np.float64)


def low_and_span(costs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The least of each objective of some points, and its span; 1 where all are equal.

    >>> low_and_span(np.array([[1.0, 3.0], [5.0, 3.0]]))
    (array([1., 3.]), array([4., 1.]))
    """
    low, high = costs.min(axis=0), costs.max(axis=0)
    return low, np.where(high > low, high - low, 1.0)


def non_dominated(costs: FloatArray) -> NDArray[np.bool_]:
    """Mask of the points, (points,), that no other point beats: nowhere worse, and better somewhere.

    Less is better; rows with a NaN are never kept.

    O(n log n) for up to three objectives [Kung1975]_, rows times front for more.

    >>> non_dominated(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0], [1.0, 3.0]])).tolist()
    [True, True, False, True]
    """
    kept = np.zeros(len(costs), dtype=bool)
    rows = np.flatnonzero(~np.isnan(costs).any(axis=1))
    if costs.shape[1] > 1:
        rows = sieved(costs, rows)
    if rows.size == 0:
        return kept
    rows = rows[np.lexsort(costs[rows].T[::-1])]
    columns = costs[rows].T
    new = np.concatenate([[True], (columns[:, 1:] != columns[:, :-1]).any(axis=0)])
    best = NON_DOMINATED.get(len(columns), cull)(costs[rows[new]])
    kept[rows] = best[np.cumsum(new) - 1]
    return kept


def sieved(costs: FloatArray, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows without most of those that others dominate, as long as a sieve takes out half of them. [-]"""
    while rows.size > SIEVED_ROWS:
        before, rows = rows.size, rows[uncovered(costs[rows])]
        if rows.size > before / 2:
            break
    return rows


def uncovered(costs: FloatArray) -> NDArray[np.bool_]:
    """Rows that are not plainly dominated: a sieve that keeps the whole front, and little else.

    A grid over all objectives but the last knows the least last objective of the cells that are below a
    cell in every direction. Whoever is there is better in all but the last objective.
    """
    sides = costs.shape[1] - 1
    cells = int(min(len(costs), SAMPLE, MOST_CELLS ** (1 / sides)))
    sample = np.sort(costs[:: max(1, len(costs) // SAMPLE), :-1], axis=0)
    edges = sample[np.linspace(0, len(sample) - 1, cells + 1).astype(int)[1:-1]]
    places = [np.searchsorted(edges[:, side], costs[:, side], side="right") for side in range(sides)]
    least = np.full((cells + 1,) * sides, np.inf)  # the first cell of a side has nothing below it
    np.minimum.at(least, tuple(cell + 1 for cell in places), costs[:, -1])
    for side in range(sides):
        np.minimum.accumulate(least, axis=side, out=least)
    below = least[tuple(places)]
    return np.asarray((costs[:, -1] < below) | (below == np.inf))


def sweep(costs: FloatArray) -> NDArray[np.bool_]:
    """Non-dominated rows of distinct ones in lexicographic order, of one or two objectives."""
    last = costs[:, -1]
    return np.concatenate([[True], last[1:] < np.minimum.accumulate(last)[:-1]])


def halve(costs: FloatArray) -> NDArray[np.bool_]:
    """Non-dominated rows of distinct ones in lexicographic order, of three objectives.

    Of two halves of such rows, only the first can dominate the second: where, in the order of the second
    objective, the least third objective of the first half so far is no greater. All blocks of a size are
    halved at once, from the whole table down to pairs; who has been dominated is left out from then on.
    """
    rows = np.argsort(costs[:, 1], kind="stable")  # by block, then by second objective
    rank = np.unique(costs[:, 2], return_inverse=True)[1].ravel()
    worst = len(costs)  # a rank behind all others
    kept = np.ones(len(costs), dtype=bool)
    for bit in reversed(range((len(costs) - 1).bit_length())):
        second = (rows >> bit & 1).astype(bool)
        start = -(rows >> bit + 1) * (worst + 1)  # each block's ranks are below those of all blocks before
        least = np.minimum.accumulate(np.where(second, worst, rank[rows]) + start)
        beaten = second & (least <= rank[rows] + start)
        kept[rows[beaten]] = False
        rows = rows[~beaten]
        rows = rows[np.argsort(rows >> bit, kind="stable")]
    return kept


def cull(costs: FloatArray) -> NDArray[np.bool_]:
    """Non-dominated rows of distinct ones, of any number of objectives.

    The row of the least rank sum among those left is beaten by none of them; all that it beats go. Each
    round finds one point of the front, so the work is rows times front.
    """
    places = [np.unique(column, return_inverse=True)[1].ravel() for column in costs.T]
    ranks = np.sum(places, axis=0)  # equal costs have equal ranks: whatever beats a row has a smaller sum
    left = np.argsort(ranks, kind="stable")
    kept = np.zeros(len(costs), dtype=bool)
    while left.size:
        best = costs[left[0]]
        kept[left[0]] = True
        left = left[(costs[left] < best).any(axis=1)]
    return kept


#: Number of objectives -> what finds the non-dominated rows of distinct ones in lexicographic order.
NON_DOMINATED: Mapping[int, Callable[[FloatArray], NDArray[np.bool_]]] = {1: sweep, 2: sweep, 3: halve}

#: Pairs of a point and one of the front that are compared at once; they stay in the processor's cache.
PAIRS = 2**17


def shortfalls(costs: FloatArray, front: FloatArray) -> FloatArray:
    """Least amount to take off all costs of each point so that no point of a front beats it, (points,). [-]

    Less is better; costs are in one unit, such as shares of a span. Negative where nothing beats the point.

    The additive epsilon indicator [Zitzler2003]_ of a front to one point: the most, over the front, of the
    least lead in any objective.

    >>> shortfalls(np.array([[3.0, 2.0], [0.0, 4.0]]), np.array([[1.0, 1.0], [0.0, 3.0]])).tolist()
    [1.0, 0.0]
    """
    columns = np.ascontiguousarray(front.T)
    least = np.empty(len(costs))
    rows = max(1, PAIRS // len(front))
    for first in range(0, len(costs), rows):
        block = costs[first : first + rows]
        lead = np.subtract.outer(block[:, 0], columns[0])
        for cost, column in zip(block.T[1:], columns[1:], strict=True):
            np.minimum(lead, np.subtract.outer(cost, column), out=lead)
        lead.max(axis=1, out=least[first : first + rows])
    return least


#: Points that are compared with a front at once.
BLOCK = 256


@dataclass(frozen=True)
class Box:
    """The corner points between which hypervolume is measured, as costs: less is better."""

    ideal: FloatArray  #: (objectives,) best cost of each objective
    reference: FloatArray  #: (objectives,) worst cost of each objective

    @classmethod
    def around(cls, costs: FloatArray) -> Box:
        """The box that just holds some points; a side of no length gets length 1."""
        ideal, reference = costs.min(axis=0), costs.max(axis=0)
        return cls(ideal, np.where(reference > ideal, reference, ideal + 1.0))

    def scaled(self, costs: FloatArray) -> FloatArray:
        """Costs with the ideal point at 0 and the reference point at 1. [-]"""
        return np.asarray((costs - self.ideal) / (self.reference - self.ideal), dtype=np.float64)

    def hypervolume(self, costs: FloatArray) -> float:
        """Volume that the points dominate, as a multiple of the box; above 1 where they exceed the ideal. [-]"""
        return hypervolume(self.scaled(costs), np.ones(self.ideal.size))

    def history(self, costs: FloatArray) -> FloatArray:
        """Hypervolume after each of the points, in their order. [-]"""
        return history(self.scaled(costs), np.ones(self.ideal.size))


def hypervolume(costs: FloatArray, reference: FloatArray) -> float:
    """Exact measure of the space between points, (points, objectives), and a reference point. [-]

    Less is better; points that are not below the reference everywhere add nothing.

    A sweep along the last objective [Guerreiro2021]_: what each point adds to those before it in the other
    objectives, times its distance from the reference in the last. O(n log n) for up to three objectives.

    >>> hypervolume(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([3.0, 3.0]))
    3.0
    """
    inside = costs[(costs < reference).all(axis=1)]
    if len(inside) == 0:
        return 0.0
    if inside.shape[1] == 1:
        return float(reference[0] - inside.min())
    inside = inside[np.argsort(inside[:, -1], kind="stable")]
    return float(gains(inside[:, :-1], reference[:-1]) @ (reference[-1] - inside[:, -1]))


def history(costs: FloatArray, reference: FloatArray) -> FloatArray:
    """Hypervolume after each of the points, (points,), in their order. [-]

    Less is better; rows with a NaN, of infeasible designs, add nothing.
    """
    added = np.zeros(len(costs))
    inside = (costs < reference).all(axis=1)
    added[inside] = gains(costs[inside], reference)
    return np.cumsum(added)


def gains(costs: FloatArray, reference: FloatArray) -> FloatArray:
    """(points,) Hypervolume that each point adds to those before it; all are below the reference. [-]"""
    objectives = costs.shape[1]
    if objectives == 1:
        best = np.minimum.accumulate(np.concatenate([reference, costs[:, 0]]))
        return np.asarray(best[:-1] - best[1:])
    return stair_gains(costs, reference) if objectives == 2 else box_gains(costs, reference)


def stair_gains(costs: FloatArray, reference: FloatArray) -> FloatArray:
    """`gains` for two objectives: a sorted staircase, O(log n) per point."""
    right, top = reference.tolist()
    xs, ys = [-inf, right], [top, -inf]  # the corners of the staircase: x rises, y falls
    added = []
    for x, y in costs.tolist():
        after = bisect_right(xs, x)
        if ys[after - 1] <= y:
            added.append(0.0)
            continue
        start = stop = after - 1 if xs[after - 1] == x else after
        left, height, area = x, ys[start - 1], 0.0
        while True:
            area += (xs[stop] - left) * (height - y)
            if ys[stop] < y:
                break
            left, height = xs[stop], ys[stop]
            stop += 1
        xs[start:stop], ys[start:stop] = [x], [y]
        added.append(area)
    return np.array(added)


def box_gains(costs: FloatArray, reference: FloatArray) -> FloatArray:
    """`gains` for any number of objectives: the box of a point less the parts that others cover."""
    added = np.zeros(len(costs))
    front = np.empty((0, reference.size))
    for first in range(0, len(costs), BLOCK):
        block = costs[first : first + BLOCK]
        beaten = np.any(np.all(front <= block[:, None], axis=2), axis=1)
        for row in np.flatnonzero(~beaten):
            point = block[row]
            if (front <= point).all(axis=1).any():
                continue
            covered = hypervolume(np.maximum(front, point), reference)
            added[first + row] = np.prod(reference - point) - covered
            front = np.vstack([front[~(point <= front).all(axis=1)], point])
    return added
