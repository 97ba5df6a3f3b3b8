"""Matrix products, FLOP and transcendentals of instructions, by the rules of XLA's cost analysis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from costmodel.errors import DseError
from costmodel.hlo.text.module import Computation, Instruction, Shape
from costmodel.hlo.text.opcodes import ARITHMETIC, TRANSCENDENTAL, parts
from costmodel.hlo.work.library_calls import call_flops, does_products, library_products
from costmodel.hlo.work.matrix_products import (
    DIMENSIONS,
    Product,
    contraction,
    convolution,
    spans_dimension,
    window_of,
)

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


@dataclass(frozen=True, slots=True)
class Work:
    """What an instruction does besides matrix products."""

    flops: int = 0  #: [FLOP]
    transcendentals: int = 0  #: [-]

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.transcendentals + other.transcendentals)

    def times(self, count: int) -> Work:
        """The same, `count` times."""
        return Work(self.flops * count, self.transcendentals * count)

    @property
    def total(self) -> int:
        """Both counted alike. [FLOP]"""
        return self.flops + self.transcendentals


class WorkOfInstructions:
    """Work of instructions; that of a computation is found once."""

    def __init__(self) -> None:
        self._bodies: dict[Computation, Work] = {}

    def of(self, instruction: Instruction) -> Work:
        """Work of one instruction, that of its body included."""
        if instruction.opcode == "custom-call":
            return Work(flops=call_flops(instruction) or 0)
        bodies = zip(map(self.body, instruction.called), repeats(instruction), strict=False)
        return sum((work.times(count) for work, count in bodies), own_work(instruction))

    def body(self, computation: Computation) -> Work:
        """Work of a computation, run once."""
        known = self._bodies.get(computation)
        if known is None:
            known = sum((self.of(each) for each in computation.instructions), Work())
            self._bodies[computation] = known
        return known


def own_work(instruction: Instruction) -> Work:
    """Work of an instruction apart from the computations that it runs."""
    opcode, shape = parts(instruction.opcode)[0], instruction.shape
    if opcode in ARITHMETIC:
        return Work(flops=shape.size)
    if opcode in TRANSCENDENTAL:
        return Work(transcendentals=shape.size)
    counted = _COUNTED.get(opcode)
    return (
        Work(flops=counted(instruction)) if counted and not instruction.opcode.endswith("-done") else Work()
    )


def _elements(instruction: Instruction) -> int:
    return instruction.operands[0].shape.size


def _last(shape: Shape) -> int:
    return shape.dims[-1] if shape.dims else 1


#: Instruction -> flops that XLA counts for it. [FLOP]
_COUNTED: Final[Mapping[str, Callable[[Instruction], int]]] = {
    "all-reduce": lambda i: i.shape.size,
    "sort": lambda i: _elements(i) * max(_elements(i) - 1, 0).bit_length(),
    "fft": lambda i: 8 * _elements(i) * prod(max(n.bit_length() - 1, 0) for n in i.numbers("fft_length")),
    "triangular-solve": lambda i: 2 * _last(i.operands[0].shape) * i.operands[1].shape.size,
    "cholesky": lambda i: _last(i.operands[0].shape) * _elements(i) // 3,
}


def repeats(instruction: Instruction) -> tuple[int, ...]:
    """How often an instruction runs each of its computations within itself. [-]"""
    counted = _REPEATED.get(instruction.opcode)
    return counted(instruction) if counted else ()


def _first(shape: Shape) -> Shape:
    """An array, or the first of a tuple."""
    return next(shape.leaves())


def _window_size(instruction: Instruction) -> int:
    """Places of a window. [-]"""
    return prod(each.size for each in window_of(instruction))


def _window_reductions(instruction: Instruction) -> int:
    """For each result as many as the window has places but one; where it spans a dimension, all once. [-]"""
    result = _first(instruction.shape)
    spanned = None if instruction.shape.is_tuple else spans_dimension(window_of(instruction), result.dims)
    if spanned is None:
        return (_window_size(instruction) - 1) * result.size
    length = result.dims[spanned]
    return result.size // length + length - 1


#: Instruction -> how often it runs each of its computations.
_REPEATED: Final[Mapping[str, Callable[[Instruction], tuple[int, ...]]]] = {
    "fusion": lambda i: (1,),
    "map": lambda i: (i.shape.size,),
    "reduce": lambda i: (_elements(i) - _first(i.shape).size,),
    "reduce-window": lambda i: (_window_reductions(i),),
    "scatter": lambda i: (i.operands[-1].shape.size,),
    "select-and-scatter": lambda i: (
        i.operands[1].shape.size * (_window_size(i) - 1),
        i.operands[1].shape.size,
    ),
}
