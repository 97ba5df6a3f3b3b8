"""Kernel tables: the work of a chip, one row per design and one column per kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.training.kernel_kind import PointwisePass

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
