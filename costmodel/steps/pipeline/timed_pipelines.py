"""Times of pipelines of any schedule, the waiting of their ranks and the activations that they hold.

A schedule gives each rank an order of passes (`schedules`). Ranks wait for their neighbours, so that the times of all
ranks follow from one simulation of the order (`simulation`). The activations that a rank holds follow from the order
itself: a forward pass adds those of a micro-batch, its backward pass frees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.columns import BoolArray, Columns, FloatArray, IntArray, broadcast_columns, column, distinct_rows
from costmodel.errors import DseError, suggestion
from costmodel.steps.pipeline.schedules import FULL, SCHEDULES, Order, Schedule, order, shortest
from costmodel.steps.pipeline.simulation import TimedPasses, chunk_by_chunk, ends_of_ranks
from costmodel.training.design import SCHEDULE_WORDS, DesignPoints

#: Columns that are whole numbers from 1.
COUNTS = ("pp", "vpp", "gradient_accumulation_steps")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pipelines:
    """Pipelines to be timed; (points,) arrays of one length."""

    schedule: IntArray  #: place in `SCHEDULES`, the first of those that are the same [-]
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


def checked_pipelines(
    schedule: str | Sequence[str] | NDArray[np.str_],
    values: Mapping[str, ArrayLike | None],
    passes: Callable[[Mapping[str, FloatArray]], TimedPasses],
) -> Pipelines:
    """Pipelines of some schedules and sizes, whose passes follow from their columns; a missing value is 0."""
    words, named = np.unique(np.atleast_1d(np.asarray(schedule, dtype=np.str_)), return_inverse=True)
    for word in words.tolist():
        if word not in SCHEDULES:
            raise DseError(f"pipeline: schedule: {word!r} is not a value{suggestion(word, SCHEDULES)}")
    columns = _checked_columns({"schedule": named, **values})
    named = columns["schedule"].astype(np.intp)
    pp, vpp, micro_batches = (columns[name] for name in COUNTS)
    group_size = np.where(columns["group_size"] > 0, columns["group_size"], pp)
    _check_rules(words.tolist(), named, pp, vpp, micro_batches, group_size)
    known = list(SCHEDULES.values())
    return Pipelines(
        schedule=np.array([known.index(SCHEDULES[word]) for word in words.tolist()])[named],
        pp=pp,
        vpp=vpp,
        micro_batches=micro_batches,
        group_size=group_size,
        passes=passes(columns),
    )


def scaled_passes(columns: Mapping[str, FloatArray], stage_scale: ArrayLike | None) -> TimedPasses:
    """Passes of all ranks from those of a rank of scale 1."""
    scale = _checked_scales(stage_scale, columns["pp"])
    names = ("forward_time", "input_gradient_time", "weight_gradient_time", "pair_time")
    forward, backward, weight, pair = (columns[name][:, np.newaxis] * scale for name in names)
    whole = forward + backward + weight
    return TimedPasses(
        forward=forward,
        backward=backward,
        weight=weight,
        pair=np.where(pair > 0, pair, whole),
        message=columns["message_time"],
    )


def _checked_columns(values: Mapping[str, ArrayLike | None]) -> dict[str, FloatArray]:
    """Columns of one length: counts whole and from 1, nothing below 0."""
    given = {name: 0.0 if value is None else value for name, value in values.items()}
    for name in given.keys() & {"group_size", "pair_time"}:
        times = np.asarray(given[name], dtype=np.float64)
        given[name] = np.where(np.isnan(times), 0.0, times)
    try:
        columns = broadcast_columns(**given)
    except ValueError as error:
        raise DseError(f"pipeline: {error}") from error
    for name, numbers in columns.items():
        if (wrong := (numbers < 1) | (numbers % 1 != 0)).any() and name in COUNTS:
            raise DseError(f"pipeline: {name}: {numbers[wrong][0]:g}: expected a whole number from 1")
        if (wrong := (numbers < 0) | ((numbers % 1 != 0) & (name == "group_size"))).any():
            expected = "a whole number from 0" if name == "group_size" else "at least 0"
            raise DseError(f"pipeline: {name}: {numbers[wrong][0]:g}: expected {expected}")
    return columns


def _check_rules(
    words: Sequence[str], named: IntArray, p: FloatArray, v: FloatArray, m: FloatArray, n: FloatArray
) -> None:
    """Raise for the first design that its schedule cannot run."""
    for number, word in enumerate(words):
        for rule in SCHEDULES[word].rules:
            broken = (named == number) & ~rule.met(p, v, m, n)
            if broken.any():
                row = int(broken.argmax())
                raise DseError(
                    f"pipeline: {word} at pp={p[row]:g} vpp={v[row]:g} "
                    f"gradient_accumulation_steps={m[row]:g} group_size={n[row]:g}: {word} {rule.wanted}"
                )


def _checked_scales(stage_scale: ArrayLike | None, pp: FloatArray) -> FloatArray:
    """Scales of the ranks of each pipeline, 0 beyond; (points, ranks). [-]"""
    ranks = int(pp.max())
    scale = np.atleast_2d(np.asarray(1.0 if stage_scale is None else stage_scale, dtype=np.float64))
    if scale.ndim != 2 or scale.shape[0] not in (1, pp.size) or (scale.shape[1] < ranks and scale.size > 1):
        raise DseError(
            f"pipeline: stage_scale: shape {scale.shape}: expected one row, or one for each of the {pp.size} "
            f"designs, and a column for each of up to {ranks} ranks"
        )
    exists = np.arange(ranks) < pp[:, np.newaxis]
    scales = np.where(exists, scale[:, :ranks], 0.0)
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise DseError("pipeline: stage_scale: expected finite numbers from 0")
    return scales


def design_pipelines(design: DesignPoints, passes: TimedPasses | None = None) -> Pipelines:
    """The pipelines of some designs; passes that are not given take no time."""
    words = np.array(SCHEDULE_WORDS)[np.atleast_1d(design.schedule).astype(np.intp)]
    sizes = {name: getattr(design, name) for name in (*COUNTS, "group_size")}

    def none(columns: Mapping[str, FloatArray]) -> TimedPasses:
        nothing = np.zeros((columns["pp"].size, int(columns["pp"].max())))
        return TimedPasses(forward=nothing, backward=nothing, weight=nothing, pair=nothing, message=nothing[:, 0])

    return checked_pipelines(words, sizes, none if passes is None else lambda columns: passes)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PipelineTimes(Columns):
    """Times of each pipeline, and activations that it holds; (points,) columns."""

    makespan: FloatArray = column("s")  #: from the first start on any rank to the last end
    span: FloatArray = column("s")  #: the longest of any rank, from its own first start to its own last end
    idle: FloatArray = column("s")  #: makespan without the work of the busiest rank
    idle_in_span: FloatArray = column("s")  #: span without it
    peak_until_b: FloatArray = column("-")  #: chunk activations held until B, on the fullest rank
    peak_until_w: FloatArray = column("-")  #: the same until W
    messages: FloatArray = column("-")  #: between ranks, all together


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankCounts:
    """Activations and messages of ranks, which times do not change; (points, ranks) arrays, 0 beyond the ranks."""

    until_b: FloatArray  #: chunk activations held at once until the gradient of the input is there [-]
    until_w: FloatArray  #: the same until that of the weights is there [-]
    pairs: FloatArray  #: of passes that overlap [-]
    messages: FloatArray  #: between ranks, all together; (points,) [-]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PipelineRanks(RankCounts):
    """Times and holdings of pipelines rank by rank; (points, ranks) arrays, 0 beyond a pipeline's ranks."""

    start: FloatArray  #: of the first pass [s]
    end: FloatArray  #: of the last [s]
    busy: FloatArray  #: work [s]

    def take(self, rows: IntArray) -> PipelineRanks:
        """The record of some of the pipelines."""
        return PipelineRanks(**{member.name: getattr(self, member.name)[rows] for member in fields(self)})

    def times(self) -> PipelineTimes:
        """Columns of the whole pipeline."""
        makespan = self.end.max(axis=1)
        span, busiest = (self.end - self.start).max(axis=1), self.busy.max(axis=1)
        return PipelineTimes(
            makespan=makespan,
            span=span,
            idle=makespan - busiest,
            idle_in_span=span - busiest,
            peak_until_b=self.until_b.max(axis=1),
            peak_until_w=self.until_w.max(axis=1),
            messages=self.messages,
        )


def pipeline_times(
    *,
    schedule: str | Sequence[str],
    pp: ArrayLike,
    gradient_accumulation_steps: ArrayLike,
    forward_time: ArrayLike,
    input_gradient_time: ArrayLike,
    weight_gradient_time: ArrayLike,
    vpp: ArrayLike = 1.0,
    group_size: ArrayLike | None = None,
    message_time: ArrayLike = 0.0,
    pair_time: ArrayLike | None = None,
    stage_scale: ArrayLike | None = None,
) -> PipelineTimes:
    """Time of one optimizer step of pipelines, the waiting of their ranks, and the activations that they hold.

    Raises `DseError` if a schedule cannot run these sizes, or a value is out of range.

    Parameters
    ----------
    schedule : word or sequence of words
        `gpipe`, `1f1b` or `interleaved` (one schedule, interleaved when vpp > 1), `breadth_first`, `zb_h1`,
        `zb_h2`, `zb_v`, `dualpipe`, `dualpipe_v`.
    pp, vpp, gradient_accumulation_steps : scalar or (points,) array
        Ranks, chunks per rank, micro-batches. [-]
    forward_time, input_gradient_time, weight_gradient_time : scalar or (points,) array
        Passes of one micro-batch through one chunk. [s]
    group_size : scalar or (points,) array, optional
        Micro-batches that go through a chunk before the next; 0: pp. Read when interleaved. [-]
    message_time : scalar or (points,) array
        From the end of a pass to its successor's on another rank. [s]
    pair_time : scalar or (points,) array, optional
        A forward and a whole backward pass that overlap; 0: as one after the other. [s]
    stage_scale : (points, ranks) or (ranks,) array, optional
        By which each rank's times are longer. [-]

    Notes
    -----
    Exact: every action of every rank is timed, in the orders of [Narayanan2021]_, [LamyPoirier2023]_,
    [Qi2024]_ and [DeepSeek2024]_.

    >>> times = pipeline_times(
    ...     schedule=["1f1b", "zb_h1"], pp=4, gradient_accumulation_steps=12,
    ...     forward_time=2.0, input_gradient_time=2.0, weight_gradient_time=2.0,
    ... )
    >>> times.idle.tolist(), times.peak_until_b.tolist()
    ([18.0, 6.0], [4.0, 4.0])
    """
    times = {
        "forward_time": forward_time,
        "input_gradient_time": input_gradient_time,
        "weight_gradient_time": weight_gradient_time,
        "message_time": message_time,
        "pair_time": pair_time,
    }
    counts = {"pp": pp, "vpp": vpp, "gradient_accumulation_steps": gradient_accumulation_steps}
    asked = checked_pipelines(
        schedule, {**counts, "group_size": group_size, **times}, lambda columns: scaled_passes(columns, stage_scale)
    )
    return pipeline_ranks(asked).times()


def pipeline_ranks(asked: Pipelines) -> PipelineRanks:
    """Times and held activations of each rank of each pipeline."""
    counts, passes = rank_counts(asked), asked.passes
    number = (asked.micro_batches * asked.vpp)[:, np.newaxis]
    busy = number * passes.whole + counts.pairs * (passes.pair - passes.whole)
    return PipelineRanks(
        start=_starts(asked),
        end=np.where((asked.pp == 1)[:, np.newaxis], busy, _ends(asked)),
        busy=busy,
        until_b=counts.until_b,
        until_w=counts.until_w,
        pairs=counts.pairs,
        messages=counts.messages,
    )


def rank_counts(asked: Pipelines) -> RankCounts:
    """Activations that ranks hold and messages that they send, from their orders: times of passes do not matter."""
    in_line = asked.where(lambda schedule: schedule.chunk_by_chunk)
    followers = Followers.of(asked, np.flatnonzero(~in_line))
    held = np.where(in_line, asked.micro_batches * asked.vpp, 0.0)[:, np.newaxis] * asked.there
    until_b, until_w, pairs = held, held.copy(), np.zeros_like(held)
    messages = np.where(asked.pp > 1, 2 * asked.micro_batches * (asked.pp * asked.vpp - 1), 0.0)
    for one, points in zip(followers.orders, followers.points, strict=True):
        ranks, turns = slice(one.until_b.size), followers.turns[points]
        until_b[points, ranks], until_w[points, ranks] = one.until_b, one.until_w
        pairs[points, ranks], messages[points] = one.pairs(turns), one.messages(turns)
    return RankCounts(until_b=until_b, until_w=until_w, pairs=pairs, messages=messages)


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


def _starts(asked: Pipelines) -> FloatArray:
    """When each rank starts: when the first micro-batch has come there from its end; (points, ranks). [s]"""
    hop = (asked.passes.forward + asked.passes.message[:, np.newaxis]) * asked.there
    until = hop.cumsum(axis=1)
    from_last = until[:, -1:] - until
    second_half = 2 * np.arange(hop.shape[1]) >= asked.pp[:, np.newaxis]
    turned = asked.where(lambda schedule: schedule.both_ends)[:, np.newaxis] & second_half
    return np.where(asked.there, np.where(turned, from_last, until - hop), 0.0)


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
