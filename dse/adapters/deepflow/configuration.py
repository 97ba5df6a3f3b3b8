"""The inputs of a DeepFlow run, and the machine that its power budget buys; one row per configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, broadcast_columns, column, column_units
from costmodel.kernels.output_tiles import tile_edge
from costmodel.lstm.model import KINDS, Split


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Configuration(Columns):
    """An LSTM language model, a power budget, and a split of the model over devices; (points,) columns.

    Kinds of split hold the codes of `KINDS`; `mesh` is 1 where the links form a mesh.
    """

    batch_size: FloatArray = column("-")  #: sequences of one step, all data shards together
    seq_len: FloatArray = column("-")
    hidden_size: FloatArray = column("-")
    gates: FloatArray = column("-", 4)
    num_layers: FloatArray = column("-")
    projection_size: FloatArray = column("-")
    vocab_size: FloatArray = column("-")
    element_bytes: FloatArray = column("B", 4)
    launch_overhead: FloatArray = column("s", 0)

    tdp: FloatArray = column("W")
    core_fraction: FloatArray = column("-")
    dram_fraction: FloatArray = column("-")
    l2_fraction: FloatArray = column("-")
    shared_memory_fraction: FloatArray = column("-")
    link_fraction: FloatArray = column("-", 0)
    flop_energy: FloatArray = column("J")
    dram_energy: FloatArray = column("J/B")
    l2_energy: FloatArray = column("J/B")
    shared_memory_energy: FloatArray = column("J/B")
    link_energy: FloatArray = column("J/B")
    stack_capacity: FloatArray = column("B")
    stack_bandwidth: FloatArray = column("B/s")
    bank_capacity: FloatArray = column("B")
    bank_bandwidth: FloatArray = column("B/s")
    core_derate: FloatArray = column("-", 1)
    dram_derate: FloatArray = column("-", 1)

    dp: FloatArray = column("-", 1)
    lp: FloatArray = column("-", 1)  #: pipeline stages, those of embedding and softmax included
    hlp: FloatArray = column("-", 1)  #: pipeline stages of the hidden layers
    hidden_kind: FloatArray = column("-", 0)
    hidden_dim1: FloatArray = column("-", 1)
    hidden_dim2: FloatArray = column("-", 1)
    softmax_kind: FloatArray = column("-", 0)
    softmax_dim1: FloatArray = column("-", 1)
    softmax_dim2: FloatArray = column("-", 1)
    projection_kind: FloatArray = column("-", 0)
    projection_dim1: FloatArray = column("-", 1)
    projection_dim2: FloatArray = column("-", 1)
    embedding_kind: FloatArray = column("-", 0)
    embedding_dim1: FloatArray = column("-", 1)
    embedding_dim2: FloatArray = column("-", 1)
    mesh: FloatArray = column("-", 0)
    link_latency: FloatArray = column("s", 0)

    @classmethod
    def of(cls, **values: object) -> Self:
        """Build from scalars, lists and arrays, broadcast to one length; kinds may be words."""
        known = {name: array for name, array in values.items() if name in column_units(cls)}
        if len(known) < len(values):
            raise TypeError(f"no such column: {', '.join(sorted(set(values) - set(known)))}")
        coded = {name: kind_codes(v) if name.endswith("_kind") else v for name, v in known.items()}
        columns = broadcast_columns(**{name: np.asarray(v, dtype=np.float64) for name, v in coded.items()})
        return cls(**columns)

    def split(self, part: str) -> Split:
        """The split of the products of a part: "hidden", "softmax", "projection" or "embedding"."""
        return Split(*(getattr(self, f"{part}_{end}") for end in ("kind", "dim1", "dim2")))

    @property
    def shard_batch(self) -> FloatArray:
        """Sequences of one data shard. [-]"""
        return np.ceil(self.batch_size / self.dp)

    @property
    def tokens(self) -> FloatArray:
        """Tokens of one data shard. [-]"""
        return self.shard_batch * self.seq_len

    @property
    def gate_size(self) -> FloatArray:
        """Outputs of a cell's product, all gates together. [elements]"""
        return self.gates * self.hidden_size


#: Parts of the model whose products can be split.
PARTS = ("hidden", "softmax", "projection", "embedding")


def kind_codes(words: object) -> FloatArray:
    """Codes of kinds of split, from words or codes. [-]"""
    array = np.asarray(words)
    if array.dtype.kind == "U":
        return np.reshape([float(KINDS.index(word)) for word in array.ravel().tolist()], array.shape)
    return array.astype(np.float64)


def broken_guards(config: Configuration) -> dict[str, BoolArray]:
    """Guards of the reference model -> where they are broken: shards that do not divide.

    Keys are the column, with a dot between part and dimension, and what is wrong with its value.
    """
    hidden, softmax, projection = (config.split(part) for part in ("hidden", "softmax", "projection"))
    inputs, outputs, size = 2 * config.hidden_size, config.gate_size, config.hidden_size
    a, b, cr, rc = hidden.dim1, hidden.dim2, hidden.is_cr, hidden.is_rc
    return {
        "hidden.dim1: is neither 2 nor a multiple of 4": cr & (a != 2) & (a % 4 != 0),
        "hidden.dim1: does not divide 2 * hidden_size": cr & (inputs % a != 0),
        "hidden.dim1: does not divide the batch of a data shard": rc & (config.shard_batch % a != 0),
        "hidden.dim2: is neither 1, 2 nor a multiple of gates": rc & (b > 2) & (b % config.gates != 0),
        "hidden.dim2: does not divide gates * hidden_size": rc & (outputs % b != 0),
        "softmax.dim1: does not divide hidden_size": softmax.is_cr & (size % softmax.dim1 != 0),
        "softmax.dim2: does not divide hidden_size": softmax.is_rc & (size % softmax.dim2 != 0),
        "projection.dim1: does not divide hidden_size": projection.is_cr & (size % projection.dim1 != 0),
        "projection.dim1: does not divide the tokens of a data shard": projection.is_rc
        & (config.tokens % projection.dim1 != 0),
        "projection.dim2: does not divide projection_size": projection.is_rc
        & (config.projection_size % projection.dim2 != 0),
        "hlp: does not divide num_layers": config.num_layers % config.hlp != 0,
    }


#: Latency of the memory, charged once per memory-bound kernel. [s]
MEMORY_LATENCY = 50e-9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Hardware(Columns):
    """One device; (points,) columns. Rates are those that the model uses, after derating."""

    flop_rate: FloatArray = column("FLOP/s")
    dram_bandwidth: FloatArray = column("B/s")
    dram_capacity: FloatArray = column("B")
    l2_bandwidth: FloatArray = column("B/s")
    l2_capacity: FloatArray = column("B")
    shared_memory_capacity: FloatArray = column("B")
    link_bandwidth: FloatArray = column("B/s")
    l2_tile: FloatArray = column("-")
    shared_memory_tile: FloatArray = column("-")

    @property
    def inflection(self) -> FloatArray:
        """Intensity from which a kernel is bound by arithmetic; rule RF1. [FLOP/B]"""
        return self.flop_rate / self.dram_bandwidth


def hardware(config: Configuration) -> Hardware:
    """Rules HW1 to HW7 and TL1: each block's rate is its share of the power over the energy of one unit.

    (points,) columns. [FLOP/s], [B/s], [B], [elements] Capacities come from the bandwidth before derating, in fractions
    of a bank.
    """

    def share(part: str) -> FloatArray:
        fraction: FloatArray = getattr(config, f"{part}_fraction")
        return fraction * config.tdp

    dram_bandwidth = share("dram") / config.dram_energy
    l2_bandwidth = share("l2") / config.l2_energy
    l2_capacity = banked(l2_bandwidth, config.bank_capacity, config.bank_bandwidth)
    shared_bandwidth = share("shared_memory") / config.shared_memory_energy
    shared_capacity = banked(shared_bandwidth, config.bank_capacity, config.bank_bandwidth)
    links = number_of_links(config)
    per_link = share("link") / np.maximum(links, 1.0)
    return Hardware(
        flop_rate=share("core") / config.flop_energy * config.core_derate,
        dram_bandwidth=dram_bandwidth * config.dram_derate,
        dram_capacity=banked(dram_bandwidth, config.stack_capacity, config.stack_bandwidth),
        l2_bandwidth=l2_bandwidth,
        l2_capacity=l2_capacity,
        shared_memory_capacity=shared_capacity,
        link_bandwidth=np.where(links > 0, per_link / config.link_energy, 0.0),
        l2_tile=tile_edge(l2_capacity, config.element_bytes),
        shared_memory_tile=tile_edge(shared_capacity, config.element_bytes),
    )


def banked(bandwidth: FloatArray, bank_capacity: FloatArray, bank_bandwidth: FloatArray) -> FloatArray:
    """Capacity of the banks, in fractions of one, that give a bandwidth. [B]"""
    return bandwidth / bank_bandwidth * bank_capacity


def number_of_links(config: Configuration) -> FloatArray:
    """Links of a mesh that share the power for links; 0 elsewhere, and where nothing is split. [-]"""
    by_kernel = np.zeros(1, dtype=bool)
    for part in ("hidden", "softmax", "projection", "embedding"):
        split = config.split(part)
        by_kernel = by_kernel | (split.dim1 > 1) | (split.dim2 > 1)
    groups = (config.dp > 1) + 1.0 * (config.lp > 1) + by_kernel
    h1 = config.hidden_dim1
    links = np.where(groups < 3, groups * config.dp * h1, 3 * config.dp * h1 * config.lp)
    return np.where(config.mesh > 0, links, 0.0)


def roofline(
    flops: FloatArray, dram_bytes: FloatArray, machine: Hardware, *, l2_bytes: FloatArray | float = 0.0
) -> FloatArray:
    """Time of one kernel by rule RF3; arrays that broadcast against the machine's columns. [s]

    `flops` is work [FLOP], `dram_bytes` and `l2_bytes` are traffic [B].

    Differs from the native roofline, the slowest level: below the inflection the levels add up with one
    latency, and from there on arithmetic counts alone, even where the second level takes longer.
    """
    from_l2 = np.where(machine.l2_bandwidth > 0, l2_bytes / machine.l2_bandwidth, 0.0)
    moving = dram_bytes / machine.dram_bandwidth + MEMORY_LATENCY + from_l2
    return np.where(flops / dram_bytes < machine.inflection, moving, flops / machine.flop_rate)
