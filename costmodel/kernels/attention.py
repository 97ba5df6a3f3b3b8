"""Fused attention: scores stay on chip, so that memory sees queries, keys, values and the output alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.training.run import RankRun

#: Rows of queries that a core works on at once, as in the published kernels. [elements]
QUERY_TILE = 128.0


@dataclass(frozen=True, slots=True)
class FusedPass:
    """What one pass of the kernel does per score."""

    products: float  #: matrix products with the scores' tile
    vector_flops: float  #: for scale, mask, running maximum, exponential, sum [FLOP]
    reads: tuple[float, float]  #: tensors of query width and of key width moved through memory


#: Pass -> work. The backward pass recomputes the scores, then forms four gradients [Dao2022]_.
FUSED_PASSES = {
    "forward": FusedPass(2, 16, (2, 2)),
    "backward": FusedPass(5, 40, (5, 4)),
}


@dataclass(frozen=True, slots=True)
class FusedAttentionCost:
    """Cost of one layer's attention core; every array has shape (points,)."""

    time: FloatArray  #: [s]
    memory_bound: BoolArray  #: whether a memory level takes longer than matrix units and vector lanes
    flops: FloatArray  #: matrix work done, causal half [FLOP]
    traffic: tuple[FloatArray, ...]  #: per memory level, nearest first [B]


def causal_share(seq_len: float) -> float:
    """Share of the scores' tiles that causal attention visits: half, and the diagonal. [-]

    >>> causal_share(2048.0)
    0.53125
    """
    tiles = np.ceil(seq_len / QUERY_TILE)
    return float((tiles + 1) / (2 * tiles))


def fused_attention(run: RankRun, of_pass: str) -> FusedAttentionCost:
    """Time, work and traffic of the fused attention core of one layer and micro-batch.

    Parameters
    ----------
    run : RankRun
        Model, machines and what a rank sees of the designs, (points,).
    of_pass : str
        A key of `FUSED_PASSES`.

    Returns
    -------
    cost : FusedAttentionCost
        (points,) columns; all zero where attention is not fused.

    Notes
    -----
    Matrix units and vector lanes take turns on a tile, so their times add up. Each tile of queries
    streams its keys and values from the second level; the third sees each tensor once.
    """
    work, model, shape = FUSED_PASSES[of_pass], run.model, run.design
    chip, memory = run.system.chip, run.system.memory
    fused = np.where(shape.attention > 0, 1.0, 0.0)
    heads = fused * shape.micro_batch_size * model.num_attention_heads / shape.tp
    scores = heads * model.seq_len**2 * causal_share(model.seq_len)
    flops = scores * work.products * 2 * model.head_size
    tiles = heads * np.ceil(model.seq_len / QUERY_TILE)
    idle = np.ceil(tiles / chip.cores) * chip.cores / np.maximum(tiles, 1.0)
    arithmetic = flops / chip.matrix_flop_rate + scores * work.vector_flops / chip.vector_flop_rate
    queries, keys = work.reads
    tokens = fused * shape.micro_batch_size * model.seq_len
    w = run.precision.element_bytes
    once = w * tokens * (queries * model.attention_size + keys * model.key_value_size) / shape.tp
    streamed = once + w * scores / QUERY_TILE * keys * model.head_size
    feed = w * scores * work.products * model.head_size / QUERY_TILE
    traffic = (feed, streamed, *[once for _ in memory[2:]])[: len(memory)]
    transfer = [
        moved / (level.bandwidth * level.efficiency)
        for moved, level in zip(traffic[1:], memory[1:], strict=True)
    ]
    busy = arithmetic * idle
    moving = np.maximum.reduce(np.broadcast_arrays(*transfer, busy)[:-1])
    time = np.maximum(busy, moving) + fused * chip.kernel_launch
    return FusedAttentionCost(time, moving > busy, flops, traffic)
