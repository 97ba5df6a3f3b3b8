"""Time of pipelines of any schedule: in closed form where that is exact, else by simulation of every pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, UniqueRows
from costmodel.steps.pipeline.critical_path import Sizes, one_forward_one_backward_time
from costmodel.steps.pipeline.simulation import TimedPasses
from costmodel.steps.pipeline.stages import Stage
from costmodel.steps.pipeline.timed_pipelines import PipelineRanks, design_pipelines, pipeline_ranks
from costmodel.training.design import DesignPoints

#: Columns of a design that its timetable follows from.
SIZES: Final = ("schedule", "pp", "vpp", "gradient_accumulation_steps", "group_size")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StagePasses:
    """Passes of a micro-batch through one chunk of each stage; (stages, points) arrays. [s]"""

    forward: FloatArray
    backward: FloatArray  #: gradient of the input, with the recomputation that it needs
    weight: FloatArray
    pair: FloatArray  #: all of them, where a forward pass overlaps with a backward pass

    def on_axes(self, shape: tuple[int, ...]) -> StagePasses:
        """The passes with the axes of all of them, and of a shape, behind that of stages."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        shape = np.broadcast_shapes(shape, *(times.shape[1:] for times in arrays.values()))
        for name, times in arrays.items():
            axes = [1] * (len(shape) + 1 - times.ndim)
            aligned = times.reshape(len(times), *axes, *times.shape[1:])
            arrays[name] = np.broadcast_to(aligned, (len(times), *shape))
        return StagePasses(**arrays)

    @property
    def whole(self) -> FloatArray:
        """A forward and a whole backward pass, one after the other. [s]"""
        return self.forward + self.backward + self.weight


def pipeline_time(
    design: DesignPoints, times: StagePasses, message: FloatArray, stages: Sequence[Stage]
) -> tuple[FloatArray, FloatArray]:
    """Time from the first pass of each pipeline to its last, and overlapped pairs of passes on its stages.

    Parameters
    ----------
    design : DesignPoints
        Schedules and sizes, (points,).
    times : StagePasses
        Passes through one chunk of each stage; (stages, ..., points), with all axes of `message`. [s]
    message : (..., points) array
        Time from the end of a pass to its successor's start on another rank. [s]
    stages : sequence of Stage
        Corners of each pipeline: `PipelineStages.corners`.

    Returns
    -------
    time : (..., points) array
        [s]
    pairs : (stages, ..., points) array
        Overlapped pairs of a forward and a backward pass; 0 where no schedule pairs them. [-]

    Raises
    ------
    DseError
        If a schedule other than 1F1B in groups of pp cannot run a design.

    Notes
    -----
    Interleaved 1F1B needs a multiple of pp micro-batches, and frameworks refuse others. Here missing
    micro-batches leave their time empty.
    """
    p, v, m = design.pp, design.vpp, design.gradient_accumulation_steps
    whole = np.where((v > 1) & _in_usual_groups(design), np.ceil(m / p) * p, m)
    design = replace(design, gradient_accumulation_steps=whole)
    shape = times.forward.shape[1:]
    message = np.broadcast_to(message, shape)
    simulated = np.broadcast_to(_is_simulated(design, times, message), shape)
    pairs: Any = np.zeros(())
    if simulated.all():
        time = np.empty(shape)
    else:
        rank = np.stack([np.broadcast_to(stage.rank, shape[-1:]) for stage in stages])
        columns = (np.broadcast_to(sizes, shape[-1:]) for sizes in (p, v, v * whole))
        time = one_forward_one_backward_time(
            times.forward, times.backward + times.weight, message=message, sizes=Sizes(rank, *columns)
        )
    if simulated.any():
        places = np.nonzero(simulated)
        passes, _ = passes_on_ranks(design, times, message, stages, places)
        sizes: dict[str, FloatArray] = {name: getattr(design, name) for name in SIZES}
        rows = {name: np.broadcast_to(column, shape[-1:])[places[-1]] for name, column in sizes.items()}
        timed = simulated_pipelines(DesignPoints().with_columns(rows), passes)
        time[places] = timed.end.max(axis=1)
        if timed.pairs.any():
            pairs = np.zeros(times.forward.shape)
            for number, stage in enumerate(stages):
                rank = stage.rank[places[-1]].astype(np.intp)
                pairs[(number, *places)] = timed.pairs[np.arange(rank.size), rank]
    return time, pairs


def _in_usual_groups(design: DesignPoints) -> BoolArray:
    """Where 1F1B, interleaved, takes micro-batches in groups of pp; (points,)."""
    usual = (design.vpp == 1) | (design.group_size == 0) | (design.group_size == design.pp)
    return np.asarray(design.is_1f1b & usual)


def _is_simulated(design: DesignPoints, times: StagePasses, message: FloatArray) -> BoolArray:
    """Where times follow from no closed form: other schedules and groups, and messages that set the pace."""
    in_turn = _in_usual_groups(design)
    if not (message > 0).any():
        return np.asarray(~in_turn)
    shortest = np.minimum(times.forward, times.backward + times.weight).min(axis=0)
    short = (design.pp == 1) | (message == 0) | ((design.vpp > 1) & (message <= shortest))
    return np.asarray(~(in_turn & short))


def simulated_pipelines(design: DesignPoints, passes: TimedPasses) -> PipelineRanks:
    """Timetables of pipelines, equal ones timed once; (points, ranks) arrays."""
    sizes = [getattr(design, name) for name in SIZES]
    tables = {field.name: getattr(passes, field.name) for field in fields(passes)}
    unique = UniqueRows.of(*sizes, *(column for table in tables.values() for column in np.atleast_2d(table.T)))
    unique_passes = TimedPasses(**{name: unique.pick(table) for name, table in tables.items()})
    return unique.spread(pipeline_ranks(design_pipelines(unique.take(design), unique_passes)))


def passes_on_ranks(
    design: DesignPoints, times: StagePasses, message: FloatArray, stages: Sequence[Stage], places: tuple[IntArray, ...]
) -> tuple[TimedPasses, IntArray]:
    """Passes on all ranks of some pipelines [s], and the stage that each rank is like [-]; (pipelines, ranks).

    `places` are the indices of the pipelines along (..., points); other arguments are those of `pipeline_time`. [-]
    """
    rows = places[-1]
    pp = np.broadcast_to(design.pp, message.shape[-1:])[rows, np.newaxis]
    corners = np.stack([np.broadcast_to(stage.rank, message.shape[-1:])[rows] for stage in stages], axis=1)
    ranks = np.arange(int(pp.max()))
    corner = (corners[:, np.newaxis] < ranks[:, np.newaxis]).sum(axis=2)  # the first at or behind each rank
    corner = np.minimum(corner, len(stages) - 1)
    tables = {}
    for field in fields(times):
        of_stages = getattr(times, field.name)[(slice(None), *places)].T
        tables[field.name] = np.where(ranks < pp, np.take_along_axis(of_stages, corner, axis=1), 0.0)
    return TimedPasses(message=message[places], **tables), corner
