"""Pipeline schedules: their rules, their timetables, and the entries of each rank slot by slot.

A schedule states in which order the ranks of a pipeline run forward passes (F), gradients of inputs (B) and gradients
of weights (W). Its timetable gives each pass a slot, as if all took equally long; then only the order counts, and a
pass starts when its rank is free and its input has arrived. Two micro-batches under 1F1B on two ranks:

    rank 0  F0 .  F1 B0 .  B1
    rank 1  .  F0 B0 F1 B1 .

A new schedule is one function that fills a `Timetable`, and one row of `SCHEDULES` with its rules and flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.training.design import SCHEDULE_WORDS, DesignPoints


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on p ranks, v chunks, m micro-batches, groups of n: where it is met, and a remedy."""

    met: Callable[[FloatArray, FloatArray, FloatArray, FloatArray], BoolArray]
    wanted: str


def _chunks(number: int, wanted: str) -> Rule:
    return Rule(lambda p, v, m, n: v == number, f"{wanted}; vpp={number} would do")


ONE_CHUNK = _chunks(1, "has one chunk per rank")
TWO_CHUNKS = _chunks(2, "has two chunks per rank")
FILLED = Rule(
    lambda p, v, m, n: m >= 2 * p,
    "needs two micro-batches per rank; gradient_accumulation_steps of at least 2 pp would do",
)
HALVES = Rule(
    lambda p, v, m, n: (p % 2 == 0) & (m % 2 == 0),
    "is two pipelines in one; even pp and even gradient_accumulation_steps would do",
)
GROUPS = Rule(
    lambda p, v, m, n: (v == 1) | ((n >= p) & (n <= m) & ((m % n == 0) | (m % n >= p))),
    "with vpp > 1 takes micro-batches in groups of group_size (0: pp), of which none is smaller than pp; "
    "gradient_accumulation_steps that pp divides, in groups of pp, would do",
)

#: Slot of passes that do not run: the gradient of weights where a backward pass is whole.
NONE = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Timetable:
    """Slots of the passes of one schedule; (chains, stages, micro-batches) each. [-]

    Micro-batches of a chain go through its stages from first to last, and back. DualPipe has two chains,
    from both ends of the pipeline; all others have one.
    """

    forward: IntArray
    backward: IntArray
    weight: IntArray  #: `NONE` where the backward pass is whole
    rank: IntArray  #: where a stage runs; (chains, stages)


def loop(p: int, v: int) -> tuple[IntArray, IntArray, IntArray]:
    """Rank and chunk of the stages of v rounds, (stages, 1); and the ranks once more, (1, stages)."""
    stage = np.arange(p * v)
    return stage[:, None] % p, stage[:, None] // p, stage[None] % p


def looped(forward: IntArray, backward: IntArray, weight: IntArray | None, rank: IntArray) -> Timetable:
    """Timetable of one chain whose stages run on the ranks in turn."""
    return Timetable(
        forward=forward[None],
        backward=backward[None],
        weight=np.full_like(forward, NONE)[None] if weight is None else weight[None],
        rank=rank,
    )


def breadth_first(p: int, v: int, m: int, n: int) -> Timetable:
    """All micro-batches through a chunk before the next; with one chunk GPipe."""
    i, chunk, rank = loop(p, v)
    j, turn = np.arange(m), max(m, p)
    turned = (v - 1) * turn + m + p - 1
    return looped(chunk * turn + i + j, turned + (v - 1 - chunk) * turn + p - 1 - i + j, None, rank)


def one_forward_one_backward(p: int, v: int, m: int, n: int) -> Timetable:
    """1F1B: p - 1 - i forwards, then forward and backward in turn; interleaved with more than one chunk."""
    if v > 1:
        return interleaved(p, v, m, n)
    i, _, rank = loop(p, 1)
    j = np.arange(m)
    return looped(2 * j + i, 2 * (j + p - 1 - i) + i + 1, None, rank)


def interleaved(p: int, v: int, m: int, n: int) -> Timetable:
    """Groups of n micro-batches through chunks 0 to v - 1; 2 (p - 1 - i) + (v - 1) n forwards ahead."""
    i, chunk, rank = loop(p, v)
    group = np.arange(m) // n
    size = np.minimum(n, m - group * n)
    in_first = group * n * v + np.arange(m) - group * n  # place of a pass among a rank's, in its first chunk
    ahead = 2 * (p - 1 - i) + (v - 1) * n
    forward = 2 * (in_first + chunk * size + i)
    backward = 2 * (in_first + (v - 1 - chunk) * size + ahead + i) + 1
    return looped(forward, backward, None, rank)


def split_backward(stages_ahead: int) -> Callable[[int, int, int, int], Timetable]:
    """ZB-H1 and ZB-H2: a (p - 1 - i) forwards ahead, the weights' gradients a i micro-batches behind."""
    a = stages_ahead

    def slots(p: int, v: int, m: int, n: int) -> Timetable:
        i, _, rank = loop(p, 1)
        j, shift = 3 * np.arange(m), (2 * a - 1) * i
        return looped(j + shift, j + 3 * a * (p - 1 - i) + shift + 1, j + 3 * a * (p - 1) + shift + 2, rank)

    return slots


def runs(j: IntArray, *pieces: tuple[IntArray | int, IntArray | int, int]) -> IntArray:
    """Slots that climb in pieces: (first micro-batch of the piece, its slot, slots from one to the next).

    >>> runs(np.arange(5), (0, 7, 1), (2, 20, 3))
    array([ 7,  8, 20, 23, 26])
    """
    slots: IntArray = np.zeros(np.broadcast_shapes(*(np.shape(first) for first, _, _ in pieces), j.shape), np.intp)
    for first, slot, step in pieces:
        slots = np.where(j >= first, slot + (j - first) * step, slots)
    return slots


def there_and_back(p: int) -> IntArray:
    """Ranks of the stages of a V: rank i has stages i and 2 p - 1 - i; (1, stages)."""
    return np.concatenate([np.arange(p), np.arange(p)[::-1]])[None]


def v_shaped(near: Mapping[str, IntArray], far: Mapping[str, IntArray], m: int) -> Timetable:
    """Timetable of a V from the slots of each rank's near and far chunk; (ranks, micro-batches) each."""
    slots = {name: np.concatenate([near[name], far[name][::-1]])[None, :, :m] for name in near}
    return Timetable(rank=there_and_back(near["forward"].shape[0]), **slots)


def zero_bubble_v(p: int, v: int, m: int, n: int) -> Timetable:
    """ZB-V by hand: near and far chunk in turn. [Qi2024]_

    Fewer than 2 p - 1 micro-batches do not fill it: those that are missing are left out.
    """
    most = max(m, 2 * p - 1)
    i, j = np.arange(p)[:, None], np.arange(most)[None]
    second = 2 * p - 1 - i  # forwards of the far chunk begin, between those of the near one
    third = second + 2 * i  # and its backward passes
    steady = third + 3 * (p - i)  # near and far in turn
    ending = steady + 6 * (most - p)  # no more forwards
    emptying = ending + 3 * i  # the far chunk is done
    left = emptying + 2 * (p - i)  # weights of the far chunk, then of the near one
    near = {
        "forward": runs(j, (0, i, 1), (second - i, second + 1, 2), (second, steady, 6)),
        "backward": runs(j, (0, steady + 1, 6), (most - p, ending, 3), (most - p + i, emptying, 2)),
        "weight": runs(j, (0, steady + 2, 6), (most - p, emptying + 1, 2), (most - i, left + i, 1)),
    }
    far = {
        "forward": runs(j, (0, second, 2), (i, third, 3), (p, steady + 3, 6)),
        "backward": runs(j, (0, third + 1, 3), (p - i, steady + 4, 6), (most - i, ending + 2, 3)),
        "weight": runs(j, (0, third + 2, 3), (p - i, steady + 5, 6), (most - i, left, 1)),
    }
    return v_shaped(near, far, m)


def dualpipe_v(p: int, v: int, m: int, n: int) -> Timetable:
    """DualPipe cut in half: forward passes of one chunk overlap backward ones of the other. [DeepSeek2024]_

    The far chunk's first p - 1 - i backward passes leave their weights for the slot after; the last p of both
    chunks leave them until the end, where the oldest come first.
    """
    i, j = np.arange(p)[:, None], np.arange(m)[None]
    rest = p - 1 - i
    second = 2 * (p - 1) - i  # forwards of both chunks in turn
    third = 2 * p + i  # far chunk: backward, weights, forward in turn
    paired = 5 * p - 2 - i  # pairs, with the near chunk's forwards until there are no more
    near = {"forward": runs(j, (0, i, 1), (2 * rest, second, 2), (rest + p, paired, 2)), "backward": paired + 1 + 2 * j}
    near["forward"][-1, p] -= 1  # where micro-batches turn, the first pair is apart
    far = {
        "forward": runs(j, (0, second + 1, 2), (i + 1, third + 2, 3), (p, paired + 1, 2)),
        "backward": runs(j, (0, third, 3), (rest, paired, 2)),
    }
    owing = paired + 2 * (m - rest)  # the near chunk's last backward passes, then the weights left
    near_turn, far_turn = j - (m - p), j - (m - 1 - i)  # of the last i + 1 turns, where both chunks go back
    near_owed = np.where(near_turn > i, near_turn, 2 * near_turn - i)
    far_owed = 2 * far_turn - i - 1
    near["weight"] = np.where((near_turn >= 0) & (near_owed >= 0), _weight_slot(near_owed, owing, rest), NONE)
    far["weight"] = np.where((far_turn >= 0) & (far_owed >= 0), _weight_slot(far_owed, owing, rest), NONE)
    far["weight"] = np.where(j < rest, third + 3 * j + 1, far["weight"])
    return v_shaped(near, far, m)


def _weight_slot(owed: IntArray, first: IntArray, rest: IntArray) -> IntArray:
    """Slot of weights put off: between the last backward passes, then one after another."""
    return first + owed + np.minimum(owed, rest)


def dualpipe(p: int, v: int, m: int, n: int) -> Timetable:
    """DualPipe: a V on half of the ranks and its mirror image on the others, half of the micro-batches each.

    Micro-batches do not turn on the middle ranks, they go on: far chunks hold those of the other chain. [DeepSeek2024]_
    """
    one = dualpipe_v(p // 2, 2, m // 2, n)
    ranks = np.arange(p)
    return Timetable(
        **{name: np.concatenate([getattr(one, name)] * 2) for name in ("forward", "backward", "weight")},
        rank=np.stack([ranks, ranks[::-1]]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A pipeline schedule: its timetable, and its rules for designs."""

    slots: Callable[[int, int, int, int], Timetable]  #: of p, v, m, n
    pace: int  #: slots of a chunk for each micro-batch, once the pipeline is full
    rules: tuple[Rule, ...] = ()
    pairs: bool = False  #: overlaps forward with backward passes
    both_ends: bool = False  #: micro-batches enter at both ends of the pipeline
    turns: bool = False  #: the second chunks of the ranks come back from the last to the first
    chunk_by_chunk: bool = False  #: all micro-batches pass a chunk before the next
    groups: bool = False  #: takes micro-batches in groups when there is more than one chunk

    def turn(self, v: int, n: int) -> int:
        """Micro-batches after which a full pipeline does the same again."""
        return n if self.groups and v > 1 else 2 if self.both_ends else 1


_ALL_AT_ONCE = Schedule(slots=breadth_first, pace=1, chunk_by_chunk=True)

#: Word -> the schedule, in the order of `SCHEDULE_WORDS`. 1F1B is interleaved where ranks have several chunks.
SCHEDULES: Mapping[str, Schedule] = {
    "gpipe": replace(_ALL_AT_ONCE, rules=(ONE_CHUNK,)),  # [Huang2019]
    "1f1b": Schedule(slots=one_forward_one_backward, pace=2, rules=(GROUPS,), groups=True),  # [Narayanan2021]
    "breadth_first": _ALL_AT_ONCE,  # [LamyPoirier2023]
    "zb_h1": Schedule(slots=split_backward(1), pace=3, rules=(ONE_CHUNK,)),  # [Qi2024]
    "zb_h2": Schedule(slots=split_backward(2), pace=3, rules=(ONE_CHUNK,)),
    "zb_v": Schedule(slots=zero_bubble_v, pace=3, rules=(TWO_CHUNKS,), turns=True),
    "dualpipe": Schedule(slots=dualpipe, pace=1, rules=(ONE_CHUNK, HALVES, FILLED), pairs=True, both_ends=True),
    "dualpipe_v": Schedule(
        slots=dualpipe_v, pace=1, rules=(TWO_CHUNKS, FILLED), pairs=True, turns=True
    ),  # [DeepSeek2024]
}


def of_schedule(design: DesignPoints, *flags: str) -> BoolArray:
    """Designs of whose schedule some of these flags, fields of `Schedule`, are set; (points,)."""
    return np.asarray(_flagged(flags)[design.schedule.astype(np.intp)])


def passes_run_beside(design: DesignPoints) -> BoolArray:
    """Where forward and backward passes overlap though their schedule does not pair them; (points,)."""
    return ~of_schedule(design, "pairs", "chunk_by_chunk") & (design.overlap_ep > 0)


@cache
def _flagged(flags: tuple[str, ...]) -> BoolArray:
    """Schedules with some of these flags, in the order of `SCHEDULE_WORDS`."""
    return np.array([any(getattr(SCHEDULES[word], flag) for flag in flags) for word in SCHEDULE_WORDS])


#: Bits of the passes of an entry. A whole backward pass is both gradients; all bits are a pair.
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

    An entry waits for the one before it on its rank and for its sources; a pair has two. An entry without a source, and
    a slot without an entry, name the slot before on the same rank. No source is `window` slots back, so that its slot
    modulo the window identifies it.

    With `Schedule.turn` more micro-batches, slots from `cut - period` to `cut` come once more and all else
    stays, if the pipeline is full by then.
    """

    entry: NDArray[np.int8]  #: bits; 0: nothing runs
    sources: tuple[tuple[SlotArray, SlotArray], ...]  #: 2 (slot % window) + (1: as a message); rank
    reach: int  #: most slots between an entry and its source
    window: int  #: a power of two
    cut: int  #: first slot that is not as it is with more micro-batches
    period: int
    until_w: FloatArray  #: chunk activations held at once until W has run; (ranks,)

    def pairs(self, turns: FloatArray) -> FloatArray:
        """Overlapped pairs with some periods more; (points, ranks). [-]"""
        pairs = (self.entry == PAIR).astype(np.float64)
        return np.asarray(pairs.sum(axis=0) + turns[:, np.newaxis] * pairs[self.repeated].sum(axis=0))

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
    chains, _, micro_batches = table.forward.shape
    turn = row.turn(v, n)
    return Order(
        entry=entry,
        sources=tuple(
            ((2 * (slot & (window - 1)) + (source & 1)).astype(narrow), (source >> 1).astype(narrow))
            for slot, source in sources
        ),
        reach=reach,
        window=window,
        cut=int(table.forward[..., (micro_batches - 1) // (turn // chains) * (turn // chains)].min()),
        period=turn * v * row.pace,
        until_w=most_held(entry, WEIGHT if weight_apart.any() else BACKWARD),
    )


def most_held(entry: NDArray[np.int8], until: int) -> FloatArray:
    """Most chunk activations on each rank from their forward pass until one of another kind is over. [-]"""
    change = (entry & FORWARD).astype(np.int16)
    change[1:] -= entry[:-1] & until != 0
    return np.asarray(change.cumsum(axis=0, dtype=np.int32).max(axis=0).astype(np.float64))


def _sources(
    table: Timetable, rank: IntArray, shape: tuple[int, int], *, apart: bool
) -> tuple[list[tuple[SlotArray, SlotArray]], int]:
    """Slots and places, 2 rank + (1: as a message), of the sources of entries, and their largest distance in slots.

    Sources of forward and backward passes are apart where the two may be pairs.
    """
    sources: list[tuple[SlotArray, SlotArray]] = []
    reach = 1
    for _ in range(1 + apart):
        slot = np.repeat(np.arange(-1, shape[0] - 1, dtype=np.int32)[:, None], shape[1], axis=1)
        sources.append((slot, np.repeat(2 * np.arange(shape[1], dtype=np.int32)[None], shape[0], axis=0)))
    later, earlier = slice(1, None), slice(None, -1)
    for (slot, source), passes, to, of in (
        (sources[0], table.forward, later, earlier),
        (sources[-1], table.backward, earlier, later),
    ):
        cells = passes[:, to], rank[:, to]
        slot[cells] = passes[:, of]
        source[cells] = 2 * rank[:, of] + (rank[:, of] != rank[:, to])
        reach = max(reach, int((passes[:, to] - passes[:, of]).max(initial=1)))
    return sources, reach


#: Micro-batches for each rank, or for each of a turn if more, that fill a pipeline before its last turn. [-]
FULL = 4


def shortest(schedule: str, p: int, v: int, m: int, n: int, full: int = FULL) -> tuple[int, int]:
    """Fewest micro-batches whose order is that of m without some turns of a full pipeline, and those turns.

    `full` are the micro-batches for each rank that stay. [-]

    >>> shortest("1f1b", 4, 1, 100, 4)
    (16, 84)
    """
    turn = SCHEDULES[schedule].turn(v, n)
    turns = max(m - full * max(p, turn), 0) // turn
    return m - turns * turn, turns
