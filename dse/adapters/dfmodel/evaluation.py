"""DFModel's cost of one training iteration, for a graph of one structure and many designs; and if it fits.

Tiles of a micro-batch stream through groups of fused kernels. A group takes the longest of its compute, its DRAM
traffic and its network time, or their sum, as the overlap says; a layer is the sum of its groups. An iteration repeats
layers and micro-batches, adds the bubble of the pipeline and the messages between stages, and sums gradients
[Ko2024]_. `GENERATIONS` holds the differences between published states of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, per_kernel
from dse.adapters.dfmodel import graph as codes
from dse.adapters.dfmodel.cores import Shards, as_products, fewest_cycles, least_work
from dse.adapters.dfmodel.graph import DfmodelGraph
from dse.adapters.dfmodel.network import system_power, system_price, transfer_rate
from dse.adapters.dfmodel.setup import GENERATIONS, Generation, Setup
from dse.adapters.dfmodel.workloads import WORKLOADS, network_time

#: Share by which rounding may exceed a capacity. [-]
ROUNDING: Final = 1e-12


def within_capacity(needed: FloatArray, capacity: FloatArray) -> BoolArray:
    """True where the demand is at most the capacity; a capacity of 0 is unlimited."""
    return np.less_equal(needed, np.where(capacity > 0, capacity * (1 + ROUNDING), np.inf))


def dram_need(load: Loads, start: IntArray, end: IntArray) -> FloatArray:
    """Data, weights of a stage, and the most that is alive in any group of the tensors between groups, (points,). [B]

    `start` and `end` are the groups of the kernels of each edge. [-] Weights of forward and backward kernels count;
    gradients, optimizer state and tensors of other layers and micro-batches do not: the rule of the reference.
    """
    setup = load.setup
    sizes, resident = tensor_bytes(setup, load.edge_bytes), resident_bytes(load)
    if not WORKLOADS[setup.workload].holds_tensors:
        return resident
    if load.rules.loads_weights:  # every tensor of every layer, where it is written and where it is read
        crossing: FloatArray = 2 * np.sum(sizes * (start != end), axis=-1)
        return resident + crossing * setup.num_layers / setup.degree("PP")
    group = np.unique(np.concatenate([start, end]))[:, np.newaxis]
    passed = (np.minimum(start, end) <= group) & (group <= np.maximum(start, end)) & (start != end)
    alive = sizes @ passed.T.astype(np.float64)
    needed: FloatArray = resident + alive.max(axis=-1, initial=0.0)
    return needed


def resident_bytes(load: Loads) -> FloatArray:
    """Data of the workload, and weights and stated bytes of the layers of a pipeline stage; (points,). [B]"""
    weights = load.weight_bytes.sum(axis=-1) * WORKLOADS[load.setup.workload].holds_tensors
    resident: FloatArray = load.setup.stored_bytes + (weights + np.sum(load.graph.dram_bytes)) * load.setup.stage_layers
    return resident


def tensor_bytes(setup: Setup, edge_bytes: FloatArray) -> FloatArray:
    """Bytes on the edges for all tiles of a micro-batch; (points, edges). [B]"""
    return edge_bytes * per_kernel(setup.tiles * setup.sequences)


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
    """Bandwidth of DRAM: of the first tier if it holds the needed bytes, else of all. [B/s]"""
    (first, capacity), *rest = dram_tiers(setup)
    return np.where(within_capacity(needed, capacity), first, rest[0][0]) if rest else first


def dram_capacity(setup: Setup) -> FloatArray:
    """Capacity of all tiers of DRAM; 0 = without limit. [B]"""
    return dram_tiers(setup)[-1][1]


#: Kind of overlap -> time of a group from those of compute, memory and network.
OVERLAPPED: Final[Mapping[str, Callable[[FloatArray, FloatArray, FloatArray], FloatArray]]] = {
    "none": lambda compute, memory, network: compute + memory + network,
    "perfect": lambda compute, memory, network: np.maximum(np.maximum(compute, memory), network),
    "compute_memory": lambda compute, memory, network: np.maximum(compute, memory) + network,
    # Without overlap, files of the latest generation may count some of the parts alone.
    "C": lambda compute, memory, network: compute,
    "CM": lambda compute, memory, network: compute + memory,
    "CN": lambda compute, memory, network: compute + network,
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Loads:
    """Demands of kernels and edges on a chip, for any grouping of kernels."""

    graph: DfmodelGraph
    setup: Setup
    part: Shards
    rules: Generation
    streams: FloatArray  #: tiles, times repetitions where these are a kernel's; (points, kernels) [-]
    work_time: FloatArray  #: at the given utilization; else of all cores if none waited; (points, kernels) [s]
    network_time: FloatArray  #: of links that work at once; (links, points, kernels) [s]
    edge_bytes: FloatArray  #: of one tile; (points, edges) [B]
    buffered: IntArray  #: edge whose tiles an edge holds in SRAM; (edges,)
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
    loading_time: FloatArray  #: before all other, of the oldest generation [s]
    group_time: FloatArray  #: [s]
    sram_bytes: FloatArray  #: needed [B]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DfmodelEvaluation(GroupCosts):
    """Parts of the time of an iteration, and price and power of the system; (points,), and costs of groups."""

    iteration_time: FloatArray  #: [s]
    utilization: FloatArray  #: of the peak rate of all chips [-]
    pipeline_factor: FloatArray  #: iteration over its part without bubble [-]
    transfer_time: FloatArray  #: between pipeline stages [s]
    price: FloatArray  #: [$]
    power: FloatArray  #: [W]
    dram_bytes: FloatArray  #: needed [B]
    fits: BoolArray  #: SRAM of every group, and DRAM, hold the needed bytes


def shards(graph: DfmodelGraph, setup: Setup, sharding: IntArray) -> Shards:
    """Dimensions of kernels on one chip, by tiles."""
    tiles = per_kernel(setup.tiles)
    whole = (graph.outer * graph.m, graph.k, graph.n)
    tiled = ((codes.OUTER, codes.M), (codes.K,), (codes.N,))
    m, k, n = (
        np.ceil(np.ceil(size / part) / np.where(np.isin(graph.tiling, of), tiles, 1))
        for size, part, of in zip(whole, WORKLOADS[setup.workload].parts(setup, sharding), tiled, strict=True)
    )
    return Shards(m=m, k=k, n=n, output_bytes=m * n * per_kernel(setup.element_bytes))


def loads(graph: DfmodelGraph, setup: Setup, sharding: IntArray, generation: str) -> Loads:
    """Demands of the kernels and edges of a graph on a chip."""
    part, rules = shards(graph, setup, sharding), GENERATIONS[generation]
    tiles = per_kernel(setup.tiles)
    if rules.repeats_groups:
        streams = tiles = np.where(graph.repeats > 0, 1.0, tiles)
    else:
        streams = tiles * np.maximum(graph.repeats, 1)
    flops = np.where(graph.systolic, 2.0, 1.0) * part.m * part.k * part.n * streams
    at_utilization = flops / per_kernel(np.where(setup.utilization > 0, setup.utilization, 1) * setup.peak_rate)
    least = least_work(graph, setup, part, streams) / per_kernel(setup.frequency)
    levels, loaded = graph.levels(), graph.weighted & ~(graph.streamed & rules.loads_weights)
    weight_edges = np.minimum(np.cumsum(graph.weighted) - 1, graph.start.size - 1)[graph.start]
    buffered = np.where(graph.weighted[graph.start] & rules.borrows_buffers, weight_edges, np.arange(graph.start.size))
    return Loads(
        graph=graph,
        setup=setup,
        rules=rules,
        part=part,
        streams=streams,
        work_time=np.where(per_kernel(setup.utilization) > 0, at_utilization, least),
        network_time=network_time(graph, setup, part.output_bytes, tiles, sharding, generation),
        edge_bytes=part.output_bytes[..., graph.start] * ~graph.zero_out,
        buffered=buffered,
        buffers=np.asarray(levels[graph.end] - levels[graph.start] + 1, dtype=np.float64)[buffered],
        weight_bytes=loaded * part.m * part.k * per_kernel(setup.element_bytes),
    )


def kernel_groups(graph: DfmodelGraph, within: FloatArray) -> Groups:
    """Groups of kernels, each by itself: they may overlap, and need not hold all kernels."""
    first, second = within[graph.start], within[graph.end]
    inside = first * second
    return Groups(within=within, inside=inside, crossing=first + second - 2 * inside)


def group_costs(load: Loads, groups: Groups, bandwidth: FloatArray, *, at_least: bool = False) -> GroupCosts:
    """Time and SRAM of groups of kernels (`kernel_groups`); `bandwidth` is that of the DRAM, (points,). [B/s]

    Tensors that leave a group are written once an edge, and read once. An edge inside a group holds as
    many tiles in SRAM as it spans levels, and one more; an edge that crosses holds two at either end. Single kernels of
    the oldest generation hold one. Weights of a kernel without others in its group, which has all the cores then, pass
    in the fewest parts that fit.

    In the latest one, repetitions multiply the time of the whole group, which has one tile then. Kernels without do not
    share it. `at_least` leaves the split of the cores out: a bound that is quick.
    """
    graph, setup, within = load.graph, load.setup, groups.within
    crossing = load.edge_bytes @ groups.crossing
    buffers = 1 if load.rules.loads_weights and setup.kernel_by_kernel else 2
    tile_bytes = load.edge_bytes[..., load.buffered]
    held = (tile_bytes * load.buffers) @ groups.inside + buffers * (tile_bytes @ groups.crossing)
    held = held + _summed(graph.sram_bytes, within)
    weights = (load.weight_bytes * ~graph.streamed) @ within
    capacity, alone = per_kernel(setup.sram_bytes), within.sum(axis=0) == 1
    room = np.where(capacity > 0, capacity, np.inf) - held
    passes = np.where(alone, np.maximum(np.ceil(weights / np.where(room > 0, room, np.inf)), 1), 1.0)
    tiles, repeats, mixed = _group_streams(load, within)
    compute = load.work_time @ within if at_least else _compute_time(load, within, passes > 1)
    moves = passes if load.rules.passes_move_tensors else 1
    memory = crossing * tiles * moves / per_kernel(bandwidth)
    loading = _summed(graph.memory_bytes, within) / per_kernel(bandwidth)
    if load.rules.loads_weights:
        loading = loading + load.weight_bytes @ within / per_kernel(bandwidth * setup.sequences)
    else:
        memory, loading = memory + loading, np.zeros_like(memory)
    network = (load.network_time @ within).max(axis=0)
    times = [repeats * time for time in (compute, memory, network)]
    return GroupCosts(
        compute_time=times[0],
        memory_time=times[1],
        network_time=times[2],
        loading_time=loading,
        group_time=np.where(mixed, np.inf, OVERLAPPED[setup.overlap](*times) + loading),
        sram_bytes=held + weights / passes,
    )


def _summed(values: FloatArray, within: FloatArray) -> FloatArray:
    """Values of kernels, (kernels,) or one for all, summed over groups; (groups,), or 0 where all are. [as values]"""
    return np.broadcast_to(values, within.shape[:1]) @ within if np.any(values) else np.zeros(1)


def _group_streams(load: Loads, within: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Tiles that pass a group, inputs that it takes in turn, and whether only part of its kernels state these."""
    graph, tiles = load.graph, per_kernel(load.setup.tiles)
    stated = np.broadcast_to(graph.repeats, (len(graph),)) * load.rules.repeats_groups
    if not stated.any():
        return tiles, np.ones((1, 1)), np.zeros(1, dtype=bool)
    num_stated, size = (stated > 0) @ within, within.sum(axis=0)
    repeats = np.maximum(np.max(within * stated[:, np.newaxis], axis=0, initial=0), 1)
    return np.where(num_stated > 0, 1, tiles), repeats, (num_stated > 0) & (num_stated < size)


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
    dram = dram_need(load, member[graph.start], member[graph.end])
    costs = group_costs(load, kernel_groups(graph, within), dram_bandwidth(setup, dram))
    time = iteration_time(graph, setup, costs.group_time.sum(axis=-1), load.rules)
    flops = np.where(graph.systolic, 2.0, 1.0) * graph.outer * graph.m * graph.k * graph.n
    done = setup.num_layers * setup.global_batch_size * np.sum(flops * np.maximum(graph.repeats, 1), axis=-1)
    in_sram = within_capacity(costs.sram_bytes, per_kernel(setup.sram_bytes)).all(axis=-1)
    return DfmodelEvaluation(
        iteration_time=time,
        utilization=done / (time * setup.num_chips * setup.peak_rate),
        **{field.name: getattr(costs, field.name) for field in fields(GroupCosts)},
        pipeline_factor=pipeline_factor(setup, load.rules),
        transfer_time=transfer_time(graph, setup, load.rules),
        price=system_price(setup, generation),
        power=system_power(setup, generation),
        dram_bytes=dram,
        fits=in_sram & within_capacity(dram, dram_capacity(setup)),
    )


def unit_shortage(
    graph: DfmodelGraph, setup: Setup, sharding: IntArray, member: IntArray, generation: str, compute_time: FloatArray
) -> str:
    """Memory units that one design lacks, with each kernel on the fewest cores that keep pace with its group; or "".

    `member` and `compute_time` are the group of each kernel and the time of each group, (kernels,), (groups,). [-], [s]
    A tensor has units for its bytes, for the lanes or stages that read it, and for results of those that make it.
    """
    if setup.utilization.item() > 0:
        return "DFModel splits no cores at a stated compute_util, and stops; leave compute_util out"
    load, kernels = loads(graph, setup, sharding, generation), np.arange(len(graph))
    groups = kernel_groups(graph, np.equal.outer(member, np.arange(member.max() + 1)).astype(np.float64))
    rows, columns, steps, height = as_products(graph, setup, load.part, load.streams)
    width, depth, unit = (v.item() for v in (setup.array_width, setup.array_height, setup.memory_unit_bytes + 1e-9))
    tried = np.arange(1.0, setup.cores.item() + 1)[:, np.newaxis]
    cycles = compute_time[member] * setup.frequency.item() * (1 + ROUNDING)
    rounds = np.floor(cycles / (steps * np.ceil(rows / (tried * width))))
    needed = np.where(rounds > 0, np.ceil(columns / (np.maximum(rounds, 1) * height)), np.inf)
    least = np.argmin(tried * needed, axis=0)
    lanes, stages = tried[least, 0], needed[least, kernels]
    later = np.array([end in graph.end[:edge] for edge, end in enumerate(graph.end)], dtype=bool)
    staged = graph.systolic[graph.end] & (graph.weighted[graph.end] | later)  # the last input of a product
    read = np.where(staged, stages[graph.end] * depth / width, lanes[graph.end])
    made = np.where(graph.systolic, lanes * stages * depth / load.part.k[0], lanes)[graph.start]
    tiles = load.edge_bytes[0, load.buffered] * np.where(groups.inside.T > 0, load.buffers, 2.0) / unit
    banks = np.ceil(np.maximum(tiles, np.maximum(read, made))) * (groups.inside + groups.crossing).T
    weights = graph.weighted * np.maximum(np.ceil(load.weight_bytes[0] / unit), lanes)
    most, units = np.max(banks.sum(axis=1) + weights @ groups.within), setup.memory_units.item()
    short = f"the fastest design takes {most:.0f} memory units, of {units:.0f}; take more, or leave pmu out as no limit"
    return short * bool(most > units)


def iteration_time(graph: DfmodelGraph, setup: Setup, layer_time: FloatArray, rules: Generation) -> FloatArray:
    """Time of an iteration from that of one layer and micro-batch; (points,). [s]

    Copies of a workload share the iterations. In the oldest generation the message between stages and a layer overlap.
    """
    if rules.loads_weights:
        moved = setup.hidden_size * setup.seq_len * setup.element_bytes * transfer_rate(setup)
        layer_time = np.maximum(layer_time, np.where((setup.degree("PP") > 1) & setup.trains, moved, 0.0))
    return layer_time * pipeline_factor(setup, rules) * layer_runs(setup, rules) + transfer_time(graph, setup, rules)


def layer_runs(setup: Setup, rules: Generation) -> FloatArray:
    """Layers and micro-batches that a stage runs in turn. [-]"""
    layers = setup.num_layers / setup.degree("PP") if rules.loads_weights else setup.stage_layers
    return layers * setup.global_batch_size / setup.degree("DP") / setup.copies


def pipeline_factor(setup: Setup, rules: Generation) -> FloatArray:
    """Iteration over its part without bubble. [-]"""
    chunks = 1 if rules.loads_weights else np.maximum(setup.stage_layers - 1, 1)
    return 1 + setup.trains * (setup.degree("PP") - 1) / (setup.micro_batches * chunks)


def transfer_time(graph: DfmodelGraph, setup: Setup, rules: Generation) -> FloatArray:
    """Time of messages between pipeline stages, beyond that of layers. [s]"""
    if rules.loads_weights:
        return np.zeros_like(setup.num_chips)
    moved = 2 * setup.hidden_size * setup.seq_len * setup.element_bytes * setup.num_layers
    return moved * transfer_rate(setup) * bool(graph.backward.any())


def _compute_time(load: Loads, within: FloatArray, whole: BoolArray) -> FloatArray:
    """Sum over a group's kernels at a given utilization; else of its slowest on its share of the cores."""
    setup = load.setup
    given = np.atleast_1d(setup.utilization > 0)
    summed: FloatArray = load.work_time @ within
    if np.all(given):
        return summed
    cycles = fewest_cycles(load.graph, setup, load.part, load.streams, within, whole)
    return np.where(given[:, np.newaxis], summed, cycles / per_kernel(setup.frequency))
