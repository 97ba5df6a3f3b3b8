"""Bytes that instructions read and write, by the rules of XLA's cost analysis.

Where a rule of XLA's is an estimate, such as the bytes of a fusion, it is kept: the figures are XLA's, and
comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from costmodel.hlo.text.module import Computation, Instruction, Shape
from costmodel.hlo.text.opcodes import SOURCES, VIEWS, parts
from costmodel.hlo.work.arithmetic import is_product
from costmodel.hlo.work.library_calls import is_staying

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
        """Both together. [B]"""
        return self.read + self.written


def access(instruction: Instruction, starts: Starts = "each") -> Access:
    """Bytes by XLA's rule of access: what is sliced is not read whole. [B]"""
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
    """Whether a transposition leaves every element where it is: only its layout says otherwise."""
    if instruction.opcode != "transpose":
        return False
    before, after = instruction.operands[0].shape, instruction.shape
    order = instruction.numbers("dimensions")
    if sorted(order) != list(range(len(before.dims))):
        return False
    return tuple(order[dim] for dim in after.minor_to_major) == before.minor_to_major


def output_bytes(instruction: Instruction) -> int:
    """What an instruction gives, without scratch memory and the state of an asynchronous pair. [B]"""
    opcode, part = parts(instruction.opcode)
    elements = instruction.shape.elements
    if part == "start" and len(elements) > 1 and opcode != "all-reduce":
        return elements[0 if opcode == "copy" else 1].bytes
    if elements and is_product(instruction):
        return elements[0].bytes
    return instruction.shape.bytes


def _fusion_access(fusion: Instruction, starts: Starts) -> Access:
    """Bytes of a fusion: of each parameter what its users read of it, constants, and what the root writes.

    A back end's own fusion around a gather or a scatter moves what that moves.
    """
    body, alone = fusion.called[0], gather_or_scatter(fusion)
    if alone is not None:
        return access(alone)
    roots = body.root.operands if body.root.opcode == "tuple" else (body.root,)
    constants = [each.shape for each in body.instructions if each.opcode == "constant"]
    read = sum(_Users(body, starts).parameter_bytes()) + sum(
        shape.bytes for shape in constants if shape.size > 1
    )
    return Access(read, sum(_root_bytes(root) for root in roots))


def gather_or_scatter(instruction: Instruction) -> Instruction | None:
    """What XLA takes a back end's own fusion around a gather or a scatter for; None for others."""
    if instruction.opcode != "fusion" or instruction.attributes.get("kind") != "kCustom":
        return None
    inner = instruction.called[0].instructions
    return next((each for each in inner if each.opcode in ("gather", "scatter")), None)


def _root_bytes(root: Instruction) -> int:
    """What a root writes: an update in place writes the update alone. [B]"""
    return root.operands[1].shape.bytes if root.opcode == "dynamic-update-slice" else root.shape.bytes


class _Users:
    """Who reads what within the body of a fusion."""

    def __init__(self, body: Computation, starts: Starts) -> None:
        self.body = body
        self.starts = starts
        self.of: dict[Instruction, dict[Instruction, list[int]]] = {each: {} for each in body.instructions}
        for instruction in body.instructions:
            for place, operand in enumerate(instruction.operands):
                self.of[operand].setdefault(instruction, []).append(place)

    def parameter_bytes(self) -> list[int]:
        """What the users of each parameter read of it. [B]"""
        return [
            sum(self.bytes_read(each) for each in self._arrays(parameter, parameter.shape))
            for parameter in self.body.parameters
        ]

    def _arrays(self, whole: Instruction, shape: Shape) -> list[Instruction]:
        """The instruction that stands for each array of a parameter: what takes it out of a tuple."""
        if not shape.is_tuple:
            return [whole]
        found = []
        for index, element in enumerate(shape.elements):
            taken = [
                user
                for user in self.of[whole]
                if user.opcode == "get-tuple-element" and user.attributes["index"] == str(index)
            ]
            found += self._arrays(taken[0] if taken else whole, element)
        return found

    def bytes_read(self, array: Instruction) -> int:
        """What the users of an array read of it. [B]

        A slice reads what it gives, what is updated in place is not read. A broadcast or a reshape reads the
        whole on its own; all others together read it once.
        """
        read, shared = 0, False
        for user, places in self.of[array].items():
            if user.opcode == "fusion":
                read += sum(self._nested_bytes(user, place) for place in places)
            elif user.opcode in ("broadcast", "reshape"):
                read += array.shape.bytes
            else:
                own = self._own_bytes(user, array, places)
                read, shared = read + (own or 0), shared or own is None
        return read + (array.shape.bytes if shared else 0)

    def _nested_bytes(self, fusion: Instruction, place: int) -> int:
        """What a fusion within the fusion reads of an operand, for each that uses the result. [B]

        One that passes its operand on to its root reads what is sliced of the result.
        """
        inner = fusion.called[0]
        parameter = inner.parameters[place]
        passes_on = inner.root.operands[:1] == (parameter,)
        read, shared = 0, False
        for user, places in self.of[fusion].items():
            own = self._own_bytes(user, fusion, places) if passes_on else None
            read, shared = read + (own or 0), shared or own is None
        return read + (_Users(inner, self.starts).bytes_read(parameter) if shared else 0)

    def _own_bytes(self, user: Instruction, array: Instruction, places: Sequence[int]) -> int | None:
        """What a user that slices or updates reads of an array; None where it shares the read. [B]"""
        if user.opcode == "slice" or (user.opcode == "dynamic-slice" and places[0] == 0):
            return user.shape.bytes
        if user.opcode == "dynamic-update-slice" and places[0] == 0:
            return 0
        is_start = user.opcode in ("dynamic-slice", "dynamic-update-slice")
        return array.shape.bytes if is_start and self.starts == "each" else None
