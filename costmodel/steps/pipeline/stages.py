"""Pipeline schedules: layers per stage, bubble, micro-batches in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, UniqueRows, chosen
from costmodel.errors import DseError
from costmodel.steps.pipeline.schedules import of_schedule
from costmodel.training.design import RECOMPUTE_BLOCK, RECOMPUTE_FULL, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.pipeline_layout import LAYOUTS


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What one rank of the pipeline of each design runs of a micro-batch; (points,) columns. [-]"""

    #: Layers of each kind; 1 or 0 for the embedding, for the head, and for multi-token prediction.
    counts: tuple[FloatArray, ...]
    rank: FloatArray  #: place in the pipeline, from 0
    #: Of the model on all ranks together; one value where no pipeline has more than one.
    copies: FloatArray = field(default_factory=lambda: np.ones(()))

    @property
    def layers(self) -> tuple[FloatArray, ...]:
        """Layers of each kind. [-]"""
        return self.counts[:-3]

    @property
    def num_layers(self) -> FloatArray:
        """Layers of all kinds. [-]"""
        return sum(self.layers[1:], start=self.layers[0])

    @property
    def has_embedding(self) -> FloatArray:
        """1 on the first stage. [-]"""
        return self.counts[-3]

    @property
    def has_head(self) -> FloatArray:
        """1 on the last stage. [-]"""
        return self.counts[-2]


def chosen_stage(stages: Sequence[Stage], places: IntArray) -> Stage:
    """For each design one of some stages; (points,) places among them."""
    counts = zip(*(stage.counts for stage in stages), strict=True)
    return Stage(
        tuple(chosen(each, places) for each in counts),
        chosen([stage.rank for stage in stages], places),
        stages[0].copies,  # the same for all stages of a design
    )


def slow_stages(model: ModelShape, design: DesignPoints) -> list[Stage]:
    """Stages of which one takes longest: of layers of one kind the last, the first and the second.

    Designs are all of the plain 1F1B of `DesignPoints.plain_pipeline`, or none is.
    """
    pp, vpp = design.pp, design.vpp
    if len(model.kinds) > 1 or not design.plain_pipeline.all():
        return foremost_stages(model, design)
    one, single = np.ones_like(pp), np.where(pp == 1, 1.0, 0.0)
    outer, second = stage_layers(model.num_layers, pp, vpp, np.stack([pp - 1, one]))
    inner = np.where(pp > 2, second, 0.0)
    last, first = Stage((outer, single, one, one), pp - 1), Stage((outer, one, single, single), 0 * pp)
    return [last, first, Stage((inner, 0 * one, 0 * one, 0 * one), one)]


def full_stages(model: ModelShape, design: DesignPoints, held: FloatArray | None = None) -> list[Stage]:
    """Stages of which one is the fullest: of layers of one kind the first, the last, and the second.

    The first stage has most micro-batches in flight; the second, one fewer, but where layers do not divide
    evenly it has more of them. Designs are as for `slow_stages`; of pipelines that are not plain, all stages,
    unless the micro-batches that each rank holds are given: then `leading_stages`.
    """
    if not design.plain_pipeline.all() and held is not None:
        return leading_stages(model, design, held)
    if len(model.kinds) > 1 or not design.plain_pipeline.all():
        return foremost_stages(model, design)
    last, first, inner = slow_stages(model, design)
    own = stage_layers(model.num_layers, design.pp, design.vpp, first.rank)
    first = replace(first, counts=(own, *first.counts[1:]))
    return [first, last, inner] if (inner.counts[0] > own).any() else [first, last]


#: Columns that say which layers are where.
PLACING: Final = (
    "pp",
    "vpp",
    "schedule",
    "first_stage_layers",
    "last_stage_layers",
    "count_embedding",
    "count_loss",
    "pipeline_layout",
)


def every_stage(model: ModelShape, design: DesignPoints) -> list[Stage]:
    """All ranks of the longest pipeline; a design whose pipeline is shorter has nothing on the last ones.

    A rank of a pipeline with two ends has two stages, each for half of the micro-batches.
    """
    placed, unique = differently_placed(design)
    counts, nothing = np.moveaxis(unique.each(rank_layers(model, placed)), 0, -1), 0 * design.pp
    copies = _stages_of_ranks(design)
    return [
        Stage(tuple(counts_of_rank), nothing + rank, copies) for rank, counts_of_rank in enumerate(counts)
    ]


def foremost_stages(model: ModelShape, design: DesignPoints) -> list[Stage]:
    """Stages of 1F1B without those that have no more of anything than one before them; else all.

    Such a one is neither slower than that nor fuller, since later stages never hold more micro-batches. As
    many are returned as some design has; others have their first stage again in place of what they lack.
    """
    if not design.plain_pipeline.all() or np.isfinite(leading_layers(design)).any():
        return every_stage(model, design)
    placed, unique = differently_placed(design)
    counts = rank_layers(model, placed)
    places = foremost(counts)
    counts = unique.each(np.take_along_axis(counts, places[:, :, np.newaxis], axis=1))
    ranks = unique.each(places).astype(np.float64)
    return [
        Stage(tuple(np.ascontiguousarray(counts[:, place].T)), ranks[:, place])
        for place in range(ranks.shape[1])
    ]


def foremost(counts: FloatArray) -> IntArray:
    """Ranks of which none has at most as much of everything as one before it, then the first again.

    Parameters
    ----------
    counts : (points, ranks, kinds) array
        What each rank has of each kind. [-]

    Returns
    -------
    ranks : (points, some) array
        Places along the second axis. [-]

    >>> foremost(np.array([[[3.0, 1.0], [2.0, 1.0], [4.0, 0.0], [4.0, 0.0]]]))
    array([[0, 2]])
    """
    count = counts.shape[1]
    covered = (counts[:, np.newaxis] <= counts[:, :, np.newaxis]).all(axis=3)  # (points, by, whom)
    behind = np.asarray((covered & np.triu(np.ones((count, count), dtype=bool), 1)).any(axis=1))
    return _left_over(behind)


def leading_stages(model: ModelShape, design: DesignPoints, held: FloatArray) -> list[Stage]:
    """All stages without those that have no more of anything than the one before, the first or the second.

    Parameters
    ----------
    model, design
        As for `every_stage`.
    held : (points, ranks) array, or of one value
        Micro-batches that each rank holds at once. [-]

    Notes
    -----
    Such a one is no fuller than some stage that is left: what has no more than another is as much behind
    whatever that one is behind. As many are returned as some design has; others have their first stage again
    in place of what they lack.
    """
    if np.isfinite(leading_layers(design)).any():
        return every_stage(model, design)
    placed, unique = differently_placed(design)
    counts = rank_layers(model, placed)
    ranks = np.arange(counts.shape[1])
    covers: list[BoolArray] = []
    for before in (np.maximum(ranks - 1, 0), np.zeros_like(ranks), np.minimum(ranks, 1)):
        covered = (counts <= counts[:, before]).all(axis=2) & (before < ranks)
        covers.append(covered if held.size == 1 else unique.each(covered) & (held <= held[:, before]))
    places = _left_over(np.logical_or.reduce(covers))
    places = unique.each(places) if held.size == 1 else places
    counts = np.take_along_axis(unique.each(counts), places[:, :, np.newaxis], axis=1)
    copies = _stages_of_ranks(design)
    return [
        Stage(tuple(np.ascontiguousarray(counts[:, n].T)), places[:, n].astype(np.float64), copies)
        for n in range(places.shape[1])
    ]


def _left_over(behind: BoolArray) -> IntArray:
    """Places along the second axis that are not behind, then the first again; (points, some). [-]"""
    rows, places = np.nonzero(~behind)
    ends = np.cumsum(np.bincount(rows, minlength=len(behind)))
    nth = np.arange(rows.size) - np.concatenate([[0], ends[:-1]])[rows]
    found = np.zeros((len(behind), int(nth.max()) + 1), dtype=np.intp)
    found[rows, nth] = places
    return found


def _stages_of_ranks(design: DesignPoints) -> FloatArray:
    """Stages that a rank has: 2 where a pipeline has two ends; one value where none has. [-]"""
    both_ends = of_schedule(design, lambda schedule: schedule.both_ends)
    return np.where(both_ends, 2.0, 1.0) if both_ends.any() else np.ones(())


def counts_layers(design: DesignPoints) -> BoolArray:
    """Where `recompute_layers` says how many layers are recomputed, or are one checkpoint; (points,)."""
    counting: BoolArray = (design.recompute == RECOMPUTE_FULL) & (design.recompute_layers > 0)
    return counting


def leading_layers(design: DesignPoints) -> FloatArray:
    """Layers of each chunk that are recomputed, from its first; infinite where all are. [-]"""
    blocks = counts_layers(design) & (design.recompute_method == RECOMPUTE_BLOCK)
    return np.where(blocks, design.recompute_layers, np.inf)


def differently_placed(design: DesignPoints) -> tuple[DesignPoints, UniqueRows]:
    """Designs that place layers differently, and for each point its own among them; (points,)."""
    leading = leading_layers(design)
    columns = [np.broadcast_to(getattr(design, name), (design.num_points,)) for name in PLACING]
    unique = UniqueRows.of(*columns, np.broadcast_to(leading, columns[0].shape))
    return unique.take(design), unique


def rank_layers(model: ModelShape, design: DesignPoints, leading: FloatArray | None = None) -> FloatArray:
    """`chunk_counts`, of two stages on average where a rank has two."""
    counts = chunk_counts(model, design, leading)
    both_ends = of_schedule(design, lambda schedule: schedule.both_ends)
    if both_ends.any():
        pp, ranks = design.pp[:, np.newaxis], np.arange(counts.shape[1])
        mirrored = np.maximum(pp - 1 - ranks, 0).astype(np.intp)[:, :, np.newaxis]
        halves = (counts + np.take_along_axis(counts, mirrored, axis=1)) / 2
        turned = both_ends[:, np.newaxis] & (ranks < pp)
        counts = np.where(turned[:, :, np.newaxis], halves, counts)
    return counts


def chunk_counts(model: ModelShape, design: DesignPoints, leading: FloatArray | None = None) -> FloatArray:
    """Layers and other parts that each rank has, as the counts of a `Stage`; (points, ranks, kinds + 3). [-]

    Chunks follow one another over the ranks, vpp rounds of them; the second round comes back where the
    schedule is a V. With `leading`, (points,), only so many layers count of each chunk, from its first.
    """
    sizes, rank = chunk_sizes(model.num_layers, design)
    starts = sizes.cumsum(axis=1) - sizes
    ends = starts + (sizes if leading is None else np.minimum(sizes, leading[:, np.newaxis]))
    kinds, first = [*model.kinds], 0.0
    counts = np.zeros((design.pp.size, int(design.pp.max()), len(kinds) + 3))
    places = np.arange(design.pp.size)[:, np.newaxis], rank
    for layer, count in model.sequence:
        inside = np.minimum(ends, first + count) - np.maximum(starts, first)
        np.add.at(counts[:, :, kinds.index(layer)], places, np.maximum(inside, 0.0))
        first += count
    chunk, last = np.arange(rank.shape[1]), (design.pp * design.vpp - 1)[:, np.newaxis]
    mtp = last[:, 0]
    for code in written_layouts(design):
        mtp = np.where(design.pipeline_layout == code, LAYOUTS.layout(code).mtp, mtp)
    for place, there in ((-3, chunk == 0 * last), (-2, chunk == last), (-1, chunk == mtp[:, np.newaxis])):
        np.add.at(counts[:, :, place], places, there.astype(np.float64))
    return counts


def chunk_sizes(num_layers: float, design: DesignPoints) -> tuple[FloatArray, IntArray]:
    """Layers of each chunk, in the order of the model, and the rank that has it; (points, chunks). [-]

    Layers of a stage that do not divide evenly go to its first chunks. Where the embedding or the loss
    counts as a layer, the first or the last chunk has one layer less; a first or last stage whose layers are
    stated has those, and the others share the rest evenly [Narayanan2021]_.
    """
    p, v = design.pp[:, np.newaxis], design.vpp[:, np.newaxis]
    chunk = np.arange(int((design.pp * design.vpp).max()))
    turned = of_schedule(design, lambda schedule: schedule.turns)[:, np.newaxis] & (chunk >= p)
    rank, turn = np.where(turned, 2 * p - 1 - chunk, chunk % p), chunk // p
    first, last, embedding, loss = (getattr(design, name)[:, np.newaxis] for name in PLACING[3:-1])
    own = stage_layers(num_layers + embedding + loss, p, v, rank)
    given = (first > 0).astype(np.float64) + (last > 0)
    others = np.maximum(p - given, 1.0)
    rest = np.maximum(num_layers + embedding + loss - first - last, 0.0)
    share = np.floor(rest / others) + (rank - (first > 0) < rest % others)
    own = np.where(given > 0, share, own)
    own = np.where((first > 0) & (rank == 0), first, own)
    own = np.where((last > 0) & (rank == p - 1), last, own)
    sizes = np.floor(own / v) + (turn < own % v)
    sizes = sizes - embedding * (chunk == 0) - loss * (chunk == p * v - 1)
    there = chunk < p * v
    sizes = np.where(there, np.maximum(sizes, 0.0), 0.0)
    for code in written_layouts(design):
        rows = design.pipeline_layout == code
        sizes[rows] = written_sizes(num_layers, code, design.pp[rows] * design.vpp[rows], chunk.size)
    return sizes, np.where(there, rank, 0).astype(np.intp)


def written_layouts(design: DesignPoints) -> list[int]:
    """Codes of the `LAYOUTS` that some designs have, other than even ones."""
    return [int(code) for code in np.unique(design.pipeline_layout) if code > 0]


def written_sizes(num_layers: float, code: int, chunks: FloatArray, longest: int) -> FloatArray:
    """Layers of each chunk by one of the `LAYOUTS`; (longest,). [-]

    Raises
    ------
    DseError
        If it has other chunks than a design, or other layers than the model.
    """
    layout = LAYOUTS.layout(code)
    if (other := chunks[chunks != len(layout.layers)]).size or sum(layout.layers) != num_layers:
        raise DseError(
            f"pipeline_layout: {LAYOUTS[code]}: {sum(layout.layers):g} layers, {len(layout.layers)} chunks; "
            f"expected {num_layers:g} in pp * vpp = {[*other, len(layout.layers)][0]:g}"
        )
    return np.pad(np.array(layout.layers), (0, longest - len(layout.layers)))


def stage_layers(num_layers: float, pp: FloatArray, vpp: FloatArray, rank: FloatArray) -> FloatArray:
    """Layers of the stage at some place in the pipeline, from 0. [-]

    Layers that do not divide evenly go to inner stages first, since the first and the last carry the
    embedding and the head as well; of these the last has the odd one.

    Parameters
    ----------
    num_layers : float
        Layers of the model. [-]
    pp, vpp, rank : arrays that broadcast against each other
        Stages, model chunks per stage, and the place. [-]
    """
    even = np.floor(num_layers / (pp * vpp)) * vpp
    left_over, inner = num_layers - even * pp, np.maximum(pp - 2, 0.0)
    shared = np.minimum(left_over, inner * vpp)
    share = np.ceil((shared - (rank - 1)) / np.maximum(inner, 1))
    rest = left_over - shared
    last = np.where(pp == 1, rest, np.ceil(rest / 2))
    return even + np.where(rank == pp - 1, last, np.where(rank == 0, np.floor(rest / 2), share))


def bubble_time(
    slowest_stage_time: FloatArray,
    all_stages_time: FloatArray,
    *,
    pp: FloatArray,
    vpp: FloatArray,
    gradient_accumulation_steps: FloatArray,
) -> FloatArray:
    """Time that the slowest stage waits for others in 1F1B, interleaved when vpp > 1. [s]

    Parameters
    ----------
    slowest_stage_time, all_stages_time : (points,) array
        Forward and backward of one micro-batch on the slowest stage, and on all stages one after the
        other. [s]
    pp, vpp, gradient_accumulation_steps : (points,) array
        Stages, chunks per stage, micro-batches. [-]

    Returns
    -------
    bubble : (points,) array
        Filling and draining, 1/vpp of a pass through all other stages; equal stages give the
        (p - 1) / (m v) of the ideal time of [Narayanan2021]_. Micro-batches run in groups of pp when
        interleaved: a last group that is not full still waits for its missing members in all chunks
        but one. [s]
    """
    missing = np.mod(-gradient_accumulation_steps, pp)
    ragged = missing * slowest_stage_time * (vpp - 1) / vpp
    return (all_stages_time - slowest_stage_time) / vpp + ragged


def micro_batches_in_flight(
    rank: FloatArray, *, pp: FloatArray, vpp: FloatArray, gradient_accumulation_steps: FloatArray
) -> FloatArray:
    """Micro-batches whose activations a stage holds at once, in all of its chunks on average. [-]

    1F1B keeps p - i of them on stage i. Interleaved, stage i runs 2 (p - 1 - i) + (v - 1) p chunks forward
    before its first backward pass, and then one more; a chunk is a v-th of the stage. On the first stage
    that is p (1 + (p - 1) / (p v)) [Korthikanti2022]_. There are never more than all m.

    Parameters
    ----------
    rank : (points,) array
        Place of the stage in the pipeline, from 0. [-]
    pp, vpp, gradient_accumulation_steps : (points,) array
        Stages, chunks per stage, micro-batches. [-]

    Returns
    -------
    in_flight : (points,) array
        Micro-batches. [-]
    """
    interleaved = pp * (1 + (pp - 1 - 2 * rank) / (pp * vpp))
    return np.minimum(np.where(vpp > 1, interleaved, pp - rank), gradient_accumulation_steps)
