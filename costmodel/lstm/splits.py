"""Splits of a matrix product over devices, and the share of one device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, FloatArray

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
