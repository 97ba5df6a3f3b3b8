"""Totals that XLA's own cost analysis (`HloCostAnalysis`) gives for a program.

A loop's body counts once, of a choice each figure's largest branch, a library's call is -1 of everything. XLA
adds in single precision and in an order of its own; with `single_precision` so do we.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from costmodel.hlo.text.module import Computation, Instruction, Shape, control_predecessors
from costmodel.hlo.text.opcodes import parts
from costmodel.hlo.work.arithmetic import is_product, own_work, products_of, repeats
from costmodel.hlo.work.bytes_accessed import Access, Starts, access, gather_or_scatter

#: Size of a pointer: a tuple is a table of them. [B]
POINTER_BYTES: Final = 8
_FREE: Final = frozenset(
    ("add-dependency", "after-all", "bitcast", "constant", "domain", "get-tuple-element", "parameter")
)
#: Instructions of which XLA counts what they read and give, whatever that is.
_WHOLE: Final = frozenset(
    (
        *("opt-barrier", "copy", "copy-start", "all-gather-start", "all-reduce-start"),
        *("collective-permute-start", "recv", "send"),
    )
)


def _single(value: float) -> float:
    return float(np.float32(value))


def _exact(value: float) -> float:
    return value


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
        self._rounded: Callable[[float], float] = _single if single_precision else _exact
        self._totals: dict[Computation, CostTotals] = {}

    def of(self, computation: Computation) -> CostTotals:
        """Sums over a computation that runs once."""
        known = self._totals.get(computation)
        if known is None:
            known = CostTotals()
            for instruction in _in_xlas_order(computation):
                known = self._added(known, self.of_instruction(instruction))
            self._totals[computation] = known
        return known

    def of_instruction(self, instruction: Instruction) -> CostTotals:
        """What an instruction adds."""
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
        own = own_work(instruction)
        flops: float = own.flops
        transcendentals: float = own.transcendentals
        for called, times in zip(instruction.called, repeats(instruction), strict=False):
            body = self.of(called)
            flops, transcendentals = (
                flops + body.flops * times,
                transcendentals + body.transcendentals * times,
            )
        return flops, transcendentals

    def _added(self, one: CostTotals, other: CostTotals) -> CostTotals:
        return CostTotals(*(self._rounded(a + b) for a, b in zip(one, other, strict=True)))


def _moved(instruction: Instruction, starts: Starts) -> Access:
    """Bytes as XLA has them: of a tuple that is read its table, of one that is made its arrays."""
    opcode, part = parts(instruction.opcode)
    if opcode in _FREE:
        return Access(0, 0)
    if opcode == "tuple":
        return Access(0, _table_bytes(instruction.shape))
    if opcode in ("partition-id", "replica-id"):
        return Access(0, instruction.shape.bytes)
    if instruction.opcode in _WHOLE or part in ("update", "done"):
        return Access(sum(_table_bytes(each.shape) for each in instruction.operands), instruction.shape.bytes)
    return access(instruction, starts)


def _table_bytes(shape: Shape) -> int:
    """What a tuple itself takes, or an array. [B]"""
    return POINTER_BYTES * len(shape.elements) if shape.is_tuple else shape.bytes


def _in_xlas_order(computation: Computation) -> Iterator[Instruction]:
    """Instructions, what nothing reads first, each after its operands and then what it must wait for."""
    named = {each.name: each for each in computation.instructions}
    before = {
        each: (*each.operands, *(named[name] for name in control_predecessors(each) if name in named))
        for each in computation.instructions
    }
    read = {operand for own in before.values() for operand in own}
    unread = [each for each in computation.instructions if each not in read and each is not computation.root]
    done: set[Instruction] = set()
    for start in (*unread, computation.root):
        stack = [(start, iter(before[start]))]
        while stack:
            instruction, waiting = stack[-1]
            following = next((each for each in waiting if each not in done), None)
            if following is not None:
                stack.append((following, iter(before[following])))
                continue
            stack.pop()
            if instruction not in done:
                done.add(instruction)
                yield instruction
