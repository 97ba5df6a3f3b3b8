"""Times of pipelines of any schedule, and the activations that their ranks hold.

A schedule gives each rank an order of passes (`schedules`). Ranks wait for their neighbours, so that the times of all
ranks follow from one simulation of the order (`simulation`). The activations that a rank holds follow from the order
itself: a forward pass adds those of a micro-batch, its backward pass frees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, distinct_rows
from costmodel.errors import DseError
from costmodel.steps.pipeline.schedules import FULL, SCHEDULES, Order, Schedule, order, shortest
from costmodel.steps.pipeline.simulation import TimedPasses, chunk_by_chunk, ends_of_ranks
from costmodel.training.design import DesignPoints


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pipelines:
    """Pipelines to be timed; (points,) arrays of one length."""

    schedule: IntArray  #: place in `SCHEDULES` [-]
    pp: FloatArray  #: [-]
    vpp: FloatArray  #: [-]
    micro_batches: FloatArray  #: gradient accumulation steps [-]
    group_size: FloatArray  #: [-]
    passes: TimedPasses  #: through one chunk of each rank; 0 on ranks beyond pp [s]

    @property
    def there(self) -> BoolArray:
        """Ranks of each pipeline; (points, ranks)."""
        return np.arange(self.passes.forward.shape[1]) < self.pp[:, np.newaxis]

    def where(self, holds: Callable[[Schedule], bool]) -> BoolArray:
        """Points of whose schedule a condition holds; (points,)."""
        return np.array([holds(schedule) for schedule in SCHEDULES.values()])[self.schedule]


def design_pipelines(design: DesignPoints, passes: TimedPasses | None = None) -> Pipelines:
    """The pipelines of some designs; passes that are not given take no time.

    Raises `DseError` if a schedule cannot run the sizes of a design.
    """
    names = ("schedule", "pp", "vpp", "gradient_accumulation_steps", "group_size")
    columns = np.broadcast_arrays(*(np.atleast_1d(getattr(design, name)) for name in names))
    schedule, (pp, vpp, micro_batches, group_size) = columns[0].astype(np.intp), columns[1:]
    group_size = np.where(group_size > 0, group_size, pp)
    _check_rules(schedule, pp, vpp, micro_batches, group_size)
    if passes is None:
        nothing = np.zeros((pp.size, int(pp.max())))
        passes = TimedPasses(forward=nothing, backward=nothing, weight=nothing, pair=nothing, message=nothing[:, 0])
    return Pipelines(
        schedule=schedule, pp=pp, vpp=vpp, micro_batches=micro_batches, group_size=group_size, passes=passes
    )


def _check_rules(schedule: IntArray, p: FloatArray, v: FloatArray, m: FloatArray, n: FloatArray) -> None:
    """Raise for the first design that its schedule cannot run."""
    for code, (word, row) in enumerate(SCHEDULES.items()):
        for rule in row.rules if (schedule == code).any() else ():
            broken = (schedule == code) & ~rule.met(p, v, m, n)
            if broken.any():
                at = int(broken.argmax())
                raise DseError(
                    f"pipeline: {word} at pp={p[at]:g} vpp={v[at]:g} "
                    f"gradient_accumulation_steps={m[at]:g} group_size={n[at]:g}: {word} {rule.wanted}"
                )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankCounts:
    """Activations and pairs of ranks, which times do not change; (points, ranks) arrays, 0 beyond the ranks. [-]"""

    until_w: FloatArray  #: chunk activations held at once until the gradient of the weights is there
    pairs: FloatArray  #: of passes that overlap


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PipelineRanks:
    """Times of pipelines rank by rank; (points, ranks) arrays, 0 beyond a pipeline's ranks."""

    end: FloatArray  #: of the last pass [s]
    pairs: FloatArray  #: of passes that overlap [-]

    def take(self, rows: IntArray) -> PipelineRanks:
        """The record of some of the pipelines."""
        return PipelineRanks(end=self.end[rows], pairs=self.pairs[rows])


def pipeline_ranks(asked: Pipelines) -> PipelineRanks:
    """When each rank of each pipeline is done, and its overlapped passes."""
    pairs, passes = rank_counts(asked).pairs, asked.passes
    alone = (asked.micro_batches * asked.vpp)[:, np.newaxis] * passes.whole + pairs * (passes.pair - passes.whole)
    return PipelineRanks(end=np.where((asked.pp == 1)[:, np.newaxis], alone, _ends(asked)), pairs=pairs)


def rank_counts(asked: Pipelines) -> RankCounts:
    """Activations that ranks hold and passes that they overlap, from their orders: times of passes do not matter."""
    in_line = asked.where(lambda schedule: schedule.chunk_by_chunk)
    followers = Followers.of(asked, np.flatnonzero(~in_line))
    until_w = np.where(in_line, asked.micro_batches * asked.vpp, 0.0)[:, np.newaxis] * asked.there
    pairs = np.zeros_like(until_w)
    for one, points in zip(followers.orders, followers.points, strict=True):
        ranks = slice(one.until_w.size)
        until_w[points, ranks], pairs[points, ranks] = one.until_w, one.pairs(followers.turns[points])
    return RankCounts(until_w=until_w, pairs=pairs)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Followers:
    """Orders, and which points follow each."""

    orders: Sequence[Order]
    points: Sequence[IntArray]
    turns: FloatArray  #: times that a point's order repeats its last period; (points,) [-]

    @classmethod
    def of(cls, asked: Pipelines, points: IntArray, full: int = FULL) -> Followers:
        """The orders that some points follow, of long ones only beginning and end: see `shortest`."""
        grouped = asked.where(lambda schedule: schedule.groups) & (asked.vpp > 1)
        n = np.where(grouped, asked.group_size, asked.pp)
        columns = (asked.schedule.astype(np.float64), asked.pp, asked.vpp, asked.micro_batches, n)
        keys = [column[points] for column in columns]
        points_of_order: dict[tuple[str, int, int, int, int], list[IntArray]] = {}
        turns = np.zeros(asked.pp.size)
        words = list(SCHEDULES)
        for rows in equal_rows(*keys) if points.size else ():
            number, *sizes = (int(key[rows[0]]) for key in keys)
            p, v, m, group = sizes
            fewer, more = shortest(words[number], p, v, m, group, full)
            points_of_order.setdefault((words[number], p, v, fewer, group), []).append(points[rows])
            turns[points[rows]] = more
        return cls(
            orders=[order(*key) for key in points_of_order],
            points=[np.concatenate(rows) for rows in points_of_order.values()],
            turns=turns,
        )


def equal_rows(*columns: FloatArray) -> list[IntArray]:
    """Places of the rows that are the same in all columns, for each kind of row."""
    _, back = distinct_rows(*columns)
    if columns[0].size == 1:
        return [np.zeros(1, dtype=np.intp)]
    return np.split(np.argsort(back, kind="stable"), np.cumsum(np.bincount(back))[:-1])


def _ends(asked: Pipelines) -> FloatArray:
    """When each rank of several is done; (points, ranks). [s]"""
    in_line = asked.where(lambda schedule: schedule.chunk_by_chunk)
    passes, unsettled, full = asked.passes, np.flatnonzero(~in_line & (asked.pp > 1)), FULL
    done = np.zeros(passes.forward.shape)
    while unsettled.size:
        followers = Followers.of(asked, unsettled, full)
        ends = ends_of_ranks(followers.orders, followers.points, passes)
        done[unsettled] = (ends.end + (followers.turns * ends.shift)[:, np.newaxis] * asked.there)[unsettled]
        unsettled = unsettled[~ends.settled(followers.turns)[unsettled]]
        full *= 4  # the last turns of few pipelines do not repeat then
    if in_line.any():
        done[in_line] = chunk_by_chunk(
            asked.pp[in_line],
            asked.vpp[in_line],
            asked.micro_batches[in_line],
            forward=passes.forward[in_line],
            backward=(passes.backward + passes.weight)[in_line],
            message=passes.message[in_line],
        )
    return done
