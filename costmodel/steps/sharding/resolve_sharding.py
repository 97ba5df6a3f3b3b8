"""The best assignment of shardings to the kernels of a model, for each design, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, UniqueRows, distinct_rows, in_rows, is_long
from costmodel.steps.memory.reserved import reserved_memory
from costmodel.steps.memory.stage_memory import fullest_stage
from costmodel.steps.micro_batch.micro_batch import MicroBatch, quantities_read
from costmodel.steps.micro_batch.rank_memory import MEMORY_READS, rank_memory
from costmodel.steps.pipeline.stages import pipeline_stages
from costmodel.steps.result.assembly import CHUNK, like_rows
from costmodel.steps.result.breakdown import Breakdown
from costmodel.steps.sharding.sharded_kernels import OptionTables
from costmodel.steps.sharding.sharding_solver import Solver, is_even, with_every_assignment
from costmodel.training.design import SOLVE, SOLVE_BYTES, DesignPoints
from costmodel.training.run import OF_RANKS, RankRun, TransformerRun, rank_run, with_assignments
from costmodel.training.sharding import Assignments

#: Assignments of all designs together that are tried at once, and most of a model that ever are.
TRIED: Final = 65_536
MOST_TRIED: Final = 20_000
#: Assignments of all ranks together whose bytes are counted at once: with four million take some 250 MB.
COUNTED: Final = 4_194_304

#: Designs that are solved at once where each has a machine of its own: their tables fit into a core's cache.
SOLVED: Final = 8192

#: Runs that leave nothing to solve, what a rank sees of them, their micro-batches -> their cost.
Cost = Callable[[TransformerRun, RankRun, MicroBatch], Breakdown]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Designs with explicit shardings in the place of those that are to be solved for."""

    design: DesignPoints  #: (points,) columns
    rows: IntArray  #: of those that had to be evaluated
    costs: Breakdown | None  #: theirs; None if there are none


def solution(run: TransformerRun, cost: Cost) -> Solution:
    """Solve for the shardings that designs leave open.

    Parameters
    ----------
    run : TransformerRun
        Model, machines and designs, (points,).
    cost : callable
        Costs of designs whose shardings are named or explicit, from their micro-batches.

    Returns
    -------
    solution : Solution
        Explicit shardings, and what steps cost of designs that were evaluated to find them.

    Notes
    -----
    "solve" takes the fastest step, of those that fit into the memory of the chip if any does. A layer's
    time is a sum over kernels and edges, whose least is found exactly, for each layout of the activation
    between layers; what the sum leaves out, waiting for the host and the ends of the model, decides among
    these and the named assignments. Where the fastest does not fit and another might, and where edges share
    collectives, so that the time is no sum over them, all are tried, unless there are more than
    `MOST_TRIED`. "solve_bytes" takes the assignment in which a rank sends the fewest bytes. Options that
    would cut a dimension into unequal shares are left out, unless there is no other. In a group of one
    all assignments cost the same, and "solve" takes Megatron's. Kernels are timed once with each of their
    options, which candidates and what is taken among them are put together of.
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
    machines = any(is_long(values) for values in run.system.quantities().values())
    size = SOLVED if machines else CHUNK
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
    """Numbers of the fastest assignments, (points,), and what steps cost with them."""
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

    costs = in_rows(solved(), run.num_points)
    return numbers, costs


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
    tables: OptionTables  #: of what ranks see of a micro-batch, unique rows
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
        """Numbers of the fastest assignments, (points,), and what steps cost with them."""
        points, costs = self.run.num_points, []
        numbers, tight = np.empty(points), np.full(points, self.assignments.share_collectives)
        candidates, counts = _different_first(self.candidates())
        for count in np.unique(counts):
            rows = np.flatnonzero(counts[self.back] == count)
            designs = self.take(rows)
            fastest = designs.best_of(candidates[:count, np.unique(self.back[rows])])
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
        micro_batches = self.tables.micro_batches(candidates).take(self.back)
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
        tight = tight[_least_memory(self.run.take(tight)) <= capacity[tight]]
        size = max(TRIED // self.assignments.count, 1)
        for rows in (tight[start : start + size] for start in range(0, tight.size, size)):
            fits = _memory_of_all(self.run.take(rows)) <= capacity[rows]
            places, tried = np.nonzero(fits.T)
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


def _least_memory(run: TransformerRun) -> FloatArray:
    """Bytes below which no assignment of a design gets: each part at its own least; (points,)."""
    named = rank_run(run).design.assignments.named["megatron_sp"]
    return _memory(run, np.full(run.num_points, named), _least_of_all)


def _memory_of_all(run: TransformerRun) -> FloatArray:
    """Bytes that designs need with each of all assignments; (assignments, points)."""
    every = np.arange(rank_run(run).design.assignments.count, dtype=np.float64)
    numbers = np.broadcast_to(every[:, np.newaxis], (every.size, run.num_points))
    return np.broadcast_to(_memory(run, numbers, np.asarray), numbers.shape)


def _memory(run: TransformerRun, numbers: FloatArray, of_all: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Bytes that designs need whose messages are those of numbered assignments.

    Parts need what is made of their needs with all assignments, (assignments, points).
    """
    kept = rank_run(run).reading(MEMORY_READS)
    unique = UniqueRows.of(*kept.columns())
    needs = rank_memory(with_every_assignment(unique.take(kept)))
    parts = [unique.spread(part.map(of_all)) for part in needs]
    named = run.of(with_assignments(run.design, kept.design.assignments, numbers))
    ranks, stages = rank_run(named), pipeline_stages(run.model, run.design).foremost
    allocated = fullest_stage(named, ranks, parts, stages).memory.total
    return allocated + reserved_memory(named, ranks, allocated)


def _least_of_all(values: FloatArray) -> FloatArray:
    """The least along the axes before that of points, which need not be there."""
    return values.min(axis=0) if values.ndim > 1 else values
