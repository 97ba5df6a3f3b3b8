"""Matrix products of a module: `dot`, convolutions, and calls of libraries."""

from __future__ import annotations

from math import prod
from typing import Final

from costmodel.errors import DseError
from costmodel.hlo.convolutions import convolution
from costmodel.hlo.library_calls import does_products, library_products
from costmodel.hlo.matrix_product import DIMENSIONS, Product, contraction
from costmodel.hlo.module import Computation, Instruction

#: Matrix products that are instructions of XLA.
_PRODUCTS: Final = frozenset(("dot", "convolution", "ragged-dot", "scaled-dot"))


def is_product(instruction: Instruction) -> bool:
    """Whether an instruction is a matrix product by itself, or several."""
    return instruction.opcode in _PRODUCTS or does_products(instruction)


def product_instructions(instruction: Instruction) -> list[Instruction]:
    """The matrix products that a kernel does: itself, or those of its body, nested ones included."""
    if is_product(instruction):
        return [instruction]
    if instruction.opcode != "fusion":
        return []
    return [found for inner in instruction.called[0].instructions for found in product_instructions(inner)]


def products_in(instruction: Instruction) -> list[Product]:
    """Dimensions of the matrix products that a kernel does."""
    return [found for each in product_instructions(instruction) for found in products_of(each)]


def products_of_body(body: Computation) -> list[Product]:
    """The matrix products of a computation, nested ones included."""
    return [found for instruction in body.instructions for found in products_in(instruction)]


def products_of(instruction: Instruction) -> list[Product]:
    """The products that an instruction is, if `is_product`.

    Raises
    ------
    DseError
        If dimensions are missing, or contradict its output.
    """
    if instruction.opcode == "convolution":
        data, kernel = (operand.shape for operand in instruction.operands)
        return [convolution(instruction, data, kernel, instruction.shape, "result")]
    if instruction.opcode == "ragged-dot":
        return [_ragged(instruction)]
    if instruction.opcode in ("dot", "scaled-dot"):
        return [contraction(instruction, _dims(instruction))]
    return library_products(instruction)


def _dims(instruction: Instruction) -> list[list[int]]:
    return [instruction.numbers(key.replace("imensions", "ims")) for key in DIMENSIONS]


def _ragged(instruction: Instruction) -> Product:
    """A product whose rows, or contracted elements, are split among groups, each with a matrix of its own.

    All groups together have as many as the array, so that the product is as large as that with one of them.
    """
    dims = _dims(instruction)
    a, b = (operand.shape for operand in instruction.operands[:2])
    of_a = {dim for own in dims[::2] for dim in own}
    of_b = {dim for own in dims[1::2] for dim in own} | set(instruction.numbers("rhs_group_dims"))
    try:
        k, batch = (prod(a.dims[dim] for dim in own) for own in dims[::2])
    except IndexError:
        raise DseError(f"{instruction.name}: {a} has no dimensions {dims[::2]}") from None
    m = prod(size for dim, size in enumerate(a.dims) if dim not in of_a)
    n = prod(size for dim, size in enumerate(b.dims) if dim not in of_b)
    return Product(batch, m, n, k, False, (a, b), instruction.shape)
