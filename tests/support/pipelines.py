"""Pipelines timed alone, without a model: the schedules of the cost model with passes that a test gives."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from costmodel import DesignPoints
from costmodel.columns import broadcast_columns
from costmodel.steps.pipeline.schedules import BACKWARD, most_held, order
from costmodel.steps.pipeline.simulation import TimedPasses
from costmodel.steps.pipeline.timed_pipelines import Pipelines, design_pipelines, pipeline_ranks, rank_counts

TIMES = ("forward_time", "input_gradient_time", "weight_gradient_time", "pair_time", "message_time")


def pipeline_times(*, schedule: Any, stage_scale: Any = 1.0, **values: Any) -> SimpleNamespace:
    """Times of pipelines and chunk activations that their fullest ranks hold; (points,) each. [s], [-]

    `values` are columns of designs, and `TIMES` of a rank of scale 1; `stage_scale` is (points, ranks). [s], [-]
    """
    columns = broadcast_columns(**dict.fromkeys(TIMES, 0.0) | {n: np.nan_to_num(v) for n, v in values.items()})
    forward, backward, weight, pair, message = (columns.pop(name) for name in TIMES)
    words = ["1f1b" if word == "interleaved" else word for word in np.atleast_1d(schedule)]
    design = DesignPoints.of(schedule=words, **columns)
    exists = np.arange(int(design.pp.max())) < design.pp[:, np.newaxis]
    scale = np.where(exists, np.atleast_2d(stage_scale)[:, : exists.shape[1]], 0.0)
    passes = [time[:, np.newaxis] * scale for time in (forward, backward, weight)]
    paired = np.where(pair[:, np.newaxis] * scale > 0, pair[:, np.newaxis] * scale, sum(passes))
    timed = TimedPasses(forward=passes[0], backward=passes[1], weight=passes[2], pair=paired, message=message)
    asked = design_pipelines(design, timed)
    ranks, number = pipeline_ranks(asked), (asked.micro_batches * asked.vpp)[:, np.newaxis]
    busiest = (number * timed.whole + ranks.pairs * (timed.pair - timed.whole)).max(axis=1)
    makespan, span = ranks.end.max(axis=1), (ranks.end - starts(asked)).max(axis=1)
    sizes = (np.broadcast_to(words, span.shape), asked.pp, asked.vpp, asked.micro_batches, asked.group_size)
    orders = [order(word, *map(int, numbers)) for word, *numbers in zip(*sizes, strict=True)]
    return SimpleNamespace(
        makespan=makespan,
        span=span,
        idle=makespan - busiest,
        idle_in_span=span - busiest,
        peak_until_b=np.array([most_held(one.entry, BACKWARD).max() for one in orders]),
        peak_until_w=rank_counts(asked).until_w.max(axis=1),
        messages=np.array([sum((source & 1).sum() for source, _ in one.sources) for one in orders]),
    )


def starts(asked: Pipelines) -> np.ndarray:
    """When each rank starts: when the first micro-batch has come there from its end; (points, ranks). [s]"""
    hop = (asked.passes.forward + asked.passes.message[:, np.newaxis]) * asked.there
    until = hop.cumsum(axis=1)
    from_last = until[:, -1:] - until
    second_half = 2 * np.arange(hop.shape[1]) >= asked.pp[:, np.newaxis]
    turned = asked.where(lambda schedule: schedule.both_ends)[:, np.newaxis] & second_half
    return np.where(asked.there, np.where(turned, from_last, until - hop), 0.0)
