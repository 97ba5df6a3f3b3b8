"""Instructions of kernels, fusions opened: each with what it reads, through views and calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from costmodel.hlo.graph import HloGraph, Leaf
from costmodel.hlo.module import Computation, Instruction

#: Instructions whose result holds what they read, converted or laid out anew.
SAME_VALUES: Final = frozenset(("bitcast", "broadcast", "convert", "copy", "reshape", "transpose"))


@dataclass(frozen=True, slots=True, eq=False)
class OpenedInstruction:
    """One instruction of a kernel."""

    kernel: int
    instruction: Instruction
    reads: tuple[Source, ...]


#: A step, the number of a parameter of the program, or None for constants and the like.
Source: TypeAlias = "OpenedInstruction | int | None"


@dataclass(slots=True)
class Opened:
    """Steps in an order in which they can run, and which of them make the arrays of kernels."""

    steps: list[OpenedInstruction] = field(default_factory=list)
    made: dict[tuple[int, int], Source] = field(default_factory=dict)

    def source(self, leaf: Leaf) -> Source:
        """What makes an array."""
        return leaf.parameter if leaf.source is None else self.made[leaf.source]


def opened(graph: HloGraph) -> Opened:
    """The steps of all kernels of a graph."""
    found = Opened()
    for place, kernel in enumerate(graph.kernels):
        reads = [found.source(leaf) for leaf in kernel.reads]
        if kernel.instruction.opcode == "fusion":
            outputs = list(_body_steps(found, place, kernel.instruction.called[0], reads))
        else:
            step = OpenedInstruction(place, kernel.instruction, tuple(reads))
            found.steps.append(step)
            outputs = [step for _ in kernel.instruction.shape.leaves()]
        found.made |= {(place, output): source for output, source in enumerate(outputs)}
    return found


def _body_steps(
    found: Opened, place: int, body: Computation, arguments: Sequence[Source]
) -> Iterator[Source]:
    """Add the steps of a fusion; what makes each of its outputs."""
    values: dict[Instruction, tuple[Source, ...]] = {}
    for instruction in body.instructions:
        reads = [source for operand in instruction.operands for source in values[operand]]
        values[instruction] = tuple(_made(found, place, instruction, reads, arguments))
    yield from values[body.root]


def _made(
    found: Opened, place: int, instruction: Instruction, reads: Sequence[Source], arguments: Sequence[Source]
) -> Iterator[Source]:
    """What makes each output of an instruction of a fusion."""
    opcode = instruction.opcode
    if opcode == "parameter":
        yield arguments[int(instruction.argument)]
    elif opcode == "tuple":
        yield from reads
    elif opcode == "get-tuple-element":
        yield reads[int(instruction.attributes["index"])]
    elif opcode == "fusion":
        yield from _body_steps(found, place, instruction.called[0], reads)
    elif opcode in ("constant", "iota"):
        yield None
    else:
        step = OpenedInstruction(place, instruction, tuple(reads))
        found.steps.append(step)
        yield from (step for _ in instruction.shape.leaves())


def behind(source: Source) -> Source:
    """What a value was before it was converted or laid out anew."""
    while isinstance(source, OpenedInstruction) and source.instruction.opcode in SAME_VALUES:
        source = source.reads[0]
    return source


def marked_after(steps: Sequence[OpenedInstruction], marks: Mapping[Source, int]) -> dict[Source, int]:
    """Marks of steps and parameters, as bits, on each step that depends on them, and on themselves."""
    found: dict[Source, int] = dict(marks)
    for step in steps:
        own = found.get(step, 0)
        for source in step.reads:
            own |= found.get(source, 0)
        found[step] = own
    return found
