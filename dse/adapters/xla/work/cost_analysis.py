"""FLOP, transcendentals and bytes of instructions by the rules of XLA's cost analysis, and its totals.

Where a rule of XLA's is an estimate, such as the bytes of a fusion, it is kept: the figures are XLA's, and comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import prod
from typing import Final, Literal, NamedTuple

import numpy as np

from dse.adapters.xla.text.module import (
    ARITHMETIC,
    SOURCES,
    TRANSCENDENTAL,
    VIEWS,
    Computation,
    Instruction,
    Shape,
    control_predecessors,
    output_shape,
    parts,
)
from dse.adapters.xla.work.matrix_products import (
    call_flops,
    is_product,
    is_staying,
    products_of,
    spans_dimension,
    window_of,
)


@dataclass(frozen=True, slots=True)
class Work:
    """Work of an instruction besides matrix products."""

    flops: int = 0  #: [FLOP]
    transcendentals: int = 0  #: [-]

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.transcendentals + other.transcendentals)

    def times(self, count: int) -> Work:
        """Work done `count` times."""
        return Work(self.flops * count, self.transcendentals * count)

    @property
    def total(self) -> int:
        """FLOP and transcendentals together. [FLOP]"""
        return self.flops + self.transcendentals


def work_of(instruction: Instruction, bodies: dict[Computation, Work]) -> Work:
    """Work of one instruction, that of its body included; `bodies` keeps the work of computations."""
    if instruction.opcode == "custom-call":
        return Work(flops=call_flops(instruction) or 0)
    total = own_work(instruction)
    for called, count in zip(instruction.called, repeats(instruction), strict=False):
        if called not in bodies:
            bodies[called] = sum((work_of(inner, bodies) for inner in called.instructions), Work())
        total += bodies[called].times(count)
    return total


def own_work(instruction: Instruction) -> Work:
    """Work of an instruction apart from the computations that it runs."""
    opcode, shape = parts(instruction.opcode)[0], instruction.shape
    if opcode in ARITHMETIC:
        return Work(flops=shape.size)
    if opcode in TRANSCENDENTAL:
        return Work(transcendentals=shape.size)
    counted = _COUNTED.get(opcode)
    return Work(flops=counted(instruction)) if counted and not instruction.opcode.endswith("-done") else Work()


def _elements(instruction: Instruction) -> int:
    return instruction.operands[0].shape.size


#: Instruction -> flops that XLA counts for it. [FLOP]
_COUNTED: Final[Mapping[str, Callable[[Instruction], int]]] = {
    "all-reduce": lambda i: i.shape.size,
    "sort": lambda i: _elements(i) * max(_elements(i) - 1, 0).bit_length(),
    "fft": lambda i: 8 * _elements(i) * prod(max(n.bit_length() - 1, 0) for n in i.numbers("fft_length")),
    "triangular-solve": lambda i: 2 * prod(i.operands[0].shape.dims[-1:]) * i.operands[1].shape.size,
    "cholesky": lambda i: prod(i.operands[0].shape.dims[-1:]) * _elements(i) // 3,
}


def repeats(instruction: Instruction) -> tuple[int, ...]:
    """Number of times that an instruction runs each of its computations. [-]"""
    counted = _REPEATED.get(instruction.opcode)
    return counted(instruction) if counted else ()


def _first(shape: Shape) -> Shape:
    """An array, or the first of a tuple."""
    return next(shape.leaves())


def _window_size(instruction: Instruction) -> int:
    """Places of a window. [-]"""
    return prod(window.size for window in window_of(instruction))


def _window_reductions(instruction: Instruction) -> int:
    """For each result, the positions of the window less one; where it spans a dimension, all once. [-]"""
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
    "select-and-scatter": lambda i: (i.operands[1].shape.size * (_window_size(i) - 1), i.operands[1].shape.size),
}


#: Start indices of dynamic slices: read by each slice, all of them; or as XLA counts them, the first of a
#: slice, and once by all slices of a fusion.
Starts = Literal["each", "once"]


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes that an instruction reads and writes. [B]"""

    read: int
    written: int

    @property
    def total(self) -> int:
        """Bytes read and written. [B]"""
        return self.read + self.written


def access(instruction: Instruction, starts: Starts = "each") -> Access:
    """Bytes by XLA's rule of access: a sliced operand is not read whole. [B]"""
    opcode = parts(instruction.opcode)[0]
    if opcode in VIEWS | SOURCES or is_same_memory(instruction) or is_staying(instruction):
        return Access(0, 0)
    if opcode == "fusion":
        return _fusion_access(instruction, starts)
    operands = [operand.shape.bytes for operand in instruction.operands]
    output = output_bytes(instruction)
    placed = 1 if starts == "once" else None  # how many starts count
    if opcode == "slice":
        return Access(output, output)
    if opcode == "dynamic-slice":
        return Access(output + sum(operands[1:][:placed]), output)
    if opcode == "dynamic-update-slice":
        return Access(operands[1] + sum(operands[2:][:placed]), operands[1])
    if opcode == "gather":
        return Access(output + operands[1], output)
    if opcode == "scatter":
        arrays = len(operands) // 2
        updates = sum(operands[arrays + 1 :])
        return Access(2 * updates + operands[arrays], updates)
    if opcode == "triangular-solve":
        return Access(operands[0] // 2 + operands[1], output)
    if opcode == "cholesky":
        return Access(operands[0] // 2, operands[0] // 2)
    return Access(sum(operands), output)


def is_same_memory(instruction: Instruction) -> bool:
    """True if a transposition changes the layout only and moves no element."""
    if instruction.opcode != "transpose":
        return False
    before, after = instruction.operands[0].shape, instruction.shape
    order = instruction.numbers("dimensions")
    if sorted(order) != list(range(len(before.dims))):
        return False
    return tuple(order[dim] for dim in after.minor_to_major) == before.minor_to_major


def output_bytes(instruction: Instruction) -> int:
    """Bytes of an instruction's output, without scratch memory and the state of an asynchronous pair. [B]"""
    elements = instruction.shape.elements
    return elements[0].bytes if elements and is_product(instruction) else output_shape(instruction).bytes


def _fusion_access(fusion: Instruction, starts: Starts) -> Access:
    """Bytes of a fusion: the bytes of each parameter that its users read, constants, and the bytes that the root
    writes.

    A back end's fusion around a gather or a scatter moves the bytes of that instruction.
    """
    body, alone = fusion.called[0], gather_or_scatter(fusion)
    if alone is not None:
        return access(alone)
    roots = body.root.operands if body.root.opcode == "tuple" else (body.root,)
    constants = [instruction.shape for instruction in body.instructions if instruction.opcode == "constant"]
    read = _parameter_bytes(body, starts) + sum(shape.bytes for shape in constants if shape.size > 1)
    written = (root.operands[1] if root.opcode == "dynamic-update-slice" else root for root in roots)
    return Access(read, sum(array.shape.bytes for array in written))


def gather_or_scatter(instruction: Instruction) -> Instruction | None:
    """The gather or scatter that XLA takes a back end's fusion for; None for others."""
    if instruction.opcode != "fusion" or instruction.attributes.get("kind") != "kCustom":
        return None
    inner = instruction.called[0].instructions
    return next((instruction for instruction in inner if instruction.opcode in ("gather", "scatter")), None)


@lru_cache(maxsize=1024)
def _parameter_bytes(body: Computation, starts: Starts) -> int:
    return sum(_Users(body, starts).parameter_bytes())


class _Users:
    """Readers of each instruction within the body of a fusion."""

    def __init__(self, body: Computation, starts: Starts) -> None:
        self.body = body
        self.starts = starts
        self.of = body.users

    def parameter_bytes(self) -> list[int]:
        """Bytes that the users of each parameter read of it. [B]"""
        return [
            sum(self.bytes_read(array) for array in self._arrays(parameter, parameter.shape))
            for parameter in self.body.parameters
        ]

    def _arrays(self, whole: Instruction, shape: Shape) -> list[Instruction]:
        """The instruction for each array of a parameter: the one that takes it out of a tuple."""
        if not shape.is_tuple:
            return [whole]
        arrays = []
        for index, element in enumerate(shape.elements):
            takers = (user for user in self.of[whole] if user.opcode == "get-tuple-element")
            taken = next((user for user in takers if user.attributes["index"] == str(index)), whole)
            arrays += self._arrays(taken, element)
        return arrays

    def bytes_read(self, array: Instruction) -> int:
        """Bytes that the users of an array read of it. [B]

        A slice reads the bytes of its result, an operand updated in place is not read. A broadcast or a reshape reads
        the whole separately; all others together read it once.
        """
        reads: list[int | None] = []
        for user, places in self.of[array].items():
            if user.opcode == "fusion":
                reads += [self._nested_bytes(user, position) for position in places]
            elif user.opcode in ("broadcast", "reshape"):
                reads.append(array.shape.bytes)
            else:
                reads.append(self._own_bytes(user, array, places))
        return sum(filter(None, reads)) + (array.shape.bytes if None in reads else 0)

    def _nested_bytes(self, fusion: Instruction, operand: int) -> int:
        """Bytes that a fusion within the fusion reads of an operand, for each user of the result. [B]

        One that passes its operand on to its root reads the bytes of the slices of the result.
        """
        inner = fusion.called[0]
        parameter = inner.parameters[operand]
        if inner.root.operands[:1] == (parameter,):
            reads = [self._own_bytes(user, fusion, places) for user, places in self.of[fusion].items()]
        else:
            reads = [None for _ in self.of[fusion]]
        return sum(filter(None, reads)) + (_Users(inner, self.starts).bytes_read(parameter) if None in reads else 0)

    def _own_bytes(self, user: Instruction, array: Instruction, places: Sequence[int]) -> int | None:
        """Bytes that a user that slices or updates reads of an array; None where it shares the read. [B]"""
        if user.opcode == "slice" or (user.opcode == "dynamic-slice" and places[0] == 0):
            return user.shape.bytes
        if user.opcode == "dynamic-update-slice" and places[0] == 0:
            return 0
        is_start = user.opcode in ("dynamic-slice", "dynamic-update-slice")
        return array.shape.bytes if is_start and self.starts == "each" else None


#: Size of a pointer: a tuple is a table of them. [B]
POINTER_BYTES: Final = 8
#: Instructions whose operands and results XLA always counts whole.
_WHOLE: Final = frozenset(
    (
        *("opt-barrier", "copy", "copy-start", "all-gather-start", "all-reduce-start"),
        *("collective-permute-start", "recv", "send"),
    )
)


class CostTotals(NamedTuple):
    """Sums over the instructions of a program."""

    flops: float = 0  #: matrix products among them [FLOP]
    transcendentals: float = 0  #: [-]
    bytes: float = 0  #: read and written [B]
    written: float = 0  #: [B]


class CostAnalysis:
    """XLA's totals of computations and instructions, each found once."""

    def __init__(self, *, single_precision: bool = False, starts: Starts = "once") -> None:
        self._starts: Starts = starts
        self._rounded: Callable[[float], float] = lambda value: float(np.float32(value)) if single_precision else value
        self._totals: dict[Computation, CostTotals] = {}

    def of(self, computation: Computation) -> CostTotals:
        """Sums over a computation that runs once."""
        if computation not in self._totals:
            totals = map(self.of_instruction, _in_xlas_order(computation))
            self._totals[computation] = reduce(self._added, totals, CostTotals())
        return self._totals[computation]

    def of_instruction(self, instruction: Instruction) -> CostTotals:
        """Sums of an instruction with all that it runs."""
        instruction = gather_or_scatter(instruction) or instruction
        opcode, called = instruction.opcode, instruction.called
        if opcode in ("call", "async-start"):
            return self.of(called[0])
        if opcode == "while":
            condition, body = called
            return self._added(self.of(body), self.of(condition))
        if opcode == "conditional":
            return CostTotals(*map(max, *map(self.of, called))) if len(called) > 1 else self.of(called[0])
        if opcode == "custom-call":
            return CostTotals(flops=-1, bytes=-1, written=-1)
        flops, transcendentals = self._work(instruction)
        moved = _moved(instruction, self._starts)
        return CostTotals(*map(self._rounded, (flops, transcendentals, moved.total, moved.written)))

    def _work(self, instruction: Instruction) -> tuple[float, float]:
        if is_product(instruction):
            return sum(product.flops for product in products_of(instruction)), 0
        work = own_work(instruction)
        flops: float = work.flops
        transcendentals: float = work.transcendentals
        for called, times in zip(instruction.called, repeats(instruction), strict=False):
            body = self.of(called)
            flops, transcendentals = (flops + body.flops * times, transcendentals + body.transcendentals * times)
        return flops, transcendentals

    def _added(self, one: CostTotals, other: CostTotals) -> CostTotals:
        return CostTotals(*(self._rounded(a + b) for a, b in zip(one, other, strict=True)))


def _moved(instruction: Instruction, starts: Starts) -> Access:
    """Bytes as XLA has them: of a tuple that is read its table, of one that is made its arrays."""
    opcode, part = parts(instruction.opcode)
    if opcode == "tuple":
        return Access(0, _table_bytes(instruction.shape))
    if opcode in ("partition-id", "replica-id"):
        return Access(0, instruction.shape.bytes)
    if instruction.opcode in _WHOLE or part in ("update", "done"):
        return Access(sum(_table_bytes(operand.shape) for operand in instruction.operands), instruction.shape.bytes)
    return access(instruction, starts)


def _table_bytes(shape: Shape) -> int:
    """Bytes of an array, or of a tuple itself. [B]"""
    return POINTER_BYTES * len(shape.elements) if shape.is_tuple else shape.bytes


def _in_xlas_order(computation: Computation) -> Iterator[Instruction]:
    """Instructions, those without readers first, each after its operands and then its control predecessors."""
    named = {instruction.name: instruction for instruction in computation.instructions}
    before = {
        instruction: (
            *instruction.operands,
            *(named[name] for name in control_predecessors(instruction) if name in named),
        )
        for instruction in computation.instructions
    }
    read = {operand for operands in before.values() for operand in operands}
    unread = [
        instruction
        for instruction in computation.instructions
        if instruction not in read and instruction is not computation.root
    ]
    waiting = {instruction: iter(operands) for instruction, operands in before.items()}
    done: set[Instruction] = set()
    stack = [computation.root, *reversed(unread)]
    while stack:
        following = next((instruction for instruction in waiting[stack[-1]] if instruction not in done), None)
        if following is not None:
            stack.append(following)
        elif (instruction := stack.pop()) not in done:
            done.add(instruction)
            yield instruction
