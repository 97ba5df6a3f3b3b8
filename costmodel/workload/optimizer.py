"""The optimizer's kernels: gradient clipping, the update by weights that a rank owns, orthogonal updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.columns import FloatArray
from costmodel.training.blocks import Layer
from costmodel.training.model import ModelShape
from costmodel.workload.kernel_tables import Gemms, Label

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
