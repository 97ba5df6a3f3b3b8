"""Which layers of a stage are recomputed as a whole, where not all of them are one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.columns import FloatArray, UniqueRows
from costmodel.kernels.kernel_cost import KernelCost
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.pipeline.stages import PLACING, Stage, counts_layers, leading_layers, rank_layers
from costmodel.training.design import RECOMPUTE_BLOCK, DesignPoints
from costmodel.training.run import TransformerRun


def checkpoint_layers(design: DesignPoints) -> FloatArray:
    """Layers that are one checkpoint. [-]"""
    uniform = counts_layers(design) & (design.recompute_method != RECOMPUTE_BLOCK)
    return np.where(uniform, design.recompute_layers, 1.0)


def recomputed_shares_of_model(run: TransformerRun) -> list[FloatArray] | None:
    """Shares of the layers of each kind that all stages together recompute; None where that is all of every design. [-]

    The first layers of each chunk are recomputed, of any kind.
    """
    design, leading = run.design, leading_layers(run.design)
    if not np.isfinite(leading).any():
        return None
    unique = UniqueRows.of(np.broadcast_to(leading, design.pp.shape), *(getattr(design, name) for name in PLACING))
    placed = unique.take(design)
    counts = unique.each(rank_layers(run.model, placed, leading_layers(placed)).sum(axis=1))
    return [again / count for again, count in zip(counts.T, run.model.kinds.values(), strict=False)]


def with_shares(
    whole: Sequence[KernelCost], costs: MicroBatch, shares: Sequence[FloatArray] | None
) -> list[KernelCost]:
    """All passes of each part of which a share of layers is recomputed. [s], [J]

    `whole` are all passes, recomputation included (`costs.whole`); `shares` are those of each kind of layer, (points,)
    each, or None where all are recomputed. [-]
    """
    if shares is None:
        return [*whole]
    both = zip(whole, costs.again, shares, strict=False)
    return [*(cost + again * (share - 1) for cost, again, share in both), *whole[len(shares) :]]


def stage_parts(run: TransformerRun, stage: Stage, parts: Sequence[PartMemory]) -> Sequence[PartMemory]:
    """Memory of layers on a stage, the mean of those that are recomputed and those that are not, (points,). [-], [B]

    `parts` are those of the model, every layer recomputed for itself, (points,). [-], [B]

    Of n layers that are one checkpoint the input of the first is kept, and all n are there again at once.
    A layer in front of others that are not recomputed takes their place: their activations are free by then.
    """
    design, layers = run.design, parts[: len(stage.layers)]
    if (design.recomputed_modules > 0).any():
        layers = [_without_absent(design, *pair) for pair in zip(layers, stage.layers, strict=True)]
    if counts_layers(design).any():
        layers = _with_counted(run, stage, layers)
    return [*layers, *parts[len(layers) :]]


def _without_absent(design: DesignPoints, layer: PartMemory, count: FloatArray) -> PartMemory:
    """A kind of layer of which nothing is recomputed by module on a stage that has none of the kind."""
    absent = (design.recomputed_modules > 0) & (count == 0)
    again = np.where(absent, layer.everything - layer.kept, 0.0)
    return replace(layer, working=layer.working - again)


def _with_counted(run: TransformerRun, stage: Stage, layers: Sequence[PartMemory]) -> list[PartMemory]:
    """Layers of a stage of which some are recomputed, or several at once."""
    design, together, leading = run.design, checkpoint_layers(run.design), leading_layers(run.design)
    shares = stage.recomputed_shares or [np.ones_like(together) for _ in layers]
    per_chunk, more = np.divmod(stage.num_layers, design.vpp)
    checkpoints = np.ceil(per_chunk / together) * (design.vpp - more) + np.ceil((per_chunk + 1) / together) * more
    inputs = np.divide(checkpoints, stage.num_layers, out=np.ones(checkpoints.shape), where=stage.num_layers > 0)
    alive = np.maximum(np.minimum(together, per_chunk + (more > 0)), 1.0)
    behind = np.where(np.isfinite(leading), np.maximum(per_chunk - leading, 0.0), 0.0)
    least = np.minimum.reduce(np.broadcast_arrays(*(layer.everything for layer in layers)))
    memories = []
    for layer, share in zip(layers, shares, strict=True):
        everything = layer.everything
        freed = np.where(behind > 0, np.minimum(behind * least, everything), 0.0)
        kept = layer.kept * inputs * share + everything * (1 - share)
        memories.append(replace(layer, kept=kept, working=layer.working + everything * (alive - 1) - freed))
    return memories
