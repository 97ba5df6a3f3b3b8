"""Which layers each rank of a pipeline has, and the stages that decide on the time and memory of a step.

Chunks of the model follow one another over the ranks. Most ranks of a pipeline have the same layers, so that
a few stages stand for all of them: the first one of each run of equal stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, UniqueRows, chosen
from costmodel.errors import DseError
from costmodel.steps.pipeline.schedules import of_schedule
from costmodel.steps.pipeline.timed_pipelines import design_pipelines, rank_counts
from costmodel.training.design import LAYOUTS, RECOMPUTE_BLOCK, RECOMPUTE_FULL, DesignPoints
from costmodel.training.model import ModelShape


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Layers and other parts of the model on one rank of the pipeline of each design; (points,) columns. [-]"""

    #: Layers of each kind; 1 or 0 for the embedding, for the head, and for multi-token prediction.
    counts: tuple[FloatArray, ...]
    rank: FloatArray  #: place in the pipeline, from 0
    #: Of the model on all ranks together; one value where no pipeline has more than one.
    copies: FloatArray = field(default_factory=lambda: np.ones(()))
    #: Shares of the layers of each kind that full recomputation repeats; none where those are 1 in every design.
    recomputed_shares: Sequence[FloatArray] = ()

    @property
    def recomputed_layers(self) -> Sequence[FloatArray]:
        """Layers of each kind that full recomputation repeats. [-]"""
        if not self.recomputed_shares:
            return self.layers
        return [layers * share for layers, share in zip(self.layers, self.recomputed_shares, strict=True)]

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
    columns = zip(*((*stage.counts, *stage.recomputed_shares, stage.rank) for stage in stages), strict=True)
    *tables, rank = (chosen(values, places) for values in columns)
    first, kinds = stages[0], len(stages[0].counts)
    return Stage(tuple(tables[:kinds]), rank, first.copies, tables[kinds:])  # copies are equal in all stages


#: Columns that say which layers are where.
PLACING: Final = (
    *("pp", "vpp", "schedule", "first_stage_layers", "last_stage_layers"),
    *("count_embedding", "count_loss", "pipeline_layout"),
)


@dataclass(frozen=True, slots=True, eq=False)
class PipelineStages:
    """Stages of each pipeline that decide on the time and memory of a step; lists of `Stage`, (points,) columns.

    A pipeline with fewer of them than others repeats its last one.
    """

    #: First stages of runs of equal stages, in the order of the pipeline; all stages where a schedule overlaps pairs of
    #: passes, whose number differs between ranks.
    runs: list[Stage]
    #: Stages that no other stage exceeds in everything.
    foremost: list[Stage]


def pipeline_stages(model: ModelShape, design: DesignPoints) -> PipelineStages:
    """Stages that decide on times (`PipelineStages.runs`) and on memory and exchanges (`foremost`).

    Of the latter a stage is none if another has at least its layers of every kind, recomputed or not, and holds at
    least its micro-batches. Under 1F1B a stage never holds more micro-batches than a stage before it.
    """
    in_turn, leading = bool(design.is_1f1b.all()), np.broadcast_to(leading_layers(design), (design.num_points,))
    names = PLACING if in_turn else (*PLACING, "gradient_accumulation_steps", "group_size")
    unique = UniqueRows.of(leading, *(getattr(design, name) for name in names))
    placed = unique.take(design)
    counts = contents = rank_layers(model, placed)
    if (again := recomputed_on_ranks(model, placed)) is not None:
        contents = np.concatenate([counts - again, again], axis=2)
    exists = np.arange(counts.shape[1]) < placed.pp[:, np.newaxis]
    begins = exists.copy()
    begins[:, 1:] &= (contents[:, 1:] != contents[:, :-1]).any(axis=2)
    if not in_turn:
        last = np.arange(counts.shape[1]) == placed.pp[:, np.newaxis] - 1
        turns, pairs = (of_schedule(placed, name)[:, np.newaxis] for name in ("turns", "pairs"))
        begins |= exists & (pairs | (turns & last))
        held = rank_counts(design_pipelines(placed)).until_w[:, :, np.newaxis]
        contents = np.concatenate([contents, held], axis=2)
    foremost = _foremost(contents, exists, in_turn=in_turn)
    shares, copies = recomputed_shares(counts, again), _copies(design)
    return PipelineStages(*(_stages_at(counts, shares, ranks, unique, copies) for ranks in (begins, foremost)))


def _foremost(contents: FloatArray, exists: BoolArray, *, in_turn: bool) -> BoolArray:
    """Ranks that no other rank exceeds in everything, the first of equal ones; (points, ranks).

    Only first ranks of runs of equal contents are compared. With `in_turn` only earlier ranks count.
    """
    first = exists.copy()
    first[:, 1:] &= (contents[:, 1:] != contents[:, :-1]).any(axis=2)
    number = int(first.sum(axis=1).max())
    ranks = np.argsort(~first, axis=1, kind="stable")[:, :number]  # (points, number)
    firsts = np.take_along_axis(contents, ranks[:, :, np.newaxis], axis=1)
    covered = np.asarray((firsts[:, np.newaxis] <= firsts[:, :, np.newaxis]).all(axis=3))  # (points, by, whom)
    covered &= np.take_along_axis(first, ranks, axis=1)[:, :, np.newaxis]
    behind = np.triu(covered, 1)
    if not in_turn:
        behind |= covered & ~np.swapaxes(covered, 1, 2)
    np.put_along_axis(first, ranks, np.take_along_axis(first, ranks, axis=1) & ~behind.any(axis=1), axis=1)
    return first


def _stages_at(
    counts: FloatArray, shares: FloatArray | None, ranks: BoolArray, unique: UniqueRows, copies: FloatArray
) -> list[Stage]:
    """Stages of some ranks, in their order; the last is repeated where others have more."""
    order, last, stages = np.argsort(~ranks, axis=1, kind="stable"), ranks.sum(axis=1) - 1, []
    points = np.arange(last.size)
    for index in range(int(last.max()) + 1):
        rank = order[points, np.minimum(index, last)]
        columns = [
            [] if table is None else [unique.each(column) for column in np.ascontiguousarray(table[points, rank].T)]
            for table in (counts, shares)
        ]
        stages.append(Stage(tuple(columns[0]), unique.each(rank.astype(np.float64)), copies, columns[1]))
    return stages


def every_stage(model: ModelShape, design: DesignPoints) -> list[Stage]:
    """All ranks of the longest pipeline; a design whose pipeline is shorter has nothing on the last ones.

    A rank of a pipeline with two ends has two stages, each for half of the micro-batches.
    """
    counts, copies = rank_layers(model, design), _copies(design)
    shares, stages = recomputed_shares(counts, recomputed_on_ranks(model, design)), []
    for rank in range(counts.shape[1]):
        again = () if shares is None else [*shares[:, rank].T]
        stages.append(Stage((*counts[:, rank].T,), 0 * design.pp + rank, copies, again))
    return stages


def _copies(design: DesignPoints) -> FloatArray:
    """Stages on each rank: 2 in a pipeline with two ends; one value where no pipeline has two. [-]"""
    both_ends = of_schedule(design, "both_ends")
    return np.where(both_ends, 2.0, 1.0) if both_ends.any() else np.ones(())


def counts_layers(design: DesignPoints) -> BoolArray:
    """Where `recompute_layers` says how many layers are recomputed, or are one checkpoint; (points,)."""
    return np.asarray((design.recompute == RECOMPUTE_FULL) & (design.recompute_layers > 0))


def leading_layers(design: DesignPoints) -> FloatArray:
    """Layers of each chunk that are recomputed, from its first; infinite where all are. [-]"""
    blocks = counts_layers(design) & (design.recompute_method == RECOMPUTE_BLOCK)
    return np.where(blocks, design.recompute_layers, np.inf)


def recomputed_on_ranks(model: ModelShape, design: DesignPoints) -> FloatArray | None:
    """Part of `rank_layers` that full recomputation repeats: the first layers of each chunk; None where all. [-]"""
    leading = leading_layers(design)
    return rank_layers(model, design, leading) if np.isfinite(leading).any() else None


def recomputed_shares(counts: FloatArray, again: FloatArray | None) -> FloatArray | None:
    """Shares of the layers of each kind that are among those of `again`, 1 of none; None where `again` is. [-]"""
    if again is None:
        return None
    counts, again = counts[..., :-3], again[..., :-3]
    return np.divide(again, counts, out=np.ones(counts.shape), where=counts > 0)


def rank_layers(model: ModelShape, design: DesignPoints, leading: FloatArray | None = None) -> FloatArray:
    """`chunk_counts`, of two stages on average where a rank has two."""
    counts = chunk_counts(model, design, leading)
    both_ends = of_schedule(design, "both_ends")
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
    schedule is a V. With `leading`, (points,), only the first `leading` layers of each chunk count. [-]
    """
    sizes, rank = chunk_sizes(model.num_layers, design)
    starts = sizes.cumsum(axis=1) - sizes
    ends = starts + (sizes if leading is None else np.minimum(sizes, leading[:, np.newaxis]))
    kinds, first = [*model.kinds], 0.0
    counts = np.zeros((design.pp.size, int(design.pp.max()), len(kinds) + 3))
    cell = (np.arange(design.pp.size)[:, np.newaxis] * counts.shape[1] + rank).ravel()

    def on_ranks(of_chunks: FloatArray | BoolArray) -> FloatArray:
        """Sums over the chunks of each rank; (points, ranks). [-]"""
        sums = np.bincount(cell, of_chunks.ravel(), minlength=counts[..., 0].size)
        return np.asarray(sums, dtype=np.float64).reshape(counts.shape[:2])

    for layer, count in model.sequence:
        inside = np.minimum(ends, first + count) - np.maximum(starts, first)
        counts[:, :, kinds.index(layer)] += on_ranks(np.maximum(inside, 0.0))
        first += count
    chunk, last = np.arange(rank.shape[1]), (design.pp * design.vpp - 1)[:, np.newaxis]
    mtp = last[:, 0]
    for code in written_layouts(design):
        mtp = np.where(design.pipeline_layout == code, LAYOUTS.layout(code).mtp, mtp)
    for part, of_chunks in ((-3, chunk == 0 * last), (-2, chunk == last), (-1, chunk == mtp[:, np.newaxis])):
        counts[:, :, part] = on_ranks(of_chunks)
    return counts


def chunk_sizes(num_layers: float, design: DesignPoints) -> tuple[FloatArray, IntArray]:
    """Layers of each chunk, in the order of the model, and the rank that has it; (points, chunks). [-]

    Layers of a stage that do not divide evenly go to its first chunks. Where the embedding or the loss
    counts as a layer, the first or the last chunk has one layer less; a first or last stage whose layers are
    stated has those, and the others share the rest evenly [Narayanan2021]_.
    """
    p, v = design.pp[:, np.newaxis], design.vpp[:, np.newaxis]
    chunk = np.arange(int((design.pp * design.vpp).max()))
    turned = of_schedule(design, "turns")[:, np.newaxis] & (chunk >= p)
    rank, turn = np.where(turned, 2 * p - 1 - chunk, chunk % p), chunk // p
    first, last, embedding, loss = (getattr(design, name)[:, np.newaxis] for name in PLACING[3:-1])
    layers = stage_layers(num_layers + embedding + loss, p, v, rank)
    if (given := (first > 0).astype(np.float64) + (last > 0)).any():
        others = np.maximum(p - given, 1.0)
        rest = np.maximum(num_layers + embedding + loss - first - last, 0.0)
        share = np.floor(rest / others) + (rank - (first > 0) < rest % others)
        layers = np.where(given > 0, share, layers)
        layers = np.where((first > 0) & (rank == 0), first, layers)
        layers = np.where((last > 0) & (rank == p - 1), last, layers)
    sizes = np.floor(layers / v) + (turn < layers % v)
    sizes = sizes - embedding * (chunk == 0) - loss * (chunk == p * v - 1)
    exists = chunk < p * v
    sizes = np.where(exists, np.maximum(sizes, 0.0), 0.0)
    for code in written_layouts(design):
        rows = design.pipeline_layout == code
        sizes[rows] = written_sizes(num_layers, code, design.pp[rows] * design.vpp[rows], chunk.size)
    return sizes, np.where(exists, rank, 0).astype(np.intp)


def written_layouts(design: DesignPoints) -> list[int]:
    """Codes of the `LAYOUTS` that some designs have, other than even ones."""
    return [int(code) for code in np.unique(design.pipeline_layout[design.pipeline_layout > 0])]


def written_sizes(num_layers: float, code: int, chunks: FloatArray, longest: int) -> FloatArray:
    """Layers of each chunk by one of the `LAYOUTS`; (longest,). [-]

    Raises `DseError` if it has other chunks than a design, or other layers than the model.
    """
    layout = LAYOUTS.layout(code)
    if (other := chunks[chunks != len(layout.layers)]).size or sum(layout.layers) != num_layers:
        raise DseError(
            f"pipeline_layout: {LAYOUTS[code]}: {sum(layout.layers):g} layers, {len(layout.layers)} chunks; "
            f"expected {num_layers:g} in pp * vpp = {[*other, len(layout.layers)][0]:g}"
        )
    return np.pad(np.array(layout.layers), (0, longest - len(layout.layers)))


def stage_layers(num_layers: float, pp: FloatArray, vpp: FloatArray, rank: FloatArray) -> FloatArray:
    """Layers of the stage of a `rank`, from 0, as arrays that broadcast against each other. [-]

    Layers that do not divide evenly go to inner stages first, since the first and the last carry the
    embedding and the head as well; of these the last has the odd one.
    """
    even = np.floor(num_layers / (pp * vpp)) * vpp
    left_over, inner = num_layers - even * pp, np.maximum(pp - 2, 0.0)
    shared = np.minimum(left_over, inner * vpp)
    share = np.ceil((shared - (rank - 1)) / np.maximum(inner, 1))
    rest = left_over - shared
    last = np.where(pp == 1, rest, np.ceil(rest / 2))
    return even + np.where(rank == pp - 1, last, np.where(rank == 0, np.floor(rest / 2), share))
