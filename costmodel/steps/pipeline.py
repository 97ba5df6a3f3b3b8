"""Pipeline schedules: layers per stage, bubble, micro-batches in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray, IntArray, chosen, distinct_rows
from costmodel.training.model import ModelShape


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One stage of the pipeline of each design; (points,) columns. [-]"""

    layers: tuple[FloatArray, ...]  #: of each kind that the model has
    has_embedding: FloatArray  #: 1 on the first stage
    has_head: FloatArray  #: 1 on the last
    rank: FloatArray  #: place in the pipeline, from 0

    @property
    def num_layers(self) -> FloatArray:
        """Layers of all kinds. [-]"""
        return sum(self.layers[1:], start=self.layers[0])


def chosen_stage(stages: Sequence[Stage], places: IntArray) -> Stage:
    """For each design one of some stages; (points,) places among them."""
    kinds = zip(*(stage.layers for stage in stages), strict=True)
    return Stage(
        layers=tuple(chosen(columns, places) for columns in kinds),
        has_embedding=chosen([stage.has_embedding for stage in stages], places),
        has_head=chosen([stage.has_head for stage in stages], places),
        rank=chosen([stage.rank for stage in stages], places),
    )


def slow_stages(model: ModelShape, pp: FloatArray, vpp: FloatArray) -> list[Stage]:
    """Stages of which one takes longest: of layers of one kind the ends and the fullest between."""
    if len(model.kinds) > 1:
        return every_stage(model, pp, vpp)
    outer, inner = stage_layers(model.num_layers, pp, vpp)
    one, single = np.ones_like(pp), np.where(pp == 1, 1.0, 0.0)
    return [
        Stage((outer,), single, one, pp - 1),
        Stage((outer,), one, single, 0 * pp),
        Stage((inner,), 0 * one, 0 * one, one),
    ]


def full_stages(model: ModelShape, pp: FloatArray, vpp: FloatArray) -> list[Stage]:
    """Stages of which one is the fullest: of layers of one kind the first and the last.

    The first stage has most micro-batches in flight; an inner second stage, when fuller in layers, has
    one fewer, so layers are counted by the fuller of the two.
    """
    if len(model.kinds) > 1:
        return every_stage(model, pp, vpp)
    last, first, inner = slow_stages(model, pp, vpp)
    fuller = np.maximum(first.layers[0], inner.layers[0])
    return [Stage((fuller,), first.has_embedding, first.has_head, first.rank), last]


def every_stage(model: ModelShape, pp: FloatArray, vpp: FloatArray) -> list[Stage]:
    """All stages of the longest pipeline; a design whose pipeline is shorter has nothing on the last ones."""
    rows, back = distinct_rows(pp, vpp)
    counts = layers_by_kind(model, pp[rows], vpp[rows])[back]
    return [
        Stage(
            layers=tuple(np.moveaxis(counts[:, rank], -1, 0)),
            has_embedding=np.where(rank == 0, 1.0, 0.0 * pp),
            has_head=np.where(rank == pp - 1, 1.0, 0.0),
            rank=rank + 0.0 * pp,
        )
        for rank in range(counts.shape[1])
    ]


def layers_by_kind(model: ModelShape, pp: FloatArray, vpp: FloatArray) -> FloatArray:
    """Layers of each kind on each stage; (points, stages, kinds). [-]

    Chunks follow one another over the stages, vpp rounds of them. Layers that do not divide evenly go to
    inner stages first, as in `stage_layers`, and on a stage to its first chunks.
    """
    stages, rounds = int(pp.max()), int(vpp.max())
    chunk = np.arange(stages * rounds)
    p, v = pp[:, np.newaxis], vpp[:, np.newaxis]
    rank, turn = chunk % p, chunk // p
    even = np.floor(model.num_layers / (p * v))
    extra = np.take_along_axis(_further_layers(model.num_layers, pp, vpp), rank.astype(np.intp), axis=1)
    sizes = np.where(turn < v, even + (turn < extra), 0.0)
    ends = sizes.cumsum(axis=1)
    counts = np.zeros((pp.size, stages, len(model.kinds)))
    first, rows = 0.0, np.broadcast_to(np.arange(pp.size)[:, np.newaxis], rank.shape)
    for layer, count in model.sequence:
        inside = np.minimum(ends, first + count) - np.maximum(ends - sizes, first)
        own = counts[:, :, model.kinds.index(layer)]
        np.add.at(own, (rows, rank.astype(np.intp)), np.maximum(inside, 0.0))
        first += count
    return counts


def _further_layers(num_layers: float, pp: FloatArray, vpp: FloatArray) -> FloatArray:
    """Layers of each stage beyond an even share; (points, stages). [-]"""
    rank = np.arange(int(pp.max()))
    p, v = pp[:, np.newaxis], vpp[:, np.newaxis]
    left_over = num_layers - np.floor(num_layers / (p * v)) * v * p
    between = np.maximum(p - 2, 0.0)
    share = np.floor(left_over / np.maximum(between, 1)) + (rank - 1 < left_over % np.maximum(between, 1))
    inner = np.where((rank > 0) & (rank < p - 1), np.minimum(share, v), 0.0)
    rest = left_over - inner.sum(axis=1, keepdims=True)
    first, last = np.where(p == 1, rest, np.floor(rest / 2)), np.where(p == 1, rest, np.ceil(rest / 2))
    return np.where(rank == 0, first, np.where(rank == p - 1, last, inner))


def stage_layers(num_layers: float, pp: FloatArray, vpp: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Layers of an outer (first or last) stage, and of the fullest inner one. [-]

    Layers that do not divide evenly go to inner stages first, since the outer ones carry the embedding
    and the head as well.

    Parameters
    ----------
    num_layers : float
        Layers of the model. [-]
    pp, vpp : (points,) array
        Stages, and model chunks per stage. [-]

    Returns
    -------
    outer, inner : (points,) array
        Layers; `inner` is 0 where there are only outer stages. [-]
    """
    chunks = pp * vpp
    even = np.floor(num_layers / chunks) * vpp
    left_over = num_layers - even * pp
    inner_stages = np.maximum(pp - 2, 0.0)
    outer = even + np.where(
        left_over > inner_stages * vpp, np.ceil((left_over - inner_stages * vpp) / 2), 0.0
    )
    outer = np.where(pp == 1, num_layers, np.minimum(outer, even + vpp))
    inner = np.where(
        inner_stages > 0, even + np.minimum(np.ceil(left_over / np.maximum(inner_stages, 1)), vpp), 0.0
    )
    return outer, inner


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
