"""Fused attention: scores stay on chip, so that memory sees queries, keys, values and the output alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.training.design import CP_A2A, FLASH_ATTENTION_1, FLASH_ATTENTION_2
from costmodel.training.kernel_kind import Kernel
from costmodel.training.model import ModelShape
from costmodel.training.run import RankRun

#: Rows of queries that a core works on at once, as in the published kernels. [elements]
QUERY_TILE = 128.0
#: Head sizes that FlashAttention has kernels for are multiples of so many; others are padded [Dao2022]_. [-]
HEAD_MULTIPLE = 32.0
#: Rate of the first FlashAttention over that of the second: half, forward and backward [Dao2022]_. [-]
FLASH_1_RATE = 0.5


@dataclass(frozen=True, slots=True)
class FusedPass:
    """Work of one pass of fused attention, per score."""

    score_products: float  #: matrix products of the scores' tile along the width of keys
    value_products: float  #: ... and along the width of values
    vector_flops: float  #: for scale, mask, running maximum, exponential, sum [FLOP]
    reads: tuple[float, float]  #: tensors of query width and of key width moved through memory


#: Pass -> work. The backward pass recomputes the scores, then forms four gradients [Dao2022]_.
FUSED_PASSES = {"forward": FusedPass(1, 1, 16, (2, 2)), "backward": FusedPass(3, 2, 40, (5, 4))}


@dataclass(frozen=True, slots=True)
class FusedAttentionCost:
    """Cost of one layer's attention core; every array has shape (points,)."""

    time: FloatArray  #: [s]
    memory_bound: BoolArray  #: whether a memory level takes longer than matrix units and vector lanes
    flops: FloatArray  #: matrix work done, causal half [FLOP]
    traffic: tuple[FloatArray, ...]  #: per memory level, nearest first [B]


def visited_share(seq_len: float, window: float = np.inf, context_len: float = 0.0) -> float:
    """Share of the scores' tiles that causal attention visits: half, and the diagonal; less in a window. [-]

    >>> visited_share(2048.0), visited_share(2048.0, 256.0), visited_share(2048.0, context_len=2048.0)
    (0.53125, 0.17578125, 0.765625)
    """
    first, tiles = np.ceil(context_len / QUERY_TILE), np.ceil(seq_len / QUERY_TILE)

    def visited(rows: float) -> float:
        """Tiles that so many rows of tiles visit from the start of the keys."""
        before = min(np.ceil(window / QUERY_TILE), rows - 1)  # tiles of keys that a tile of queries sees
        return float(rows * (before + 1) - before * (before + 1) / 2)

    return float((visited(first + tiles) - visited(first)) / (tiles * (first + tiles)))


def core_share(model: ModelShape, kernel: Kernel) -> float:
    """Share of all scores of a sequence that an attention core visits. [-]"""
    if not kernel.is_windowed or model.window >= model.key_len:
        return visited_share(model.seq_len, context_len=model.context_len)
    if model.window_kind == "chunked":
        return visited_share(model.window) * model.window / model.key_len
    return visited_share(model.seq_len, model.window, model.context_len)


def fused_attention(run: RankRun, kernel: Kernel, of_pass: str) -> FusedAttentionCost:
    """Time, work and traffic of the fused attention core of one layer and micro-batch.

    Parameters
    ----------
    run : RankRun
        Model, machines and what a rank sees of the designs, (points,).
    kernel : Kernel
        The attention core.
    of_pass : str
        A key of `FUSED_PASSES`.

    Returns
    -------
    cost : FusedAttentionCost
        (points,) columns; all zero where attention is not fused.

    Notes
    -----
    Matrix units and vector lanes take turns on a tile, so their times add up. Each tile of queries
    streams its keys and values from the second level; the third sees each tensor once. Ranks that share a
    sequence have equal parts of its causal half; each works on the keys of all of them. FlashAttention-2
    [Dao2022]_ has one head size, to which values are padded, and does not use all that later chips have; the
    one before runs at half its rate.
    """
    work, model, shape = FUSED_PASSES[of_pass], run.model, run.design
    chip, memory = run.system.chip, run.system.memory
    fused, width = np.where(shape.attention > 0, 1.0, 0.0), model.query_size + model.attention_size
    products = work.score_products + work.value_products
    flash_1 = shape.attention == FLASH_ATTENTION_1
    flash_2 = (shape.attention == FLASH_ATTENTION_2) | flash_1
    padded = np.ceil(model.score_size / HEAD_MULTIPLE) * HEAD_MULTIPLE
    scored, values = (np.where(flash_2, padded, size) for size in (model.score_size, model.value_size))
    size = (work.score_products * scored + work.value_products * values) / products
    heads = fused * shape.micro_batch_size * model.num_attention_heads / shape.tp / shape.cp
    scores = heads * (model.seq_len * model.key_len) * core_share(model, kernel)
    flops = scores * products * 2 * size
    tiles = heads * np.ceil(model.seq_len / QUERY_TILE)
    idle = np.ceil(tiles / chip.cores) * chip.cores / np.maximum(tiles, 1.0)
    arithmetic = flops / chip.matrix_flop_rate + scores * work.vector_flops / chip.vector_flop_rate
    queries, keys = work.reads
    seen = np.where(shape.cp_communication == CP_A2A, shape.cp, 1.0)  # ranks that share out the keys of a head
    tokens = fused * shape.micro_batch_size * model.seq_len
    w, keys_each = run.precision.element_bytes, model.key_len / model.seq_len
    key_width = keys_each * keys * model.key_value_size
    once = w * tokens * (queries * width / 2 / shape.cp + key_width / seen) / shape.tp
    streamed = once + w * scores / QUERY_TILE * keys * size
    feed = w * scores * products * size / QUERY_TILE
    traffic = (feed, streamed, *[once for _ in memory[2:]])[: len(memory)]
    transfer = [
        moved / (level.bandwidth * level.efficiency) for moved, level in zip(traffic[1:], memory[1:], strict=True)
    ]
    busy = arithmetic * idle
    if flash_2.any():
        busy = np.where(flash_2, busy / chip.flash_2_efficiency, busy)
        busy = np.where(flash_1, busy / FLASH_1_RATE, busy)
    moving = np.maximum.reduce(np.broadcast_arrays(*transfer, busy)[:-1])
    time = np.maximum(busy, moving) + fused * chip.kernel_launch
    return FusedAttentionCost(time, moving > busy, flops, traffic)
