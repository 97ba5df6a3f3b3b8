"""A few points of a front that stand for all of it, by the objective space that they leave undominated.

Points are taken greedily by the hypervolume that each adds. `Undominated` keeps the space that is left as boxes, which
every new point cuts; of three objectives the boxes come from a staircase at once."""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import FloatArray
from dse.fronts.pareto import non_dominated

#: Points that are held against all boxes at once.
BLOCK = 64


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
        """Lower and upper corners, (objectives, boxes) each, of what a point would dominate more. [-]"""
        hit = self._hit(point)
        return np.maximum(self._lower[:, hit], point[:, None]), self._upper[:, hit]

    def gains(self, points: FloatArray) -> FloatArray:
        """(points,) Hypervolume that each point, (points, objectives), would add by itself. [-]"""
        volumes = []
        for first in range(0, len(points), BLOCK):
            block = points[first : first + BLOCK].T
            hit = self._upper[0, : self._used] > block[0][:, None]  # (points, boxes)
            for upper, cost in zip(self._upper[1:, : self._used], block[1:], strict=True):
                hit &= upper > cost[:, None]
            row, box = np.divmod(np.flatnonzero(hit), self._used)
            sides = self._upper[:, box] - np.maximum(self._lower[:, box], block[:, row])
            volumes.append(np.bincount(row, sides.prod(axis=0), minlength=block.shape[1]))
        return np.concatenate(volumes) if volumes else np.empty(0)

    def add(self, point: FloatArray) -> None:
        """Take away what a point dominates: a box leaves one piece for each side it sticks out."""
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
        """Boxes of which a point dominates a part. [-]"""
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
    costs: FloatArray, count: int, reference: FloatArray, beside: FloatArray | None = None
) -> NDArray[np.intp]:
    """Rows that are chosen one by one, each because it adds most hypervolume to all before it.

    `costs` are (points, objectives); less is better, and they need not be a front. Objectives of different units weigh
    the same, since hypervolumes scale with each. `reference` is the far corner of the hypervolume, `beside` are points
    that exist already. [the unit of each objective] Rows come in the order they are chosen, `count` at most: a point
    that is not below the reference everywhere, has a NaN, or equals another chosen one adds nothing. Of points that add
    the same, the first in lexicographic order is chosen. [-]

    At least 1 - 1/e of the most that `count` points can add, since what a point adds only falls as others
    are chosen [Nemhauser1978]_: by what it shares with the boxes that each of them takes away.
    """
    rows = np.flatnonzero((costs < reference).all(axis=1))
    rows = rows[np.lexsort(costs[rows].T[::-1])]
    points = costs[rows]
    left = Undominated(reference, beside)
    gains = left.gains(points)
    chosen: list[int] = []
    while len(chosen) < min(count, rows.size):
        row = int(gains.argmax())
        [gains[row]] = left.gains(points[row : row + 1])  # without the rounding of what was taken off
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
