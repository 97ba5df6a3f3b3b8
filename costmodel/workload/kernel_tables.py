"""Kernel tables: the work of a chip, one row per design and one column per kernel; and those of the optimizer.

The optimizer's kernels clip gradients, update the weights that a rank owns, and multiply matrices for orthogonal
updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, Self

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.training.blocks import Layer
from costmodel.training.kernel_kind import PointwisePass
from costmodel.training.model import ModelShape

#: Kernels that take longer than their work asks for: products of experts, passes that sort tokens.
Runs = Literal["", "grouped", "sorting"]


@dataclass(frozen=True, slots=True)
class Label:
    """Label of a kernel: its name, the pass it belongs to, and the part of the model that repeats it."""

    name: str
    of_pass: str
    part: str
    kernel: str = ""  #: row of a block that it is a piece of
    runs: Runs = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelTable:
    """Kernels of one rank and one micro-batch; every array has shape (points, kernels).

    `labels` and the columns are shared by all designs: a kernel that a design lacks has count 0.
    """

    labels: tuple[Label, ...]
    count: FloatArray

    def take(self, points: slice) -> Self:
        """The table of some of its points."""
        arrays = {f.name: getattr(self, f.name)[points] for f in fields(self) if f.name != "labels"}
        return replace(self, labels=self.labels, **arrays)

    def rows(self, points: IntArray) -> Self:
        """The table of points picked by row, repeats allowed; those of a kernel stand together in memory."""
        arrays = {
            f.name: np.take(getattr(self, f.name).T, points, axis=1).T for f in fields(self) if f.name != "labels"
        }
        return replace(self, labels=self.labels, **arrays)

    def take_kernels(self, places: IntArray | slice) -> Self:
        """The table of some of its kernels."""
        arrays = {f.name: getattr(self, f.name)[:, places] for f in fields(self) if f.name != "labels"}
        labels = np.arange(len(self.labels))[places]
        return replace(self, labels=tuple(self.labels[number] for number in labels), **arrays)

    def repeated(self, points: int) -> Self:
        """A table of one row, that row as often as there are points."""
        arrays = {f.name: np.repeat(getattr(self, f.name), points, axis=0) for f in fields(self) if f.name != "labels"}
        return replace(self, labels=self.labels, **arrays)

    def present(self) -> Self:
        """The table without the kernels that no design has."""
        return self.take_kernels(np.flatnonzero((self.count > 0).any(axis=0)))

    def beside(self, other: Self) -> Self:
        """The table with the kernels of another behind its own."""
        arrays = {
            f.name: np.concatenate([getattr(self, f.name), getattr(other, f.name)], axis=1)
            for f in fields(self)
            if f.name != "labels"
        }
        return replace(self, labels=(*self.labels, *other.labels), **arrays)

    def select(
        self, of_pass: str | None = None, part: str | None = None, among: Callable[[Label], bool] | None = None
    ) -> IntArray:
        """Places of the kernels of one pass, or one part, or both, and perhaps of some rows alone."""
        return np.array(
            [
                i
                for i, label in enumerate(self.labels)
                if of_pass in (None, label.of_pass) and part in (None, label.part) and (among is None or among(label))
            ],
            dtype=np.intp,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Gemms(KernelTable):
    """Matrix products, `count` times `batch` of C[m, n] += A[m, k] B[k, n]. [elements]"""

    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray
    output_bytes: FloatArray  #: moved per element of C: written once, or read and written in fp32 [B]

    @classmethod
    def stack(cls, rows: Sequence[tuple[Label, Sequence[FloatArray | float]]]) -> Self:
        """From (label, (m, n, k, batch, output_bytes, count)) per kernel; entries are (points,) or scalar."""
        m, n, k, batch, output_bytes, count = stacked([values for _, values in rows])
        labels = tuple(label for label, _ in rows)
        return cls(labels=labels, m=m, n=n, k=k, batch=batch, output_bytes=output_bytes, count=count)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pointwise(KernelTable):
    """Kernels without reuse: `count` times `bytes_moved` [B] and `flops` [FLOP]."""

    bytes_moved: FloatArray
    flops: FloatArray

    @classmethod
    def stack(cls, rows: Sequence[tuple[Label, Sequence[FloatArray | float]]]) -> Self:
        """From (label, (bytes_moved, flops, count)) per kernel; entries are (points,) or scalar."""
        bytes_moved, flops, count = stacked([values for _, values in rows])
        return cls(labels=tuple(label for label, _ in rows), bytes_moved=bytes_moved, flops=flops, count=count)

    @classmethod
    def of_rows(cls, rows: Sequence[PointwiseRow], *, element_bytes: float) -> Self:
        """From what kernels do to each of their elements."""
        return cls.stack(
            [
                (label, (n * (element_bytes * tensors + more), n * flops, count))
                for label, n, tensors, more, flops, count in rows
            ]
        )


#: Label, elements, tensors of operand elements moved, further bytes per element, FLOP per element, count.
PointwiseRow = tuple[Label, FloatArray, float, FloatArray | float, float, FloatArray | float]


def pointwise_rows(passes: Iterable[PointwisePass], kernel: str, part: str, core: str = "") -> Iterator[PointwiseRow]:
    """Passes of a kernel over its elements, as rows of the table of a part of the model and of its core."""
    for work in passes:
        runs: Runs = "sorting" if work.sorts else ""
        label = Label(work.name, work.of_pass, core if work.in_core else part, kernel, runs)
        yield label, work.elements, work.tensors, work.more, work.flops, work.launches


def stacked(rows: Sequence[Sequence[FloatArray | float]]) -> list[FloatArray]:
    """One (points, kernels) array per entry of a row, from rows of scalars and (points,) arrays.

    The points of a kernel stand together in memory, so that what is one value per design, as (points, 1),
    meets long lines of them.
    """
    points = max(np.size(value) for row in rows for value in row)
    columns = []
    for entry in zip(*rows, strict=True):
        array = np.empty((len(rows), points), dtype=np.float64)
        for line, value in zip(array, entry, strict=True):
            line[:] = value
        columns.append(array.T)
    return columns


def total(*factors: FloatArray, places: Iterable[int] | None = None, where: BoolArray | None = None) -> FloatArray:
    """Sum over kernels of a product of tables, strictly from left to right; (points,).

    Parameters
    ----------
    *factors : (points, kernels) array
        Tables of one shape. [any]
    places : iterable of int, optional
        Kernels that count; all by default.
    where : (points, kernels) bool array, optional
        Where a kernel counts; everywhere by default.

    Notes
    -----
    `np.sum` adds in an order that depends on the layout in memory; a running sum does not, so that a
    batch of n designs gives the same bits as n batches of one. A kernel's points stand together in memory,
    so that sums run along them.
    """
    *points, kernels = factors[0].shape
    sums = np.zeros(points)
    for kernel in range(kernels) if places is None else places:
        first, *others = (factor[..., kernel] for factor in factors)
        for line in others:
            first = first * line
        sums += first if where is None else np.where(where[..., kernel], first, 0.0)
    return sums


#: Operands and results of orthogonal updates: 16 bits. [B]
ORTHOGONAL_BYTES: Final = 2.0


@dataclass(frozen=True, slots=True)
class WeightKernel:
    """Work and traffic of an optimizer kernel, per weight."""

    flops: float  #: [FLOP]
    accesses: float  #: reads and writes of a full-precision number


#: The optimizer kernels of [DeepFlow]_ (rule OP1), which are those of Adam on fp32 as well: clipping reads
#: the gradients for the norm, then reads and writes them to scale; the update reads gradient, weight and
#: two moments, and writes the latter three.
OPTIMIZER_KERNELS: Mapping[str, WeightKernel] = {
    "gradclip": WeightKernel(flops=4, accesses=3),
    "apply_grad": WeightKernel(flops=3, accesses=7),
}


def optimizer_work(
    kernel: str, weights: FloatArray, *, element_bytes: FloatArray | float, accesses: FloatArray | float | None = None
) -> tuple[FloatArray, FloatArray]:
    """Work [FLOP] and traffic [B] of an optimizer kernel (`OPTIMIZER_KERNELS`) on parameters of a rank. [-]

    `element_bytes` is the size of a full-precision number [B]; `accesses` are reads and writes of one parameter, where
    they differ from the table's. [-]
    """
    work = OPTIMIZER_KERNELS[kernel]
    often = work.accesses if accesses is None else accesses
    return work.flops * weights, often * weights * element_bytes


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """A matrix of a model's layers, as rows of blocks have it: one of a layer, or of each of its experts."""

    name: str
    part: int  #: place of its layer among a stage's counts
    rows: float  #: the shorter edge [elements]
    columns: float  #: [elements]
    repeats: float  #: of its layer, for each that a stage counts [-]
    of_experts: bool
    whole: bool  #: on every rank of a tensor-parallel group

    @property
    def size(self) -> float:
        """Entries of a tensor that the optimizer updates. [-]"""
        return self.rows * self.columns


def weight_matrices(model: ModelShape) -> list[WeightMatrix]:
    """Matrices of all kinds of layers, the largest first; tables and the head are none of them."""
    kinds: list[tuple[Layer, int, float]] = [(layer, number, 1.0) for number, layer in enumerate(model.kinds)]
    if model.mtp_layers:
        kinds.append((model.mtp_layer, len(kinds) + 2, model.mtp_layers))  # behind embedding and head
    matrices = []
    for layer, part, repeats in kinds:
        for kernel in layer.kernels:
            short, long = sorted((model.features[kernel.reads], model.features[kernel.makes]))
            if model.weights(kernel) and short > 1:
                experts, whole = kernel.of_experts, kernel.is_whole
                matrices.append(WeightMatrix(kernel.name, part, short, long, repeats, experts, whole))
    return sorted(matrices, key=lambda matrix: -matrix.size)


def orthogonal_products(matrices: Sequence[WeightMatrix]) -> Gemms:
    """Products of one step of the Newton-Schulz iteration, three of each matrix; one row.

    Of X, with n rows and q columns, n the fewer: A = X X^T, A A, and their sum times X, in 4 n^2 q + 2 n^3
    multiply-adds, each counted as two [Jordan2024]_.
    """
    rows = []
    for number, matrix in enumerate(matrices):
        n, q = matrix.rows, matrix.columns
        for name, size in (("gram", (n, n, q)), ("square", (n, n, n)), ("update", (n, q, n))):
            rows.append((Label(name, "update", str(number)), (*size, 1.0, ORTHOGONAL_BYTES, 1.0)))
    return Gemms.stack(rows)
