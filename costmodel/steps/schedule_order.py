"""What the ranks of one pipeline do, slot by slot, with what they hold meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import FloatArray, IntArray
from costmodel.steps.schedules import NONE, SCHEDULES, Timetable

#: Bits of what an entry consists of. A whole backward pass is both gradients; all bits are a pair.
FORWARD, BACKWARD, WEIGHT = 1, 2, 4
WHOLE = BACKWARD | WEIGHT
PAIR = FORWARD | WHOLE

#: Of either width, as narrow as will do.
SlotArray = NDArray[np.signedinteger[Any]]

#: Least window, so that most orders have the same. [slots]
SMALLEST_WINDOW = 4

#: How many orders are remembered; one takes 5 bytes for each slot and rank, or 9.
REMEMBERED = 512


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Order:
    """Entries of the ranks of one pipeline; (slots, ranks) arrays. [-]

    An entry waits for the one before it on its rank and for its sources, of which a pair has two. An entry
    without a source, and a slot without an entry, name their own rank's slot before. No source is `window`
    slots back, so that its slot modulo the window tells which one it is.

    With `Schedule.turn` more micro-batches, slots from `cut - period` to `cut` come once more and all else
    stays, if the pipeline is full by then.
    """

    entry: NDArray[np.int8]  #: bits; 0: nothing runs
    sources: tuple[tuple[SlotArray, SlotArray], ...]  #: 2 (slot % window) + (1: as a message); rank
    reach: int  #: most slots between an entry and its source
    window: int  #: a power of two
    cut: int  #: first slot that is not as it is with more micro-batches
    period: int
    until_b: FloatArray  #: chunk activations held at once until B has run; (ranks,)
    until_w: FloatArray  #: the same until W has run; (ranks,)

    def pairs(self, turns: FloatArray) -> FloatArray:
        """Overlapped pairs with some periods more; (points, ranks). [-]"""
        pairs = (self.entry == PAIR).astype(np.float64)
        total: FloatArray = pairs.sum(axis=0) + turns[:, np.newaxis] * pairs[self.repeated].sum(axis=0)
        return total

    def messages(self, turns: FloatArray) -> FloatArray:
        """Messages between ranks with some periods more; (points,). [-]"""
        sent = np.zeros(len(self.entry))
        for place, _ in self.sources:
            sent += (place & 1).sum(axis=1)
        total: FloatArray = sent.sum() + turns * sent[self.repeated].sum()
        return total

    @property
    def repeated(self) -> slice:
        """Slots of the last period before the cut."""
        return slice(max(self.cut - self.period, 0), max(self.cut, 0))


@lru_cache(maxsize=REMEMBERED)
def order(schedule: str, p: int, v: int, m: int, n: int) -> Order:
    """Order of a schedule on p ranks with v chunks each, for m micro-batches in groups of n."""
    row = SCHEDULES[schedule]
    table = row.slots(p, v, m, n)
    rank = np.broadcast_to(table.rank[:, :, np.newaxis], table.forward.shape)
    weight_apart = table.weight != NONE
    slots = 1 + int(max(table.forward.max(), table.backward.max(), table.weight.max()))
    entry = np.zeros((slots, p), np.int8)
    entry[table.forward, rank] = FORWARD
    entry[table.backward, rank] |= np.where(weight_apart, BACKWARD, WHOLE).astype(np.int8)
    entry[table.weight[weight_apart], rank[weight_apart]] = WEIGHT
    sources, reach = _sources(table, rank, entry.shape, apart=row.pairs)
    window = max(SMALLEST_WINDOW, 1 << reach.bit_length())
    narrow: type[np.signedinteger[Any]] = np.int16 if max(2 * window, p) < 2**15 else np.int32
    held = _held(entry, BACKWARD)
    chains, _, each = table.forward.shape
    turn = row.turn(v, n)
    return Order(
        entry=entry,
        sources=tuple(
            ((2 * (slot & (window - 1)) + (place & 1)).astype(narrow), (place >> 1).astype(narrow))
            for slot, place in sources
        ),
        reach=reach,
        window=window,
        cut=int(table.forward[..., (each - 1) // (turn // chains) * (turn // chains)].min()),
        period=turn * v * row.pace,
        until_b=held,
        until_w=_held(entry, WEIGHT) if weight_apart.any() else held,
    )


def _held(entry: NDArray[np.int8], until: int) -> FloatArray:
    """Most chunk activations on each rank from their forward pass until one of another kind is over. [-]"""
    change = (entry & FORWARD).astype(np.int16)
    change[1:] -= entry[:-1] & until != 0
    held: FloatArray = change.cumsum(axis=0, dtype=np.int32).max(axis=0).astype(np.float64)
    return held


def _sources(
    table: Timetable, rank: IntArray, shape: tuple[int, int], *, apart: bool
) -> tuple[list[tuple[SlotArray, SlotArray]], int]:
    """Slots and places, 2 rank + (1: as a message), of what entries wait for, and how far back they are.

    Sources of forward and backward passes are apart where the two may be pairs.
    """
    found: list[tuple[SlotArray, SlotArray]] = []
    reach = 1
    for _ in range(1 + apart):
        slot = np.repeat(np.arange(-1, shape[0] - 1, dtype=np.int32)[:, None], shape[1], axis=1)
        found.append((slot, np.repeat(2 * np.arange(shape[1], dtype=np.int32)[None], shape[0], axis=0)))
    later, earlier = slice(1, None), slice(None, -1)
    for (slot, place), passes, to, of in (
        (found[0], table.forward, later, earlier),
        (found[-1], table.backward, earlier, later),
    ):
        cells = passes[:, to], rank[:, to]
        slot[cells] = passes[:, of]
        place[cells] = 2 * rank[:, of] + (rank[:, of] != rank[:, to])
        reach = max(reach, int((passes[:, to] - passes[:, of]).max(initial=1)))
    return found, reach


#: Micro-batches for each rank, or for each of a turn if more, that fill a pipeline before its last turn. [-]
FULL = 4


def shortest(schedule: str, p: int, v: int, m: int, n: int) -> tuple[int, int]:
    """Fewest micro-batches whose order is that of m without some turns of a full pipeline, and those turns.

    >>> shortest("1f1b", 4, 1, 100, 4)
    (16, 84)
    """
    turn = SCHEDULES[schedule].turn(v, n)
    turns = max(m - FULL * max(p, turn), 0) // turn
    return m - turns * turn, turns


#: An action: F, B, W, or A for B and W as one; its stage, and its micro-batch.
Action = tuple[str, int, int]


def pipeline_order(schedule: str, p: int, v: int, m: int, n: int = 0) -> list[list[tuple[Action, ...]]]:
    """What each rank runs, in order; an entry is one action or the two of an overlapped pair.

    Stages of DualPipe's second chain, which starts on the last rank, count on from those of the first.

    >>> pipeline_order("1f1b", 2, 1, 2)[1]
    [(('F', 1, 0),), (('A', 1, 0),), (('F', 1, 1),), (('A', 1, 1),)]
    """
    table = SCHEDULES[schedule].slots(p, v, m, n or p)
    found: list[list[tuple[int, Action]]] = [[] for _ in range(p)]
    stages = table.forward.shape[1]
    for (chain, stage, micro), slot in np.ndenumerate(table.forward):
        weight = int(table.weight[chain, stage, micro])
        actions = {"F": int(slot), "A" if weight == NONE else "B": int(table.backward[chain, stage, micro])}
        actions |= {} if weight == NONE else {"W": weight}
        place = chain * stages + stage
        found[table.rank[chain, stage]] += [(when, (kind, place, micro)) for kind, when in actions.items()]
    entries: list[list[tuple[Action, ...]]] = []
    for timed in found:
        by_slot: dict[int, tuple[Action, ...]] = {}
        for when, action in sorted(timed, key=lambda one: (one[0], "FBAW".index(one[1][0]))):
            by_slot[when] = (*by_slot.get(when, ()), action)
        entries.append(list(by_slot.values()))
    return entries
