"""Fronts of tables of costs: non-dominated points, points that a front beats, hypervolume, representative points.

Rows are sorted once, then an algorithm for their number of objectives removes dominated ones: a sweep for two, divide
and conquer for three [Kung1975], culling for more. A cheap grid sieve goes first. `FrontIndex` answers which of many
costs a front beats, without a comparison of every pair. The hypervolume is the share of the objective space that a
front dominates: one number for the progress of a search.

A few points stand for a long front: they are taken greedily by the hypervolume that each adds. `Undominated` keeps the
space that is left as boxes, which every new point cuts; of three objectives the boxes come from a staircase at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import BoolArray, FloatArray

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

    A grid over all objectives but the last holds the least last objective of the cells that are below a cell in every
    direction. A row with a lower last objective is kept. Rows in those cells are better in the other objectives.
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

    Of two halves of sorted rows, only the first can dominate the second: where, in the order of the second objective,
    the least third objective of the first half so far is no greater. All blocks of a size are halved at once, from the
    whole table down to pairs; dominated rows are left out from then on.
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
    ranks = np.sum(places, axis=0)  # equal costs have equal ranks: a row that beats another has a smaller sum
    left = np.argsort(ranks, kind="stable")
    kept = np.zeros(len(costs), dtype=bool)
    while left.size:
        best = costs[left[0]]
        kept[left[0]] = True
        left = left[(costs[left] < best).any(axis=1)]
    return kept


#: Number of objectives -> function that finds the non-dominated rows of distinct ones in lexicographic order.
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

    A sweep along the last objective [Guerreiro2021]_: the measure that each point adds to those before it in the other
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
    if objectives == 2:
        return stair_gains(costs, reference)
    left, added = Undominated(reference), np.zeros(len(costs))
    for start in range(0, len(costs), AT_ONCE):
        for row in start + np.flatnonzero(left.gains(costs[start : start + AT_ONCE])):
            [added[row]] = left.gains(costs[[row]])
            left.add(costs[row])
    return added


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


#: Points that are held against all boxes at once.
AT_ONCE = 64


def thinned(rows: Any, most: int) -> Any:
    """At most `most` rows of an array, evenly spread.

    >>> thinned(np.arange(10.0), 4)
    array([0., 3., 6., 9.])
    """
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]


class Undominated:
    """Boxes below a reference point that no point so far dominates; adding a point cuts them up.

    `points`, (points, objectives), are there from the start; those not below the reference everywhere change nothing.

    A decomposition as in [Lacour2017]_. Three objectives start from a sweep, two boxes a point at most;
    each point that is added later leaves about six boxes in three objectives, fifty in four.
    """

    def __init__(self, reference: FloatArray, points: FloatArray | None = None) -> None:
        self._lower = np.full((reference.size, 1), -inf)  # (objectives, boxes)
        self._upper = reference[:, None].astype(np.float64)  # -inf where a box is gone
        self._used = 1
        if points is None:
            return
        front = points[(points < reference).all(axis=1)]
        front = front[non_dominated(front)]
        if reference.size == 3 and len(front):
            self._lower, self._upper = stair_boxes(front, reference)
            self._used = self._lower.shape[1]
            return
        for point in np.random.default_rng(0).permutation(front):  # any order but a sorted one: fewer boxes
            self.add(point)

    def reached(self, point: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper corners, (objectives, boxes) each, of the space that a point would newly dominate. [-]"""
        hit = self._hit(point)
        return np.maximum(self._lower[:, hit], point[:, None]), self._upper[:, hit]

    def gains(self, points: FloatArray) -> FloatArray:
        """(points,) Hypervolume that each point, (points, objectives), would add by itself. [-]"""
        volumes = []
        for first in range(0, len(points), AT_ONCE):
            block = points[first : first + AT_ONCE].T
            hit = self._upper[0, : self._used] > block[0][:, None]  # (points, boxes)
            for upper, cost in zip(self._upper[1:, : self._used], block[1:], strict=True):
                hit &= upper > cost[:, None]
            row, box = np.divmod(np.flatnonzero(hit), self._used)
            sides = self._upper[:, box] - np.maximum(self._lower[:, box], block[:, row])
            volumes.append(np.bincount(row, sides.prod(axis=0), minlength=block.shape[1]))
        return np.concatenate(volumes) if volumes else np.empty(0)

    def add(self, point: FloatArray) -> None:
        """Take away the space that a point dominates: a box leaves one piece for each side that sticks out."""
        hit = self._hit(point)
        lower, upper = self._lower[:, hit], self._upper[:, hit]
        self._upper[:, hit] = -inf
        for objective in reversed(range(point.size)):
            out = np.flatnonzero(lower[objective] < point[objective])
            piece = upper[:, out]
            piece[objective] = point[objective]
            self._append(lower[:, out], piece)
            lower[objective, out] = point[objective]

    def _hit(self, point: FloatArray) -> NDArray[np.intp]:
        """Boxes that a point dominates in part. [-]"""
        hit = self._upper[0, : self._used] > point[0]
        for objective in range(1, point.size):
            hit &= self._upper[objective, : self._used] > point[objective]
        return np.flatnonzero(hit)

    def _append(self, lower: FloatArray, upper: FloatArray) -> None:
        """Keep some more boxes."""
        end = self._used + lower.shape[1]
        if end > self._upper.shape[1]:
            kept = np.flatnonzero(self._upper[0, : self._used] > -inf)
            end = kept.size + lower.shape[1]
            room = ((0, 0), (0, lower.shape[1] + max(kept.size // 2, 64)))
            self._lower = np.pad(self._lower[:, kept], room)
            self._upper = np.pad(self._upper[:, kept], room, constant_values=-inf)
            self._used = kept.size
        self._lower[:, self._used : end], self._upper[:, self._used : end] = lower, upper
        self._used = end


def stair_boxes(front: FloatArray, reference: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Boxes that a front of three objectives leaves undominated: lower and upper corners, (3, boxes) each. [-]

    In the order of the third objective, the others make a staircase whose stripes grow in the third until a
    point cuts them off.
    """
    right, top, end = reference.tolist()
    xs, ys, zs = [-inf, right], [top, -inf], [-inf, end]  # stripes from x to the next x, below y, since z
    boxes: list[tuple[float, ...]] = []  # x, y, z of the lower corner, then of the upper one
    for x, y, z in front[np.argsort(front[:, 2], kind="stable")].tolist():
        first = bisect_right(xs, x) - 1
        if ys[first] <= y:
            continue
        left, stop = x, first
        while ys[stop] > y:
            boxes.append((left, -inf, zs[stop], xs[stop + 1], ys[stop], z))
            stop += 1
            left = xs[stop]
        # The stripe that a point falls into goes on to the left of it.
        first += xs[first] < x
        xs[first:stop], ys[first:stop], zs[first:stop] = [x], [y], [z]
    boxes += [(xs[i], -inf, zs[i], xs[i + 1], ys[i], end) for i in range(len(xs) - 1)]
    corners = np.array([box for box in boxes if box[2] < box[5]]).T
    return np.ascontiguousarray(corners[:3]), np.ascontiguousarray(corners[3:])


def most_dominating(
    costs: FloatArray, count: int, reference: FloatArray, existing: FloatArray | None = None
) -> NDArray[np.intp]:
    """Rows that are chosen one by one, each because it adds most hypervolume to all before it.

    `costs` are (points, objectives); less is better, and they need not be a front. Objectives of different units weigh
    the same, since hypervolumes scale with each. `reference` is the far corner of the hypervolume, `existing` are
    points that exist. [the unit of each objective] Rows come in the order they are chosen, `count` at most: a
    point that is not below the reference everywhere, has a NaN, or equals another chosen one adds nothing. Of points
    that add the same, the first in lexicographic order is chosen. [-]

    At least 1 - 1/e of the most that `count` points can add: the gain of a point only falls as others are chosen
    [Nemhauser1978]_, by the part that it shares with the boxes that each of them takes away.
    """
    powers = -np.frexp(reference)[1]  # scaled by powers of two, no digit changes and no volume overflows
    costs, reference = np.ldexp(costs, powers), np.ldexp(reference, powers)
    rows = np.flatnonzero((costs < reference).all(axis=1))
    rows = rows[np.lexsort(costs[rows].T[::-1])]
    points = costs[rows]
    left = Undominated(reference, None if existing is None else np.ldexp(existing, powers))
    gains = left.gains(points)
    chosen: list[int] = []
    while len(chosen) < min(count, rows.size):
        row = int(gains.argmax())
        [gains[row]] = left.gains(points[row : row + 1])  # without the rounding of the parts subtracted before
        if gains.argmax() != row:
            continue
        if gains[row] <= 0:
            break
        taken = left.reached(points[row])
        gains -= shared(points, *taken)
        left.add(points[row])
        chosen.append(row)
    return rows[chosen]


def shared(points: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """(points,) How much of some boxes, (objectives, boxes) of corners, each point dominates. [-]"""
    volumes = np.zeros(len(points))
    columns = np.ascontiguousarray(points.T)
    for low, high in zip(lower.T.tolist(), upper.T.tolist(), strict=True):
        volume = np.ones(len(points))
        for column, start, end in zip(columns, low, high, strict=True):
            volume *= np.maximum(end - np.maximum(column, start), 0.0)
        volumes += volume
    return volumes


#: Points of a front that are compared one by one, in addition to the staircase of all before them.
BLOCK_POINTS: Final = 64
#: Comparisons made at once.
MOST_PAIRS: Final = 1 << 20


class FrontIndex:
    """A front, in an order that makes it quick to find the costs that it beats.

    Points are in the order of their last cost, in blocks. Points of whole blocks before a query are no worse in that
    cost, so that only the other costs decide: for two of them a staircase and a binary search.
    """

    def __init__(self, front: FloatArray) -> None:
        """Take (points, objectives) costs that do not beat each other; less is better. [the unit of each]"""
        self.front = front[np.argsort(front[:, -1], kind="stable")]
        self._members = np.sort(as_items(self.front))
        self._all = _staircase(front) if front.shape[1] == 2 and len(front) else front
        starts = range(0, len(front), BLOCK_POINTS)
        self._blocks = [self.front[start : start + BLOCK_POINTS] for start in starts]
        self._stairs: list[FloatArray] = []
        if front.shape[1] == 3:
            stair = np.empty((0, 2))
            for block in self._blocks:
                self._stairs.append(stair)
                stair = _staircase(np.concatenate([stair, block[:, :2]]))

    def beats(self, costs: FloatArray) -> BoolArray:
        """True where some point is nowhere worse than each of the costs, and not equal to it.

        `costs` are (rows, objectives) costs of designs, or bounds of the costs of many. [the unit of each]
        """
        beaten = np.zeros(len(costs), dtype=bool)
        if not len(self.front) or not len(costs):
            return beaten
        if costs.shape[1] == 2:
            beaten = _under(self._all, costs)
        else:
            self._look_up(costs, beaten)
        rows = np.flatnonzero(beaten)
        beaten[rows] = ~np.isin(as_items(costs[rows]), self._members)
        return beaten

    def _look_up(self, costs: FloatArray, beaten: BoolArray) -> None:
        """Mark costs than which some point of the front is nowhere worse."""
        before = np.searchsorted(self.front[:, -1], costs[:, -1], side="right")
        reached = np.minimum(before // BLOCK_POINTS, len(self._blocks) - 1)
        order = np.argsort(reached, kind="stable")
        ends = np.searchsorted(reached[order], np.arange(len(self._blocks) + 1))
        for stair in np.unique(reached):
            rows = order[ends[stair] : ends[stair + 1]]
            beaten[rows] = self._beaten_from(int(stair), costs[rows])

    def _beaten_from(self, stair: int, costs: FloatArray) -> BoolArray:
        """True where a point of a block, or of an earlier one, is nowhere worse than each of the costs."""
        if self._stairs:
            beaten = _under(self._stairs[stair], costs[:, :2])
            blocks = [self._blocks[stair]]
        else:
            beaten, blocks = np.zeros(len(costs), dtype=bool), self._blocks[stair::-1]
        for block in blocks:
            left = np.flatnonzero(~beaten)
            for start in range(0, left.size, MOST_PAIRS // BLOCK_POINTS):
                rows = left[start : start + MOST_PAIRS // BLOCK_POINTS]
                worse = np.ones((rows.size, len(block)), dtype=bool)
                for values, others in zip(costs[rows].T, block.T, strict=True):
                    worse &= others <= values[:, np.newaxis]
                beaten[rows] = worse.any(axis=1)
        return beaten


def _staircase(points: FloatArray) -> FloatArray:
    """Points of two costs that no other is at most equal to in both, by the first cost."""
    points = points[np.lexsort((points[:, 1], points[:, 0]))]
    return np.asarray(points[sweep(points)], dtype=np.float64)


def _under(stair: FloatArray, costs: FloatArray) -> BoolArray:
    """True where a step of a staircase is nowhere worse than each of some pairs of costs."""
    if not len(stair):
        return np.zeros(len(costs), dtype=bool)
    step = np.searchsorted(stair[:, 0], costs[:, 0], side="right") - 1
    under: BoolArray = (step >= 0) & (stair[np.maximum(step, 0), 1] <= costs[:, 1])
    return under


def as_items(costs: FloatArray) -> NDArray[np.void]:
    """Rows as items that can be sorted and looked up; -0.0 is 0.0."""
    rows = np.ascontiguousarray(costs + 0.0)
    return rows.view([(f"cost{i}", np.float64) for i in range(costs.shape[1])]).ravel()
