"""A batch of matrix products, and how the dimensions of two arrays give one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Final

from costmodel.errors import DseError
from costmodel.hlo.module import Instruction, Shape

#: Lists of dimensions, as settings of libraries call them; an instruction writes `dims` for `dimensions`.
DIMENSIONS: Final = (
    "lhs_contracting_dimensions",
    "rhs_contracting_dimensions",
    "lhs_batch_dimensions",
    "rhs_batch_dimensions",
)


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of C[m, n] = A[m, k] B[k, n]. [elements]"""

    batch: int
    m: int
    n: int
    k: int
    beta: bool  #: C is added to what its buffer holds, a third operand
    operands: tuple[Shape, ...]  #: A, B, and with `beta` what is added
    output: Shape
    useful: Fraction = Fraction(1)  #: share of multiplications done, not of padding or masked [-]

    @property
    def flops(self) -> int:
        """A multiply and an add for each element of A times column of B, where they are done. [FLOP]"""
        return int(2 * self.batch * self.m * self.n * self.k * self.useful)


def contraction(instruction: Instruction, dims: Sequence[Sequence[int]], *, beta: bool = False) -> Product:
    """The product of an instruction's first operands over the dimensions that it contracts and repeats.

    Parameters
    ----------
    instruction : Instruction
    dims : four lists of int
        As in `DIMENSIONS`.
    beta : bool
        Whether the third operand is added.

    Raises
    ------
    DseError
        If they contradict the operands or the output.
    """
    if len(instruction.operands) < 2:
        raise DseError(f"{instruction.name}: expected two operands or more")
    a, b = (operand.shape for operand in instruction.operands[:2])
    contracted_a, contracted_b, batch_a, batch_b = dims
    output = next(instruction.shape.leaves())  # a library's second output is its scratch memory
    try:
        k, batch = _sizes(a, contracted_a), _sizes(a, batch_a)
        agree = k == _sizes(b, contracted_b) and batch == _sizes(b, batch_b)
    except IndexError:
        agree = False
    m = prod(size for dim, size in enumerate(a.dims) if dim not in (*contracted_a, *batch_a))
    n = prod(size for dim, size in enumerate(b.dims) if dim not in (*contracted_b, *batch_b))
    if not agree or prod(batch) * m * n != output.size:
        raise DseError(f"{instruction.name}: {a} by {b} over dimensions {list(dims)} does not give {output}")
    operands = tuple(operand.shape for operand in instruction.operands[: 3 if beta else 2])
    return Product(prod(batch), m, n, prod(k), beta, operands, output)


def _sizes(shape: Shape, dims: Sequence[int]) -> list[int]:
    return [shape.dims[dim] for dim in dims]
