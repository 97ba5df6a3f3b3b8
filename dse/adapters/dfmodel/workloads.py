"""Workloads of DFModel: how chips share the kernels of each, and the cost of its collectives.

A language model is sharded over a tensor-parallel group, and its collectives follow from the sharding. The others
(High-Performance Linpack, FFT, recommendation models) run on all chips of a copy, and files state their collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import FloatArray, IntArray, per_kernel
from dse.adapters.dfmodel import graph as codes
from dse.adapters.dfmodel.graph import DfmodelGraph, edge_collectives, kernel_collectives
from dse.adapters.dfmodel.network import exchange_rate, latency, rate
from dse.adapters.dfmodel.setup import GENERATIONS, Setup

#: Chips that share m, k and n of each kernel; columns that broadcast to (points, kernels). [-]
Parts = tuple[FloatArray, FloatArray, FloatArray]
#: Rate of a stated collective, (points,). [s/B]
Rate = Callable[[Setup, str], FloatArray]


@dataclass(frozen=True, slots=True)
class DfmodelWorkload:
    """Rules of one workload."""

    parts: Callable[[Setup, IntArray], Parts]
    rates: Sequence[Mapping[int, Rate]]  #: of stated collectives, for each byte; entries use their links at once
    sharded: bool = False  #: collectives follow from the sharding, too
    holds_tensors: bool = True  #: weights and tensors between groups count as required DRAM
    limits_sram: bool = False  #: the SRAM of a file is a limit


def _by_sharding(setup: Setup, sharding: IntArray) -> Parts:
    """Parts of a tensor-parallel group, by the dimension that splits each kernel."""
    tp = per_kernel(setup.degree("TP"))
    split = ((codes.OUTER, codes.M), (codes.K,), (codes.N,))
    m, k, n = (np.where(np.isin(sharding, of), tp, 1.0) for of in split)
    return m, k, n


def _matrix_parts(setup: Setup, sharding: IntArray) -> Parts:
    """Parts of a matrix on a grid of chips: rows over the first dimensions, columns over the last."""
    rows, columns = _grid(setup)
    return per_kernel(rows), per_kernel(columns), np.ones((1, 1))


def _grid(setup: Setup) -> tuple[FloatArray, FloatArray]:
    """Rows and columns of the grid of chips; one dimension makes one row. [-]"""
    *first, last = (dimension.size for dimension in setup.dimensions)
    return np.prod([last**0, *first], axis=0), last


def _panel_rate(axis: int, dimension: int) -> Rate:
    """Rate at which a panel, shared by one side of the grid, passes a dimension's links; 0 where the side is 1."""

    def panel(setup: Setup, generation: str) -> FloatArray:
        side = _grid(setup)[axis]
        links = setup.dimensions[min(dimension, len(setup.dimensions) - 1)]
        return np.where(side > 1, 1 / (side * links.bandwidth), 0.0)

    return panel


def _passed_panel(setup: Setup, generation: str) -> FloatArray:
    """Rate at which chips of the last dimension get a panel from one of them: over half of a ring, else half a hop."""
    links = setup.dimensions[-1]
    return ((links.size - 1) / 2 if links.kind == "r" else 0.5) / links.bandwidth


def _table_exchange(setup: Setup, generation: str) -> FloatArray:
    """Rate of an exchange of embeddings."""
    chips = 1.0 if GENERATIONS[generation].whole_exchanges else setup.num_chips / setup.copies
    return exchange_rate(setup, generation) / chips


def _gradient_share(setup: Setup, generation: str) -> FloatArray:
    """Rate of summing gradients, once a step: a byte takes a nanosecond for each pass, the rule of the reference."""
    passes = 2.0 if GENERATIONS[generation].whole_exchanges else 1.0
    return passes * 1e-9 / setup.micro_batches


WORKLOADS: Final[Mapping[str, DfmodelWorkload]] = {
    "llm": DfmodelWorkload(parts=_by_sharding, rates=(), sharded=True, limits_sram=True),
    **dict.fromkeys(
        ("gemm_fft_llm", "vector_fft_llm", "regular_fft_llm", "mamba"),
        DfmodelWorkload(parts=_by_sharding, rates=(), sharded=True),
    ),
    "dlrm": DfmodelWorkload(
        parts=_by_sharding, limits_sram=True,
        rates=({codes.ALL_TO_ALL: _table_exchange, codes.PERIODIC: _gradient_share},),
    ),
    "fft": DfmodelWorkload(
        parts=lambda setup, sharding: (*np.ones((2, 1, 1)), per_kernel(setup.num_chips / setup.copies)),
        rates=({codes.ALL_TO_ALL: lambda s, generation: exchange_rate(s, generation) / (s.num_chips / s.copies) ** 2},),
        holds_tensors=False,
    ),
    "hpl": DfmodelWorkload(
        parts=_matrix_parts,
        rates=({codes.BROADCAST: _panel_rate(0, 1)}, {codes.POINT_TO_POINT: _panel_rate(1, 0)}),
        holds_tensors=False,
    ),
    "panels": DfmodelWorkload(  # hpl of the oldest files, which state the work and messages of one chip
        parts=_by_sharding,
        rates=({codes.BROADCAST: _passed_panel}, {codes.POINT_TO_POINT: lambda s, _: 1 / s.dimensions[0].bandwidth}),
    ),
}  # fmt: skip


def network_time(
    graph: DfmodelGraph, setup: Setup, output_bytes: FloatArray, tiles: FloatArray, sharding: IntArray, generation: str
) -> FloatArray:
    """Collectives of each kernel and of the edges that leave it, for links that work at once. [s]

    `output_bytes` are those of a shard for one tile, (points, kernels) [B]; `tiles` those that pass a kernel,
    (points, kernels). [-] The result has shape (links, points, kernels).
    """
    rules = WORKLOADS[setup.workload]
    if rules.sharded:
        return _sharded_time(graph, setup, output_bytes, tiles, sharding, generation)
    stated = np.zeros((len(rules.rates), setup.num_points, len(graph)))
    for link, rates in enumerate(rules.rates):
        for collective, of in rates.items():
            stating = np.any(graph.collectives == collective, axis=0)
            stated[link] += stating * graph.message_bytes * per_kernel(of(setup, generation))
    return stated


def _sharded_time(
    graph: DfmodelGraph, setup: Setup, output_bytes: FloatArray, tiles: FloatArray, sharding: IntArray, generation: str
) -> FloatArray:
    """Collectives that follow from the sharding; (links, points, kernels). [s]"""
    of_kernels, of_edges = kernel_collectives(graph, sharding), edge_collectives(graph, sharding)
    reduce = per_kernel(rate(setup, generation, "TP", codes.ALL_REDUCE))
    wait = per_kernel(latency(setup, generation))
    gradient = per_kernel(rate(setup, generation, "DP", codes.ALL_REDUCE) / setup.micro_batches)
    time: FloatArray = (of_kernels == codes.ALL_REDUCE) * (output_bytes * tiles * reduce + wait)
    summed = (of_kernels == codes.PERIODIC) * output_bytes * gradient
    moving = () if GENERATIONS[generation].loads_weights else codes.STATED  # the oldest moves nothing along edges
    for collective in moving:
        changing = (of_edges == collective) & ~graph.zero_out
        edges = np.bincount(graph.start, weights=changing, minlength=len(graph))
        moved = (edges + np.sum(graph.collectives == collective, axis=0)) * output_bytes * tiles
        time = time + moved * per_kernel(rate(setup, generation, "TP", collective))
    at_once = GENERATIONS[generation].networks_at_once
    return np.stack(np.broadcast_arrays(time, summed)) if at_once else (time + summed)[np.newaxis]
