"""An order of a computation's instructions that frees memory as soon as it can, where none is given yet.

The text of a module that is not scheduled puts weight gradients last, whose operands would then live through the whole
backward pass. This order keeps that of the text, but runs an instruction early once it frees at least as many bytes as
it allocates. The freed bytes of an instruction only grow, so two heaps find the next one, in n log n steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from dse.adapters.xla.buffers.liveness import overwritten
from dse.adapters.xla.text.module import SOURCES, VIEWS, Computation, Instruction, control_predecessors, parts

#: Instruction and which of its arrays.
_Made = tuple[Instruction, int]


@dataclass(slots=True)
class _Dataflow:
    """Instructions that run, with the arrays that they make, overwrite and read."""

    listed: list[Instruction] = field(default_factory=list)
    before: dict[Instruction, set[Instruction]] = field(default_factory=dict)
    touches: dict[Instruction, set[_Made]] = field(default_factory=dict)
    bytes_of: dict[_Made, int] = field(default_factory=dict)
    kept: set[_Made] = field(default_factory=set)


def eager_order(computation: Computation, given: frozenset[int] = frozenset()) -> list[Instruction]:
    """An order of instructions in which those that free memory run as soon as they can.

    `given` are the arrays of the result, numbered through tuples, that live in the memory of a parameter.

    The order is that of the text, but the first ready instruction that frees at least as many bytes as it takes runs
    next; weight gradients do so once their operands are no longer needed. Views come as early as possible.
    """
    kernels = _kernels(computation, given)
    return _with_names(computation, _Schedule(kernels).order())


class _Schedule:
    """Instructions that wait and that could run, while others run.

    The bytes that an instruction frees only grow while others run, so those that free enough are found once: they have
    a separate heap, and no step looks at all ready instructions.
    """

    def __init__(self, kernels: _Dataflow) -> None:
        self.kernels = kernels
        self.waiting = {listed: set(before) for listed, before in kernels.before.items()}
        self.after: dict[Instruction, list[Instruction]] = {}
        self.readers: dict[_Made, set[Instruction]] = {}
        for instruction in kernels.listed:
            for producer in self.waiting[instruction]:
                self.after.setdefault(producer, []).append(instruction)
            for made in kernels.touches[instruction]:
                self.readers.setdefault(made, set()).add(instruction)
        #: Freed bytes less allocated bytes of each instruction. [B]
        self.gain = {
            instruction: -sum(kernels.bytes_of[made] for made in kernels.touches[instruction] if made[0] is instruction)
            for instruction in kernels.listed
        }
        for made in self.readers:
            self._last_reader(made)
        self.places = {instruction: index for index, instruction in enumerate(kernels.listed)}
        self.ready: list[int] = []
        self.freeing: list[int] = []

    def order(self) -> list[Instruction]:
        """Instructions in the order in which they run."""
        order: list[Instruction] = []
        for instruction in self.kernels.listed:
            self._offer(instruction)
        ran: set[int] = set()
        while self.ready:
            chosen = heapq.heappop(self.freeing or self.ready)
            if chosen in ran:
                continue
            ran.add(chosen)
            instruction = self.kernels.listed[chosen]
            order.append(instruction)
            self._leave(instruction)
        return order

    def _leave(self, instruction: Instruction) -> None:
        """End an instruction: its reads of arrays, and the waits for it."""
        for made in self.kernels.touches[instruction]:
            self.readers[made].discard(instruction)
            last = self._last_reader(made)
            if last is not None and self.gain[last] >= 0 and not self.waiting[last]:
                heapq.heappush(self.freeing, self.places[last])
        for follower in self.after.get(instruction, ()):
            self.waiting[follower].discard(instruction)
            self._offer(follower)

    def _last_reader(self, made: _Made) -> Instruction | None:
        """The one instruction that still touches an array, which frees it; none where it is kept."""
        if len(self.readers[made]) != 1 or made in self.kernels.kept:
            return None
        (last,) = self.readers[made]
        self.gain[last] += self.kernels.bytes_of[made]
        return last

    def _offer(self, instruction: Instruction) -> None:
        """Let an instruction run that waits for no other."""
        if not self.waiting[instruction]:
            heapq.heappush(self.ready, self.places[instruction])
            if self.gain[instruction] >= 0:
                heapq.heappush(self.freeing, self.places[instruction])


def _kernels(computation: Computation, given: frozenset[int]) -> _Dataflow:
    """The kernels, and the arrays that each waits for."""
    kernels = _Dataflow()
    values: dict[Instruction, list[_Made | None]] = {}
    waits: dict[Instruction, set[Instruction]] = {}  # kernels behind each value
    named = {instruction.name: instruction for instruction in computation.instructions}
    for instruction in computation.instructions:
        reads = [made for operand in instruction.operands for made in values[operand]]
        behind = set[Instruction]().union(*(waits[operand] for operand in instruction.operands))
        if parts(instruction.opcode)[0] in SOURCES | VIEWS:
            values[instruction], waits[instruction] = _viewed(instruction, values, reads), behind
            continue
        for name in control_predecessors(instruction):
            behind = behind | waits.get(named.get(name, instruction), set())
        kernels.listed.append(instruction)
        kernels.before[instruction], waits[instruction] = behind, {instruction}
        values[instruction] = _made(kernels, instruction, reads)
        kernels.touches[instruction] = {made for made in (*reads, *values[instruction]) if made is not None}
    for index, root in enumerate(values[computation.root]):
        if root is not None and index in given:
            kernels.bytes_of[root] = 0
        elif root is not None:
            kernels.kept.add(root)
    return kernels


def _viewed(
    instruction: Instruction, values: Mapping[Instruction, list[_Made | None]], reads: list[_Made | None]
) -> list[_Made | None]:
    """The arrays that a view names; none of a parameter or a constant."""
    if instruction.opcode in SOURCES:
        return [None for _ in instruction.shape.leaves()]
    if instruction.opcode == "get-tuple-element":
        whole = instruction.operands[0]
        first = sum(1 for e in whole.shape.elements[: int(instruction.attributes["index"])] for _ in e.leaves())
        return values[whole][first : first + sum(1 for _ in instruction.shape.leaves())]
    return reads


def _made(dataflow: _Dataflow, instruction: Instruction, reads: list[_Made | None]) -> list[_Made | None]:
    """The arrays of an instruction: new, or those that it overwrites, as a loop does all that it carries."""
    shapes = list(instruction.shape.leaves())
    whole = instruction.opcode == "while" or parts(instruction.opcode)[1] in ("update", "done")
    places = {position: position for position in range(len(reads))} if whole else overwritten(instruction)
    made: list[_Made | None] = []
    for output, shape in enumerate(shapes):
        if output in places and places[output] < len(reads):
            made.append(reads[places[output]])
            continue
        made.append((instruction, output))
        dataflow.bytes_of[instruction, output] = shape.bytes
    return made


def _with_names(computation: Computation, order: list[Instruction]) -> list[Instruction]:
    """The order with parameters, constants and views, each as soon as its operands are available."""
    running = set(order)
    after: dict[Instruction, list[Instruction]] = {}
    missing: dict[Instruction, int] = {}
    full: list[Instruction] = []
    for instruction in computation.instructions:
        missing[instruction] = len(set(instruction.operands))
        for operand in set(instruction.operands):
            after.setdefault(operand, []).append(instruction)

    def place(add: Instruction) -> None:
        stack = [add]
        while stack:
            placed = stack.pop()
            full.append(placed)
            for follower in after.get(placed, ()):
                missing[follower] -= 1
                if not missing[follower] and follower not in running:
                    stack.append(follower)

    for instruction in computation.instructions:
        if instruction not in running and not instruction.operands:
            place(instruction)
    for instruction in order:
        place(instruction)
    return full
