"""The best assignment of shardings to the kernels of a model, for each design: exact, by elimination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, distinct_rows
from costmodel.kernels.roofline import pointwise_time
from costmodel.solve.assignment import Link, optima
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.cost_table import DIRECTIONS, CostTable
from costmodel.steps.memory import fullest_stage, rank_memory
from costmodel.steps.microbatch import cost_table
from costmodel.steps.tensor_parallel import edge_cost, sent_bytes
from costmodel.training.blocks import Edge, Kernel, Layer
from costmodel.training.design import RECOMPUTE_FULL, SOLVE, SOLVE_BYTES, DesignPoints
from costmodel.training.run import (
    RankRun,
    TransformerRun,
    assignment_numbers,
    rank_run,
    with_assignments,
)
from costmodel.training.sharding import ASSIGNMENTS, OPTIONS, Assignments, assignments_of
from costmodel.workload.kernels import Pointwise
from costmodel.workload.transformer import Part, bias_gradient_row, parts_of, weights_of

#: Options that are priced together, of products and of other kernels, since the time of a kernel depends on
#: its own sharding alone.
VARIANTS: Final = (("column", "replicated"), ("row", "sequence"), ("column", "column"))

#: Designs whose assignments are all priced at once, and most assignments of a model that ever are.
TRIED: Final = 8
MOST_TRIED: Final = 20_000

#: Runs that leave nothing to solve -> their price.
Price = Callable[[TransformerRun], Breakdown]


def resolved(run: TransformerRun, price: Price) -> DesignPoints:
    """The same designs, with explicit shardings in the place of those that are to be solved for.

    Parameters
    ----------
    run : TransformerRun
        Model, machines and designs, (points,).
    price : callable
        What prices designs whose shardings are named or explicit.

    Returns
    -------
    design : DesignPoints
        (points,) columns.

    Notes
    -----
    "solve" takes the fastest step, of those that fit into the memory of the chip if any does. A layer's
    time is a sum over kernels and edges, whose least is found exactly, for each layout of the activation
    between layers; what the sum leaves out, waiting for the host and the ends of the model, decides among
    these and the named assignments. Where the fastest does not fit and another might, and where edges share
    collectives, so that the time is no sum over them, all are priced, unless there are more than
    `MOST_TRIED`. "solve_bytes" takes the assignment in which a rank sends the fewest bytes. Options that
    would cut a dimension into unequal shares are left out, unless there is no other.
    """
    design = run.design
    solvers = ((SOLVE, _fastest), (SOLVE_BYTES, _fewest_bytes))
    asked = np.isin(design.sharding, [code for code, _ in solvers])
    if not asked.any():
        return design
    assignments = assignments_of(run.model.kinds)
    points = run.num_points
    numbers = np.array(np.broadcast_to(assignment_numbers(assignments, design), (points,)))
    for code, solve in solvers:
        rows = np.flatnonzero(np.broadcast_to(design.sharding == code, (points,)))
        if rows.size:
            numbers[rows] = solve(run.take(rows), assignments, price)
    return with_assignments(design, assignments, numbers, asked)


def _explicit(run: TransformerRun, assignments: Assignments, numbers: FloatArray) -> TransformerRun:
    """The same run with numbered assignments."""
    return run.of(with_assignments(run.design, assignments, numbers, np.ones(numbers.shape, dtype=bool)))


def _fastest(run: TransformerRun, assignments: Assignments, price: Price) -> FloatArray:
    points = np.arange(run.num_points)
    ranks = rank_run(run)
    rows, back = distinct_rows(*ranks.columns())
    unique = ranks.take(rows)
    candidates = [np.full(points.size, assignments.named[name]) for name in ASSIGNMENTS]
    is_a_sum = not any(edge.twins for layer in assignments.layers for edge in layer.edges)
    if is_a_sum:
        candidates += [numbers[back] for numbers in _Solver.with_times(unique).fastest()]
    numbers = np.stack(candidates)
    every = run.take(np.tile(points, len(candidates)))
    found = price(_explicit(every, assignments, numbers.ravel()))
    even = _even(ranks, numbers)
    times = np.where(even | ~even.any(axis=0), found.step_time.reshape(numbers.shape), np.inf)
    fits = found.peak_memory.reshape(numbers.shape) <= run.system.dram.capacity
    best = numbers[np.where(fits | ~fits.any(axis=0), times, np.inf).argmin(axis=0), points]
    too_large = ~fits[times.argmin(axis=0), points]
    if (too_large.any() or not is_a_sum) and assignments.count <= MOST_TRIED:
        leanest = _least_memory(run, unique, back)
        tight = np.flatnonzero((too_large | (not is_a_sum)) & (leanest <= run.system.dram.capacity))
        for block in (tight[start : start + TRIED] for start in range(0, tight.size, TRIED)):
            best[block] = _tried(run.take(block), assignments, best[block], price)
    chosen: FloatArray = best
    return chosen


def _tried(run: TransformerRun, assignments: Assignments, usual: FloatArray, price: Price) -> FloatArray:
    """The fastest of all assignments that fit, by pricing each; designs that none fits keep the usual one."""
    numbers = np.arange(assignments.count, dtype=np.float64)
    rows = np.repeat(np.arange(run.num_points), numbers.size)
    every = np.tile(numbers, run.num_points)
    among = run.take(rows)
    found = price(_explicit(among, assignments, every))
    good = _even(rank_run(among), every[np.newaxis])[0] & (found.peak_memory <= among.system.dram.capacity)
    times = np.where(good, found.step_time, np.inf).reshape(run.num_points, numbers.size)
    return np.where(np.isfinite(times).any(axis=1), numbers[times.argmin(axis=1)], usual)


def _least_memory(run: TransformerRun, unique: RankRun, back: IntArray) -> FloatArray:
    """Bytes below which no assignment of a design gets: each part at its own least; (points,)."""
    assignments = unique.design.assignments
    rows = np.repeat(np.arange(unique.num_points), assignments.count)
    every = np.tile(np.arange(assignments.count, dtype=np.float64), unique.num_points)
    among = unique.take(rows)
    parts = rank_memory(among.of(replace(among.design, assignment=every)))
    least = parts.map(
        lambda part: np.broadcast_to(part, rows.shape).reshape(-1, assignments.count).min(axis=1)
    )
    numbers = np.full(run.num_points, assignments.named["megatron_sp"])
    lean = _explicit(run, assignments, numbers)
    return fullest_stage(lean, rank_run(lean), least.take(back)).total + run.system.chip.reserved_memory


def _even(ranks: RankRun, numbers: FloatArray) -> BoolArray:
    """Where every rank has the same share of each kernel; (assignments, points)."""
    assignments, even = ranks.design.assignments, np.ones(numbers.shape, dtype=bool)
    for kernel in _kernels(assignments):
        if kernel.name in assignments.options:
            place = assignments.place(numbers, kernel.name)
            options = _even_options(ranks, kernel).T
            even &= np.choose(place, np.broadcast_arrays(*options, place)[:-1])
    return even


def _kernels(assignments: Assignments) -> list[Kernel]:
    """Kernels of all kinds of layers, each name once; those without a choice last."""
    kernels = {kernel.name: kernel for layer in assignments.layers for kernel in layer.kernels}
    return sorted(kernels.values(), key=lambda kernel: kernel.name not in assignments.options)


def _even_options(ranks: RankRun, kernel: Kernel) -> BoolArray:
    """Options of a kernel that cut what they split into equal shares; (points, options)."""
    sizes = ranks.model.features
    cut = {"replicated": 0.0, "sequence": ranks.model.seq_len, "column": sizes[kernel.makes]}
    if kernel.kind == "product":
        cut["row"] = sizes[kernel.reads]
    return np.stack([cut[option] % ranks.design.tp == 0 for option in OPTIONS[kernel.kind]], axis=1)


def _fewest_bytes(run: TransformerRun, assignments: Assignments, price: Price) -> FloatArray:
    ranks = rank_run(run)
    rows, back = distinct_rows(*ranks.design.columns().values())
    unique = ranks.take(rows)
    if any(edge.twins for layer in assignments.layers for edge in layer.edges):
        return _least_sending(unique)[back]
    return _Solver(unique, ()).least_sending()[back]


def _least_sending(run: RankRun) -> FloatArray:
    """Assignments with which a rank sends the fewest bytes, by counting for all; (points,). [-]"""
    assignments, solver = run.design.assignments, _Solver(run, ())
    sent = np.empty((assignments.count, run.num_points))
    for number in range(assignments.count):
        own = _numbered(run, float(number))
        sent[number] = sum(
            count * solver.sent(own, edge) for _, layer, count in solver.parts for edge in layer.edges
        )
    numbers = np.broadcast_to(np.arange(assignments.count)[:, np.newaxis], sent.shape)
    even = _even(run, numbers.astype(np.float64))
    least: FloatArray = np.where(even, sent, np.inf).argmin(axis=0).astype(np.float64)
    return np.where(even.any(axis=0), least, assignments.named["megatron"])


@dataclass(frozen=True)
class _Solver:
    """What is solved: a layer of each kind, and tables of their kernels for each of `VARIANTS`."""

    run: RankRun
    tables: tuple[CostTable, ...]

    @classmethod
    def with_times(cls, run: RankRun) -> _Solver:
        """With the kernels priced in each variant."""
        assignments = run.design.assignments
        tables = []
        for product, other in VARIANTS:
            words = {}
            for kernel in _kernels(assignments):
                option = product if kernel.kind == "product" else other
                if kernel.name in assignments.options:
                    options = assignments.options[kernel.name]
                    words[kernel.name] = option if option in options else options[0]
            tables.append(cost_table(_numbered(run, assignments.number(words))))
        return cls(run, tuple(tables))

    @cached_property
    def nodes(self) -> list[Kernel]:
        """Kernels of all kinds of layers."""
        return _kernels(self.run.design.assignments)

    @cached_property
    def parts(self) -> list[tuple[Part, Layer, float]]:
        """Kinds of layers, and how much each counts."""
        layers = [(part, part.layer) for part in parts_of(self.run.model) if part.layer is not None]
        counts = dict.fromkeys(self.run.model.kinds, 0.0)
        for layer, count in self.run.model.sequence:
            counts[layer] += count
        alone = len(layers) == 1
        return [(part, layer, 1.0 if alone else counts[layer]) for part, layer in layers]

    def fastest(self) -> list[FloatArray]:
        """Assignments of least time of the forward and backward pass, and of a full recomputation.

        Returns
        -------
        numbers : list of (points,) array
            For each layout of the residual stream between layers. [-]
        """
        costs = [self._kernel_time(node) for node in self.nodes]
        links = [link for part in self.parts for link in self._links(part, self._edge_time)]
        streams = {self._place(layer.stream) for _, layer, _ in self.parts}
        found = []
        for option in range(len(OPTIONS[self.run.design.stream.kind])):
            only = [
                np.where(np.arange(own.shape[1]) == option, own, np.inf) if node in streams else own
                for node, own in enumerate(costs)
            ]
            found.append(self._least(only, links))
        return found

    def least_sending(self) -> FloatArray:
        """Assignments with which a rank sends the fewest bytes; (points,). [-]"""
        nothing = [np.zeros((1, len(OPTIONS[node.kind]))) for node in self.nodes]
        return self._least(nothing, [link for p in self.parts for link in self._links(p, self._edge_bytes)])

    def _least(self, costs: Sequence[FloatArray], links: Sequence[Link]) -> FloatArray:
        """Assignments of the least sum of what kernels and edges cost."""
        assignments, allowed = self.run.design.assignments, []
        for node, own in zip(self.nodes, costs, strict=True):
            chosen = node.name in assignments.options
            even = _even_options(self.run, node) if chosen else np.ones((1, 1), bool)
            possible = even & np.isfinite(own)
            allowed.append(np.where(even | ~possible.any(axis=1, keepdims=True), own, np.inf))
        places = optima(allowed, links)[1]
        chosen_places = {n.name: place for n, place in zip(self.nodes, places, strict=True)}
        numbers = assignments.numbers({name: chosen_places[name] for name in assignments.options})
        return np.broadcast_to(numbers, (self.run.num_points,))

    def _place(self, kernel: Kernel) -> int:
        """Place of a kernel among the nodes."""
        return [node.name for node in self.nodes].index(kernel.name)

    @property
    def _forward_passes(self) -> FloatArray:
        """Runs of the forward pass. [-]"""
        return np.where(self.run.design.recompute == RECOMPUTE_FULL, 2.0, 1.0)

    def _table(self, kernel: Kernel, option: str) -> CostTable:
        """The table in which a kernel is split in one way."""
        side = 0 if kernel.kind == "product" else 1
        return self.tables[next(n for n, both in enumerate(VARIANTS) if option == both[side])]

    def _kernel_time(self, kernel: Kernel) -> FloatArray:
        """Time of a kernel in all passes and kinds of layers, split in each way; (points, options). [s]"""
        if kernel.name not in self.run.design.assignments.options:
            return np.zeros((1, 1))
        times = []
        for option in OPTIONS[kernel.kind]:
            table, time = self._table(kernel, option), np.zeros(1)
            for part, _, count in self.parts:
                forward, backward = (
                    sum(table.kernel_time(part, kernel.name, of_pass) for of_pass in passes)
                    for passes in DIRECTIONS.values()
                )
                time = time + count * (self._forward_passes * forward + backward)
            times.append(time)
        return np.stack(times, axis=-1)

    def _links(
        self, part: tuple[Part, Layer, float], cost: Callable[[Part, Edge, RankRun, str], FloatArray]
    ) -> list[Link]:
        """What the edges of a kind of layer cost: (points, options of the start, options of the end)."""
        return [self._link(part, edge, cost) for edge in part[1].edges]

    def _link(
        self,
        part: tuple[Part, Layer, float],
        edge: Edge,
        cost: Callable[[Part, Edge, RankRun, str], FloatArray],
    ) -> Link:
        assignments = self.run.design.assignments
        table = []
        for start in OPTIONS[edge.start.kind]:
            row = []
            for end in OPTIONS[edge.end.kind]:
                words = {edge.start.name: start, edge.end.name: end}
                number = assignments.number({k: w for k, w in words.items() if k in assignments.options})
                row.append(part[2] * cost(part[0], edge, _numbered(self.run, number), end))
            table.append(row)
        return self._place(edge.start), self._place(edge.end), np.moveaxis(np.array(table), -1, 0)

    def _edge_time(self, part: Part, edge: Edge, run: RankRun, end: str) -> FloatArray:
        """Exposed collectives of an edge, and the gradient of a bias that is added on it. [s]"""
        forward, backward = edge_cost(run, edge, partial(self._table(edge.end, end).kernel_time, part))
        time = self._forward_passes * forward.tp_time + backward.tp_time
        layer = part.layer
        biased = weights_of(layer) if layer and run.model.biases else []
        if layer and edge.start in biased and edge.end == layer.reader_of(edge.start):
            row = bias_gradient_row(run, layer, [edge.start], part.name)
            kernel = Pointwise.of_rows([row], element_bytes=run.precision.element_bytes)
            time = time + pointwise_time(kernel, run.system)[0][:, 0]
        return np.broadcast_to(time, (run.num_points,))

    def _edge_bytes(self, part: Part, edge: Edge, run: RankRun, end: str) -> FloatArray:
        """Bytes that a rank sends because of an edge. [B]"""
        return np.broadcast_to(self.sent(run, edge), (run.num_points,))

    def sent(self, run: RankRun, edge: Edge) -> FloatArray:
        """Bytes that a rank sends because of an edge, in all passes. [B]"""
        forward, backward = sent_bytes(run, edge)
        return self._forward_passes * forward + backward


def _numbered(run: RankRun, number: float) -> RankRun:
    """The same run with one assignment for all designs."""
    return run.of(replace(run.design, assignment=np.full(run.num_points, number)))
