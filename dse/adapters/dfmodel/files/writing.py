"""Graphs and set-ups -> messages, sharding, tiling and communication filled in.

The reference writes its answer into the file of the question: the sharding of each kernel, the shard and the tile that
a chip holds, the depth of each buffer, and the bytes that edges exchange. A file that is written here has the same
fields, so that the program and its scripts read it. Published files are reproduced byte for byte, except the
signs of zeros that its solver left.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodel.columns import IntArray
from dse.adapters.dfmodel.cores import Shards
from dse.adapters.dfmodel.evaluation import shards
from dse.adapters.dfmodel.files.records import DATAFLOW, FIELDS, OVERLAPS, block, run_block
from dse.adapters.dfmodel.files.setup_files import ROOTS, Message, empty_setup
from dse.adapters.dfmodel.graph import NONE, DfmodelGraph, K, N, Traffic
from dse.adapters.dfmodel.setup import AXES, Setup

KERNEL_BY_KERNEL: Final = 2


def setup_message(
    graph: DfmodelGraph,
    setup: Setup,
    sharding: IntArray,
    *,
    generation: str = "gen1",
    groups: IntArray | None = None,
    tiles_open: bool = False,
) -> Message:
    """A set-up of one design, as the reference writes it.

    `sharding` is the dimension that each kernel is split by, (kernels,) [code]; `generation` decides the names of
    blocks; `groups` is the fused group of each kernel, by default each kernel alone. [-] With `tiles_open`, the file
    leaves the size of a tile open; so it does if tiles are of one token and no other size is faster.
    """
    message = empty_setup(ROOTS[generation])
    traffic, part = Traffic.of(graph, sharding), shards(graph, setup, sharding)
    _fill_graph(message.dataflow_graph, graph, sharding, traffic, part, groups)
    _fill_setup(message, setup, generation)
    if not (tiles_open or _one_token_is_fastest(graph, setup, sharding)):
        run_block(message).llm.tile_size = round(float(setup.tile_size.flat[0]))
    if groups is not None:
        run_block(message).num_config = int(groups.max()) + 1
    return message


def graph_message(graph: DfmodelGraph, traffic: Traffic) -> Message:
    """A graph of the kernels that one chip runs, dimensions (kernels,); nothing in it is split further.

    `traffic` moves between chips.
    """
    message = empty_setup(ROOTS["gen1"])
    m, k, n, output = (a[np.newaxis] for a in (graph.outer * graph.m, graph.k, graph.n, graph.output_bytes))
    whole = Shards(m=m, k=k, n=n, output_bytes=output)
    _fill_graph(message.dataflow_graph, graph, np.full(len(graph), NONE), traffic, whole, None)
    return message


def _fill_graph(
    block: Message, graph: DfmodelGraph, sharding: IntArray, traffic: Traffic, part: Shards, groups: IntArray | None
) -> None:
    """Kernels and connections, with the fields that follow from their sharding."""
    member = np.arange(len(graph)) if groups is None else groups
    levels = graph.levels()
    for number in range(len(graph)):
        kernel = block.kernels.add()
        _fill_kernel(kernel, graph, number)
        kernel.topological_number, kernel.config = int(levels[number]), int(member[number])
        variant = getattr(kernel, kernel.WhichOneof("variant"))
        variant.sharding = int(sharding[number])
        variant.shard_outer_M, variant.shard_N = int(part.m[0, number]), int(part.n[0, number])
        if graph.systolic[number]:
            variant.shard_K = int(part.k[0, number])
        variant.communication_type = int(traffic.of_kernels[number])
        variant.communication_size = float(traffic.kernel_bytes[number])
    _fill_connections(block.connections, graph, levels, traffic, part)


def _fill_kernel(kernel: Message, graph: DfmodelGraph, number: int) -> None:
    """Write the fields of a kernel that do not depend on the sharding."""
    kernel.name, kernel.id = graph.names[number], number + 1
    kernel.fwd_bwd = 2 if graph.backward[number] else 1
    kernel.type = 1 if graph.systolic[number] else 2
    has_second = bool(graph.systolic[number] or graph.second_bytes[number])
    second = "weight" if graph.weighted[number] else "input2" if has_second else ""
    kind = f"{'gemm' if graph.systolic[number] else 'elementwise'}_input1{'_' * bool(second)}{second}"
    kind_message = getattr(kernel, kind)
    kind_message.outer, kind_message.M, kind_message.N = (
        int(getattr(graph, dim)[number]) for dim in ("outer", "m", "n")
    )
    if graph.systolic[number]:
        kind_message.K = int(graph.k[number])
    first = "input_tensor_1_size" if second == "input2" else "input_tensor_size"
    setattr(kind_message, first, graph.first_bytes[number])
    if second:
        name = "weight_tensor_size" if second == "weight" else "input_tensor_2_size"
        setattr(kind_message, name, graph.second_bytes[number])
    kind_message.output_tensor_size = graph.output_bytes[number]
    kind_message.tiling = int(graph.tiling[number])
    every = (graph.repeats, graph.memory_bytes, graph.streamed)
    repeats, stated, streamed = (np.broadcast_to(a, (len(graph),))[number] for a in every)
    kind_message.num_input = int(repeats) if repeats > 1 else 0
    kind_message.memory_size, kind_message.skip_weight = stated, bool(streamed)


def _fill_connections(
    connections: Message, graph: DfmodelGraph, levels: IntArray, traffic: Traffic, part: Shards
) -> None:
    zero_out = np.broadcast_to(graph.zero_out, graph.start.shape)
    for number, (start, end) in enumerate(zip(graph.start, graph.end, strict=True), start=1):
        edge = connections.add(startIdx=start + 1, endIdx=end + 1, id=number)
        edge.startName, edge.endName = graph.names[start], graph.names[end]
        edge.buffer_depth = int(levels[end] - levels[start] + 1)
        edge.tensor_size = graph.output_bytes[start]
        edge.shard_tensor_size = part.output_bytes[0, start]
        edge.communication_type = int(traffic.of_edges[number - 1])
        edge.communication_size = float(traffic.edge_bytes[number - 1])
        edge.zero_out = bool(zero_out[number - 1])


def _fill_setup(message: Message, setup: Setup, generation: str) -> None:
    for name, (path, factor) in FIELDS.items():
        content, field = block(message, path)
        value = float(getattr(setup, name).flat[0]) / factor
        if value and name != "tile_size":
            kind = content.DESCRIPTOR.fields_by_name[field]
            setattr(content, field, value if kind.type == kind.TYPE_FLOAT else round(value))
    network = getattr(message.system, setup.topology)
    for axis, role, dimension in zip(AXES, setup.roles, setup.dimensions, strict=False):
        setattr(network, axis, round(float(dimension.size.flat[0])))
        setattr(network, f"link_bw_{axis}", float(dimension.bandwidth.flat[0]) / 1e9)
        setattr(network, f"par_{axis}", role)
    run = run_block(message)
    run.execution_style = KERNEL_BY_KERNEL if setup.kernel_by_kernel else DATAFLOW
    if generation in ("gen1", "gen2a"):
        run.perfect_overlap = setup.overlap == "perfect"
    else:
        run.overlap = 2 if setup.overlap == "none" else OVERLAPS.index(setup.overlap)
        run.separate_rs_ag_for_ar = setup.doubled


def _one_token_is_fastest(graph: DfmodelGraph, setup: Setup, sharding: IntArray) -> bool:
    """True if tiles are of one token and no other size is faster.

    This is so if each kernel runs alone at the given utilization, and has the same number of tokens in each tile, for
    any size.
    """
    single = setup.kernel_by_kernel and setup.tile_size.flat[0] == 1 and setup.utilization.flat[0] > 0
    tokens = np.select([graph.tiling == K, graph.tiling == N], [graph.k, graph.n], 0.0)
    ragged = (tokens % setup.seq_len.flat[0] > 0) | ((tokens > 0) & (sharding == graph.tiling))
    return bool(single and not ragged.any())
