"""Combinations of components that should beat a design, from changes of its components one by one.

Components are parameters that rules tie together; only limits such as memory, power or price tie one component to
another. Each component is varied alone, so that a few thousand designs tell by which factor each of its combinations
changes an objective and the use of each limit. These factors are taken to multiply, as far as components do not act on
each other. The best combination of all components under the limits is then a knapsack problem with a choice for each
component. Multipliers of the limits from its Lagrangian dual [Kellerer2004]_ rank partial combinations. The best are
kept, component by component.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodel.columns import FloatArray, IntArray

#: Partial combinations that are kept, and combinations of a component that extend them.
KEPT: Final = 1024
#: Steps of the multipliers of limits.
DUAL_STEPS: Final = 50
#: By how much more than a limit a combination may seem to use, as a share: estimates are rough.
TOLERANCE: Final = 0.02
#: Logarithm of the factor by which a combination has to seem better.
LEAST_GAIN: Final = 1e-9


def combined(changes: Sequence[FloatArray], room: FloatArray) -> IntArray:
    """Combinations that should lessen an objective within the limits: (combinations, components) rows of components.

    `changes` have, for each component, (rows, 1 + limits) logarithms of factors of the objective and of the use of each
    limit; a row that must not be taken has NaN. `room` is the logarithm of the factor to each limit, (limits,). The
    combinations come in the order of the objective, the least first. [-]
    """
    weights = np.r_[1.0, _multipliers(changes, room)]
    limits = np.r_[-LEAST_GAIN if (room >= 0).all() else np.inf, room + TOLERANCE]
    least = np.array([np.nanmin(change, axis=0) for change in changes])
    lowest = np.array([np.nanmin(change @ weights) for change in changes])
    rows, total = np.empty((1, 0), dtype=np.intp), np.zeros((1, limits.size))
    for number, change in enumerate(changes):
        scores = change @ weights
        near = np.flatnonzero(scores - lowest[number] <= limits @ weights - lowest.sum())  # the others are too far
        near = near[np.argsort(scores[near], kind="stable")][:KEPT]
        both = total[:, None] + change[near]
        one, other = np.nonzero((both + least[number + 1 :].sum(axis=0) <= limits).all(axis=-1))
        kept = np.argsort(both[one, other] @ weights, kind="stable")[:KEPT]
        one, other = one[kept], other[kept]
        rows, total = np.column_stack([rows[one], near[other]]), both[one, other]
    return rows[np.argsort(total[:, 0], kind="stable")]


def _multipliers(changes: Sequence[FloatArray], room: FloatArray) -> FloatArray:
    """(limits,) Change of the objective that a change of the use of each limit is worth, by subgradients. [-]"""
    worth = np.zeros(room.size)
    for step in range(DUAL_STEPS):
        used = sum(change[np.nanargmin(change @ np.r_[1.0, worth]), 1:] for change in changes)
        worth = np.maximum(worth + (used - room) / (2 + 2 * step), 0.0)
    return worth
