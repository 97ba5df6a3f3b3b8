"""Pipelines timed alone, without a model: the schedules of the cost model with passes that a test gives."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from costmodel import DesignPoints
from costmodel.columns import broadcast_columns
from costmodel.steps.pipeline.simulation import TimedPasses
from costmodel.steps.pipeline.timed_pipelines import design_pipelines, pipeline_ranks

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
    ranks = pipeline_ranks(design_pipelines(design, timed))
    busiest = ranks.busy.max(axis=1)
    times = {"makespan": ranks.end.max(axis=1), "span": (ranks.end - ranks.start).max(axis=1)}
    times |= {"idle": times["makespan"] - busiest, "idle_in_span": times["span"] - busiest}
    peaks = {f"peak_{name}": getattr(ranks, name).max(axis=1) for name in ("until_b", "until_w")}
    return SimpleNamespace(**times, **peaks, messages=ranks.messages)
