"""Memory that a compiler reserves: buffers in the memory of results where they fit, the others on a heap.

XLA assigns offsets before the program runs, so that gaps between buffers count. The figures are compared with
``memory_analysis`` of compiled programs (docs/hlo.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np

from dse.adapters.xla.buffers.liveness import Array, Buffer, Liveness, may_share
from dse.adapters.xla.text.module import Instruction

#: Time from which to which memory is taken, both included. [-]
Interval = tuple[int, int]

_ENDLESS: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Reserved:
    """Memory of one device for a program."""

    arguments: int  #: arrays passed to it [B]
    results: int  #: its results, where not in the memory of an argument [B]
    temporaries: int  #: [B]
    peak_at: str  #: kernel that runs when the program's own arrays take most
    least: int = 0  #: ends of the interval of temporaries on TPUs; 0 where they are known [B]
    most: int = 0  #: [B]


def needed(liveness: Liveness) -> Reserved:
    """Memory that a program takes in an order, where only required overwrites happen."""
    arguments = sum(buffer.bytes for buffer in liveness.buffers if buffer.is_parameter)
    results = sum(b.bytes for b in liveness.buffers if b.is_output and not (b.is_parameter or b.is_constant))
    most, kernel = liveness.peak()
    return Reserved(arguments, results, max(most - results, 0), kernel)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Buffers that one after the other take the same place on the heap."""

    bytes: int
    taken: tuple[Interval, ...]

    @property
    def span(self) -> int:
        """From the first time to the last. [-]"""
        return max(end for _, end in self.taken) - self.taken[0][0]


class _Places:
    """Memory of results, from the largest on, as a table of the times at which nothing is in it."""

    def __init__(self, end: int) -> None:
        self.bytes: list[int] = []  # of each place
        self._end = end  # of the program
        self._gaps = np.zeros((3, 64), dtype=np.int32)  # start and end of each gap, and its place
        self._around: list[tuple[Array | None, Array | None]] = []  # arrays before and after each gap

    def add(self, buffer: Buffer) -> None:
        """Let a buffer lend its memory."""
        self.bytes.append(buffer.bytes)
        gap = self._gap((0, self._end + 1, len(self.bytes) - 1), (None, None))
        self._fill(buffer, [gap for _ in buffer.arrays])

    def put(self, buffer: Buffer) -> bool:
        """True if a buffer fits into the memory of a result, from the smallest on; it is put there."""
        starts, ends, places = self._gaps[:, : len(self._around)]
        rows = [np.flatnonzero((starts <= a.start) & (ends >= max(a.end, a.start + 1))) for a in buffer.arrays]
        numbers = reduce(np.intersect1d, (places[row] for row in rows))
        while len(numbers):
            number = int(numbers.max())
            if buffer.is_output and self.bytes[number] > buffer.bytes:  # so have all places before
                return False
            gaps = [int(row[places[row] == number][0]) for row in rows]
            if all(map(self._takes, gaps, buffer.arrays)):
                self._fill(buffer, gaps)
                return True
            numbers = numbers[numbers < number]
        return False

    def _takes(self, gap: int, array: Array) -> bool:
        """True if an array touches only neighbours in time that it is made of, or that are made of it."""
        before, after = self._around[gap]
        return (before is None or before.end < array.start or _takes_over(before.holder, array)) and (
            after is None or array.end < after.start or _takes_over(array.holder, after)
        )

    def _fill(self, buffer: Buffer, gaps: Sequence[int]) -> None:
        """Put each array of a buffer into a gap; the last first, so that the others keep theirs."""
        for gap, array in zip(reversed(gaps), reversed(buffer.arrays), strict=True):
            before, after = self._around[gap]
            _, end, number = self._gaps[:, gap].tolist()
            self._gap((array.end, end, number), (array, after))
            self._gaps[1, gap], self._around[gap] = array.start, (before, array)

    def _gap(self, row: tuple[int, int, int], around: tuple[Array | None, Array | None]) -> int:
        """Number of a new gap."""
        number = len(self._around)
        if number == len(self._gaps[0]):
            self._gaps = np.tile(self._gaps, 2)
        self._gaps[:, number] = row
        self._around.append(around)
        return number


#: Memory in addition to arrays for each kernel on TPUs, which texts do not show: the mean and the most of programs that
#: libtpu 0.0.52 compiled for v5e; and the least and the most that arrays took of their heap. [B], [-]
CODE_BYTES, MOST_CODE = 8192, 24576
TPU_HEAP: Final = (0.87, 1.01)


def reserved(liveness: Liveness, *, tpu_kernels: int = 0) -> Reserved:
    """Memory that XLA would reserve for a program whose buffers are found in the order in which it runs.

    As in XLA's buffer assignment: from the largest on, a buffer goes into the memory of a result, or of a parameter
    that the result overwrites, where it fits and nothing else is needed at the time. Any other buffer shares memory
    with the operand that its maker reads last, if the maker works element by element, and is packed into the smallest
    gap, by size or by length of life, in the order that takes less. Alignment is left out. On a TPU, whose kernels are
    counted, temporary arrays do not use donated memory, are packed only by length of life, and each kernel adds memory,
    none if no array is on the heap; numbers are elsewhere. `TPU_HEAP` and `MOST_CODE` give the ends of the interval.
    """
    places = _Places(max((array.end for buffer in liveness.buffers for array in buffer.arrays), default=0))
    heap: list[Buffer] = []
    arguments = results = 0
    for buffer in sorted(liveness.buffers, key=lambda b: (-b.bytes, not b.is_output, b.arrays[0].start)):
        if buffer.is_parameter:
            arguments += buffer.bytes
            if buffer.overwritten:
                places.add(buffer)
        elif not buffer.is_constant and ((tpu_kernels and not buffer.is_output) or not places.put(buffer)):
            if buffer.is_output:
                places.add(buffer)
                results += buffer.bytes
            elif not tpu_kernels or any([*array.maker.shape.leaves()][array.output].dims for array in buffer.arrays):
                heap.append(buffer)
    chunks = [chunk for chunk in _chunks(heap) if chunk.bytes]
    by_size = sorted(chunks, key=lambda chunk: (-chunk.bytes, -chunk.span, chunk.taken[0]))
    by_life = sorted(chunks, key=lambda chunk: (-chunk.span, -chunk.bytes, chunk.taken[0]))
    temporaries, (_, peak) = _height(by_life), liveness.peak()
    if not tpu_kernels:
        return Reserved(arguments, results, min(temporaries, _height(by_size)), peak)
    kernels = tpu_kernels if temporaries else 0
    least, most = (int(share * temporaries) for share in TPU_HEAP)
    most += MOST_CODE * max(kernels, 1)
    return Reserved(arguments, results, temporaries + CODE_BYTES * kernels, peak, least, most)


def _takes_over(read: Instruction, user: Array) -> bool:
    """True if an array may use the memory of an array that its instruction reads."""
    maker = user.maker
    return any(operand is read for operand in maker.operands) and may_share(read, maker, user.output)


def _chunks(buffers: Iterable[Buffer]) -> Iterator[_Chunk]:
    """Buffers with those that are made in their place."""
    alone: list[Buffer] = []
    for buffer in buffers:
        if len(buffer.arrays) > 1:
            yield _Chunk(buffer.bytes, tuple(buffer.intervals()))
        else:
            alone.append(buffer)
    alone.sort(key=lambda buffer: buffer.intervals())
    of_maker: dict[object, list[int]] = {}
    chains: dict[int, list[Buffer]] = {}  # by their last
    for index, buffer in enumerate(alone):
        array = buffer.arrays[0]
        candidates = (c for operand in array.maker.operands for c in of_maker.get(operand, ()))
        ended = ((c, alone[c].arrays[0]) for c in candidates if c in chains)
        before = next(
            (c for c, ending in ended if ending.end == array.start and _takes_over(ending.maker, array)), None
        )
        chains[index] = [*(chains.pop(before) if before is not None else ()), buffer]
        of_maker.setdefault(array.maker, []).append(index)
    for chain in chains.values():
        taken = (chain[0].arrays[0].start, chain[-1].arrays[0].end)
        yield _Chunk(max(buffer.bytes for buffer in chain), (taken,))


def _height(chunks: Sequence[_Chunk]) -> int:
    """Memory that chunks take, each put into the smallest gap that holds it at all its times. [B]"""
    count = sum(len(chunk.taken) for chunk in chunks)
    start, end = np.zeros((2, count), dtype=np.int32)
    low, high = np.zeros((2, count), dtype=np.int64)
    placed = height = 0
    for chunk in chunks:
        living = np.zeros(placed, dtype=bool)
        for first, last in chunk.taken:
            living |= (start[:placed] <= last) & (end[:placed] >= first)
        rows = np.flatnonzero(living)
        rows = rows[np.argsort(low[rows])]
        floors = np.concatenate([[0], np.maximum.accumulate(high[rows])])
        gaps = np.concatenate([low[rows], [_ENDLESS]]) - floors
        gaps[gaps < chunk.bytes] = _ENDLESS
        at = int(floors[gaps.argmin()] if gaps.min() < _ENDLESS else floors[-1])
        for first, last in chunk.taken:
            start[placed], end[placed], low[placed], high[placed] = first, last, at, at + chunk.bytes
            placed += 1
        height = max(height, at + chunk.bytes)
    return height
