"""An order of a computation's instructions that frees memory as soon as it can, where none is given yet.

The text of a module that is not scheduled puts weight gradients last, whose operands would then live through the whole
backward pass. This order keeps that of the text, but runs an instruction early once it frees at least as many bytes as
it allocates. The freed bytes of an instruction only grow, so two heaps find the next one, in n log n steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from dse.adapters.xla.buffers.liveness import overwritten
from dse.adapters.xla.text.module import (
    SOURCES,
    VIEWS,
    Computation,
    Instruction,
    arrays_of,
    control_predecessors,
    parts,
    reached,
    shaped,
    viewed,
)


def eager_order(computation: Computation, given: frozenset[int] = frozenset()) -> list[Instruction]:
    """An order of instructions in which views, and those that free memory, run as soon as they can.

    `given` are the arrays of the result, numbered through tuples, that live in the memory of a parameter.
    """
    return _with_names(computation, _Schedule(computation, given).order())


class _Schedule:
    """Kernels that wait and that could run, while others run; the arrays that they make have numbers."""

    def __init__(self, computation: Computation, given: frozenset[int]) -> None:
        self.waiting: dict[Instruction, set[Instruction]] = {}  # kernel -> those that it waits for
        self.touches: dict[Instruction, set[int]] = {}  # kernel -> arrays that it makes, overwrites and reads
        self.makers: list[Instruction] = []
        self.bytes_of: list[int] = []
        self.kept: set[int] = set()  # for the result
        for index, array in enumerate(arrays_of(self._result(computation))):
            if array is not None and index in given:
                self.bytes_of[array] = 0
            elif array is not None:
                self.kept.add(array)
        self.after: dict[Instruction, list[Instruction]] = {}
        self.readers: dict[int, set[Instruction]] = {}
        for kernel, before in self.waiting.items():
            for producer in before:
                self.after.setdefault(producer, []).append(kernel)
            for array in self.touches[kernel]:
                self.readers.setdefault(array, set()).add(kernel)
        self.gain = dict.fromkeys(self.waiting, 0)  # freed bytes less allocated bytes of each kernel [B]
        for maker, size in zip(self.makers, self.bytes_of, strict=True):
            self.gain[maker] -= size
        for array in self.readers:
            self._last_reader(array)
        self.listed = list(self.waiting)
        self.places = {kernel: index for index, kernel in enumerate(self.listed)}
        self.ready: list[int] = []
        self.freeing: list[int] = []

    def _result(self, computation: Computation) -> Any:
        """Note the kernels, and the arrays of each; the arrays of the root, None for those of no kernel."""
        values: dict[Instruction, Any] = {}
        waits: dict[Instruction, set[Instruction]] = {}  # kernels behind each value
        named = {instruction.name: instruction for instruction in computation.instructions}
        for instruction in computation.instructions:
            operands = [values[operand] for operand in instruction.operands]
            behind = set[Instruction]().union(*(waits[operand] for operand in instruction.operands))
            waits[instruction] = behind
            if parts(instruction.opcode)[0] in SOURCES:
                values[instruction] = shaped(instruction.shape, repeat(None))
            elif parts(instruction.opcode)[0] in VIEWS:
                values[instruction] = viewed(instruction, operands)
            else:
                reads = list(arrays_of(tuple(operands)))
                outputs = self._made(instruction, reads)
                self.touches[instruction] = {array for array in (*reads, *outputs) if array is not None}
                self.waiting[instruction] = behind.union(
                    *(waits[named[name]] for name in control_predecessors(instruction) if named.get(name) in waits)
                )
                values[instruction], waits[instruction] = shaped(instruction.shape, iter(outputs)), {instruction}
        return values[computation.root]

    def _made(self, instruction: Instruction, reads: list[int | None]) -> list[int | None]:
        """The arrays of an instruction: new, or those that it overwrites, as a loop does all that it carries."""
        whole = instruction.opcode == "while" or parts(instruction.opcode)[1] in ("update", "done")
        places = {position: position for position in range(len(reads))} if whole else overwritten(instruction)
        made: list[int | None] = []
        for output, shape in enumerate(instruction.shape.leaves()):
            if output in places and places[output] < len(reads):
                made.append(reads[places[output]])
            else:
                made.append(len(self.makers))
                self.makers.append(instruction)
                self.bytes_of.append(shape.bytes)
        return made

    def order(self) -> list[Instruction]:
        """Kernels in the order in which they run."""
        order: list[Instruction] = []
        for kernel in self.listed:
            self._offer(kernel)
        ran: set[int] = set()
        while self.ready:
            chosen = heapq.heappop(self.freeing or self.ready)
            if chosen not in ran:
                ran.add(chosen)
                order.append(self.listed[chosen])
                self._leave(self.listed[chosen])
        return order

    def _leave(self, kernel: Instruction) -> None:
        """End a kernel: its reads of arrays, and the waits for it."""
        for array in self.touches[kernel]:
            self.readers[array].discard(kernel)
            last = self._last_reader(array)
            if last is not None and self.gain[last] >= 0 and not self.waiting[last]:
                heapq.heappush(self.freeing, self.places[last])
        for follower in self.after.get(kernel, ()):
            self.waiting[follower].discard(kernel)
            self._offer(follower)

    def _last_reader(self, array: int) -> Instruction | None:
        """The one kernel that still touches an array, which frees it; none where it is kept."""
        if len(self.readers[array]) != 1 or array in self.kept:
            return None
        (last,) = self.readers[array]
        self.gain[last] += self.bytes_of[array]
        return last

    def _offer(self, kernel: Instruction) -> None:
        """Let a kernel run that waits for no other."""
        if not self.waiting[kernel]:
            heapq.heappush(self.ready, self.places[kernel])
            if self.gain[kernel] >= 0:
                heapq.heappush(self.freeing, self.places[kernel])


def _with_names(computation: Computation, order: list[Instruction]) -> list[Instruction]:
    """The order with parameters, constants and views, each as soon as its operands are available."""
    running, users = set(order), computation.users
    missing = {instruction: len(set(instruction.operands)) for instruction in computation.instructions}

    def available(placed: Instruction) -> Iterator[Instruction]:
        for follower in users[placed]:
            missing[follower] -= 1
            if not missing[follower] and follower not in running:
                yield follower

    sources = [one for one in computation.instructions if one not in running and not one.operands]
    return [placed for start in (*sources, *order) for placed in reached([start], available)]
