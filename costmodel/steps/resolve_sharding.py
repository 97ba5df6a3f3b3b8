"""The best assignment of shardings to the kernels of a model, for each design: exact, by elimination."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, chosen, distinct_rows
from costmodel.kernels.roofline import pointwise_time
from costmodel.solve.assignment import Link, optima
from costmodel.steps.assembly import CHUNK, like_rows
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.cost_table import DIRECTIONS, CostTable
from costmodel.steps.memory import fullest_stage
from costmodel.steps.microbatch import cost_table, quantities_read
from costmodel.steps.rank_memory import MEMORY_READS, rank_memory
from costmodel.steps.recomputation import forward_passes, product_of
from costmodel.steps.tensor_parallel import Exchanges, edge_cost, sent_bytes
from costmodel.training.blocks import Edge, Kernel
from costmodel.training.design import SOLVE, SOLVE_BYTES, DesignPoints
from costmodel.training.run import OF_RANKS, RankRun, TransformerRun, rank_run, with_assignments
from costmodel.training.sharding import OPTIONS, Assignments
from costmodel.workload.kernels import Pointwise
from costmodel.workload.transformer import Part, bias_gradient_row, parts_of

#: Designs whose assignments are all tried at once, and most assignments of a model that ever are.
TRIED: Final = 8
MOST_TRIED: Final = 20_000

#: Runs that leave nothing to solve -> their cost.
Cost = Callable[[TransformerRun], Breakdown]

#: Runs to solve, assignments, costs -> numbers of assignments, (points,).
Solve = Callable[[TransformerRun, Assignments, Cost], FloatArray]


def resolved(run: TransformerRun, cost: Cost) -> DesignPoints:
    """The same designs, with explicit shardings in the place of those that are to be solved for.

    Parameters
    ----------
    run : TransformerRun
        Model, machines and designs, (points,).
    cost : callable
        Costs of designs whose shardings are named or explicit.

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
    collectives, so that the time is no sum over them, all are tried, unless there are more than
    `MOST_TRIED`. "solve_bytes" takes the assignment in which a rank sends the fewest bytes. Options that
    would cut a dimension into unequal shares are left out, unless there is no other.
    """
    design, points = run.design, run.num_points
    asked = np.isin(design.sharding, [*_SOLVERS])
    if not asked.any():
        return design
    shape = rank_run(run).design
    numbers = np.array(np.broadcast_to(shape.assignment, (points,)))
    replaced = dict.fromkeys(("sequence_parallel", *design.kernel_shardings), np.zeros(points))
    run = run.of(design.map(lambda values: np.broadcast_to(values, (points,))).with_columns(replaced))
    for code, solve in _SOLVERS.items():
        some = np.flatnonzero(np.broadcast_to(design.sharding == code, (points,)))
        if some.size:
            own = run.take(some)
            rows, back = distinct_rows(*own.columns())
            numbers[some] = _in_blocks(solve, own.take(rows), shape.assignments, cost)[back]
    return with_assignments(design, shape.assignments, numbers, asked)


def _in_blocks(solve: Solve, run: TransformerRun, assignments: Assignments, cost: Cost) -> FloatArray:
    """Numbers of assignments of designs, a chunk at a time."""
    columns, numbers = run.design.columns(), np.empty(run.num_points)
    order = like_rows([columns[name] for name in OF_RANKS if name in columns])
    rows = np.arange(run.num_points) if order is None else order
    for block in (rows[start : start + CHUNK] for start in range(0, rows.size, CHUNK)):
        own = run.take(block)
        own = replace(own, system=own.system.sliced(own.design.world_size))
        numbers[block] = solve(own, assignments, cost)
    return numbers


def _fastest(run: TransformerRun, assignments: Assignments, cost: Cost) -> FloatArray:
    points, capacity = np.arange(run.num_points), run.system.dram.capacity
    passes = rank_run(run).reading(quantities_read(run.system))
    rows, back = distinct_rows(*passes.columns())
    unique = passes.take(rows)
    candidates = [np.full(points.size, number) for number in assignments.named.values()]
    if not assignments.share_collectives:
        candidates += [numbers[back] for numbers in _Solver(unique).fastest()]
    numbers = np.stack(candidates)
    times, even, fits = _tried(run, assignments, numbers, cost)
    times = np.where(even | ~even.any(axis=0), times, np.inf)
    best: FloatArray = numbers[np.where(fits | ~fits.any(axis=0), times, np.inf).argmin(axis=0), points]
    unsure = ~fits[times.argmin(axis=0), points] | assignments.share_collectives
    if unsure.any() and assignments.count <= MOST_TRIED:
        tight = np.flatnonzero(unsure)
        tight = tight[_least_memory(run.take(tight)) <= np.broadcast_to(capacity, points.shape)[tight]]
        every = np.arange(assignments.count, dtype=np.float64)
        for block in (tight[start : start + TRIED] for start in range(0, tight.size, TRIED)):
            numbers = np.repeat(every[:, np.newaxis], block.size, axis=1)
            times, even, fits = _tried(run.take(block), assignments, numbers, cost)
            times = np.where(even & fits, times, np.inf)
            found = np.isfinite(times).any(axis=0)
            best[block] = np.where(found, every[times.argmin(axis=0)], best[block])
    return best


def _tried(
    run: TransformerRun, assignments: Assignments, numbers: FloatArray, cost: Cost
) -> tuple[FloatArray, BoolArray, BoolArray]:
    """Time of a step [s], whether shares are even, and whether it fits; all are (assignments, points)."""
    found = cost(run.of(with_assignments(run.design, assignments, numbers)))
    times, memory = (np.broadcast_to(own, numbers.shape) for own in (found.step_time, found.peak_memory))
    return times, _even(rank_run(run), numbers), memory <= run.system.dram.capacity


def _least_memory(run: TransformerRun) -> FloatArray:
    """Bytes below which no assignment of a design gets: each part at its own least; (points,)."""
    kept = rank_run(run).reading(MEMORY_READS)
    rows, back = distinct_rows(*kept.columns())
    unique = kept.take(rows)
    assignments, every = unique.design.assignments, _with_every_assignment(unique)
    parts = [part.map(_least_of_all) for part in rank_memory(every)]
    numbers = np.full(run.num_points, assignments.named["megatron_sp"])
    lean = run.of(with_assignments(run.design, assignments, numbers))
    memory = fullest_stage(lean, rank_run(lean), [part.take(back) for part in parts])
    return memory.total + run.system.chip.reserved_memory


def _least_of_all(values: FloatArray) -> FloatArray:
    """The least along the axes before that of points, which need not be there."""
    return values.min(axis=0) if values.ndim > 1 else values


def _with_every_assignment(run: RankRun) -> RankRun:
    """Each point with every assignment of its model's kernels, on an axis before that of points."""
    every = np.arange(run.design.assignments.count, dtype=np.float64)[:, np.newaxis]
    return run.of(replace(run.design, assignment=every))


def _with_options(run: RankRun, places: Mapping[str, float]) -> RankRun:
    """The same run with some kernels split by their option at a place, the others by their first."""
    assignments = run.design.assignments
    number = assignments.numbers(
        {name: place for name, place in places.items() if name in assignments.options}
    )
    return run.of(replace(run.design, assignment=np.full(run.num_points, number)))


def _even(ranks: RankRun, numbers: FloatArray) -> BoolArray:
    """Where every rank has the same share of each kernel; shaped as the numbers, (..., points)."""
    assignments, even = ranks.design.assignments, np.ones(numbers.shape, dtype=bool)
    for name in assignments.options:
        options = _even_options(ranks, assignments.kernels[name])
        even &= chosen(options, assignments.place(numbers, name))
    return even


def _even_options(ranks: RankRun, kernel: Kernel) -> list[BoolArray]:
    """Where each option of a kernel cuts what it splits into equal shares; (points,) each."""
    sizes = ranks.model.features
    cut = {
        "replicated": 0.0,
        "sequence": ranks.model.seq_len,
        "column": sizes[kernel.makes],
        "row": sizes[kernel.reads],
    }
    return [cut[option] % ranks.design.tp == 0 for option in OPTIONS[kernel.kind]]


def _fewest_bytes(run: TransformerRun, assignments: Assignments, cost: Cost) -> FloatArray:
    ranks = rank_run(run)
    rows, back = distinct_rows(*ranks.design.columns().values())
    solver = _Solver(ranks.take(rows))
    solve = solver.least_sending_of_all if assignments.share_collectives else solver.least_sending
    return solve()[back]


#: Code of `sharding` -> how it is solved for.
_SOLVERS: Final[Mapping[int, Solve]] = {SOLVE: _fastest, SOLVE_BYTES: _fewest_bytes}


@dataclass(frozen=True)
class _Solver:
    """A layer of each kind, as a sum over kernels and edges."""

    run: RankRun

    @cached_property
    def assignments(self) -> Assignments:
        """Of the model's kernels, which are the nodes of the sum."""
        return self.run.design.assignments

    @cached_property
    def exchanges(self) -> Exchanges:
        """Collectives, which do not depend on how kernels are split."""
        return Exchanges(self.run)

    @cached_property
    def parts(self) -> list[tuple[Part, float]]:
        """Kinds of layers, and the share of each in all layers."""
        model = self.run.model
        shares = [count / model.num_layers for count in model.kinds.values()]
        return list(zip(parts_of(model), shares, strict=False))

    @cached_property
    def tables(self) -> list[CostTable]:
        """Costs with all kernels at their first option, then their second ...: no time depends on others."""
        options = self.assignments.options
        most = max((len(own) for own in options.values()), default=1)
        return [
            cost_table(_with_options(self.run, {n: min(place, len(own) - 1) for n, own in options.items()}))
            for place in range(most)
        ]

    def fastest(self) -> list[FloatArray]:
        """Assignments of least time of the forward and backward pass, and of a full recomputation.

        Returns
        -------
        numbers : list of (points,) array
            For each layout of the residual stream between layers. [-]
        """
        costs = {name: self._kernel_time(name) for name in self.assignments.kernels}
        links = self._links(self._edge_time)
        streams = {layer.stream.name for layer in self.run.model.kinds}
        return [
            self._least(
                [
                    np.where(np.arange(own.shape[1]) == option, own, np.inf) if name in streams else own
                    for name, own in costs.items()
                ],
                links,
            )
            for option in range(len(OPTIONS[self.run.design.stream.kind]))
        ]

    def least_sending(self) -> FloatArray:
        """Assignments with which a rank sends the fewest bytes; (points,). [-]"""
        nothing = [np.zeros((1, len(OPTIONS[node.kind]))) for node in self.assignments.kernels.values()]
        return self._least(nothing, self._links(self._edge_bytes))

    def least_sending_of_all(self) -> FloatArray:
        """The same where edges share collectives, by counting for every assignment; (points,). [-]"""
        every = _with_every_assignment(self.run)
        sent = np.zeros((*every.axes, every.num_points))
        for part, share in self.parts:
            for edge in part.edges:
                sent = sent + share * self._edge_bytes(part, edge, every, 0)
        even = _even(every, np.broadcast_to(every.design.assignment, sent.shape))
        least = np.where(even, sent, np.inf).argmin(axis=0).astype(np.float64)
        return np.where(even.any(axis=0), least, self.assignments.named["megatron"])

    def _least(self, costs: Sequence[FloatArray], links: Sequence[Link]) -> FloatArray:
        """Assignments of the least sum of what kernels and edges cost."""
        allowed = []
        for node, own in zip(self.assignments.kernels.values(), costs, strict=True):
            even = np.stack(_even_options(self.run, node), axis=1)
            possible = even & np.isfinite(own)
            allowed.append(np.where(even | ~possible.any(axis=1, keepdims=True), own, np.inf))
        places = optima(allowed, links)[1]
        numbers = self.assignments.numbers(dict(zip(self.assignments.options, places, strict=False)))
        return np.broadcast_to(numbers, (self.run.num_points,))

    def _kernel_time(self, kernel: str) -> FloatArray:
        """Time of a kernel in all passes and kinds of layers, by its options; (points, options). [s]"""
        if kernel not in self.assignments.options:
            return np.zeros((1, 1))
        times = []
        for table in self.tables[: len(self.assignments.options[kernel])]:
            time = np.zeros(1)
            for part, share in self.parts:
                forward, backward = (
                    sum(table.kernels_time(part, (kernel,), of_pass) for of_pass in passes)
                    for passes in DIRECTIONS.values()
                )
                runs = forward_passes(self.run.design, self.assignments.kernels[kernel])
                time = time + share * (runs * forward + backward)
            times.append(time)
        return np.stack(times, axis=-1)

    def _links(self, cost: Callable[[Part, Edge, RankRun, int], FloatArray]) -> list[Link]:
        """What edges cost, their ends split by each pair of options: (points, options, options)."""
        nodes, links = [*self.assignments.kernels], []
        for part, share in self.parts:
            for edge in part.edges:
                start, end = edge.start.name, edge.end.name
                table = [
                    [
                        share * cost(part, edge, _with_options(self.run, {start: first, end: last}), last)
                        for last in range(len(OPTIONS[edge.end.kind]))
                    ]
                    for first in range(len(OPTIONS[edge.start.kind]))
                ]
                links.append((nodes.index(start), nodes.index(end), np.moveaxis(np.array(table), -1, 0)))
        return links

    def _edge_time(self, part: Part, edge: Edge, run: RankRun, end: int) -> FloatArray:
        """Exposed collectives of an edge, and the gradient of a bias that is added on it. [s]"""
        forward, backward = edge_cost(run, edge, partial(self.tables[end].kernels_time, part), self.exchanges)
        time = forward_passes(run.design, product_of(edge)) * forward.tp_time + backward.tp_time
        is_biased = run.model.has_bias(edge.start)
        if part.layer and is_biased and edge.end == part.layer.reader_of(edge.start):
            row = bias_gradient_row(run, part.layer, [edge.start], part.name)
            kernel = Pointwise.of_rows([row], element_bytes=run.precision.element_bytes)
            time = time + pointwise_time(kernel, run.system)[0][:, 0]
        return np.broadcast_to(time, (run.num_points,))

    def _edge_bytes(self, part: Part, edge: Edge, run: RankRun, end: int) -> FloatArray:
        """Bytes that a rank sends because of an edge, in all passes. [B]"""
        forward, backward = sent_bytes(run, edge)
        runs = forward_passes(run.design, product_of(edge))
        return np.broadcast_to(runs * forward + backward, (*run.axes, run.num_points))
