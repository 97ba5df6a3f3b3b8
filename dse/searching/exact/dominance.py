"""Which of many costs a front beats, without a comparison of every pair."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import BoolArray, FloatArray

#: Points of a front that are compared one by one, beside the staircase of all before them.
BLOCK: Final = 64
#: Comparisons made at once.
MOST_PAIRS: Final = 1 << 20


class FrontIndex:
    """A front, in an order that makes it quick to say what it beats.

    Points stand by their last cost, in blocks. What stands in whole blocks before a query is no worse in that
    cost, so that the other costs alone decide: for two of them a staircase and a binary search.
    """

    def __init__(self, front: FloatArray) -> None:
        """Take (points, objectives) costs of which none beats another; less is better. [the unit of each]"""
        self.front = front[np.argsort(front[:, -1], kind="stable")]
        self._members = np.sort(_as_items(self.front))
        self._all = _staircase(front) if front.shape[1] == 2 and len(front) else front
        starts = range(0, len(front), BLOCK)
        self._blocks = [self.front[start : start + BLOCK] for start in starts]
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
        beaten[rows] = ~np.isin(_as_items(costs[rows]), self._members)
        return beaten

    def _look_up(self, costs: FloatArray, beaten: BoolArray) -> None:
        """Mark costs than which some point of the front is nowhere worse."""
        before = np.searchsorted(self.front[:, -1], costs[:, -1], side="right")
        reached = np.minimum(before // BLOCK, len(self._blocks) - 1)
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
            for start in range(0, left.size, MOST_PAIRS // BLOCK):
                rows = left[start : start + MOST_PAIRS // BLOCK]
                worse = np.ones((rows.size, len(block)), dtype=bool)
                for values, others in zip(costs[rows].T, block.T, strict=True):
                    worse &= others <= values[:, np.newaxis]
                beaten[rows] = worse.any(axis=1)
        return beaten


def _staircase(points: FloatArray) -> FloatArray:
    """Points of two costs that no other is at most equal to in both, by the first cost."""
    points = points[np.lexsort((points[:, 1], points[:, 0]))]
    lowest = np.minimum.accumulate(points[:, 1])
    return np.asarray(points[np.concatenate([[True], points[1:, 1] < lowest[:-1]])], dtype=np.float64)


def _under(stair: FloatArray, costs: FloatArray) -> BoolArray:
    """True where a step of a staircase is nowhere worse than each of some pairs of costs."""
    if not len(stair):
        return np.zeros(len(costs), dtype=bool)
    step = np.searchsorted(stair[:, 0], costs[:, 0], side="right") - 1
    under: BoolArray = (step >= 0) & (stair[np.maximum(step, 0), 1] <= costs[:, 1])
    return under


def _as_items(costs: FloatArray) -> NDArray[np.void]:
    """Rows as items that can be sorted and looked up; -0.0 is 0.0."""
    rows = np.ascontiguousarray(costs + 0.0)
    return rows.view([(f"cost{i}", np.float64) for i in range(costs.shape[1])]).ravel()
