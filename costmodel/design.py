"""Candidate training layouts, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from costmodel.columns import Columns, FloatArray, broadcast_columns, column, column_units
from costmodel.errors import DseError, suggestion
from costmodel.split import KINDS, WHOLE, Split

#: Columns that users write as words: word -> code, the place in the tuple.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "recompute": ("none", "selective", "full"),
    "attention": ("unfused", "fused"),
    "hidden_kind": KINDS,
    "softmax_kind": KINDS,
    # Dimensions of DFModel's networks, from the inside out: switches, rings, or all chips linked with all.
    "topology": ("sw_sw_sw", "r_sw_sw", "r_r_r", "sw_sw", "r_sw", "r_r", "r_fc", "fc_fc", "sw", "r", "fc"),
    "overlap": ("none", "compute_memory", "perfect"),
}

#: Codes of `recompute`.
RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = range(3)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layout(Columns):
    """How a model is laid out over chips, whatever the model; every column has shape (points,). [-]"""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Build from scalars, lists and arrays, broadcast to one length; words are taken for `CHOICES`.

        Raises
        ------
        DseError
            For an unknown column or word, lengths that differ or are 0, a code or switch that is none, or
            a count that is not whole and positive.
        """
        units = column_units(cls)
        for name in values:
            if name not in units:
                raise DseError(f"design: {name}: unknown column{suggestion(name, units)}")
        defaults = {name: array for name, array in cls().columns().items() if name not in values}
        try:
            columns = broadcast_columns(**defaults, **{k: encoded(k, v) for k, v in values.items()})
        except ValueError as error:
            raise DseError(f"design: {error}") from error
        for name, array in columns.items():
            lowest, highest = allowed_range(name)
            wrong = array[(array < lowest) | (array > highest) | (array != np.floor(array))]
            if wrong.size:
                upper = "" if highest == np.inf else f" to {highest:g}"
                raise DseError(
                    f"design: {name}: expected a whole number from {lowest:g}{upper}, got {wrong[0]:g}"
                )
        return cls(**{name: columns[name] for name in units})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DesignPoints(Layout):
    """Candidate layouts of a transformer, one row each; every column has shape (points,). [-]

    Switches are 0 or 1; `recompute`, `attention`, `topology` and `overlap` hold the codes of `CHOICES`.
    """

    tp: FloatArray = column("-", 1)
    pp: FloatArray = column("-", 1)
    vpp: FloatArray = column("-", 1)
    dp: FloatArray = column("-", 1)
    micro_batch_size: FloatArray = column("-", 1)
    gradient_accumulation_steps: FloatArray = column("-", 1)
    sequence_parallel: FloatArray = column("-", 0)
    recompute: FloatArray = column("-", RECOMPUTE_NONE)
    distributed_optimizer: FloatArray = column("-", 0)
    attention: FloatArray = column("-", 1)
    overlap_grad_reduce: FloatArray = column("-", 0)
    topology: FloatArray = column("-", 0)
    tile_size: FloatArray = column("-", 1)  #: tokens of a tile that streams through a layer
    overlap: FloatArray = column("-", 0)  #: of arithmetic, memory and network, as DFModel has it

    @property
    def sequence_shards(self) -> FloatArray:
        """Ranks that share out activations between split kernels: tp in sequence parallelism. [-]"""
        return np.where(self.sequence_parallel > 0, self.tp, 1.0)

    @property
    def world_size(self) -> FloatArray:
        """Chips of the run. [-]"""
        return self.tp * self.pp * self.dp

    @property
    def global_batch_size(self) -> FloatArray:
        """Sequences of one optimizer step. [-]"""
        return self.dp * self.micro_batch_size * self.gradient_accumulation_steps


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LstmDesign(Layout):
    """Candidate layouts of an LSTM language model, one row each; every column has shape (points,). [-]

    The kinds hold the codes of `CHOICES`: how the products of cells and projection, and those into the
    vocabulary, are split over a group of `dim1 * dim2` chips.
    """

    dp: FloatArray = column("-", 1)
    micro_batch_size: FloatArray = column("-", 1)
    gradient_accumulation_steps: FloatArray = column("-", 1)
    hidden_kind: FloatArray = column("-", WHOLE)
    hidden_dim1: FloatArray = column("-", 1)
    hidden_dim2: FloatArray = column("-", 1)
    softmax_kind: FloatArray = column("-", WHOLE)
    softmax_dim1: FloatArray = column("-", 1)
    softmax_dim2: FloatArray = column("-", 1)

    @property
    def hidden(self) -> Split:
        """Split of cells and projection."""
        return Split(self.hidden_kind, self.hidden_dim1, self.hidden_dim2)

    @property
    def softmax(self) -> Split:
        """Split of the product into the vocabulary."""
        return Split(self.softmax_kind, self.softmax_dim1, self.softmax_dim2)

    @property
    def world_size(self) -> FloatArray:
        """Chips of the run: a group holds the larger of both splits. [-]"""
        return self.dp * np.maximum(self.hidden.shards, self.softmax.shards)

    @property
    def global_batch_size(self) -> FloatArray:
        """Sequences of one optimizer step. [-]"""
        return self.dp * self.micro_batch_size * self.gradient_accumulation_steps


#: Columns that are off (0) or on (1).
SWITCHES = ("sequence_parallel", "distributed_optimizer", "overlap_grad_reduce")


def allowed_range(name: str) -> tuple[float, float]:
    """Least and greatest value of a column: a code, a switch, or a count. [-]"""
    if name in CHOICES:
        return 0.0, len(CHOICES[name]) - 1.0
    return (0.0, 1.0) if name in SWITCHES else (1.0, np.inf)


def encoded(name: str, value: Any) -> FloatArray:
    """Codes of a column's words, where it has words; numbers and switches pass through. [-]

    Raises
    ------
    DseError
        For a word that is not one of the column's, or a value that is no number.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "USO":
        return array.astype(np.float64)
    words = CHOICES.get(name, ())
    codes = {word: float(code) for code, word in enumerate(words)}
    try:
        return np.array([codes[v] if isinstance(v, str) else float(v) for v in array.ravel()]).reshape(
            array.shape
        )
    except (KeyError, ValueError, TypeError):
        wrong = next(str(v) for v in array.ravel() if not (v in codes or isinstance(v, int | float)))
        raise DseError(f"design: {name}: {wrong!r} is not a value{suggestion(wrong, words)}") from None
