"""DFModel's cost of one training iteration, for a graph of one structure and many designs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray, IntArray, per_kernel
from costmodel.profiles.dfmodel.cores import fewest_cycles
from costmodel.profiles.dfmodel.graph import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    OUTER,
    PERIODIC,
    Graph,
    K,
    M,
    N,
)
from costmodel.profiles.dfmodel.network import latency, rate, system_power, system_price, transfer_rate
from costmodel.profiles.dfmodel.setup import Setup
from costmodel.profiles.dfmodel.sharding import edge_collectives, kernel_collectives


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shards:
    """What one chip holds of a kernel for one tile; (points, kernels)."""

    m: FloatArray  #: outer and m together [-]
    k: FloatArray
    n: FloatArray
    output_bytes: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation:
    """Where the time of an iteration goes, and what the system costs; (points,) and (points, groups)."""

    iteration_time: FloatArray  #: [s]
    utilization: FloatArray  #: of the peak rate of all chips [-]
    compute_time: FloatArray  #: of one layer and micro-batch, by group; (points, groups) [s]
    memory_time: FloatArray  #: [s]
    network_time: FloatArray  #: [s]
    group_time: FloatArray  #: [s]
    layer_runs: FloatArray  #: of a chip: layers of its stage times sequences of its replica [-]
    pipeline_factor: FloatArray  #: iteration over its part without bubble [-]
    transfer_time: FloatArray  #: between pipeline stages [s]
    price: FloatArray  #: [$]
    power: FloatArray  #: [W]


def shards(graph: Graph, setup: Setup, sharding: IntArray) -> Shards:
    """Dimensions of kernels on one chip, by tiles."""
    tp, tiles = per_kernel(setup.degree("TP")), per_kernel(setup.tiles)
    by_rows = np.isin(sharding, (OUTER, M))
    m = np.ceil(graph.outer * graph.m / np.where(by_rows, tp, 1))
    k = np.ceil(graph.k / np.where(sharding == K, tp, 1))
    n = np.ceil(graph.n / np.where(sharding == N, tp, 1))
    k = np.ceil(k / np.where(graph.tiling == K, tiles, 1))
    n = np.ceil(n / np.where(graph.tiling == N, tiles, 1))
    return Shards(m=m, k=k, n=n, output_bytes=m * n * per_kernel(setup.element_bytes))


def evaluate(
    graph: Graph, setup: Setup, sharding: IntArray, *, generation: str, groups: IntArray | None = None
) -> Evaluation:
    """Time, price and power of an iteration.

    Parameters
    ----------
    graph : Graph
        Kernels of one layer; dimensions (kernels,) or (points, kernels).
    setup : Setup
        (points,) columns.
    sharding : (kernels,) array of int
        Dimension that each kernel is split by. [code]
    generation : str
        Rules of the reference: a key of `GENERATIONS`.
    groups : (kernels,) array of int, optional
        Fused group of each kernel, from 0; each kernel its own where not given. [-]

    Notes
    -----
    Weights, gradients and optimizer state take no DRAM time. Gradients are summed every micro-batch, in
    shares. The time between stages holds all layers and one micro-batch. All are rules of the reference.
    """
    member = np.arange(len(graph)) if groups is None else np.asarray(groups)
    within = np.equal.outer(member, np.arange(int(member.max()) + 1)).astype(np.float64)
    part = shards(graph, setup, sharding)
    compute = _compute_time(graph, setup, part, within)
    memory = _memory_time(graph, setup, part, member, within)
    network = _network_time(graph, setup, part, sharding, generation) @ within
    both = {
        "none": compute + memory + network,
        "perfect": np.maximum(np.maximum(compute, memory), network),
        "compute_memory": np.maximum(compute, memory) + network,
    }
    group_time = both[setup.overlap]
    stage_layers = np.ceil(setup.num_layers / setup.degree("PP"))
    micro_batches = _micro_batches(setup)
    chunks = np.where(stage_layers >= 2, stage_layers - 1, 1)
    factor = 1 + (setup.degree("PP") - 1) / (micro_batches * chunks)
    transfer = 2 * setup.hidden_size * setup.seq_len * setup.element_bytes * setup.num_layers
    transfer = transfer * transfer_rate(setup) * bool(graph.backward.any())
    sequences = setup.global_batch_size / setup.degree("DP")
    time = group_time.sum(axis=-1) * factor * stage_layers * sequences + transfer
    work = np.sum(np.where(graph.systolic, 2.0, 1.0) * graph.outer * graph.m * graph.k * graph.n, axis=-1)
    done = setup.num_layers * setup.global_batch_size * work
    return Evaluation(
        iteration_time=time,
        utilization=done / (time * setup.num_chips * setup.peak_rate),
        compute_time=compute,
        memory_time=memory,
        network_time=network,
        group_time=group_time,
        layer_runs=stage_layers * sequences,
        pipeline_factor=factor,
        transfer_time=transfer,
        price=system_price(setup),
        power=system_power(setup),
    )


def _micro_batches(setup: Setup) -> FloatArray:
    """Micro-batches of a replica and iteration. [-]"""
    return setup.global_batch_size / (setup.micro_batch_size * setup.degree("DP"))


def _compute_time(graph: Graph, setup: Setup, part: Shards, within: FloatArray) -> FloatArray:
    """Sum over a group's kernels at a given utilization; else of its slowest on its share of the cores."""
    streams = per_kernel(setup.tiles) * graph.repeats
    given = np.atleast_1d(setup.utilization > 0)
    flops = np.where(graph.systolic, 2.0, 1.0) * part.m * part.k * part.n * streams
    peak = np.where(given, setup.utilization, 1) * setup.peak_rate
    summed: FloatArray = (flops / per_kernel(peak)) @ within
    if np.all(given):
        return summed
    cycles = fewest_cycles(graph, setup, part.m, part.k, part.n, streams, within)
    return np.where(given[:, np.newaxis], summed, cycles / per_kernel(setup.frequency))


def _memory_time(
    graph: Graph, setup: Setup, part: Shards, member: IntArray, within: FloatArray
) -> FloatArray:
    """Tensors that leave a group are written once an edge and read once; traffic that the file states."""
    crosses = member[graph.start] != member[graph.end]
    moved = part.output_bytes[..., graph.start] * (crosses & ~graph.zero_out) * per_kernel(setup.tiles)
    edges = moved @ within[graph.start] + moved @ within[graph.end]
    stated = np.broadcast_to(graph.memory_bytes, (len(graph),)) @ within
    time: FloatArray = (edges + stated) / per_kernel(setup.dram_bandwidth)
    return time


def _network_time(
    graph: Graph, setup: Setup, part: Shards, sharding: IntArray, generation: str
) -> FloatArray:
    """Collectives of each kernel and of the edges that leave it; (points, kernels). [s]"""
    tiles = per_kernel(setup.tiles)
    of_kernels, of_edges = kernel_collectives(graph, sharding), edge_collectives(graph, sharding)
    reduce = per_kernel(rate(setup, generation, "TP", ALL_REDUCE))
    wait = per_kernel(latency(setup, generation))
    gradient = per_kernel(rate(setup, generation, "DP", ALL_REDUCE) / _micro_batches(setup))
    time: FloatArray = (of_kernels == ALL_REDUCE) * (part.output_bytes * tiles * reduce + wait)
    time = time + (of_kernels == PERIODIC) * part.output_bytes * gradient
    for collective in (ALL_GATHER, ALL_TO_ALL):
        changing = (of_edges == collective) & ~graph.zero_out
        edges = np.bincount(graph.start, weights=changing, minlength=len(graph))
        moved = edges * part.output_bytes * tiles
        time = time + moved * per_kernel(rate(setup, generation, "TP", collective))
    return time
