"""Candidate training layouts, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from costmodel.columns import (
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    broadcast_columns,
    column,
    column_units,
)
from costmodel.errors import DseError, suggestion
from costmodel.training.ranks import ORDER, Ranks
from costmodel.training.sharding import ASSIGNMENTS, FIXED, KERNELS, SHARDINGS, ways_of
from costmodel.training.split import KINDS, WHOLE, Split

#: Columns that users write as words: word -> code, the place in the tuple.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "recompute": ("none", "selective", "full"),
    "attention": ("unfused", "fused"),
    "sharding": SHARDINGS,
    **{f"{kernel}_sharding": tuple(ways) for kernel, ways in KERNELS.items()},
    "tiling": ("solve", "sample"),
    "hidden_kind": KINDS,
    "softmax_kind": KINDS,
    # Dimensions of DFModel's networks, from the inside out: switches, rings, or all chips linked with all.
    "topology": ("sw_sw_sw", "r_sw_sw", "r_r_r", "sw_sw", "r_sw", "r_r", "r_fc", "fc_fc", "sw", "r", "fc"),
    "overlap": ("none", "compute_memory", "perfect"),
    "execution": ("kernel_by_kernel", "dataflow"),
}

#: Codes of `recompute`.
RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = range(3)

#: Codes of `sharding`, and of `tiling` where tiles are told.
MEGATRON, MEGATRON_SP, SOLVE, SOLVE_BYTES, SAMPLE = range(5)
TILES_TOLD = 1

#: Products whose output tiles may be told, by two columns each: how often the largest tile's edge is halved.
TILED_PRODUCTS = ("qkv", "scores", "context", "projection", "mlp_up", "mlp_down", "head")
MOST_HALVINGS = 2
HALVINGS = tuple(f"{product}_tile_{axis}" for product in TILED_PRODUCTS for axis in "mn")


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
        for name in values:
            array, (lowest, highest) = columns[name], allowed_range(name)
            wrong = array[(array < lowest) | (array > highest) | (array != np.floor(array))]
            if wrong.size:
                upper = "" if highest == np.inf else f" to {highest:g}"
                raise DseError(
                    f"design: {name}: expected a whole number from {lowest:g}{upper}, got {wrong[0]:g}"
                )
        made = cls(**{name: columns[name] for name in units})
        made.check()
        return made

    def check(self) -> None:
        """Refuse columns that contradict each other; `DseError` says which."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DesignPoints(Layout):
    """Candidate layouts of a transformer, one row each; every column has shape (points,). [-]

    Switches are 0 or 1; columns with words hold the codes of `CHOICES`. Columns of single kernels count
    where `sharding` and `tiling` are "sample"; `sequence_parallel` is "megatron_sp" by another name.
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
    execution: FloatArray = column("-", 0)  #: of kernels each alone, or in groups that stream on chip
    sharding: FloatArray = column("-", MEGATRON)
    attention_norm_sharding: FloatArray = column("-", 0)
    qkv_sharding: FloatArray = column("-", 0)
    projection_sharding: FloatArray = column("-", 1)
    attention_residual_sharding: FloatArray = column("-", 0)
    mlp_norm_sharding: FloatArray = column("-", 0)
    mlp_up_sharding: FloatArray = column("-", 0)
    activation_sharding: FloatArray = column("-", 2)
    mlp_down_sharding: FloatArray = column("-", 1)
    mlp_residual_sharding: FloatArray = column("-", 0)
    tiling: FloatArray = column("-", 0)
    qkv_tile_m: FloatArray = column("-", 1)
    qkv_tile_n: FloatArray = column("-", 1)
    scores_tile_m: FloatArray = column("-", 1)
    scores_tile_n: FloatArray = column("-", 1)
    context_tile_m: FloatArray = column("-", 1)
    context_tile_n: FloatArray = column("-", 1)
    projection_tile_m: FloatArray = column("-", 1)
    projection_tile_n: FloatArray = column("-", 1)
    mlp_up_tile_m: FloatArray = column("-", 1)
    mlp_up_tile_n: FloatArray = column("-", 1)
    mlp_down_tile_m: FloatArray = column("-", 1)
    mlp_down_tile_n: FloatArray = column("-", 1)
    head_tile_m: FloatArray = column("-", 1)
    head_tile_n: FloatArray = column("-", 1)

    def check(self) -> None:
        """Refuse told tiles that no product may have."""
        told = self.tiling == TILES_TOLD
        for product in TILED_PRODUCTS if told.any() else ():
            m, n = (getattr(self, f"{product}_tile_{axis}") for axis in "mn")
            wrong = np.flatnonzero(told & ((m + n < 1) | (abs(m - n) > 1)))
            if wrong.size:
                raise DseError(
                    f"design: {product}_tile_m, {product}_tile_n: {m[wrong[0]]:g} and {n[wrong[0]]:g}; "
                    "expected two that differ by at most 1, and not 0 twice"
                )

    def split(self, kernel: str) -> IntArray:
        """How a kernel is split: (points,) places among its ways in `costmodel.training.sharding`. [-]

        What is still to be solved for counts as Megatron's.
        """
        if kernel == "final_norm":  # as the activation that it gets, as far as a norm can be
            return np.where(self.is_split("mlp_residual", "sequence"), 1, 0)
        if kernel in FIXED:
            return np.zeros(np.shape(self.tp), dtype=np.intp)
        ways = list(KERNELS[kernel])
        plain, shared = (ways.index(ASSIGNMENTS[name][kernel]) for name in ("megatron", "megatron_sp"))
        told: FloatArray = getattr(self, f"{kernel}_sharding")
        by_name = np.where((self.sequence_parallel > 0) | (self.sharding == MEGATRON_SP), shared, plain)
        return np.where(self.sharding == SAMPLE, told, by_name).astype(np.intp)

    def ways(self, point: int) -> dict[str, str]:
        """Kernel of a layer -> how one design splits it."""
        one = self.take(np.array([point]))
        return {kernel: list(ways)[one.split(kernel)[0]] for kernel, ways in KERNELS.items()}

    def is_split(self, kernel: str, way: str) -> BoolArray:
        """Where a kernel is split in one way; (points,)."""
        there: BoolArray = self.split(kernel) == list(ways_of(kernel)).index(way)
        return there

    def shards(self, kernel: str) -> FloatArray:
        """Ranks that share out the work of a kernel that is no product: tp unless it is replicated. [-]"""
        if "replicated" not in ways_of(kernel):
            return self.tp
        return np.where(self.is_split(kernel, "replicated"), 1.0, self.tp)

    @property
    def ranks(self) -> Ranks:
        """The grid of all ranks."""
        return Ranks({axis: getattr(self, axis) for axis in ORDER})

    @property
    def world_size(self) -> FloatArray:
        """Chips of the run. [-]"""
        return self.ranks.all.size

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

    def ranks(self, split: Split) -> Ranks:
        """The ranks as one of the splits sees them: shares of weights, then copies of them."""
        return Ranks({"shares": split.weight_shards, "rows": split.rows, "dp": self.dp})

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
    if name in HALVINGS:
        return 0.0, MOST_HALVINGS
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
