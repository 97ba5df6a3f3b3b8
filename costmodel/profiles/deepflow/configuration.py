"""What one run of DeepFlow is given: columns, one row per configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, broadcast_columns, column, column_units
from costmodel.training.lstm import KINDS, Split


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
        """How the products of a part are split: "hidden", "softmax", "projection" or "embedding"."""
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
