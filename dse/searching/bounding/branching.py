"""The exact front of spaces too large to list: branch and bound over boxes of machines.

A box is dropped with all its designs if a known design beats its bound, or if it violates a limit for certain. Others
are halved, down to single machines, which are evaluated. Designs from the middle of promising boxes are evaluated on
the way, and prune the boxes that they beat.

Memory capacity only has to be sufficient: it changes no time, only the cost and whether a layout fits. So a design with
more than its layout needs is beaten by the same with less, if cost counts and no condition requires more.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.fronts import FrontIndex, low_and_span, non_dominated, shortfalls, thinned
from dse.pricing.evaluated import costs_of
from dse.pricing.evaluation import evaluate
from dse.pricing.workers import Workers
from dse.searching.bounding.bounds import OF_LAYOUTS, Boxes, Problem, breakdown_of
from dse.spaces.formulas.names import WITH_UNIT


def smallest_capacities(problem: Problem) -> tuple[int, IntArray] | None:
    """The forest of the capacity, and each layout's node of it; nothing where more may be worth its price.

    The first is the forest's position in the problem, the second a node of each layout: that of the smallest capacity
    with which the layout may be feasible; -1 if none is enough. [-]
    """
    capacity = f"{problem.pricer.space.system.dram.name}_capacity"
    forests = [(number, forest) for number, forest in enumerate(problem.forests) if forest.names == (capacity,)]
    fixed = all(low is high for low, high in problem.of_layouts.values())  # layouts decide the memory that they need
    if not forests or not fixed or not only_has_to_be_enough(problem, capacity):
        return None
    ((column, forest),) = forests
    layouts = np.arange(problem.num_layouts)
    smallest = np.full(layouts.size, -1)
    leaves = np.flatnonzero(forest.below < 0)
    for leaf in leaves[np.argsort(forest.low[leaves, 0])][::-1].tolist():
        nodes = np.tile([other.roots[0] for other in problem.forests], (layouts.size, 1))
        nodes[:, column] = leaf
        smallest[problem.bounds(problem.unbounded(layouts, nodes))[1]] = leaf
    return column, smallest


def only_has_to_be_enough(problem: Problem, capacity: str) -> bool:
    """True if formulas ask for a small price, and limits of the capacity that it is enough."""
    space = problem.pricer.space
    asks_price = any(o.name == "system_price" and o.direction == "minimize" for o in space.objectives)
    costs = float(space.system.dram.price.min()) > 0
    opened = f"{space.system.dram.name}_price" in space.chosen
    others = [o.expression for o in space.objectives if o.name != "system_price"]
    others += [derived.expression for derived in space.derived if derived.evaluated]
    limits = [limit.expression for limit in space.limits]
    others += [text for text in limits if not _is_upper(problem.formulas[text].tree, capacity)]
    used = {WITH_UNIT.get(name, name) for text in others for name in problem.formulas[text].names}
    return asks_price and costs and not opened and not {capacity, "system_price"} & used


def _is_upper(tree: ast.expr, capacity: str) -> bool:
    """True if a limit bounds a quantity of a layout by the capacity, or the price by something else."""
    match tree:
        case ast.Compare(left=ast.Name(id=written), ops=[ast.LtE() | ast.Lt()], comparators=[right]):
            name = WITH_UNIT.get(written, written)
        case _:
            return False
    if name == "system_price":
        return not {node.id for node in ast.walk(right) if isinstance(node, ast.Name)} & {capacity, name}
    return name in OF_LAYOUTS and isinstance(right, ast.Name) and right.id == capacity


#: Boxes that are halved at a time, which bounds the memory; and fewest that are worth sending to a process.
MOST_BOXES: Final = 1 << 18
WORTH_SENDING: Final = 1 << 12
#: Rounds that look into all boxes of a search that stops early, and points of its front that are compared with them.
ROUNDS: Final = 8
MOST_COMPARED: Final = 64
#: Promising boxes of a round with a design that is evaluated.
MOST_PROBES: Final = 4096
#: Boxes that are checked where formulas prove no bound.
CHECKS: Final = 1 << 12
#: By how much a design may cost less than its bound, relative to that, for rounding. [-]
ROUNDING: Final = 1e-9


class BoundBroken(Exception):
    """A design costs less than bounds allow."""


@dataclass(frozen=True)
class Explored:
    """Results of a round over some boxes."""

    boxes: Boxes  #: halves of those that may hold something new
    designs: dict[str, FloatArray]  #: of boxes of one machine, feasible, and not beaten before
    costs: FloatArray  #: (designs, objectives) of these [the unit of each]
    tried: dict[str, FloatArray]  #: other designs that were evaluated, feasible
    probes: FloatArray  #: (probes, objectives) costs of these [the unit of each]
    evaluated: int  #: designs evaluated, and corners of boxes


class LeastCosts:
    """The least cost of each objective by itself: it beats points that are lower in none."""

    def __init__(self, costs: FloatArray) -> None:
        self.least = costs.min(axis=0, initial=np.inf)

    def beats(self, points: FloatArray) -> BoolArray:
        """(points,) Which points are lower in no objective."""
        return np.asarray((points >= self.least).all(axis=1))


Pruning = FrontIndex | LeastCosts  #: made of known costs; rules out boxes by their bounds


class Search:
    """The state of a branch and bound."""

    def __init__(self, problem: Problem, workers: Workers, boxes: Boxes, known: FloatArray,
                 index: type[Pruning] = FrontIndex) -> None:  # fmt: skip
        """Take a problem, boxes to look into, and (designs, objectives) costs that designs reach.

        With `LeastCosts` as `index` it searches for the best design of each objective, not for the front.
        """
        self.problem, self.workers, self.front, self.waiting = problem, workers, known, [boxes]
        self.designs = {parameter.name: np.empty(0) for parameter in problem.pricer.space.parameters}
        self.costs = np.empty((0, known.shape[1]))  #: of `designs`, which are nondominated; `front` has further ones
        self.index = index
        self.evaluated = 0  #: designs evaluated, and corners of boxes

    def run(
        self, progress: Callable[[int, int], None] | None = None, *, enough: float = np.inf, most: float = np.inf
    ) -> None:
        """Work until no box is left, enough designs are evaluated, or `most` are or wait to be. [-]

        Where it is interrupted, no box is lost.
        """
        while self.waiting and self.evaluated < min(enough, most - sum(map(len, self.waiting))):
            before = [*self.waiting]
            try:
                self._round(rank=self.evaluated > 0 and enough < np.inf)
            except KeyboardInterrupt:
                self.waiting = before  # all that may hold something new is in them
                raise
            if progress:
                progress(self.evaluated, sum(map(len, self.waiting)))

    def _round(self, *, rank: bool) -> None:
        """Look into a set of boxes for each worker: the last ones, or those that promise most."""
        if rank:
            self.waiting = self.ranked(joined(self.waiting))
        taken = self.shares([self.waiting.pop() for _ in range(min(self.workers.jobs, len(self.waiting)))])
        tasks = [(self.problem, self.index(self.front), boxes) for boxes in taken]
        for result in self.workers.map(explored, tasks):
            self.add(result)
            left = range(0, len(result.boxes), MOST_BOXES)
            self.waiting += [result.boxes.take(slice(at, at + MOST_BOXES)) for at in left]

    def ranked(self, boxes: Boxes) -> list[Boxes]:
        """Boxes that may hold something new, last those that promise most: in one objective, or in all."""
        rows, costs = still_open(self.problem, FrontIndex(self.front), boxes)
        low, span = low_and_span(self.front)
        keys = [column for column, least in zip(costs.T, low, strict=True) if (column < least).any()]
        keys.append(shortfalls((costs - low) / span, thinned((self.front - low) / span, MOST_COMPARED)))
        places = np.min([np.argsort(np.argsort(key)) for key in keys], axis=0)
        rows, first = rows[np.argsort(places)], max(WORTH_SENDING, rows.size // ROUNDS)
        return [boxes.take(part) for part in (rows[first:], rows[:first]) if part.size]

    def bounds(self) -> FloatArray:
        """(points, objectives) Costs of a front that is no worse than that of all legal designs. [the unit of each]

        Designs of boxes that were dropped break a limit, or cost no less than one that is known; others cost
        no less than the bounds of their boxes.
        """
        index = FrontIndex(self.front)
        costs = np.concatenate([self.front, *(still_open(self.problem, index, boxes)[1] for boxes in self.waiting)])
        return costs[non_dominated(costs)]

    def shares(self, taken: list[Boxes]) -> list[Boxes]:
        """As many sets of boxes as there are workers, where that is worth it."""
        count = min(self.workers.jobs, sum(map(len, taken)) // WORTH_SENDING)
        if len(taken) >= count:
            return taken
        every = joined(taken)
        return [every.take(slice(worker, None, count)) for worker in range(count)]

    def add(self, result: Explored) -> None:
        """Add the results of a round: designs, and costs that prune."""
        self.evaluated += result.evaluated
        costs = np.unique(np.concatenate([self.front, result.costs, result.probes]), axis=0)
        self.front = costs[non_dominated(costs)]
        parts = [(self.designs, self.costs), (result.designs, result.costs)]
        if self.index is LeastCosts:  # a box that ties with a probe is ruled out, so that the probe itself counts
            parts.append((result.tried, result.probes))
        costs = np.concatenate([costs for _, costs in parts])
        rows = np.flatnonzero(non_dominated(costs))
        self.costs = costs[rows]
        self.designs = {name: np.concatenate([designs[name] for designs, _ in parts])[rows] for name in self.designs}


def explored(task: tuple[Problem, Pruning, Boxes]) -> Explored:
    """A round over some boxes, which known costs prune."""
    problem, index, boxes = task
    boxes = boxes.take(still_open(problem, index, boxes)[0])
    corners = int(boxes.new.sum())
    boxes = timed(problem, boxes)
    rows, costs = still_open(problem, index, boxes)
    boxes = boxes.take(rows)
    single = problem.single(boxes)
    designs, values = evaluated(problem, boxes.take(single), costs[single])
    rest, costs = boxes.take(~single), costs[~single]
    promising = np.flatnonzero(non_dominated(costs))
    promising = promising[:: -(-promising.size // MOST_PROBES) or 1]
    middle = rest.take(promising)
    tried, probes = evaluated(problem, middle, costs[promising])
    return Explored(
        boxes=halves(problem, rest),
        designs=designs,
        costs=values,
        tried=tried,
        probes=probes,
        evaluated=corners + int(single.sum()) + len(middle),
    )


def still_open(problem: Problem, known: Pruning, boxes: Boxes) -> tuple[IntArray, FloatArray]:
    """Boxes that may hold a design that known ones do not beat, and the bounds of those."""
    if not len(boxes):
        return np.zeros(0, dtype=np.int64), np.empty((0, len(problem.pricer.space.objectives)))
    costs, possible = problem.bounds(boxes)
    rows = np.flatnonzero(possible)
    kept = ~known.beats(costs[rows])
    return rows[kept], costs[rows[kept]]


def timed(problem: Problem, boxes: Boxes) -> Boxes:
    """The boxes with the results of their fastest machines."""
    new = np.flatnonzero(boxes.new)
    times = boxes.timed.copy()
    if new.size:
        new = new[np.lexsort([boxes.layout[new], *boxes.nodes[new].T[::-1]])]
        breakdown = breakdown_of(problem.pricer, problem.fastest(boxes.take(new)))
        for column, name in enumerate(problem.timed):
            times[new, column] = getattr(breakdown, name)
    return Boxes(boxes.layout, boxes.nodes, times, np.zeros(len(boxes), dtype=bool))


def evaluated(problem: Problem, boxes: Boxes, bounds: FloatArray) -> tuple[dict[str, FloatArray], FloatArray]:
    """A design of each box, and its costs; those that are feasible.

    Raises `BoundBroken` if one costs less than the bound of its box: more of a machine slows it. Lenient ones keep it.
    """
    space, designs = problem.pricer.space, problem.designs(boxes)
    costs = costs_of(space, evaluate(space, designs, rules=problem.pricer.rules))
    rows = np.flatnonzero(~np.isnan(costs).any(axis=1))
    if not problem.lenient and (costs[rows] < bounds[rows] - ROUNDING * np.abs(bounds[rows])).any():
        raise BoundBroken
    return {name: values[rows] for name, values in designs.items()}, costs[rows]


def check_bounds(problem: Problem) -> None:
    """Evaluate a design in each of `CHECKS` boxes by chance. Raises `BoundBroken` if one is better than its bound."""
    rng = np.random.default_rng(0)
    nodes = [rng.integers(forest.below.size, size=CHECKS) for forest in problem.forests]
    boxes = problem.unbounded(rng.integers(problem.num_layouts, size=CHECKS), np.stack(nodes, axis=1))
    boxes = timed(problem, boxes)
    evaluated(problem, boxes, problem.bounds(boxes)[0])


def start(problem: Problem) -> Boxes:
    """All designs as boxes: of each layout, the whole trees; of capacities that hold it, the smallest.

    Raises `BoundBroken` if bounds without a proof are wrong.
    """
    if not (problem.proved or problem.lenient):
        check_bounds(problem)
    layouts, enough = np.arange(problem.num_layouts), smallest_capacities(problem)
    trees = np.array(list(itertools.product(*(forest.roots for forest in problem.forests))))
    boxes = problem.unbounded(np.repeat(layouts, len(trees)), np.tile(trees, (layouts.size, 1)))
    boxes.timed[:: len(trees)], boxes.new[:: len(trees)] = problem.of_roots, False
    if enough is not None:
        column, nodes = enough
        boxes.nodes[:, column] = nodes[boxes.layout]
        boxes = boxes.take(boxes.nodes[:, column] >= 0)
    return boxes


def halves(problem: Problem, boxes: Boxes) -> Boxes:
    """Both halves of boxes, along the forest whose node leaves most open."""
    if not len(boxes):
        return boxes
    spread = np.stack([forest.spread[boxes.nodes[:, at]] for at, forest in enumerate(problem.forests)])
    whole = np.stack([forest.below[boxes.nodes[:, at]] < 0 for at, forest in enumerate(problem.forests)])
    along = np.argmax(np.where(whole, -1.0, spread), axis=0)
    parts = []
    for child in (0, 1):
        nodes, new = boxes.nodes.copy(), np.zeros(len(boxes), dtype=bool)
        for at, forest in enumerate(problem.forests):
            rows = np.flatnonzero(along == at)
            nodes[rows, at] = forest.below[nodes[rows, at]] + child
            new[rows] = ~forest.inherits[nodes[rows, at]]
        parts.append(Boxes(boxes.layout, nodes, boxes.timed, new))
    return joined(parts)


def joined(parts: Sequence[Boxes]) -> Boxes:
    """Boxes of several sets together."""
    return Boxes(*(np.concatenate([getattr(part, name) for part in parts]) for name in Boxes.__dataclass_fields__))
