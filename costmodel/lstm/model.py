"""LSTM language models: their dimensions, candidate designs, and the splits of their products over devices.

A product of the hidden state with the weights is split by rows and columns over a grid of devices, as in DeepFlow; the
share of one device decides its kernels and its messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from costmodel.columns import BoolArray, FloatArray, column
from costmodel.training.design_table import Design, words
from costmodel.training.dimensions import check_dimensions
from costmodel.training.ranks import Ranks
from costmodel.training.run import Run

#: Kinds of split, by code. A column-row product splits the inner dimension over `dim1`, so that results
#: are partial sums; a row-column product splits rows over `dim1` and columns over `dim2`.
KINDS = ("none", "cr", "rc")
WHOLE, COLUMN_ROW, ROW_COLUMN = range(3)

Size = FloatArray | float
#: (m, n, k) of a product C[m, n] += A[m, k] B[k, n]. [elements]
Dimensions = tuple[FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True, slots=True)
class Split:
    """The split of a product; (points,) columns. [-]"""

    kind: FloatArray  #: code of `KINDS`
    dim1: FloatArray
    dim2: FloatArray

    @property
    def is_cr(self) -> BoolArray:
        """Where the inner dimension is split."""
        return np.equal(self.kind, COLUMN_ROW)

    @property
    def is_rc(self) -> BoolArray:
        """Where rows and columns are split."""
        return np.equal(self.kind, ROW_COLUMN)

    @property
    def sharded(self) -> BoolArray:
        """Where there is a split at all."""
        return np.not_equal(self.kind, WHOLE)

    @property
    def rows(self) -> FloatArray:
        """Pieces that the rows of a product are cut into. [-]"""
        return np.where(self.is_rc, self.dim1, 1.0)

    @property
    def inner(self) -> FloatArray:
        """Pieces that the inner dimension of a product is cut into. [-]"""
        return np.where(self.is_cr, self.dim1, 1.0)

    @property
    def columns(self) -> FloatArray:
        """Pieces that the columns of a product are cut into. [-]"""
        return np.where(self.is_rc, self.dim2, 1.0)

    @property
    def shards(self) -> FloatArray:
        """Devices that share the product. [-]"""
        return self.rows * self.inner * self.columns

    def forward(self, m: Size, n: Size, k: Size) -> Dimensions:
        """One device's share of A[m, k] B[k, n]. [elements]"""
        return m / self.rows, n / self.columns, k / self.inner

    def activation_gradient(self, m: Size, n: Size, k: Size) -> Dimensions:
        """One device's share of dA[m, k] = dC[m, n] B^T[n, k]. [elements]

        Shares of a row-column split are partial sums over n.
        """
        return m / self.rows, k / self.inner, n / self.columns

    def weight_gradient(self, m: Size, n: Size, k: Size) -> Dimensions:
        """One device's share of dB[k, n] = A^T[k, m] dC[m, n]. [elements]

        Shares of a row-column split are partial sums over m.
        """
        return k / self.inner, n / self.columns, m / self.rows

    @property
    def weight_shards(self) -> FloatArray:
        """Devices that share the weights; the others hold the same ones. [-]"""
        return self.inner * self.columns


@dataclass(frozen=True, kw_only=True, slots=True)
class LstmShape:
    """An LSTM language model: embedding, layers of cells, projection, softmax over a vocabulary. [-]

    Raises `DseError` if a dimension is not positive.
    """

    #: Fields that count something, and so must be whole and positive.
    dimensions: ClassVar[tuple[str, ...]] = (
        "num_layers",
        "hidden_size",
        "projection_size",
        "vocab_size",
        "gates",
        "seq_len",
    )
    counts: ClassVar[tuple[str, ...]] = ()

    name: str = "model"
    title: str = ""  #: as it is published
    num_layers: float
    hidden_size: float
    projection_size: float
    vocab_size: float
    gates: float = 4.0
    seq_len: float = 20.0

    def __post_init__(self) -> None:
        check_dimensions(self)

    @property
    def gate_size(self) -> float:
        """Outputs of a cell's product, all gates together. [elements]"""
        return self.gates * self.hidden_size

    @property
    def parameters_per_layer(self) -> float:
        """The matrix from input and state to gates, and a bias per gate. [-]"""
        return (2 * self.hidden_size + 1) * self.gate_size

    @property
    def projection_parameters(self) -> float:
        """The matrix into the projection, with a bias. [-]"""
        return (self.hidden_size + 1) * self.projection_size

    @property
    def embedding_parameters(self) -> float:
        """Parameters of the word table. [-]"""
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> float:
        """The matrix into the vocabulary, with a bias. [-]"""
        return (self.projection_size + 1) * self.vocab_size

    @property
    def num_parameters(self) -> float:
        """Parameters of the model, each counted once. [-]"""
        cells = self.num_layers * self.parameters_per_layer
        return self.embedding_parameters + cells + self.projection_parameters + self.head_parameters

    @property
    def forward_flops_per_sequence(self) -> float:
        """Multiply-adds of the forward pass of one sequence, each counted as two. [FLOP]"""
        cell = self.num_layers * 2 * self.hidden_size * self.gate_size
        outside = self.projection_size * (self.hidden_size + self.vocab_size)
        return 2 * self.seq_len * (cell + outside)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LstmDesign(Design):
    """Parallel configurations of an LSTM language model, one row each; every column has shape (points,). [-]

    The kinds hold the codes of `splits.KINDS`: how the products of cells and projection, and those into the
    vocabulary, are split over a group of `dim1 * dim2` chips.
    """

    dp: FloatArray = column("-", 1)
    micro_batch_size: FloatArray = column("-", 1)
    gradient_accumulation_steps: FloatArray = column("-", 1)
    hidden_kind: FloatArray = words(KINDS, WHOLE)
    hidden_dim1: FloatArray = column("-", 1)
    hidden_dim2: FloatArray = column("-", 1)
    softmax_kind: FloatArray = words(KINDS, WHOLE)
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


LstmRun = Run[LstmShape, LstmDesign]
