"""Flops, transcendentals and bytes of instructions, by the rules of XLA's cost analysis.

Matrix products are left out of the flops: `products` has them. Where a rule of XLA's is an estimate, such as
the bytes of a fusion, it is kept: the figures are XLA's, and comparable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from costmodel.hlo.module import Computation, Instruction, Shape
from costmodel.hlo.opcodes import ARITHMETIC, SOURCES, TRANSCENDENTAL, VIEWS, parts
from costmodel.hlo.products import is_product

_WINDOW_SIZE: Final = re.compile(r"\bsize=([\dx]+)")


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


class Workload:
    """Work of instructions; that of a computation is found once."""

    def __init__(self) -> None:
        self._bodies: dict[Computation, Work] = {}

    def of(self, instruction: Instruction) -> Work:
        """Work of one instruction, that of its body included."""
        opcode = parts(instruction.opcode)[0]
        shape = instruction.shape
        if opcode in ARITHMETIC:
            return Work(flops=shape.size)
        if opcode in TRANSCENDENTAL:
            return Work(transcendentals=shape.size)
        if opcode == "all-reduce":
            return Work(flops=shape.size)
        if opcode == "sort":
            keys = instruction.operands[0].shape.size
            return Work(flops=keys * max(keys - 1, 0).bit_length())
        if opcode == "fusion":
            return self.body(instruction.called[0])
        repeats = _REPEATED.get(opcode)
        if repeats is None:
            return Work()
        bodies = [self.body(body) for body in instruction.called]
        return sum((work.times(n) for work, n in zip(bodies, repeats(instruction), strict=False)), Work())

    def body(self, computation: Computation) -> Work:
        """Work of a computation, run once."""
        known = self._bodies.get(computation)
        if known is None:
            known = sum((self.of(each) for each in computation.instructions), Work())
            self._bodies[computation] = known
        return known


def _window(instruction: Instruction) -> int:
    """Elements of a window. [elements]"""
    found = _WINDOW_SIZE.search(instruction.attributes.get("window", ""))
    return prod(map(int, found[1].split("x"))) if found else 1


def _first(shape: Shape) -> int:
    """Elements of an array, or of the first of a tuple. [elements]"""
    return next(shape.leaves()).size


#: Instruction -> how often it runs each of its computations.
_REPEATED: Final[Mapping[str, Callable[[Instruction], tuple[int, ...]]]] = {
    "map": lambda i: (i.shape.size,),
    "reduce": lambda i: (i.operands[0].shape.size - _first(i.shape),),
    "reduce-window": lambda i: (_first(i.shape) * (_window(i) - 1),),
    "scatter": lambda i: (i.operands[-1].shape.size,),
    "select-and-scatter": lambda i: (
        i.operands[1].shape.size * (_window(i) - 1),
        i.operands[1].shape.size,
    ),
}


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes that an instruction reads and writes. [B]"""

    read: int
    written: int

    @property
    def total(self) -> int:
        """Both together. [B]"""
        return self.read + self.written


def access(instruction: Instruction) -> Access:
    """Bytes by XLA's rule of access: what is sliced is not read whole. [B]"""
    opcode = parts(instruction.opcode)[0]
    if opcode in VIEWS | SOURCES:
        return Access(0, 0)
    if opcode == "fusion":
        return _fusion_access(instruction)
    operands = [operand.shape.bytes for operand in instruction.operands]
    output = output_bytes(instruction)
    if opcode == "slice":
        return Access(output, output)
    if opcode == "dynamic-slice":
        return Access(output + sum(operands[1:]), output)
    if opcode == "dynamic-update-slice":
        return Access(operands[1] + sum(operands[2:]), operands[1])
    if opcode == "gather":
        return Access(output + operands[1], output)
    if opcode == "scatter":
        arrays = len(operands) // 2
        updates = sum(operands[arrays + 1 :])
        return Access(2 * updates + operands[arrays], updates)
    return Access(sum(operands), output)


def output_bytes(instruction: Instruction) -> int:
    """What an instruction gives, without scratch memory and the state of an asynchronous pair. [B]"""
    opcode, part = parts(instruction.opcode)
    elements = instruction.shape.elements
    if part == "start" and len(elements) > 1 and opcode != "all-reduce":
        return elements[0 if opcode == "copy" else 1].bytes
    if elements and is_product(instruction):
        return elements[0].bytes
    return instruction.shape.bytes


def _fusion_access(fusion: Instruction) -> Access:
    """Bytes of a fusion: of each parameter what its users read of it, and what the root writes."""
    body = fusion.called[0]
    roots = body.root.operands if body.root.opcode == "tuple" else (body.root,)
    return Access(sum(_parameter_bytes(body)), sum(_root_bytes(root) for root in roots))


def _parameter_bytes(body: Computation) -> list[int]:
    """What the users of each parameter of a fusion read of it. [B]

    A slice reads what it gives, and an update in place what it replaces. Broadcasts, reshapes and the indices
    of dynamic slices read on their own; all others read together.
    """
    users: dict[Instruction, dict[Instruction, list[int]]] = {each: {} for each in body.parameters}
    for instruction in body.instructions:
        for place, operand in enumerate(instruction.operands):
            if operand in users:
                users[operand].setdefault(instruction, []).append(place)
    read = []
    for parameter, reading in users.items():
        own = [_own_bytes(user, places) for user, places in reading.items()]
        shared = parameter.shape.bytes if None in own else 0
        read.append(shared + sum(moved for moved in own if moved is not None))
    return read


def _own_bytes(user: Instruction, places: list[int]) -> int | None:
    """What a user reads of an operand on its own; None where it shares the read with others. [B]"""
    sliced = places[0] == 0
    if user.opcode == "fusion":
        inner = _parameter_bytes(user.called[0])
        return sum(inner[place] for place in places)
    if user.opcode in ("slice", "dynamic-slice") and sliced:
        return user.shape.bytes
    if user.opcode == "dynamic-update-slice" and sliced:
        return user.operands[1].shape.bytes
    if user.opcode in ("dynamic-slice", "dynamic-update-slice", "broadcast", "reshape"):
        return user.operands[places[0]].shape.bytes
    return None


def _root_bytes(root: Instruction) -> int:
    """What a root writes: an update in place writes the update alone. [B]"""
    return root.operands[1].shape.bytes if root.opcode == "dynamic-update-slice" else root.shape.bytes
