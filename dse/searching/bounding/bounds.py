"""Bounds that no design of a box can beat, of objectives and limits, over a layout and many machines.

A component of the legal designs is of the machine if all its parameters decide quantities of the system only. Its rows
form trees: a node is some of the rows, its box holds all of their quantities, and its two children share the rows, down
to single ones. A node of each component's trees is a set of machines, the product of the nodes' rows.

The fastest machine of a box has the most of every quantity that never slows a step; it need not exist. No machine of
the box is faster; none costs or draws less than one with the least of every quantity. From these, objectives and limits
follow by interval arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, distinct_rows
from costmodel.kernels.kernel_cost import ENERGIES
from costmodel.machine import System, chip_power, chip_price
from costmodel.rules.registry import NATIVE
from costmodel.rules.rules import TRAINING
from costmodel.steps.breakdown import PARTS, ResultTable
from costmodel.steps.resolve_sharding import least_memory
from costmodel.training.design import SOLVE, SOLVE_BYTES, DesignPoints
from dse.fronts import as_costs
from dse.pricing.evaluated import machine
from dse.pricing.evaluation import transformer_run
from dse.pricing.workers import Pricer
from dse.spaces.formulas.expressions import Expression
from dse.spaces.formulas.interval_arithmetic import Interval, interval_of, point
from dse.spaces.formulas.names import MODEL_SETTINGS, WITH_UNIT
from dse.spaces.legal import Component
from dse.spaces.space import Space

#: Most rows of a component with trees.
MOST_TREE_ROWS: Final = 200_000


@dataclass(frozen=True)
class Forest:
    """The rows of a component of machines as trees: nodes by number, each behind its parent.

    A tree holds rows that agree in every quantity that may slow a step when it grows.
    """

    component: Component
    names: tuple[str, ...]  #: parameters, and columns derived from them
    low: FloatArray  #: (nodes, names) ends of each node's box [SI units]
    high: FloatArray
    below: IntArray  #: (nodes,) the first of two children; -1 of a single row [-]
    sample: IntArray  #: (nodes,) one of the node's rows, near the middle [-]
    spread: FloatArray  #: (nodes,) how much objectives may differ within the box [-]
    inherits: BoolArray  #: (nodes,) whether the box has as much of every rising quantity as its parent's
    roots: IntArray  #: (trees,) [-]

    def of(self, ends: FloatArray, nodes: IntArray) -> dict[str, FloatArray]:
        """Columns of one of the ends of the boxes of some nodes."""
        return {name: ends[nodes, column] for column, name in enumerate(self.names)}


class _Grower:
    """Grows the trees of one component."""

    def __init__(self, values: FloatArray, rising: IntArray, weights: FloatArray) -> None:
        self.values, self.rising, self.weights = values, rising, weights
        self.finite = np.where(np.isfinite(values), values, 0.0)  #: where boxes have a middle and a side
        self.nodes: list[tuple[FloatArray, FloatArray, int, float, bool]] = []  #: low, high, sample, spread, inherits
        self.below: list[int] = []

    def add(self, rows: IntArray, parent: int = -1) -> int:
        """A node of some rows."""
        low, high = self.values[rows].min(axis=0), self.values[rows].max(axis=0)
        above = self.finite[rows] - self.finite[rows].min(axis=0)
        side = np.where(above.max(axis=0) > 0, above.max(axis=0), 1.0)
        sample = int(rows[np.argmin(((above / side - 0.5) ** 2).sum(axis=1))])
        inherits = parent >= 0 and bool((high == self.nodes[parent][1])[self.rising].all())
        self.nodes.append((low, high, sample, float(self.spreads(low, high).sum()), inherits))
        self.below.append(-1)
        return len(self.below) - 1

    def grow(self, rows: IntArray) -> int:
        """A tree of some rows; its root."""
        root = self.add(rows)
        waiting = [(root, rows)]
        while waiting:
            node, rows = waiting.pop()
            if rows.size > 1:
                halves = self.halves(node, rows)
                self.below[node] = self.add(halves[0], node)
                self.add(halves[1], node)
                waiting += [(self.below[node], halves[0]), (self.below[node] + 1, halves[1])]
        return root

    def spreads(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """Share of each rising quantity in the spread of a box. [-]"""
        low, high = (np.where(np.isfinite(end), end, 0.0)[self.rising] for end in (low, high))
        return np.asarray(self.weights * (high - low) / np.where(high > 0, high, 1.0))

    def halves(self, node: int, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Rows below and above the middle of the quantity that decides most."""
        spread = self.spreads(*self.nodes[node][:2])
        if not (spread > 0).any():
            return rows[: rows.size // 2], rows[rows.size // 2 :]
        column = self.values[rows, self.rising[int(np.argmax(spread))]]
        options = np.unique(column)
        upper = column >= options[options.size // 2]
        return rows[~upper], rows[upper]


def forest_of(space: Space, component: Component, weights: Mapping[str, float]) -> Forest:
    """The trees of a component of machines.

    `weights` has the quantities that never slow a step, with their effects; a large effect is halved early. [-] A
    quantity that is 0 in a row is left out: a positive value may be slower than none.
    """
    columns = columns_of(space, [component], component.columns(np.arange(component.rows)))
    names, quantities = tuple(columns), space.system.units()
    values = np.stack([np.broadcast_to(column, (component.rows,)) for column in columns.values()], axis=1)
    lawful = [name in weights and bool((values[:, at] > 0).all()) for at, name in enumerate(names)]
    rising = np.flatnonzero(lawful)
    others = [at for at, name in enumerate(names) if name in quantities and not lawful[at]]
    grower = _Grower(values, rising, np.array([weights[names[column]] for column in rising]))
    kinds = np.unique(values[:, others], axis=0, return_inverse=True)[1].ravel()
    roots = [grower.grow(np.flatnonzero(kinds == kind)) for kind in range(kinds.max() + 1)]
    low, high, sample, spread, inherits = map(np.array, zip(*grower.nodes, strict=True))
    return Forest(component, names, low, high, np.array(grower.below), sample, spread, inherits, np.array(roots))


def columns_of(
    space: Space, components: Collection[Component], columns: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Parameters of some components, and columns that are derived only from them without evaluation."""
    decided = {parameter.name for component in components for parameter in component.parameters}
    values = {**space.constants, **columns}
    derived = {}
    for column in space.derived:
        if not column.evaluated and column.parameters <= decided:
            values[column.name] = derived[column.name] = column.formula(values)
    return {**columns, **derived}


def sides(pricer: Pricer) -> tuple[list[Component], list[Component]]:
    """Components of the layout, and of the machine."""
    space = pricer.space
    read = {*pricer.rules.columns, *MODEL_SETTINGS}
    layout = {name for name in space.by_name if name in read}
    for derived in space.derived:
        if derived.name in read and not derived.evaluated:
            layout |= derived.parameters
    layouts: list[Component] = []
    machines: list[Component] = []
    for component in space.legal.components:
        of_layout = any(parameter.name in layout for parameter in component.parameters)
        (layouts if of_layout or component.rows > MOST_TREE_ROWS else machines).append(component)
    return layouts, machines


#: Columns of a breakdown that no quantity of `never_slower` changes.
OF_LAYOUTS: Final = ("peak_memory", *PARTS["peak_memory"], "model_flops", "world_size")
#: Columns that the fastest machine bounds from below, and from above.
FASTEST_LOW, FASTEST_HIGH = ("step_time",), ("tokens_per_second", "tokens_per_second_per_gpu")
#: Column -> others that bound it.
IMPLIED: Final = {"mfu": ("step_time", "model_flops"), "energy_per_step": ("step_time", *ENERGIES)}
#: Ends of an unknown quantity that is not negative.
UNKNOWN: Final = np.array(0.0), np.array(np.inf)
#: Most layouts whose boxes are looked at.
MOST_LAYOUTS: Final = 2_000_000
#: Designs that say how much each quantity decides.
SAMPLE: Final = 512


@dataclass(frozen=True)
class Boxes:
    """Boxes of a space: each a layout, and a node of each forest."""

    layout: IntArray  #: (boxes,) number of the layout
    nodes: IntArray  #: (boxes, forests)
    timed: FloatArray  #: (boxes, columns) results of the fastest machine of the box, or of one around it
    new: BoolArray  #: (boxes,) whether that is of one around it

    def __len__(self) -> int:
        return self.layout.size

    def take(self, rows: Any) -> Boxes:
        """Some of the boxes."""
        return Boxes(self.layout[rows], self.nodes[rows], self.timed[rows], self.new[rows])


@dataclass(frozen=True)
class Problem:
    """A space whose machines are bounded: its layouts, one by one, and its machines as forests."""

    pricer: Pricer
    layouts: tuple[Component, ...]
    forests: tuple[Forest, ...]
    timed: tuple[str, ...]  #: columns that follow the fastest machine, of those that formulas use
    fixed: tuple[str, ...]  #: columns that follow the layout alone, likewise
    of_layouts: dict[str, Interval]  #: ends of the latter, (layouts,) each
    of_roots: FloatArray  #: (layouts, timed) results on the fastest machine of the first tree of each forest
    proved: bool  #: True if more of a machine never slows a layout by its formulas; else by each design evaluated
    lenient: bool = False  #: True if designs may cost less than their bounds, which then only guide a search

    def __reduce__(self) -> tuple[Callable[[Pricer], Problem | None], tuple[Pricer]]:
        return _sent_problem, (self.pricer,)

    @property
    def num_layouts(self) -> int:
        """Legal layouts."""
        return math.prod(component.rows for component in self.layouts)

    def layout_columns(self, layouts: IntArray) -> dict[str, FloatArray]:
        """Parameters of some layouts, and columns derived from them."""
        rows = np.unravel_index(layouts, (1, *(component.rows for component in self.layouts)))[1:]
        columns: dict[str, FloatArray] = {}
        for component, component_rows in zip(self.layouts, rows, strict=True):
            columns |= component.columns(component_rows)
        return columns_of(self.pricer.space, self.layouts, columns)

    def machine_columns(self, nodes: IntArray, *, most: bool) -> dict[str, FloatArray]:
        """One of the ends of everything that machines decide, over some boxes."""
        columns: dict[str, FloatArray] = {}
        for column, forest in enumerate(self.forests):
            columns |= forest.of(forest.high if most else forest.low, nodes[:, column])
        return columns

    def single(self, boxes: Boxes) -> BoolArray:
        """Which boxes hold one machine."""
        below = [forest.below[boxes.nodes[:, column]] for column, forest in enumerate(self.forests)]
        return np.asarray(np.max(below, axis=0) < 0)

    def designs(self, boxes: Boxes) -> dict[str, FloatArray]:
        """Encoded designs, one of each box: the layout on a machine near the middle."""
        columns = self.layout_columns(boxes.layout)
        for column, forest in enumerate(self.forests):
            columns |= forest.component.columns(forest.sample[boxes.nodes[:, column]])
        return {parameter.name: columns[parameter.name] for parameter in self.pricer.space.parameters}

    def unbounded(self, layout: IntArray, nodes: IntArray) -> Boxes:
        """Boxes of whose fastest machines nothing is known yet."""
        ends = [np.inf if name in FASTEST_HIGH else 0.0 for name in self.timed]
        return Boxes(layout, nodes, np.tile(ends, (layout.size, 1)), np.ones(layout.size, dtype=bool))

    def fastest(self, boxes: Boxes) -> dict[str, FloatArray]:
        """Layouts of boxes on the fastest machine of each."""
        return self.layout_columns(boxes.layout) | self.machine_columns(boxes.nodes, most=True)

    def bounds(self, boxes: Boxes) -> tuple[FloatArray, BoolArray]:
        """(boxes, objectives) Lower bounds of costs, and whether a design may be feasible. [the unit of each]"""
        space, known = self.pricer.space, self.intervals(boxes)
        count, sought = len(boxes), []
        for objective in space.objectives:
            ends = interval_of(self.formulas[objective.expression], known, space.names)
            sought.append(np.broadcast_to(ends[objective.direction == "maximize"], count))
        costs = as_costs(np.stack(sought, axis=1), space.directions)
        possible = np.ones(count, dtype=bool)
        for limit in space.limits:
            possible &= interval_of(self.formulas[limit.expression], known, space.names)[1] > 0
        return costs, possible

    def intervals(self, boxes: Boxes) -> dict[str, Interval]:
        """Ends of every name that formulas may use, over each box."""
        space = self.pricer.space
        low, high = (self.machine_columns(boxes.nodes, most=most) for most in (False, True))
        layout = self.layout_columns(boxes.layout)
        known = {name: point(values) for name, values in {**space.constants, **layout}.items()}
        known |= {name: (low[name], high[name]) for name in low}
        for column, name in enumerate(self.timed):
            time = boxes.timed[:, column]
            known[name] = (time, UNKNOWN[1]) if name in FASTEST_LOW else (UNKNOWN[0], time)
        for name, ends in self.of_layouts.items():
            known[name] = ends[0][boxes.layout], ends[1][boxes.layout]
        known |= self.energy_and_use(known, *(machine(space, columns) for columns in (low, high)))
        known |= self.price_and_power(boxes, low, layout)
        for derived in space.derived:
            if derived.evaluated:
                known[derived.name] = interval_of(self.formulas[derived.expression], known, space.names)
        return known

    def energy_and_use(self, known: Mapping[str, Interval], least: System, most: System) -> dict[str, Interval]:
        """Least energy of a step, and largest MFU, of those that formulas use, between two machines. [J], [-]

        Energy is that of the fastest machine at the least voltage, and of idling as long as that takes. It proves
        nothing: another machine may move fewer bytes.
        """
        ends, chips = {}, known["world_size"][0]
        if ENERGIES[0] in self.timed:
            work, *moving = (known[name][1] for name in ENERGIES)
            energy = work * (least.chip.flop_energy / most.chip.flop_energy) + sum(moving)
            energy += chips * known["step_time"][0] * (least.chip.idle_power + least.host.power)
            ends = {**dict.fromkeys(ENERGIES, UNKNOWN), "energy_per_step": (energy, UNKNOWN[1])}
        if "model_flops" in known and "step_time" in known:
            use = known["model_flops"][1] / (known["step_time"][0] * chips * least.chip.peak_flop_rate)
            ends["mfu"] = UNKNOWN[0], use
        return ends

    def price_and_power(
        self, boxes: Boxes, low: Mapping[str, FloatArray], layout: Mapping[str, FloatArray]
    ) -> dict[str, Interval]:
        """Least price and power of the machines of each box. [$], [W]"""
        rows, back = distinct_rows(*boxes.nodes.T.astype(np.float64))
        if self.separate:
            least = self.least_price_and_power(boxes.nodes[rows])[:, back]
        else:
            least = self.cheapest({**low, **layout})
        chips = self.of_layouts["world_size"][0][boxes.layout]
        names = "system_price", "system_power"
        return {name: (chips * value, np.array(np.inf)) for name, value in zip(names, least, strict=True)}

    @cached_property
    def separate(self) -> bool:
        """True if layouts decide no quantity of the machine."""
        return not {*self.layout_columns(np.zeros(1, dtype=np.int64))} & {*self.pricer.space.system.units()}

    def least_price_and_power(self, nodes: IntArray) -> FloatArray:
        """(2, boxes) Least price and power of a chip: with the least of all, or by one component."""
        least = self.cheapest(self.machine_columns(nodes, most=False))
        for column, of_nodes in enumerate(self.least_of_nodes):
            least = np.maximum(least, of_nodes[:, nodes[:, column]])
        return least

    def cheapest(self, columns: Mapping[str, FloatArray]) -> FloatArray:
        """(2, boxes) Price and power of a chip with some quantities. [$], [W]"""
        chips, count = machine(self.pricer.space, columns), max(values.size for values in columns.values())
        return np.stack([np.broadcast_to(f(chips), count) for f in (chip_price, chip_power)])

    @cached_property
    def least_of_nodes(self) -> list[FloatArray]:
        """By forest: (2, nodes) least price and power of a node's machines, other components at their least.

        0 where trees of other components differ in a quantity that may lower costs when it grows.
        """
        of_forests = []
        for forest in self.forests:
            others = [other for other in self.forests if other is not forest]
            least = np.zeros((2, forest.below.size))
            if all(other.roots.size == 1 for other in others):
                leaves = np.flatnonzero(forest.below < 0)
                lowest = {name: ends for other in others for name, ends in other.of(other.low, other.roots).items()}
                elsewhere = {name: np.full(leaves.size, ends.min()) for name, ends in lowest.items()}
                least = np.full((2, forest.below.size), np.inf)
                least[:, leaves] = self.cheapest(elsewhere | forest.of(forest.low, leaves))
                for node in np.flatnonzero(forest.below >= 0)[::-1]:  # children follow their parents
                    child = forest.below[node]
                    least[:, node] = np.minimum(least[:, child], least[:, child + 1])
            of_forests.append(least)
        return of_forests

    @cached_property
    def formulas(self) -> dict[str, Expression]:
        """Formulas of the space that need evaluation, by their text."""
        return {text: Expression.parse(text) for text in self.pricer.space.evaluated_formulas}


def breakdown_of(pricer: Pricer, columns: Mapping[str, FloatArray]) -> ResultTable:
    """Evaluate layouts on machines that are given by their quantities."""
    return pricer.rules.step(machine(pricer.space, columns), {**pricer.space.constants, **columns})


def problem_of(pricer: Pricer, most: int = MOST_LAYOUTS) -> Problem | None:
    """A space as boxes; None where no bounds are known, so that designs have to be listed.

    There have to be components of machines, and a bound for every objective; and at most `most` layouts and rows of
    machines. [-]
    """
    space = pricer.space
    if pricer.rules.profile != NATIVE or space.workload.work != TRAINING or space.reads_intervals:
        return None
    if space.workloads or not 0 < space.legal.count < np.inf:
        return None
    layouts, machines = sides(pricer)
    chosen = {*space.by_name, *(derived.name for derived in space.derived)}
    weights = importance(pricer, [name for name in space.system.never_slower() if name in chosen])
    of_layouts, of_machines = (math.prod(c.rows for c in layouts), sum(c.rows for c in machines))
    if not machines or not weights or max(of_layouts, of_machines) > most:
        return None
    forests = tuple(forest_of(space, component, weights) for component in machines)
    used = {WITH_UNIT.get(name, name) for text in space.evaluated_formulas for name in Expression.parse(text).names}
    used |= {name for total, names in IMPLIED.items() if {total, *names[1:]} & used for name in names}
    timed = tuple(name for name in (*FASTEST_LOW, *FASTEST_HIGH, *ENERGIES) if name in used)
    fixed = tuple(name for name in OF_LAYOUTS if name in used | {"world_size"})
    return bounded(Problem(pricer, tuple(layouts), forests, timed, fixed, {}, np.empty(0), proved=True))


@lru_cache(maxsize=2)
def _sent_problem(pricer: Pricer) -> Problem | None:
    """Build the problem in a worker, which checks by its `Pricer` that its cost model is the same, and keeps it."""
    return problem_of(pricer)


def bounded(problem: Problem) -> Problem | None:
    """The problem with the ends of columns that layouts decide; None where an objective has no bound."""
    pricer, every = problem.pricer, np.arange(problem.num_layouts)
    boxes = problem.unbounded(every, np.tile([forest.roots[0] for forest in problem.forests], (every.size, 1)))
    ones = replace(problem, of_layouts=dict.fromkeys(problem.fixed, point(np.ones(1))))
    if not np.isfinite(ones.bounds(replace(boxes.take([0]), timed=np.ones((1, len(problem.timed)))))[0]).all():
        return None
    columns = problem.fastest(boxes)
    run = transformer_run(pricer.space, columns, DesignPoints)
    breakdown, solved = breakdown_of(pricer, columns), is_solved(run.design)
    ends = {name: point(np.broadcast_to(getattr(breakdown, name), every.size)) for name in problem.fixed}
    if solved.any():
        least: dict[str, Any] = {**dict.fromkeys(PARTS["peak_memory"], 0.0), "peak_memory": least_memory(run)}
        for name in least.keys() & ends.keys():
            low, high = ends[name]
            ends[name] = np.where(solved, least[name], low), np.where(solved, np.inf, high)
    for column, name in enumerate(problem.timed):
        boxes.timed[:, column] = getattr(breakdown, name)
    proved = bool(lawful(run.design).all()) and ENERGIES[0] not in problem.timed
    problem = replace(problem, of_layouts=ends, of_roots=boxes.timed, proved=proved)
    return problem if np.isfinite(problem.bounds(boxes)[0]).all() else None


def is_solved(design: DesignPoints) -> BoolArray:
    """Where machines decide the sharding of kernels, and so the memory; (points,)."""
    return np.asarray((design.sharding == SOLVE) | (design.sharding == SOLVE_BYTES))


def lawful(design: DesignPoints) -> BoolArray:
    """Which designs are of the kind that more of a machine never slows; (points,).

    False, or unproved: shardings solved again, schedules timed pass by pass, states that are exchanged layer by layer,
    and exchanges of experts that hide twice or during offload of activations.
    """
    twice = (design.overlap_ep > 0) & design.offloads_activations | (design.overlap_shared_expert > 0)
    return np.asarray(design.is_1f1b & ~(is_solved(design) | (design.zero > 1) | twice))


def importance(pricer: Pricer, names: Sequence[str]) -> dict[str, float]:
    """Changes of time, price and power with some quantities, relative to each other. [-]"""
    space, batches = pricer.space, 1 + len(names)  # of one table: the usual values, and each quantity moved
    columns = space.known_values(space.legal.random(SAMPLE, np.random.default_rng(0)))
    varied = {name: values for name, values in columns.items() if np.ndim(values) or name in names}
    tables = {name: np.tile(np.broadcast_to(values, SAMPLE), (batches, 1)) for name, values in varied.items()}
    for batch, name in enumerate(names, 1):
        tables[name][batch] *= 1.25
    evaluated = breakdown_of(pricer, columns | {name: table.ravel() for name, table in tables.items()})
    keys = ("step_time", "system_price", "system_power")
    parts = (getattr(evaluated, key).reshape(batches, SAMPLE) for key in keys)
    sums = sum(np.abs(part[1:] / part[0] - 1).mean(axis=1) for part in parts)
    return dict(zip(names, (sums + 1e-6).tolist(), strict=True))  # those with little effect are halved last
