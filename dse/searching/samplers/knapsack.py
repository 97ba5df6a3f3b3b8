"""Combinations of components that should lessen an objective, under limits that tie the components to each other.

Components are parameters that rules tie together; only limits such as memory, power or price tie one to another. A few
thousand designs tell by which factor each combination of a component changes an objective and the use of each limit.
These factors are taken to multiply. The best combination of all components under the limits is then a knapsack problem
with a choice for each component. Multipliers of the limits from its Lagrangian dual [Kellerer2004]_ rank partial
combinations, and the best are kept. The same is done with fewer and fewer components: those with many combinations
have more that only seem good, and would leave no room to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np

from costmodel.columns import FloatArray, IntArray

#: Partial combinations that are kept, and combinations of a component that extend them.
KEPT: Final = 512
#: Steps of the multipliers of limits.
DUAL_STEPS: Final = 50
#: By how much more than a limit a combination may seem to use, as a share: estimates are rough.
TOLERANCE: Final = 0.02
#: Logarithm of the factor by which a combination has to seem better.
LEAST_GAIN: Final = 1e-9


def combined(changes: Sequence[FloatArray], room: FloatArray, rounds: int) -> IntArray:
    """Combinations that should lessen an objective within the limits: (combinations, components) rows of components.

    `changes` have, for each component, (rows, 1 + limits) logarithms of factors of the objective and of the use of each
    limit; the first row is that of no change. `room` is the logarithm of the factor to each limit, (limits,). The
    combinations of all components come first, then those of fewer and fewer, without the components of most rows, in
    `rounds` at most. [-]
    """
    rows, changes = [], [*changes]
    for number in np.argsort([-len(change) for change in changes], kind="stable")[:rounds]:
        rows.append(_least(changes, room, np.r_[1.0, _multipliers(changes, room)]))
        changes[number] = changes[number][:1]
    return np.concatenate(rows)


def paired(changes: Sequence[FloatArray], room: FloatArray, most: int) -> IntArray:
    """Combinations that change two components, as `combined` returns them, the least objective first. [-]"""
    rows, costs = [np.zeros((0, len(changes)), dtype=np.intp)], [np.zeros(0)]
    near = [np.argsort(change[:, 0], kind="stable")[:KEPT] for change in changes]
    for one, other in combinations(range(len(changes)), 2):
        both = changes[one][near[one], np.newaxis] + changes[other][near[other]]
        places = np.nonzero((both[..., 1:] <= room + TOLERANCE).all(axis=-1))
        rows.append(np.zeros((places[0].size, len(changes)), dtype=np.intp))
        rows[-1][:, one], rows[-1][:, other] = near[one][places[0]], near[other][places[1]]
        costs.append(both[places][:, 0])
    return np.concatenate(rows)[np.argsort(np.concatenate(costs), kind="stable")[:most]]


def _least(changes: Sequence[FloatArray], room: FloatArray, weights: FloatArray) -> IntArray:
    """(combinations, components) Rows that should lessen the objective within the limits, the best first. [-]"""
    limits = np.r_[-LEAST_GAIN if (room >= 0).all() else np.inf, room + TOLERANCE]
    scores = [change @ weights for change in changes]
    excess = limits @ weights - sum(score.min() for score in scores)
    least = np.array([change.min(axis=0) for change in changes])
    rows, total = np.empty((1, 0), dtype=np.intp), np.zeros((1, limits.size))
    for number, (change, score) in enumerate(zip(changes, scores, strict=True)):
        near = np.flatnonzero(score - score.min() <= excess)  # the others are too far
        near = near[np.argsort(score[near], kind="stable")][:KEPT]
        both = total[:, None] + change[near]
        one, other = np.nonzero((both + least[number + 1 :].sum(axis=0) <= limits).all(axis=-1))
        kept = np.argsort(both[one, other] @ weights, kind="stable")[:KEPT]
        one, other = one[kept], other[kept]
        rows, total = np.column_stack([rows[one], near[other]]), both[one, other]
    return rows[np.argsort(total[:, 0], kind="stable")]


def _multipliers(changes: Sequence[FloatArray], room: FloatArray) -> FloatArray:
    """(limits,) Change of the objective that a change of the use of each limit is worth, by subgradients. [-]"""
    worth = np.zeros(room.size)
    # Of ties, the least use comes first.
    changes = [change[np.argsort(change[:, 1:].sum(axis=1), kind="stable")] for change in changes]
    for step in range(DUAL_STEPS):
        weights = np.r_[1.0, worth]
        used = sum(change[(change @ weights).argmin(), 1:] for change in changes)
        worth = np.maximum(worth + (used - room) / (2 + 2 * step), 0.0)
    return worth
