"""Inputs of DFModel besides the graph: machine, network, costs, workload; columns of many designs.

A `Setup` is the typed form of a file and of a batch of designs alike: numbers are (points,) columns in SI units, words
such as the topology are shared. A `Generation` lists the differences of the rules between published states of the
program as fields, so that one implementation evaluates them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from costmodel.columns import Columns, FloatArray, column, layout_of
from costmodel.formats.input_files import data_beside


@dataclass(frozen=True, slots=True)
class Generation:
    """Differences of the rules of one generation of the reference from the others."""

    halves: float | None = None  #: passes of an all-reduce over rings and switches; None: the file states them
    fully_connected: float | None = None  #: passes over fully connected links; None: as stated, for the TP group alone
    gradients: bool = True  #: the passes that the file states hold for gradients, too
    latencies: float | None = 0.0  #: link latencies of an all-reduce for each step; None: one for each pass
    second_tier: bool = False  #: DRAM may have a second tier
    ragged_tiles: bool = True  #: the last tile may be smaller than the others
    tile_limits: bool = False  #: `tile_size` of a file is the largest tile, not the only one
    loads_weights: bool = False  #: weights are read from DRAM once a micro-batch, on top of all else
    borrows_buffers: bool = False  #: in SRAM, outputs of the kernel with the n-th weight count as the n-th edge
    repeats_groups: bool = False  #: repetitions multiply the time of a group, which has one tile then
    networks_at_once: bool = False  #: tensor-parallel collectives and sums of gradients overlap
    passes_move_tensors: bool = False  #: weights that pass in parts move the tensors of their kernel with each part
    exchanged_pairs: str = "n n-1 0.5"  #: messages of an all-to-all through a dimension: a product
    exchange_links: Mapping[str, str] = field(default_factory=lambda: {"r": "2", "fc": "x x 0.25", "sw": "x"})
    whole_exchanges: bool = False  #: DLRM's all-to-all is stated for one chip, not for all


GENERATIONS: Final = {name: Generation(**fields) for name, fields in data_beside(__file__, "generations.yaml").items()}


def product(factors: str, **sizes: FloatArray) -> FloatArray:
    """A product whose factors are numbers, sizes by their names, or sizes less one: ``2 y z-1``. [-]"""
    names = [(factor, factor.removesuffix("-1")) for factor in factors.split()]
    values = [sizes[name] - float(name != factor) if name in sizes else float(factor) for factor, name in names]
    return np.asarray(np.prod(np.broadcast_arrays(*values), axis=0))


#: Topology -> the kind of each dimension, from the inside out: switches, rings, or all chips linked with all.
TOPOLOGIES: Final = {
    name: tuple(name.split("_"))
    for name in ("sw_sw_sw", "r_sw_sw", "r_r_r", "sw_sw", "r_sw", "r_r", "r_fc", "fc_fc", "sw", "r", "fc")
}
#: Which of arithmetic, memory and network overlap.
OVERLAPS: Final = ("none", "compute_memory", "perfect")
ROLES: Final = {1: (("TP",), ("PP",), ("DP",)), 2: (("TP", "PP"), ("TP", "DP"), ("PP", "DP")), 3: (("TP", "PP", "DP"),)}
AXES: Final = ("x", "y", "z")

#: Decimals to which a count of tiles is a whole number.
_ROUNDING: Final = 9


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of the network."""

    kind: str  #: "r" ring, "sw" switch, "fc" fully connected
    size: FloatArray  #: chips [-]
    bandwidth: FloatArray  #: of a link [B/s]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Setup(Columns):
    """Machine, network, prices and workload; (points,) columns, and settings that the designs share."""

    topology: str
    roles: tuple[str, ...]  #: group that each dimension serves: TP, PP or DP
    kernel_by_kernel: bool = True  #: else groups of kernels, as the graph's file numbers them
    overlap: str = "none"  #: a key of `evaluation.OVERLAPPED`
    doubled: bool = False  #: all-reduces as a reduce-scatter and an all-gather
    workload: str = "llm"  #: a key of `workloads.WORKLOADS`
    trains: bool = True  #: else a pipeline of the oldest generation has no bubble, and sends nothing

    num_chips: FloatArray = column("-")
    cores: FloatArray = column("-")
    array_width: FloatArray = column("-")
    array_height: FloatArray = column("-")
    frequency: FloatArray = column("Hz")
    sram_bytes: FloatArray = column("B", 0)  #: 0 = without limit
    memory_units: FloatArray = column("-", 0)  #: banks of the SRAM, which the lanes of kernels share; 0 = no limit
    memory_unit_bytes: FloatArray = column("B", 0)
    link_latency: FloatArray = column("s", 0)
    dram_bandwidth: FloatArray = column("B/s")
    dram_bytes: FloatArray = column("B", 0)  #: 0 = without limit
    second_dram_bandwidth: FloatArray = column("B/s", 0)
    second_dram_bytes: FloatArray = column("B", 0)  #: 0 = no second tier
    domain_size: FloatArray = column("-", 0)  #: chips of a high-bandwidth domain; 0 = none
    x: FloatArray = column("-")  #: 0 = open, as other sizes: see `network.sized`
    y: FloatArray = column("-", 1)
    z: FloatArray = column("-", 1)
    x_bandwidth: FloatArray = column("B/s")
    y_bandwidth: FloatArray = column("B/s", 0)
    z_bandwidth: FloatArray = column("B/s", 0)

    link_price: FloatArray = column("$ s/B", 0)
    switch_price: FloatArray = column("$ s/B", 0)
    dram_price: FloatArray = column("$ s/B", 0)
    accelerator_price: FloatArray = column("$", 0)
    x_link_power: FloatArray = column("W s/B", 0)
    y_link_power: FloatArray = column("W s/B", 0)
    z_link_power: FloatArray = column("W s/B", 0)
    switch_power: FloatArray = column("W s/B", 0)
    dram_power: FloatArray = column("W s/B", 0)
    accelerator_power: FloatArray = column("W", 0)

    hidden_size: FloatArray = column("-")
    head_size: FloatArray = column("-")
    num_attention_heads: FloatArray = column("-")
    seq_len: FloatArray = column("-")
    num_layers: FloatArray = column("-")
    global_batch_size: FloatArray = column("-")
    micro_batch_size: FloatArray = column("-", 1)
    tile_size: FloatArray = column("-", 1)  #: tokens of a tile
    element_bytes: FloatArray = column("B", 2)
    utilization: FloatArray = column("-", 0)  #: of the peak rate; 0 = from the shapes of the kernels
    least_utilization: FloatArray = column("-", 0)  #: of a pipeline without bubble; slower designs do not count
    effective_stages: FloatArray = column("-", 0)  #: of k in an array, for kernels with their own mapping
    copies: FloatArray = column("-", 1)  #: of the workload, on equal parts of the chips
    replicas: FloatArray = column("-", 1)  #: of weights, where no dimension serves DP
    stored_bytes: FloatArray = column("B", 0)  #: data in the DRAM of a chip besides weights and tensors

    @property
    def peak_rate(self) -> FloatArray:
        """Multiply-adds counted as two. [FLOP/s]"""
        return 2 * self.array_width * self.array_height * self.cores * self.frequency

    @property
    def tiles(self) -> FloatArray:
        """Tiles that stream through a kernel; the last may be smaller. [-]"""
        return np.ceil(np.round(self.seq_len / self.tile_size, _ROUNDING))

    @property
    def stage_layers(self) -> FloatArray:
        """Layers of the longest pipeline stage. [-]"""
        return np.ceil(self.num_layers / self.degree("PP"))

    @property
    def sequences(self) -> FloatArray:
        """Sequences of a micro-batch that the kernels of a language model do not count. [-]"""
        return self.micro_batch_size if self.roles else self.micro_batch_size**0

    @property
    def micro_batches(self) -> FloatArray:
        """Micro-batches of a replica and iteration. [-]"""
        return self.global_batch_size / (self.micro_batch_size * self.degree("DP"))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of the network."""
        return tuple(
            Dimension(kind, getattr(self, axis), getattr(self, f"{axis}_bandwidth"))
            for kind, axis in zip(TOPOLOGIES[self.topology], AXES, strict=False)
        )

    def dimension(self, role: str) -> Dimension | None:
        """The dimension that serves a group, if one does."""
        return next((d for d, r in zip(self.dimensions, self.roles, strict=False) if r == role), None)

    def degree(self, role: str) -> FloatArray:
        """Chips of a group. [-]"""
        dimension = self.dimension(role)
        if dimension is not None:
            return dimension.size
        return self.num_chips**0 * (self.replicas if role == "DP" else 1)

    def shape(self) -> str:
        """Sizes of the dimensions of one row, in words: ``PP 128 x DP 32``."""
        names = self.roles or AXES
        named = zip(names, self.dimensions, strict=False)
        return " x ".join(f"{name} {dimension.size.flat[0]:.0f}" for name, dimension in named)

    def refusals(self, generation: str) -> list[str]:
        """Parts of this set-up that a generation of the reference does not support, one line each."""
        rules, lines = GENERATIONS[generation], []
        if np.any(self.second_dram_bytes) and not rules.second_tier:
            lines.append(f"system.memory.second_dram_cap: {generation} has no second tier; leave it out")
        tile, seq_len = f"{self.tile_size.flat[0]:.0f}", f"{self.seq_len.flat[0]:.0f}"
        if np.any(self.tile_size > self.seq_len):
            lines.append(f"tile_size: {tile} is above seq_len, {seq_len}; choose a smaller one")
        elif np.any(self.seq_len % self.tile_size) and not rules.ragged_tiles:
            lines.append(f"tile_size: {tile} does not divide seq_len, {seq_len}; choose a divisor")
        return lines


#: Columns on which no grouping of kernels depends: sizes in the graph, factors of a layer's time, and prices. All
#: others may decide on the fastest groups.
IDLE: Final = (
    *("num_chips", "hidden_size", "head_size", "num_attention_heads", "num_layers"),
    *(name for name in layout_of(Setup).units if name.endswith(("_price", "_power"))),
)
#: Columns on which groups depend only through the time of the network, and the batch with them.
NETWORK: Final = (*("x", "y", "z", "x_bandwidth", "y_bandwidth", "z_bandwidth", "link_latency", "domain_size"),)
BATCH: Final = ("global_batch_size", "micro_batch_size")
