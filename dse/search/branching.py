"""The exact front of spaces too large to list: branch and bound over boxes of machines.

A box of which a known design beats the bound is dropped with all its designs, and so is one that breaks a
limit for certain. Others are halved, down to single machines, which are evaluated. Designs from the middle of
promising boxes are evaluated on the way: what they beat need not be looked into.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.errors import DseError
from dse.fronts.pareto import non_dominated
from dse.pricing.evaluation import evaluate
from dse.pricing.workers import Pricer, Workers
from dse.search.bounds import Boxes, Problem, breakdown_of
from dse.search.capacity import smallest_capacities
from dse.search.dominance import FrontIndex
from dse.search.enumeration import costs_of

#: Boxes that are halved at a time, which bounds the memory; and those that one worker evaluates.
MOST_BOXES: Final = 1 << 18
SHARE: Final = 1 << 15
#: Promising boxes of a round of which a design is evaluated.
MOST_PROBES: Final = 4096
#: Most designs that are evaluated before it is said to be too many.
MOST_PRICED: Final = 1e9


class Search:
    """The state of a branch and bound."""

    def __init__(self, problem: Problem, workers: Workers) -> None:
        self.problem, self.workers, self.space = problem, workers, problem.pricer.space
        self.designs = {parameter.name: np.empty(0) for parameter in self.space.parameters}
        #: (designs, objectives) of the designs found that no other found beats; and the front that prunes,
        #: which knows others beside.
        self.costs = np.empty((0, len(self.space.objectives)))
        self.front = FrontIndex(self.costs)
        self.priced = 0  #: designs evaluated, and corners of boxes

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Work until no box is left.

        Raises
        ------
        DseError
            If more than `MOST_PRICED` designs have to be evaluated.
        """
        waiting = [start(self.problem)]
        while waiting:
            boxes = self.round(waiting.pop())
            waiting += [boxes.take(slice(at, at + MOST_BOXES)) for at in range(0, len(boxes), MOST_BOXES)]
            if progress:
                progress(self.priced, sum(map(len, waiting)))
            if self.priced > MOST_PRICED:
                raise DseError(
                    f"space {self.space.name}: {self.priced:.3g} designs evaluated, and bounds leave more; "
                    "pin some parameters with --set, or search instead"
                )

    def round(self, boxes: Boxes) -> Boxes:
        """Halves of the boxes that may hold something new."""
        boxes = self.timed(boxes.take(self.open(boxes)[0]))
        rows, costs = self.open(boxes)
        boxes = boxes.take(rows)
        single = self.problem.single(boxes)
        self.found(boxes.take(single))
        boxes, costs = boxes.take(~single), costs[~single]
        promising = np.flatnonzero(non_dominated(costs))
        self.learn(self.evaluated(boxes.take(promising[:: -(-promising.size // MOST_PROBES) or 1]))[1])
        return halves(self.problem, boxes)

    def open(self, boxes: Boxes) -> tuple[IntArray, FloatArray]:
        """Boxes that may hold a design which the front does not beat, and the bounds of those."""
        if not len(boxes):
            return np.zeros(0, dtype=np.int64), self.costs[:0]
        costs, possible = self.problem.bounds(boxes)
        rows = np.flatnonzero(possible)
        kept = ~self.front.beats(costs[rows])
        return rows[kept], costs[rows[kept]]

    def timed(self, boxes: Boxes) -> Boxes:
        """The boxes with what their own fastest machines come to."""
        new = np.flatnonzero(boxes.new)
        new = new[np.lexsort([boxes.layout[new], *boxes.nodes[new].T[::-1]])]
        shares = [boxes.take(new[at : at + SHARE]) for at in range(0, new.size, SHARE)]
        pricer, names = self.problem.pricer, self.problem.timed
        tasks = [(pricer, self.problem.fastest(share), names) for share in shares]
        timed = boxes.timed.copy()
        for at, own in enumerate(self.workers.map(_columns, tasks)):
            timed[new[at * SHARE : (at + 1) * SHARE]] = own
        self.priced += new.size
        return Boxes(boxes.layout, boxes.nodes, timed, np.zeros(len(boxes), dtype=bool))

    def evaluated(self, boxes: Boxes) -> tuple[dict[str, FloatArray], FloatArray]:
        """A design of each box, and its costs; those that are feasible."""
        designs = self.problem.designs(boxes)
        if not len(boxes):
            return designs, self.costs[:0]
        costs = costs_of(self.space, evaluate(self.space, designs, rules=self.problem.pricer.rules))
        self.priced += len(boxes)
        rows = np.flatnonzero(~np.isnan(costs).any(axis=1))
        return {name: values[rows] for name, values in designs.items()}, costs[rows]

    def found(self, boxes: Boxes) -> None:
        """Take boxes of one machine as designs."""
        designs, costs = self.evaluated(boxes)
        self.learn(costs)
        costs = np.concatenate([self.costs, costs])
        rows = np.flatnonzero(non_dominated(costs))
        self.costs = costs[rows]
        self.designs = {
            name: np.concatenate([values, designs[name]])[rows] for name, values in self.designs.items()
        }

    def learn(self, costs: FloatArray) -> None:
        """Let costs of designs prune."""
        costs = np.unique(np.concatenate([self.front.front, costs]), axis=0)
        self.front = FrontIndex(costs[non_dominated(costs)])


def _columns(task: tuple[Pricer, dict[str, FloatArray], tuple[str, ...]]) -> FloatArray:
    """(boxes, columns) Some columns of the breakdown of layouts on machines."""
    pricer, columns, names = task
    breakdown = breakdown_of(pricer, columns)
    return np.stack([getattr(breakdown, name) for name in names], axis=1)


def start(problem: Problem) -> Boxes:
    """All designs as boxes: of each layout, the whole trees; of capacities that hold it, the smallest."""
    layouts, enough = np.arange(problem.num_layouts), smallest_capacities(problem)
    trees = np.array(list(itertools.product(*(own.roots for own in problem.forests))))
    boxes = problem.unbounded(np.repeat(layouts, len(trees)), np.tile(trees, (layouts.size, 1)))
    if enough is not None:
        place, nodes = enough
        boxes.nodes[:, place] = nodes[boxes.layout]
        boxes = boxes.take(boxes.nodes[:, place] >= 0)
    return boxes


def halves(problem: Problem, boxes: Boxes) -> Boxes:
    """Both halves of boxes, along the forest whose node leaves most open."""
    if not len(boxes):
        return boxes
    spread = np.stack([own.spread[boxes.nodes[:, at]] for at, own in enumerate(problem.forests)])
    whole = np.stack([own.below[boxes.nodes[:, at]] < 0 for at, own in enumerate(problem.forests)])
    along = np.argmax(np.where(whole, -1.0, spread), axis=0)
    parts = []
    for child in (0, 1):
        nodes, new = boxes.nodes.copy(), np.zeros(len(boxes), dtype=bool)
        for at, own in enumerate(problem.forests):
            rows = np.flatnonzero(along == at)
            nodes[rows, at] = own.below[nodes[rows, at]] + child
            new[rows] = ~own.inherits[nodes[rows, at]]
        parts.append(Boxes(boxes.layout, nodes, boxes.timed, new))
    return Boxes(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Boxes.__dataclass_fields__)
    )
