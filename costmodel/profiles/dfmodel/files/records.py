"""Messages -> graphs and set-ups, once everything in them holds together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.errors import DseError
from costmodel.profiles.dfmodel.files.checks import DATAFLOW, mistakes
from costmodel.profiles.dfmodel.files.setup_files import Message
from costmodel.profiles.dfmodel.graph import DfmodelGraph
from costmodel.profiles.dfmodel.setup import AXES, TOPOLOGIES, Setup

GIGA: Final = 1e9

#: Column of a set-up -> where a message has it, and the factor to SI units.
FIELDS: Final = {
    "num_chips": ("system.num_chip", 1),
    "cores": ("system.accelerator.core", 1),
    "array_width": ("system.accelerator.systolic_width", 1),
    "array_height": ("system.accelerator.systolic_height", 1),
    "frequency": ("system.accelerator.freq", GIGA),
    "sram_bytes": ("system.accelerator.sram_cap", 1),
    "link_latency": ("system.accelerator.link_latency", 1 / GIGA),
    "dram_bandwidth": ("system.memory.dram_bw", GIGA),
    "dram_bytes": ("system.memory.dram_cap", 1),
    "second_dram_bandwidth": ("system.memory.second_dram_bw", GIGA),
    "second_dram_bytes": ("system.memory.second_dram_cap", 1),
    "domain_size": ("system.HBD", 1),
    "link_price": ("cost.link_unit_price", 1 / GIGA),
    "switch_price": ("cost.switch_unit_price", 1 / GIGA),
    "dram_price": ("cost.dram_unit_price", 1 / GIGA),
    "accelerator_price": ("cost.accelerator_price", 1),
    "x_link_power": ("cost.link_unit_power_x", 1 / GIGA),
    "y_link_power": ("cost.link_unit_power_y", 1 / GIGA),
    "z_link_power": ("cost.link_unit_power_z", 1 / GIGA),
    "switch_power": ("cost.switch_unit_power", 1 / GIGA),
    "dram_power": ("cost.dram_unit_power", 1 / GIGA),
    "accelerator_power": ("cost.accelerator_power", 1),
    "hidden_size": ("run.llm.hidden_dim", 1),
    "head_size": ("run.llm.head_dim", 1),
    "num_attention_heads": ("run.llm.num_head", 1),
    "seq_len": ("run.llm.seq_len", 1),
    "num_layers": ("run.llm.num_layer", 1),
    "global_batch_size": ("run.llm.global_batch_size", 1),
    "micro_batch_size": ("run.llm.micro_batch_size", 1),
    "tile_size": ("run.llm.tile_size", 1),
    "element_bytes": ("run.word", 1),
    "utilization": ("run.compute_util", 1),
}
#: Columns that are 1 where a file says nothing.
_ONE: Final = ("micro_batch_size", "tile_size")
#: Overlap of the third generation, by its codes.
OVERLAPS: Final = ("none", "perfect", "none", "compute_memory")


@dataclass(frozen=True, slots=True)
class SetupFile:
    """All that a set-up file says, ready to be evaluated."""

    graph: DfmodelGraph
    setup: Setup
    sharding: IntArray | None  #: (kernels,); None where the file leaves some kernel open
    pins: IntArray  #: group that the file gives each kernel, -1 where it is open; (kernels,)
    most_groups: int  #: that kernels may be put into; 0 where each kernel runs alone
    tiles_open: bool  #: the file states no size of a tile; `setup` has one token then

    @property
    def groups(self) -> IntArray | None:
        """Group of each kernel, without gaps; None where each runs alone, or some are open. (kernels,)"""
        if self.most_groups == 0 or self.pins.min() < 0:
            return None
        return np.unique(self.pins, return_inverse=True)[1]


def run_block(message: Message) -> Message:
    """The block on how to run: `miscellany` of the first generation, `execution` later."""
    return message.miscellany if "miscellany" in message.DESCRIPTOR.fields_by_name else message.execution


def block(message: Message, path: str) -> tuple[Message, str]:
    """The block that holds a field of `FIELDS`, and the field's own name."""
    first, *inner, name = path.split(".")
    found = run_block(message) if first == "run" else getattr(message, first)
    for step in inner:
        found = getattr(found, step)
    return found, name


def network_block(message: Message) -> tuple[str, Message]:
    """Topology, and the block with its dimensions."""
    topology = message.system.WhichOneof("topology_variant")
    return topology, getattr(message.system, topology)


def variant(kernel: Message) -> Message:
    """The block with a kernel's dimensions."""
    return getattr(kernel, kernel.WhichOneof("variant"))


def setup_file(message: Message, where: str) -> SetupFile:
    """Graph, set-up, sharding and groups of a set-up.

    Raises
    ------
    DseError
        With one line for each thing that does not hold together.
    """
    found = mistakes(message)
    if found:
        raise DseError("\n".join(f"{where}: {mistake}" for mistake in found))
    graph = _graph(message.dataflow_graph)
    try:
        graph.levels()
    except DseError as error:
        raise DseError(f"{where}: {error}") from error
    kernels = message.dataflow_graph.kernels
    sharding = np.array([variant(kernel).sharding for kernel in kernels])
    run = run_block(message)
    fused = run.execution_style == DATAFLOW
    alone = run.num_config in (0, len(kernels))  # then the reference runs each kernel alone
    return SetupFile(
        graph=graph,
        setup=_setup(message),
        sharding=sharding if sharding.all() else None,
        pins=np.array([kernel.config for kernel in kernels]),
        most_groups=run.num_config if fused and not alone else 0,
        tiles_open=run.llm.tile_size == 0,
    )


def _graph(message: Message) -> DfmodelGraph:
    kernels = message.kernels
    parts = [variant(kernel) for kernel in kernels]
    kinds = np.array([kernel.WhichOneof("variant") for kernel in kernels])
    place = {kernel.id: at for at, kernel in enumerate(kernels)}
    edges = message.connections
    return DfmodelGraph(
        names=tuple(kernel.name for kernel in kernels),
        backward=np.array([kernel.fwd_bwd == 2 for kernel in kernels]),
        systolic=np.array([kernel.type == 1 for kernel in kernels]),
        weighted=kinds == "gemm_input1_weight",
        tiling=np.array([part.tiling for part in parts]),
        outer=_numbers(parts, "outer"),
        m=_numbers(parts, "M"),
        k=_numbers(parts, "K", otherwise=1),
        n=_numbers(parts, "N"),
        first_bytes=_numbers(parts, "input_tensor_size", "input_tensor_1_size"),
        second_bytes=_numbers(parts, "weight_tensor_size", "input_tensor_2_size"),
        output_bytes=_numbers(parts, "output_tensor_size"),
        start=np.array([place[edge.startIdx] for edge in edges], dtype=np.int64),
        end=np.array([place[edge.endIdx] for edge in edges], dtype=np.int64),
        repeats=np.maximum(_numbers(parts, "num_input"), 1),
        memory_bytes=_numbers(parts, "memory_size"),
        streamed=np.array([part.skip_weight for part in parts], dtype=bool),
        zero_out=np.array([edge.zero_out for edge in edges], dtype=bool),
    )


def _numbers(parts: Sequence[Any], *names: str, otherwise: float = 0) -> FloatArray:
    """The first of the named fields that each kernel has."""
    return np.array(
        [next((float(getattr(p, n)) for n in names if hasattr(p, n)), otherwise) for p in parts],
        dtype=np.float64,
    )


def _setup(message: Message) -> Setup:
    columns = {}
    for name, (path, factor) in FIELDS.items():
        found, field = block(message, path)
        value = float(getattr(found, field))
        columns[name] = 1.0 if value == 0 and name in _ONE else value * factor
    topology, network = network_block(message)
    axes = AXES[: len(TOPOLOGIES[topology])]
    for axis in axes:
        columns[axis] = float(getattr(network, axis))
        columns[f"{axis}_bandwidth"] = getattr(network, f"link_bw_{axis}") * GIGA
    run = run_block(message)
    newest = hasattr(run, "overlap")
    return Setup.of(
        topology=topology,
        roles=tuple(getattr(network, f"par_{axis}") for axis in axes),
        kernel_by_kernel=run.execution_style != DATAFLOW,
        overlap=OVERLAPS[run.overlap if newest else run.perfect_overlap],
        doubled=newest and run.separate_rs_ag_for_ar,
        **{name: [value] for name, value in columns.items()},
    )
