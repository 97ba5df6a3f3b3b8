"""How far points are behind a front."""

from __future__ import annotations

import numpy as np

from costmodel.columns import FloatArray

#: Pairs of a point and one of the front that are compared at once; they stay in the processor's cache.
PAIRS = 2**17


def shortfalls(costs: FloatArray, front: FloatArray) -> FloatArray:
    """What must be taken off all costs of each point, at least, so that none of a front beats it.

    Parameters
    ----------
    costs : (points, objectives) array
        Less is better; all in one unit, such as shares of a span. [-]
    front : (others, objectives) array
        Points to be compared with, at least one. [-]

    Returns
    -------
    shortfalls : (points,) array
        Negative where nothing beats the point, and more could be added. [-]

    Notes
    -----
    The additive epsilon indicator [Zitzler2003]_ of a front to one point: the most, over the front, of the
    least lead in any objective.

    >>> shortfalls(np.array([[3.0, 2.0], [0.0, 4.0]]), np.array([[1.0, 1.0], [0.0, 3.0]])).tolist()
    [1.0, 0.0]
    """
    columns = np.ascontiguousarray(front.T)
    found = np.empty(len(costs))
    rows = max(1, PAIRS // len(front))
    for first in range(0, len(costs), rows):
        block = costs[first : first + rows]
        lead = np.subtract.outer(block[:, 0], columns[0])
        for cost, column in zip(block.T[1:], columns[1:], strict=True):
            np.minimum(lead, np.subtract.outer(cost, column), out=lead)
        lead.max(axis=1, out=found[first : first + rows])
    return found
