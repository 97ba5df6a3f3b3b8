"""A few points of a front that stand for all of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import FloatArray
from dse.fronts.undominated import Undominated


def most_dominating(
    costs: FloatArray, count: int, reference: FloatArray, beside: FloatArray | None = None
) -> NDArray[np.intp]:
    """Rows that are chosen one by one, each because it adds most hypervolume to all before it.

    Parameters
    ----------
    costs : (points, objectives) array
        Points to choose from; less is better. They need not be a front. Objectives of different units
        weigh the same, since hypervolumes of all points scale with each. [the unit of each objective]
    count : int
        Points wanted. [-]
    reference : (objectives,) array
        The far corner of the hypervolume. [the unit of each objective]
    beside : (points, objectives) array, optional
        Points that are there already, and need not be chosen again. [the unit of each objective]

    Returns
    -------
    rows : (chosen,) array of int
        In the order they were chosen; fewer than `count` where no other point adds anything. A point that
        is not below the reference everywhere, has a NaN, or equals another one that was chosen adds
        nothing. Of points that add the same, the first in lexicographic order is chosen. [-]

    Notes
    -----
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
