"""Hypervolume: the share of the objective space that a front dominates, one number for the progress of a search."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import inf

import numpy as np

from costmodel.columns import FloatArray

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
