"""How much of the objective space a front dominates: one number for the progress of a search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray
from dse.fronts.pareto import non_dominated


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
        """Share of the box that the points dominate; above 1 where they surpass the ideal. [-]"""
        return hypervolume(self.scaled(costs), np.ones(self.ideal.size))

    def history(self, costs: FloatArray) -> FloatArray:
        """Hypervolume after each of the points, in their order. [-]"""
        return history(self.scaled(costs), np.ones(self.ideal.size))


def hypervolume(costs: FloatArray, reference: FloatArray) -> float:
    """Exact measure of the space between some points and a reference point.

    Parameters
    ----------
    costs : (points, objectives) array
        Less is better; points that are not below the reference everywhere add nothing. [-]
    reference : (objectives,) array
        The far corner. [-]

    Returns
    -------
    volume : float
        [-]

    Notes
    -----
    The walking fish group's algorithm [While2012]_: the sum of what each point adds to those after it.

    >>> hypervolume(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([3.0, 3.0]))
    3.0
    """
    front = costs[(costs < reference).all(axis=1)]
    front = np.unique(front[non_dominated(front)], axis=0)
    if len(front) == 0:
        return 0.0
    if front.shape[1] == 1:
        return float(reference[0] - front[0, 0])
    if front.shape[1] == 2:  # sorted by the first objective, so the second falls: a staircase
        steps = np.diff(front[:, 0], append=reference[0])
        return float(steps @ (reference[1] - front[:, 1]))
    front = front[::-1]  # worst first objective first: the sets that limit each point shrink faster
    return sum(added(point, front[i + 1 :], reference) for i, point in enumerate(front))


def added(point: FloatArray, others: FloatArray, reference: FloatArray) -> float:
    """Hypervolume that a point adds to others: its own box less what they cover of it. [-]"""
    own = float(np.prod(reference - point))
    return own - hypervolume(np.maximum(others, point), reference) if len(others) else own


def history(costs: FloatArray, reference: FloatArray) -> FloatArray:
    """Hypervolume after each of the points, in their order.

    Parameters
    ----------
    costs : (points, objectives) array
        Less is better; rows with a NaN (an infeasible design) add nothing. [-]
    reference : (objectives,) array
        The far corner. [-]

    Returns
    -------
    volumes : (points,) array
        Never falls. [-]
    """
    gains = np.zeros(len(costs))
    front = np.empty((0, reference.size))
    for i, point in enumerate(costs):
        if not (point < reference).all() or (front <= point).all(axis=1).any():
            continue
        gains[i] = added(point, front, reference)
        front = np.vstack([front[~(point <= front).all(axis=1)], point])
    return np.cumsum(gains)
