"""Non-dominated points of a table of objective values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import FloatArray


def as_costs(values: FloatArray, directions: Sequence[str]) -> FloatArray:
    """Values with the sign of every maximized objective turned, so that less is better.

    Parameters
    ----------
    values : (points, objectives) array
        One row per point. [the unit of each objective]
    directions : sequence of str
        "minimize" or "maximize", one per objective.

    Returns
    -------
    costs : (points, objectives) array
        [the unit of each objective]

    >>> as_costs(np.array([[2.0, 5.0]]), ["minimize", "maximize"])
    array([[ 2., -5.]])
    """
    signs = np.where([direction == "maximize" for direction in directions], -1.0, 1.0)
    return np.asarray(values * signs, dtype=np.float64)


def non_dominated(costs: FloatArray) -> NDArray[np.bool_]:
    """Which points no other point beats: nowhere worse, and better somewhere.

    Points of equal costs do not beat each other: all of them are kept, or none.

    Parameters
    ----------
    costs : (points, objectives) array
        Less is better; rows with a NaN are never kept. [the unit of each objective]

    Returns
    -------
    kept : (points,) array of bool
        [-]

    >>> non_dominated(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0], [1.0, 3.0]])).tolist()
    [True, True, False, True]
    """
    kept = np.zeros(len(costs), dtype=bool)
    rows = np.flatnonzero(~np.isnan(costs).any(axis=1))
    if rows.size == 0:
        return kept
    distinct, back = np.unique(costs[rows], axis=0, return_inverse=True)
    best = sweep(distinct) if distinct.shape[1] <= 2 else cull(distinct)
    kept[rows] = best[back.ravel()]
    return kept


def sweep(costs: FloatArray) -> NDArray[np.bool_]:
    """Non-dominated rows of distinct ones in lexicographic order, of one or two objectives."""
    last = costs[:, -1]
    return np.concatenate([[True], last[1:] < np.minimum.accumulate(last)[:-1]])


def cull(costs: FloatArray) -> NDArray[np.bool_]:
    """Non-dominated rows of distinct ones, of any number of objectives.

    The row of the least rank sum among those left is beaten by none of them; all that it beats go. Each
    round finds one point of the front, so the work is rows times front.
    """
    ranks = np.argsort(np.argsort(costs, axis=0), axis=0).sum(axis=1)
    left = np.argsort(ranks, kind="stable")
    kept = np.zeros(len(costs), dtype=bool)
    while left.size:
        best = costs[left[0]]
        kept[left[0]] = True
        left = left[(costs[left] < best).any(axis=1)]
    return kept
