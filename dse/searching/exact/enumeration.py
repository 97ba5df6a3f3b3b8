"""Every design of a range of numbers evaluated: its front, and the number of designs that violate each limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from costmodel.columns import FloatArray, IntArray
from dse.fronts import FrontIndex, non_dominated
from dse.pricing.evaluated import costs_of
from dse.pricing.evaluation import evaluate_unique, untimed_margins
from dse.pricing.workers import Pricer
from dse.spaces.space import Space

#: Designs that are listed, evaluated and filtered at once.
CHUNK: Final = 65536


@dataclass(frozen=True)
class Tally:
    """Front and counts of some designs of a space; those of two ranges can be added."""

    legal: int  #: designs evaluated
    feasible: int  #: those that are feasible, and have a number
    broken: IntArray  #: (limits,) designs that break each limit
    unpriced: int  #: feasible designs with an objective that is not a number
    better: IntArray  #: (objectives,) feasible designs that are better than given costs
    numbers: IntArray  #: (front,) designs that none of the range beats, by number
    costs: FloatArray  #: (front, objectives), less is better

    @classmethod
    def empty(cls, space: Space) -> Self:
        """Range without designs."""
        return cls.counted(space, (), np.empty(0), np.empty((0, len(space.objectives))))

    def __add__(self, other: Tally) -> Tally:
        """Range of two together: the front of the union is that of the two fronts."""
        numbers = np.concatenate([self.numbers, other.numbers])
        costs = np.concatenate([self.costs, other.costs])
        kept = np.flatnonzero(non_dominated(costs))
        names = "legal", "feasible", "broken", "unpriced", "better"
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Tally(**sums, numbers=numbers[kept], costs=costs[kept])

    @property
    def counts(self) -> list[int]:
        """All counts, as `counted` reads them. [-]"""
        return [self.legal, self.feasible, self.unpriced, *self.broken.tolist(), *self.better.tolist()]

    @classmethod
    def counted(cls, space: Space, counts: Sequence[int], numbers: FloatArray, costs: FloatArray) -> Self:
        """Range of some counts and a front."""
        legal, feasible, unpriced, *others = counts or [0] * (3 + len(space.limits) + len(space.objectives))
        broken, better = np.split(np.array(others, dtype=np.int64), [len(space.limits)])
        return cls(legal, feasible, broken, unpriced, better, numbers.astype(np.int64), costs)


def unit_tally(pricer: Pricer, best: Sequence[float], task: tuple[int, tuple[int, int]]) -> tuple[int, Tally]:
    """Evaluate the designs of a range that has a number."""
    unit, (low, high) = task
    total = Tally.empty(pricer.space)
    for start in range(low, high, CHUNK):
        total = _added(total, pricer, best, np.arange(start, min(start + CHUNK, high)))
    return unit, total


def _added(total: Tally, pricer: Pricer, best: Sequence[float], numbers: IntArray) -> Tally:
    """A tally with some more designs; infeasible ones are not timed, unless limits need times."""
    space = pricer.space
    columns = space.legal.at(numbers)
    margins = untimed_margins(space, columns, pricer.rules)
    timed = np.arange(numbers.size) if margins is None else np.flatnonzero((margins >= 0).all(axis=1))
    evaluation = evaluate_unique(space, {name: values[timed] for name, values in columns.items()}, pricer.rules)
    costs, kept = costs_of(space, evaluation), evaluation.margins >= 0
    rows = np.flatnonzero(evaluation.feasible)
    rows = rows[~FrontIndex(total.costs).beats(costs[rows])]
    return total + Tally(
        legal=numbers.size,
        feasible=int(evaluation.feasible.sum()),
        broken=np.asarray((~(kept if margins is None else margins >= 0)).sum(axis=0), dtype=np.int64),
        unpriced=int((kept.all(axis=1) & ~evaluation.feasible).sum()),
        better=np.asarray((costs < np.asarray(best)).sum(axis=0), dtype=np.int64),
        numbers=numbers[timed[rows]],
        costs=costs[rows],
    )
