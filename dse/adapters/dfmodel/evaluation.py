"""DFModel's cost of one training iteration, for a graph of one structure and many designs; what fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, per_kernel
from dse.adapters.dfmodel import graph as codes
from dse.adapters.dfmodel.cores import fewest_cycles
from dse.adapters.dfmodel.graph import DfmodelGraph, edge_collectives, kernel_collectives
from dse.adapters.dfmodel.network import latency, rate, system_power, system_price, transfer_rate
from dse.adapters.dfmodel.setup import Setup

#: Share by which rounding may exceed a capacity. [-]
ROUNDING: Final = 1e-12


def within_capacity(needed: FloatArray, capacity: FloatArray) -> BoolArray:
    """True where the demand is at most the capacity; a capacity of 0 is unlimited."""
    return np.less_equal(needed, np.where(capacity > 0, capacity * (1 + ROUNDING), np.inf))


def weight_passes(buffers: FloatArray, weights: FloatArray, capacity: FloatArray, alone: BoolArray) -> FloatArray:
    """Fewest parts in which the weights of a group pass through SRAM: 1 where they stay, or where none would fit. [-]

    `buffers` and `weights` are those of a group, (points, groups) [B]; `capacity` is the SRAM of a chip, (points, 1), 0
    without limit [B]; `alone` marks groups of one kernel, (groups,).

    Weights that pass take all the cores, hence only a kernel that is alone in its group may have such.
    They cost no time.
    """
    room = np.where(capacity > 0, capacity, np.inf) - buffers
    passes: FloatArray = np.ceil(weights / np.where(room > 0, room, np.inf))
    return np.where(alone, np.maximum(passes, 1), 1.0)


def dram_need(
    setup: Setup, edge_bytes: FloatArray, weight_bytes: FloatArray, start: IntArray, end: IntArray
) -> FloatArray:
    """Weights of a stage, and the most that is alive in any group of the tensors between groups, (points,). [B]

    `edge_bytes`, (points, edges), are carried for one tile; `weight_bytes`, (points, kernels), are those of one layer
    [B]; `start` and `end` are the groups of the kernels of each edge. [-]

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
    """Bytes on the edges for all tiles of a micro-batch; (points, edges). [B]"""
    return edge_bytes * per_kernel(setup.tiles * setup.micro_batch_size)


def dram_tiers(setup: Setup) -> list[tuple[FloatArray, FloatArray]]:
    """Bandwidth and capacity of the first tier of DRAM, and of both where there are two. [B/s], [B]

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
    """Bandwidth of DRAM: of the first tier where it holds what is needed, else of all. [B/s]"""
    (first, capacity), *rest = dram_tiers(setup)
    return np.where(within_capacity(needed, capacity), first, rest[0][0]) if rest else first


def dram_capacity(setup: Setup) -> FloatArray:
    """Capacity of all tiers of DRAM; 0 = without limit. [B]"""
    return dram_tiers(setup)[-1][1]


#: What overlaps -> time of a group from those of compute, memory and network.
OVERLAPPED: Final[Mapping[str, Callable[[FloatArray, FloatArray, FloatArray], FloatArray]]] = {
    "none": lambda compute, memory, network: compute + memory + network,
    "perfect": lambda compute, memory, network: np.maximum(np.maximum(compute, memory), network),
    "compute_memory": lambda compute, memory, network: np.maximum(compute, memory) + network,
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shards:
    """The part of a kernel that one chip holds for one tile; (points, kernels)."""

    m: FloatArray  #: outer and m together [-]
    k: FloatArray
    n: FloatArray
    output_bytes: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Loads:
    """Demands of kernels and edges on a chip, whatever the grouping of kernels."""

    graph: DfmodelGraph
    setup: Setup
    part: Shards
    streams: FloatArray  #: tiles, times repetitions; (points, kernels) [-]
    work_time: FloatArray  #: at the given utilization; (points, kernels) [s]
    network_time: FloatArray  #: (points, kernels) [s]
    edge_bytes: FloatArray  #: of one tile; (points, edges) [B]
    buffers: FloatArray  #: tiles that an edge inside a group holds; (edges,) [-]
    weight_bytes: FloatArray  #: (points, kernels) [B]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Groups:
    """Groups of kernels, whether or not each kernel is in one and only one."""

    within: FloatArray  #: 1 where a kernel is of a group; (kernels, groups) [-]
    inside: FloatArray  #: 1 where both ends of an edge are; (edges, groups) [-]
    crossing: FloatArray  #: 1 where one end is; (edges, groups) [-]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GroupCosts:
    """Time of one layer and micro-batch, and SRAM, of groups of kernels; (points, groups)."""

    compute_time: FloatArray  #: [s]
    memory_time: FloatArray  #: [s]
    network_time: FloatArray  #: [s]
    time: FloatArray  #: [s]
    sram_bytes: FloatArray  #: needed [B]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DfmodelEvaluation:
    """Where the time of an iteration goes, and what the system costs; (points,) and (points, groups)."""

    iteration_time: FloatArray  #: [s]
    utilization: FloatArray  #: of the peak rate of all chips [-]
    compute_time: FloatArray  #: of one layer and micro-batch, by group; (points, groups) [s]
    memory_time: FloatArray  #: [s]
    network_time: FloatArray  #: [s]
    group_time: FloatArray  #: [s]
    pipeline_factor: FloatArray  #: iteration over its part without bubble [-]
    transfer_time: FloatArray  #: between pipeline stages [s]
    price: FloatArray  #: [$]
    power: FloatArray  #: [W]
    sram_bytes: FloatArray  #: needed, by group; (points, groups) [B]
    dram_bytes: FloatArray  #: needed [B]
    fits: BoolArray  #: SRAM of every group, and DRAM, hold what is needed


def shards(graph: DfmodelGraph, setup: Setup, sharding: IntArray) -> Shards:
    """Dimensions of kernels on one chip, by tiles."""
    tp, tiles = per_kernel(setup.degree("TP")), per_kernel(setup.tiles)
    by_rows = np.isin(sharding, (codes.OUTER, codes.M))
    m = np.ceil(graph.outer * graph.m / np.where(by_rows, tp, 1))
    k = np.ceil(graph.k / np.where(sharding == codes.K, tp, 1))
    n = np.ceil(graph.n / np.where(sharding == codes.N, tp, 1))
    k = np.ceil(k / np.where(graph.tiling == codes.K, tiles, 1))
    n = np.ceil(n / np.where(graph.tiling == codes.N, tiles, 1))
    return Shards(m=m, k=k, n=n, output_bytes=m * n * per_kernel(setup.element_bytes))


def loads(graph: DfmodelGraph, setup: Setup, sharding: IntArray, generation: str) -> Loads:
    """Demands of the kernels and edges of a graph on a chip."""
    part = shards(graph, setup, sharding)
    streams = per_kernel(setup.tiles) * graph.repeats
    flops = np.where(graph.systolic, 2.0, 1.0) * part.m * part.k * part.n * streams
    peak = np.where(setup.utilization > 0, setup.utilization, 1) * setup.peak_rate
    levels = graph.levels()
    return Loads(
        graph=graph,
        setup=setup,
        part=part,
        streams=streams,
        work_time=flops / per_kernel(peak),
        network_time=_network_time(graph, setup, part, sharding, generation),
        edge_bytes=part.output_bytes[..., graph.start] * ~graph.zero_out,
        buffers=np.asarray(levels[graph.end] - levels[graph.start] + 1, dtype=np.float64),
        weight_bytes=graph.weighted * part.m * part.k * per_kernel(setup.element_bytes),
    )


def kernel_groups(graph: DfmodelGraph, within: FloatArray) -> Groups:
    """Groups of kernels, each by itself: they may overlap, and need not hold all kernels."""
    first, second = within[graph.start], within[graph.end]
    inside = first * second
    return Groups(within=within, inside=inside, crossing=first + second - 2 * inside)


def group_costs(load: Loads, groups: Groups, bandwidth: FloatArray) -> GroupCosts:
    """Time and SRAM of groups of kernels (`kernel_groups`); `bandwidth` is that of the DRAM, (points,). [B/s]

    Tensors that leave a group are written once an edge, and read once. An edge inside a group holds as
    many tiles in SRAM as it spans levels, and one more; an edge that crosses holds two at either end.
    """
    graph, setup, within = load.graph, load.setup, groups.within
    crossing = load.edge_bytes @ groups.crossing
    held = (load.edge_bytes * load.buffers) @ groups.inside + 2 * crossing
    weights = (load.weight_bytes * ~graph.streamed) @ within
    passes = weight_passes(held, weights, per_kernel(setup.sram_bytes), within.sum(axis=0) == 1)
    stated = np.broadcast_to(graph.memory_bytes, (len(graph),)) @ within
    compute = _compute_time(load, within, passes > 1)
    memory = (crossing * per_kernel(setup.tiles) + stated) / per_kernel(bandwidth)
    network = load.network_time @ within
    return GroupCosts(
        compute_time=compute,
        memory_time=memory,
        network_time=network,
        time=OVERLAPPED[setup.overlap](compute, memory, network),
        sram_bytes=held + weights / passes,
    )


def evaluate(
    graph: DfmodelGraph, setup: Setup, sharding: IntArray, *, generation: str, groups: IntArray | None = None
) -> DfmodelEvaluation:
    """Time, price and power of an iteration, (points,). [s], [$], [W]

    `sharding` is the dimension that each kernel is split by, (kernels,) [code]; `generation` is a key of `GENERATIONS`;
    `groups` is the fused group of each kernel, from 0, by default each kernel alone, (kernels,). [-]

    Weights, gradients and optimizer state take no DRAM time. Gradients are summed every micro-batch, in
    shares. The time between stages holds all layers and one micro-batch. All are rules of the reference.
    """
    member = np.arange(len(graph)) if groups is None else np.asarray(groups)
    within = np.equal.outer(member, np.arange(int(member.max()) + 1)).astype(np.float64)
    load = loads(graph, setup, sharding, generation)
    dram = dram_need(setup, load.edge_bytes, load.weight_bytes, member[graph.start], member[graph.end])
    costs = group_costs(load, kernel_groups(graph, within), dram_bandwidth(setup, dram))
    time = iteration_time(graph, setup, costs.time.sum(axis=-1))
    work = np.sum(np.where(graph.systolic, 2.0, 1.0) * graph.outer * graph.m * graph.k * graph.n, axis=-1)
    done = setup.num_layers * setup.global_batch_size * work
    in_sram = within_capacity(costs.sram_bytes, per_kernel(setup.sram_bytes)).all(axis=-1)
    return DfmodelEvaluation(
        iteration_time=time,
        utilization=done / (time * setup.num_chips * setup.peak_rate),
        compute_time=costs.compute_time,
        memory_time=costs.memory_time,
        network_time=costs.network_time,
        group_time=costs.time,
        pipeline_factor=pipeline_factor(setup),
        transfer_time=transfer_time(graph, setup),
        price=system_price(setup),
        power=system_power(setup),
        sram_bytes=costs.sram_bytes,
        dram_bytes=dram,
        fits=in_sram & within_capacity(dram, dram_capacity(setup)),
    )


def iteration_time(graph: DfmodelGraph, setup: Setup, layer_time: FloatArray) -> FloatArray:
    """Time of an iteration from that of one layer and micro-batch; (points,). [s]"""
    sequences = setup.global_batch_size / setup.degree("DP")
    time: FloatArray = layer_time * pipeline_factor(setup) * setup.stage_layers * sequences
    return time + transfer_time(graph, setup)


def pipeline_factor(setup: Setup) -> FloatArray:
    """Iteration over its part without bubble. [-]"""
    chunks = np.maximum(setup.stage_layers - 1, 1)
    return 1 + (setup.degree("PP") - 1) / (setup.micro_batches * chunks)


def transfer_time(graph: DfmodelGraph, setup: Setup) -> FloatArray:
    """Time of messages between pipeline stages. [s]"""
    moved = 2 * setup.hidden_size * setup.seq_len * setup.element_bytes * setup.num_layers
    return moved * transfer_rate(setup) * bool(graph.backward.any())


def _compute_time(load: Loads, within: FloatArray, whole: BoolArray) -> FloatArray:
    """Sum over a group's kernels at a given utilization; else of its slowest on its share of the cores."""
    setup, part = load.setup, load.part
    given = np.atleast_1d(setup.utilization > 0)
    summed: FloatArray = load.work_time @ within
    if np.all(given):
        return summed
    cycles = fewest_cycles(load.graph, setup, part.m, part.k, part.n, load.streams, within, whole)
    return np.where(given[:, np.newaxis], summed, cycles / per_kernel(setup.frequency))


def _network_time(graph: DfmodelGraph, setup: Setup, part: Shards, sharding: IntArray, generation: str) -> FloatArray:
    """Collectives of each kernel and of the edges that leave it; (points, kernels). [s]"""
    tiles = per_kernel(setup.tiles)
    of_kernels, of_edges = kernel_collectives(graph, sharding), edge_collectives(graph, sharding)
    reduce = per_kernel(rate(setup, generation, "TP", codes.ALL_REDUCE))
    wait = per_kernel(latency(setup, generation))
    gradient = per_kernel(rate(setup, generation, "DP", codes.ALL_REDUCE) / setup.micro_batches)
    time: FloatArray = (of_kernels == codes.ALL_REDUCE) * (part.output_bytes * tiles * reduce + wait)
    time = time + (of_kernels == codes.PERIODIC) * part.output_bytes * gradient
    for collective in (codes.ALL_GATHER, codes.ALL_TO_ALL):
        changing = (of_edges == collective) & ~graph.zero_out
        edges = np.bincount(graph.start, weights=changing, minlength=len(graph))
        moved = edges * part.output_bytes * tiles
        time = time + moved * per_kernel(rate(setup, generation, "TP", collective))
    return time
