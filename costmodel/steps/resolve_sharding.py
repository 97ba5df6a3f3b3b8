"""The shardings of the kernels of a layer that take least time, or send the fewest bytes, for each design.

Every kernel of a layer has a few shardings over the tensor-parallel group. A kernel costs time in each of them, and an
edge between two kernels costs a collective where their layouts differ. `Solver` builds this graph of costs on
nodes and edges from kernels that are timed once, and `costmodel.solve` finds its cheapest assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, UniqueRows, chosen, distinct_rows, in_rows, taken
from costmodel.kernels.kernel_cost import pointwise_time
from costmodel.kernels.kernel_tables import Part, Pointwise, bias_gradient_row, parts_of
from costmodel.solve import Link, optima
from costmodel.steps.breakdown import CHUNK, Breakdown, like_rows
from costmodel.steps.micro_batch.exchanges import Exchanges, edge_cost, sent_bytes
from costmodel.steps.micro_batch.micro_batch import (
    DIRECTIONS,
    CostTable,
    MicroBatch,
    forward_passes,
    product_of,
    quantities_read,
)
from costmodel.steps.micro_batch.rank_memory import MEMORY_READS, rank_memory
from costmodel.steps.pipeline.stages import pipeline_stages
from costmodel.steps.sharded_kernels import OptionTables, with_options
from costmodel.steps.stage_memory import fullest_stage, reserved_memory
from costmodel.training.blocks import Assignments, Edge
from costmodel.training.design import SOLVE, SOLVE_BYTES, DesignPoints
from costmodel.training.run import OF_RANKS, RankRun, TransformerRun, rank_run, remembered, with_assignments


@dataclass(frozen=True)
class Solver:
    """A layer of each kind, as a sum over kernels and edges."""

    run: RankRun  #: (points,); its own assignments do not matter

    @cached_property
    def assignments(self) -> Assignments:
        """Assignments of the model's kernels, which are the nodes of the sum."""
        return self.run.design.assignments

    @cached_property
    def exchanges(self) -> Exchanges:
        """Collectives, which do not depend on how kernels are split."""
        return Exchanges(self.run)

    @cached_property
    def even_options(self) -> list[BoolArray]:
        """Where each option of each kernel cuts into equal shares; (options, points)."""
        return [*even_options(self.run).values()]

    @cached_property
    def parts(self) -> list[tuple[Part, float]]:
        """Kinds of layers, and the share of each in all layers."""
        model = self.run.model
        shares = [count / model.num_layers for count in model.kinds.values()]
        return list(zip(parts_of(model), shares, strict=False))

    def fastest(self, tables: Sequence[CostTable]) -> list[FloatArray]:
        """Assignments of least time of the forward and backward pass, and of a full recomputation, (points,) each. [-]

        One for each layout of the residual stream between layers. `tables` have kernels at their first option, their
        second ..., of the same points: those of `OptionTables`.
        """
        costs = [self._kernel_time(name, tables) for name in self.assignments.kernels]
        links = self._links(partial(self._edge_time, tables))
        streams = {layer.stream.name for layer in self.run.model.kinds}
        nodes = [number for number, name in enumerate(self.assignments.kernels) if name in streams]
        return [
            self._least(costs, links, dict.fromkeys(nodes, option))
            for option in range(len(self.run.design.stream.kind.shardings))
        ]

    def least_sending(self) -> FloatArray:
        """Assignments with which a rank sends the fewest bytes; (points,). [-]"""
        nothing = [np.zeros((len(node.kind.shardings), 1)) for node in self.assignments.kernels.values()]
        return self._least(nothing, self._links(self._edge_bytes), {})

    def least_sending_of_all(self) -> FloatArray:
        """Least sending where edges share collectives, by counting for every assignment; (points,). [-]"""
        every = with_every_assignment(self.run)
        sent = np.zeros((*every.axes, every.num_points))
        for part, share in self.parts:
            for edge in part.edges:
                sent = sent + share * self._edge_bytes(part, edge, every, {})
        even = is_even(every, np.broadcast_to(every.design.assignment, sent.shape))
        least = np.where(even, sent, np.inf).argmin(axis=0).astype(np.float64)
        return np.where(even.any(axis=0), least, self.assignments.named["megatron"])

    def _least(self, costs: Sequence[FloatArray], links: Sequence[Link], fixed: Mapping[int, int]) -> FloatArray:
        """Assignments of the least sum of the costs of kernels and edges, some kernels at a fixed option."""
        allowed = []
        for number, (whole, cost) in enumerate(zip(self.even_options, costs, strict=True)):
            open_options = _open_options(fixed.get(number), cost.shape[0])
            even, cost = whole[open_options], cost[open_options]
            possible = even & np.isfinite(cost)
            allowed.append(np.where(even | ~possible.any(axis=0), cost, np.inf))
        left = []
        for node, other, pairs in links:
            open_options, others = map(_open_options, (fixed.get(node), fixed.get(other)), pairs.shape[:2])
            left.append((node, other, pairs[open_options, others]))
        places = optima(allowed, left)[1]
        for number, option in fixed.items():
            places[number] = min(option, costs[number].shape[0] - 1)
        numbers = self.assignments.numbers(dict(zip(self.assignments.options, places, strict=False)))
        return np.broadcast_to(numbers, (self.run.num_points,))

    def _kernel_time(self, kernel: str, tables: Sequence[CostTable]) -> FloatArray:
        """Time of a kernel in all passes and kinds of layers, by its options; (options, points). [s]"""
        if kernel not in self.assignments.options:
            return np.zeros((1, 1))
        times = []
        for table in tables[: len(self.assignments.options[kernel])]:
            time = np.zeros(1)
            for part, share in self.parts:
                forward, backward = (
                    sum(table.kernels_time(part, (kernel,), of_pass) for of_pass in passes)
                    for passes in DIRECTIONS.values()
                )
                runs = forward_passes(self.run.design, self.assignments.kernels[kernel])
                time = time + share * (runs * forward + backward)
            times.append(time)
        return np.stack(times)

    def _links(self, cost: Callable[[Part, Edge, RankRun, Mapping[str, int]], FloatArray]) -> list[Link]:
        """Costs of edges, their ends split by each pair of options: (options, options, points)."""
        nodes, links = [*self.assignments.kernels], []
        for part, share in self.parts:
            for edge in part.edges:
                start, end = edge.start.name, edge.end.name
                firsts, lasts = (range(len(kernel.kind.shardings)) for kernel in (edge.start, edge.end))
                ends = [[{start: first, end: last} for last in lasts] for first in firsts]
                table = [
                    [share * cost(part, edge, with_options(self.run, places), places) for places in row] for row in ends
                ]
                links.append((nodes.index(start), nodes.index(end), np.array(table)))
        return links

    def _edge_time(
        self, tables: Sequence[CostTable], part: Part, edge: Edge, run: RankRun, places: Mapping[str, int]
    ) -> FloatArray:
        """Exposed collectives of an edge, and the gradient of a bias that is added on it. [s]"""

        def kernels_time(kernels: tuple[str, ...], of_pass: str) -> FloatArray:
            return sum(
                (tables[places[kernel]].kernels_time(part, (kernel,), of_pass) for kernel in kernels),
                start=np.zeros(()),
            )

        forward, backward = edge_cost(run, edge, kernels_time, self.exchanges)
        time = forward_passes(run.design, product_of(edge)) * forward.tp_time + backward.tp_time
        is_biased = run.model.has_bias(edge.start)
        if part.layer and is_biased and edge.end == part.layer.reader_of(edge.start):
            row = bias_gradient_row(run, part.layer, [edge.start], part.name)
            kernel = Pointwise.of_rows([row], element_bytes=run.precision.element_bytes)
            time = time + pointwise_time(kernel, run.system)[0][:, 0]
        return np.broadcast_to(time, (run.num_points,))

    def _edge_bytes(self, part: Part, edge: Edge, run: RankRun, places: Mapping[str, int]) -> FloatArray:
        """Bytes that a rank sends because of an edge, in all passes. [B]"""
        forward, backward = sent_bytes(run, edge)
        runs = forward_passes(run.design, product_of(edge))
        return np.broadcast_to(runs * forward + backward, (*run.axes, run.num_points))


def _open_options(fixed: int | None, count: int) -> slice:
    """Places of the options of a kernel that are open: all, or the fixed one, the last if there are fewer."""
    return slice(None) if fixed is None else slice(min(fixed, count - 1), fixed + 1)


def with_every_assignment(run: RankRun) -> RankRun:
    """Each point with every assignment of its model's kernels, on an axis before that of points."""
    every = np.arange(run.design.assignments.count, dtype=np.float64)[:, np.newaxis]
    return run.with_shape(replace(run.design, assignment=every))


def is_even(ranks: RankRun, numbers: FloatArray) -> BoolArray:
    """Where every rank has the same share of each kernel; shaped as the numbers, (..., points)."""
    assignments, even = ranks.design.assignments, np.ones(numbers.shape, dtype=bool)
    for name, options in even_options(ranks).items():
        if name in assignments.options and not options.all():
            even &= chosen([*options], assignments.place(numbers, name))
    return even


def even_options(ranks: RankRun) -> dict[str, BoolArray]:
    """Kernel -> whether each of its options cuts its dimension into equal shares; (options, points)."""
    model, known = ranks.model, dict[float, BoolArray]()

    def is_whole(size: float) -> BoolArray:
        if size not in known:
            known[size] = size % ranks.design.tp == 0
        return known[size]

    options = {}
    for kernel in ranks.design.assignments.kernels.values():
        cut = {
            "replicated": 0.0,
            "sequence": model.seq_len,
            "column": ranks.width(kernel, kernel.makes),
            "row": ranks.width(kernel, kernel.reads),
        }
        options[kernel.name] = np.stack([is_whole(cut[option]) for option in kernel.kind.shardings])
    return options


#: Assignments of all designs together that are tried at once, and most of a model that ever are.
TRIED: Final = 65_536
MOST_TRIED: Final = 20_000
#: Assignments of all ranks together whose bytes are counted at once: with four million take some 250 MB.
COUNTED: Final = 4_194_304

#: Designs that are solved at once where each has a different machine: their tables fit into a core's cache.
SOLVED: Final = 8192

#: Runs with explicit shardings, their ranks' shapes and their micro-batches -> their cost.
Cost = Callable[[TransformerRun, RankRun, MicroBatch], Breakdown]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Designs with explicit shardings in the place of those that are to be solved for."""

    design: DesignPoints  #: (points,) columns
    rows: IntArray  #: of those that had to be evaluated
    costs: Breakdown | None  #: theirs; None if there are none


#: Number of latest solutions kept, by their runs, and the most designs of one: a search evaluates a batch, and then
#: records how its designs are sharded. [-]
MOST_REMEMBERED, MOST_DESIGNS = 4, 1024
_REMEMBERED: Final[dict[tuple[Any, ...], Solution]] = {}


def solution(run: TransformerRun, cost: Cost) -> Solution:
    """Solve for the shardings that designs leave open, or remember it: `_solved`."""
    if run.num_points > MOST_DESIGNS:
        return _solved(run, cost)
    return remembered(_REMEMBERED, (cost, *run.key()), MOST_REMEMBERED, partial(_solved, run, cost))


def _solved(run: TransformerRun, cost: Cost) -> Solution:
    """Solve for the shardings that designs leave open; `cost` evaluates designs with explicit ones.

    "solve" takes the fastest step, of those that fit into the memory of the chip if any does. A layer's time is a sum
    over kernels and edges, whose least is found exactly, for each layout of the activation between layers; the terms
    outside of the sum, waiting for the host and the ends of the model, decide among these and the named assignments.
    Where the fastest does not fit and another might, and where edges share collectives, so that the time is not a sum
    over them, all are tried, unless there are more than `MOST_TRIED`. "solve_bytes" takes the assignment in which a
    rank sends the fewest bytes. Options that would cut a dimension into unequal shares are left out, unless there is no
    other. In a group of one all assignments cost the same, and "solve" takes Megatron's. Kernels are timed once with
    each of their options; candidates and their results are assembled from these times.
    """
    design, points = run.design, run.num_points
    codes = np.broadcast_to(design.sharding, (points,))
    asked = np.isin(codes, (SOLVE, SOLVE_BYTES))
    if not asked.any():
        return Solution(design, np.flatnonzero(asked), None)
    shape = rank_run(run).design
    assignments, costs = shape.assignments, None
    numbers = np.where(asked, assignments.named["megatron"], shape.assignment)
    timed, counted = np.flatnonzero((codes == SOLVE) & (design.tp > 1)), np.flatnonzero(codes == SOLVE_BYTES)
    replaced = dict.fromkeys(design.kernel_shardings, np.zeros(points))
    run = run.of(design.map(lambda values: np.broadcast_to(values, (points,))).with_columns(replaced))
    if counted.size:
        numbers[counted] = _fewest_bytes(run.take(counted))
    if timed.size:
        numbers[timed], costs = _fastest(run.take(timed), assignments, cost)
    return Solution(with_assignments(design, assignments, numbers, asked), timed, costs)


def _blocks(run: TransformerRun) -> Iterator[IntArray]:
    """Rows of designs that are solved together: alike, and either all of 1F1B or none."""
    columns = run.design.columns()
    size = CHUNK if run.system.is_one() else SOLVED
    order = like_rows([columns[name] for name in OF_RANKS if name in columns])
    rows = np.arange(run.num_points) if order is None else order
    in_turn = np.broadcast_to(run.design.is_1f1b, rows.shape)[rows]
    for of_kind in (rows[in_turn], rows[~in_turn]):
        yield from (of_kind[start : start + size] for start in range(0, of_kind.size, size))


def _fewest_bytes(run: TransformerRun) -> FloatArray:
    """Numbers of the assignments with which ranks send the fewest bytes; (points,). [-]"""
    numbers = np.empty(run.num_points)
    for block in _blocks(run):
        ranks = rank_run(run.take(block))
        rows, back = distinct_rows(*ranks.design.columns().values())
        shared = ranks.design.assignments.share_collectives
        size = max(COUNTED // ranks.design.assignments.count, 1) if shared else rows.size
        solvers = [Solver(ranks.take(rows[start : start + size])) for start in range(0, rows.size, size)]
        least = [solver.least_sending_of_all() if shared else solver.least_sending() for solver in solvers]
        numbers[block] = np.concatenate(least)[back]
    return numbers


def _fastest(run: TransformerRun, assignments: Assignments, cost: Cost) -> tuple[FloatArray, Breakdown]:
    """Numbers of the fastest assignments, (points,), and the costs of steps with them."""
    unique = UniqueRows.of(*run.columns())
    if unique.places is not None and 2 * unique.rows.size < unique.places.size:
        numbers, costs = _fastest(unique.take(run), assignments, cost)
        return unique.of_points(numbers), unique.spread(costs)
    numbers = np.empty(run.num_points)

    def solved() -> Iterator[tuple[IntArray, Breakdown]]:
        for block in _blocks(run):
            of_block = run.take(block)
            of_block = replace(of_block, system=of_block.system.sliced(of_block.design.world_size))
            numbers[block], costs = _Designs.of(of_block, assignments, cost).fastest()
            yield block, costs

    return numbers, in_rows(solved(), run.num_points)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The fastest of some assignments of each design; (points,) columns."""

    numbers: FloatArray  #: of the assignments [-]
    costs: Breakdown
    fits: BoolArray  #: where none of them would be faster if there were more memory


@dataclass(frozen=True, slots=True, eq=False)
class _Designs:
    """Designs whose shardings are solved for, either all of 1F1B or none."""

    run: TransformerRun  #: (points,)
    back: IntArray  #: row of each point among `tables`
    tables: OptionTables  #: of the shapes that ranks have of a micro-batch, unique rows
    assignments: Assignments
    cost: Cost

    @classmethod
    def of(cls, run: TransformerRun, assignments: Assignments, cost: Cost) -> _Designs:
        """The columns of a run that shardings depend on."""
        passes = rank_run(run).reading(quantities_read(run.system))
        rows, back = distinct_rows(*passes.columns())
        return cls(run, back, OptionTables.of(passes.take(rows)), assignments, cost)

    def take(self, points: IntArray) -> _Designs:
        """The record of some of the designs."""
        rows, back = np.unique(self.back[points], return_inverse=True)
        return replace(self, run=self.run.take(points), back=back, tables=self.tables.take(rows))

    def fastest(self) -> tuple[FloatArray, Breakdown]:
        """Numbers of the fastest assignments, (points,), and the costs of steps with them."""
        points, costs = self.run.num_points, []
        numbers, tight = np.empty(points), np.full(points, self.assignments.share_collectives)
        candidates, counts = _different_first(self.candidates())
        if len(candidates) * points <= CHUNK:  # further calls would take longer than equal candidates
            counts[:] = len(candidates)
        for count in np.unique(counts):
            rows = np.flatnonzero(counts[self.back] == count)
            fastest = self.take(rows).best_of(candidates[:count, np.unique(self.back[rows])])
            numbers[rows] = fastest.numbers
            tight[rows] |= ~fastest.fits
            costs.append((rows, fastest.costs))
        best = in_rows(costs, points)
        if tight.any() and self.assignments.count <= MOST_TRIED:
            self._try_all(np.flatnonzero(tight), numbers, best)
        return numbers, best

    def candidates(self) -> FloatArray:
        """Numbers of the assignments worth trying; (candidates, rows of the tables). [-]"""
        unique, assignments = self.tables.run, self.assignments
        numbers = [np.full(unique.num_points, number) for number in assignments.named.values()]
        if not assignments.share_collectives:
            numbers += Solver(unique).fastest(self.tables.tables)
        return np.stack(numbers)

    def best_of(self, candidates: FloatArray) -> _Found:
        """The fastest of some assignments, the first of equal ones; numbers are (candidates, rows)."""
        numbers = candidates[:, self.back]
        run = self.run.of(with_assignments(self.run.design, self.assignments, numbers))
        ranks = rank_run(run)
        micro_batches = taken(self.tables.micro_batches(candidates), self.back)
        breakdown = self.cost(run, ranks, micro_batches)
        shape, points = numbers.shape, np.arange(self.run.num_points)
        times, memory = (np.broadcast_to(column, shape) for column in (breakdown.step_time, breakdown.peak_memory))
        even = is_even(ranks, numbers)
        fits: BoolArray = memory <= run.system.dram.capacity
        times = np.where(even | ~even.any(axis=0), times, np.inf)
        best = np.where(fits | ~fits.any(axis=0), times, np.inf).argmin(axis=0)
        costs = breakdown.map(lambda values: values[best, points] if values.ndim > 1 else values)
        return _Found(numbers[best, points], costs, fits[times.argmin(axis=0), points])

    def _try_all(self, tight: IntArray, numbers: FloatArray, best: Breakdown) -> None:
        """Put the fastest of all assignments that fit in the place of those found so far, if any do."""
        capacity = np.broadcast_to(self.run.system.dram.capacity, numbers.shape)
        tight = tight[least_memory(self.run.take(tight)) <= capacity[tight]]
        size = max(TRIED // self.assignments.count, 1)
        for rows in (tight[start : start + size] for start in range(0, tight.size, size)):
            places, tried = np.nonzero((_memory_of_all(self.run.take(rows)) <= capacity[rows]).T)
            if not places.size:
                continue
            costs, even = self._evaluated_with(rows[places], tried.astype(np.float64), times_alone=True)
            times = np.where(even, costs.step_time, np.inf)
            order = np.lexsort((tried, times, places))
            first = order[np.flatnonzero(np.diff(places[order], prepend=-1))]
            first = first[np.isfinite(times[first])]
            if first.size:
                fitting = rows[places[first]]
                numbers[fitting] = tried[first]
                again, _ = self._evaluated_with(fitting, numbers[fitting])
                for name, values in best.columns().items():
                    values[fitting] = getattr(again, name)

    def _evaluated_with(
        self, points: IntArray, numbers: FloatArray, *, times_alone: bool = False
    ) -> tuple[Breakdown, BoolArray]:
        """Costs of some points with an assignment each, and where that cuts into equal shares; (points,)."""
        tables, run = self.tables.take(self.back[points]), self.run.take(points)
        run = run.of(with_assignments(run.design, self.assignments, numbers))
        ranks = rank_run(run)
        micro_batches = tables.micro_batches(numbers, times_alone=times_alone)
        return self.cost(run, ranks, micro_batches), is_even(ranks, numbers)


def _different_first(numbers: FloatArray) -> tuple[FloatArray, IntArray]:
    """Candidates that differ from those before them first, in their order, and how many do; (rows,)."""
    new = np.ones(numbers.shape, dtype=bool)
    for index, number in enumerate(numbers):
        for before in numbers[:index]:
            new[index] &= number != before
    order = np.argsort(~new, axis=0, kind="stable")
    return np.take_along_axis(numbers, order, axis=0), new.sum(axis=0)


def least_memory(run: TransformerRun) -> FloatArray:
    """Bytes below which no assignment of a design gets: each part at its own least; (points,)."""
    named = rank_run(run).design.assignments.named["megatron_sp"]
    return _memory(run, np.full(run.num_points, named), lambda needs: needs.min(axis=0) if needs.ndim > 1 else needs)


def _memory_of_all(run: TransformerRun) -> FloatArray:
    """Bytes that designs need with each of all assignments; (assignments, points)."""
    every = np.arange(rank_run(run).design.assignments.count, dtype=np.float64)
    numbers = np.broadcast_to(every[:, np.newaxis], (every.size, run.num_points))
    return np.broadcast_to(_memory(run, numbers, np.asarray), numbers.shape)


def _memory(run: TransformerRun, numbers: FloatArray, of_all: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Bytes that designs need whose messages are those of numbered assignments.

    The need of parts is computed from their needs with all assignments, (assignments, points).
    """
    kept = rank_run(run).reading(MEMORY_READS)
    unique = UniqueRows.of(*kept.columns())
    needs = rank_memory(with_every_assignment(unique.take(kept)))
    parts = [unique.spread(part.map(of_all)) for part in needs]
    named = run.of(with_assignments(run.design, kept.design.assignments, numbers))
    ranks, stages = rank_run(named), pipeline_stages(run.model, run.design).foremost
    allocated = fullest_stage(named, ranks, parts, stages).memory.total
    return allocated + reserved_memory(named, ranks, allocated)
