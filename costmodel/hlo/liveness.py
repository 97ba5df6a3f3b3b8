"""Memory of temporary arrays: each lives from the kernel that makes it to the last that reads it."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.errors import DseError
from costmodel.hlo.graph import HloGraph, HloKernel, output_shape
from costmodel.hlo.module import Instruction, Module

Buffer = tuple[int, int]  #: kernel and which of its outputs

_ALIAS: Final = re.compile(r"\{([\d,\s]*)\}\s*:\s*\(\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Peak:
    """Most memory that temporary arrays take at once, in one order of the kernels."""

    bytes: int  #: [B]
    kernel: str  #: that runs then
    largest_kernel_bytes: int  #: most that one kernel alone reads and writes of them [B]


@dataclass(frozen=True, slots=True, eq=False)
class Temporaries:
    """Arrays that live on a device for a part of the step."""

    graph: HloGraph
    bytes_of: Mapping[Buffer, int]  #: [B]
    writes: Sequence[Sequence[Buffer]]  #: by kernel, those it starts
    touches: Sequence[frozenset[Buffer]]  #: by kernel, those it reads or writes
    kept: frozenset[Buffer]  #: given by the program, in memory of their own

    def peak(self, order: Sequence[int]) -> Peak:
        """What an order of the kernels needs."""
        last = {buffer: step for step, place in enumerate(order) for buffer in self.touches[place]}
        ending: list[list[Buffer]] = [[] for _ in order]
        for buffer, step in last.items():
            if buffer not in self.kept:
                ending[step].append(buffer)
        live = highest = 0
        at = ""
        for step, place in enumerate(order):
            live += sum(self.bytes_of[buffer] for buffer in self.writes[place])
            if live > highest:
                highest, at = live, self.graph.kernels[place].name
            live -= sum(self.bytes_of[buffer] for buffer in ending[step])
        largest = max((sum(self.bytes_of[b] for b in touched) for touched in self.touches), default=0)
        return Peak(highest, at, largest)


def temporaries(module: Module, graph: HloGraph) -> Temporaries:
    """The temporary arrays of a program.

    Parameters and constants are none, nor what the program gives in the memory of a parameter. An output
    that overwrites an operand lives in that operand's array.
    """
    home: dict[Buffer, Buffer | None] = {}  # the array that an output lives in; None: a parameter
    sizes: dict[Buffer, int] = {}
    writes: list[list[Buffer]] = []
    touches: list[frozenset[Buffer]] = []
    aliased = aliased_outputs(module)
    given = {leaf.source for place, leaf in enumerate(graph.root) if place in aliased and leaf.source}
    for place, kernel in enumerate(graph.kernels):
        overwritten = _overwritten(kernel)
        started = []
        for output, shape in enumerate(output_shape(kernel.instruction).leaves()):
            buffer: Buffer = (place, output)
            if output in overwritten:
                source = kernel.reads[overwritten[output]].source
                home[buffer] = home[source] if source else None
                continue
            home[buffer] = None if buffer in given else buffer
            if buffer not in given:
                sizes[buffer] = shape.bytes
                started.append(buffer)
        read = {home[leaf.source] for leaf in kernel.reads if leaf.source}
        written = {
            home[place, output] for output in range(len(list(output_shape(kernel.instruction).leaves())))
        }
        writes.append(started)
        touches.append(frozenset(buffer for buffer in read | written if buffer is not None))
    roots = {home[leaf.source] for leaf in graph.root if leaf.source}
    return Temporaries(
        graph, sizes, writes, touches, frozenset(buffer for buffer in roots if buffer is not None)
    )


def aliased_outputs(module: Module) -> dict[int, int]:
    """Array of the result -> parameter whose memory it lives in, by the module's header."""
    aliases = {}
    shapes = module.entry.root.shape.elements
    for written, parameter in _ALIAS.findall(module.attributes.get("input_output_alias", "")):
        path = [int(index) for index in re.findall(r"\d+", written)]
        before = sum(1 for shape in shapes[: path[0]] for _ in shape.leaves()) if path else 0
        aliases[before] = int(parameter)
    return aliases


def _overwritten(kernel: HloKernel) -> dict[int, int]:
    """Output -> the read array that it overwrites."""
    instruction = kernel.instruction
    overwritten = {}
    for written, operand in _ALIAS.findall(instruction.attributes.get("output_to_operand_aliasing", "")):
        if int(operand) >= len(instruction.operands):
            raise DseError(f"{instruction.name}: output_to_operand_aliasing: there is no operand {operand}")
        path = re.findall(r"\d+", written)
        overwritten[int(path[0]) if path else 0] = _first_read(instruction, int(operand))
    return overwritten


def _first_read(instruction: Instruction, operand: int) -> int:
    """Place among the read arrays of an operand's first."""
    return sum(1 for before in instruction.operands[:operand] for _ in before.shape.leaves())


def eager_order(temporaries: Temporaries) -> list[int]:
    """An order in which what frees memory runs as soon as it can.

    The text's order, but of the kernels that could run the first is taken that frees at least as much as it
    takes; weight gradients are such kernels once their operands are no longer needed.
    """
    graph = temporaries.graph
    waiting = [set(before) for before in graph.before()]
    after: list[list[int]] = [[] for _ in graph.kernels]
    for place, before in enumerate(waiting):
        for producer in before:
            after[producer].append(place)
    readers: dict[Buffer, set[int]] = {}
    for place, touched in enumerate(temporaries.touches):
        for buffer in touched:
            readers.setdefault(buffer, set()).add(place)
    ready = [place for place, before in enumerate(waiting) if not before]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        chosen = next((p for p in sorted(ready) if _frees(temporaries, readers, p)), None)
        if chosen is None:
            chosen = heapq.heappop(ready)
        else:
            ready.remove(chosen)
            heapq.heapify(ready)
        order.append(chosen)
        for buffer in temporaries.touches[chosen]:
            readers[buffer].discard(chosen)
        for place in after[chosen]:
            waiting[place].discard(chosen)
            if not waiting[place]:
                heapq.heappush(ready, place)
    return order


def _frees(temporaries: Temporaries, readers: Mapping[Buffer, set[int]], place: int) -> bool:
    """Whether a kernel frees at least as much as it takes."""
    sizes = temporaries.bytes_of
    taken = sum(sizes[buffer] for buffer in temporaries.writes[place])
    freed = sum(
        sizes[buffer]
        for buffer in temporaries.touches[place]
        if readers[buffer] == {place} and buffer not in temporaries.kept
    )
    return freed >= taken
