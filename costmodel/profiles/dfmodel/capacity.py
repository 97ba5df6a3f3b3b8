"""What DFModel's groups need of SRAM and DRAM, and what a second tier of DRAM does to its bandwidth."""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, per_kernel
from costmodel.profiles.dfmodel.setup import Setup

#: Share by which rounding may exceed a capacity. [-]
ROUNDING: Final = 1e-12


def within_capacity(needed: FloatArray, capacity: FloatArray) -> BoolArray:
    """Whether what is needed is there; a capacity of 0 is without limit."""
    return np.less_equal(needed, np.where(capacity > 0, capacity * (1 + ROUNDING), np.inf))


def weight_passes(
    buffers: FloatArray, weights: FloatArray, capacity: FloatArray, alone: BoolArray
) -> FloatArray:
    """Parts in which the weights of a group pass through SRAM: 1 where they stay.

    Parameters
    ----------
    buffers, weights : (points, groups) array
        What a group holds of tensors, and of weights. [B]
    capacity : (points, 1) array
        SRAM of a chip; 0 = without limit. [B]
    alone : (groups,) array of bool
        The group is one kernel.

    Returns
    -------
    passes : (points, groups) array
        The fewest that fit; 1 where none would. [-]

    Notes
    -----
    Weights that pass take all the cores, hence only a kernel that is alone in its group may have such.
    They cost no time.
    """
    room = np.where(capacity > 0, capacity, np.inf) - buffers
    passes: FloatArray = np.ceil(weights / np.where(room > 0, room, np.inf))
    return np.where(alone, np.maximum(passes, 1), 1.0)


def dram_need(
    setup: Setup, edge_bytes: FloatArray, weight_bytes: FloatArray, start: IntArray, end: IntArray
) -> FloatArray:
    """Weights of a stage, and the most that is alive in any group of the tensors between groups.

    Parameters
    ----------
    setup : Setup
        (points,) columns.
    edge_bytes : (points, edges) array
        What an edge carries for one tile. [B]
    weight_bytes : (points, kernels) array
        Weights of one layer. [B]
    start, end : (edges,) array of int
        Groups of the kernels of each edge. [-]

    Returns
    -------
    needed : (points,) array
        [B]

    Notes
    -----
    Weights of the backward kernels count beside those of the forward ones; gradients, optimizer state and
    tensors of other layers and micro-batches do not count: the rule of the reference.
    """
    group = np.unique(np.concatenate([start, end]))[:, np.newaxis]
    passed = (np.minimum(start, end) <= group) & (group <= np.maximum(start, end)) & (start != end)
    alive = tensor_bytes(setup, edge_bytes) @ passed.T.astype(np.float64)
    weights = stage_weight_bytes(setup, weight_bytes)
    needed: FloatArray = weights + alive.max(axis=-1, initial=0.0)
    return needed


def stage_weight_bytes(setup: Setup, weight_bytes: FloatArray) -> FloatArray:
    """Weights of the layers of a pipeline stage; (points,). [B]"""
    weights: FloatArray = weight_bytes.sum(axis=-1) * setup.stage_layers
    return weights


def tensor_bytes(setup: Setup, edge_bytes: FloatArray) -> FloatArray:
    """What edges carry for all tiles of a micro-batch; (points, edges). [B]"""
    return edge_bytes * per_kernel(setup.tiles * setup.micro_batch_size)


def dram_tiers(setup: Setup) -> list[tuple[FloatArray, FloatArray]]:
    """Bandwidth and capacity of the first tier of DRAM, and of both where there are two. [B/s], [B]

    Notes
    -----
    Two tiers have the mean of their bandwidths by their capacities: the rule of the reference.
    """
    first, second = setup.dram_bytes, setup.second_dram_bytes
    alone = (setup.dram_bandwidth, first)
    if not np.any(second):
        return [alone]
    total = np.maximum(first + second, 1)
    mean = (first * setup.dram_bandwidth + second * setup.second_dram_bandwidth) / total
    return [alone, (mean, np.where(first > 0, first + second, 0.0))]


def dram_bandwidth(setup: Setup, needed: FloatArray) -> FloatArray:
    """Of the first tier alone where it holds what is needed, else of all. [B/s]"""
    (first, capacity), *rest = dram_tiers(setup)
    return np.where(within_capacity(needed, capacity), first, rest[0][0]) if rest else first


def dram_capacity(setup: Setup) -> FloatArray:
    """Of all tiers; 0 = without limit. [B]"""
    return dram_tiers(setup)[-1][1]
