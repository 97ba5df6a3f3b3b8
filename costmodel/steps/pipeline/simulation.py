"""End times of the ranks of many pipelines: simulated slot by slot, or from their critical paths.

A pass starts when the pass before it on its rank is done and its input has arrived. So the end of a slot is a maximum
of earlier ends plus a time, and all ranks of all designs of one order take a slot in one NumPy call. A full pipeline
repeats itself: once a period shifts all ends by the same time, further periods are multiplied (`Ends`).

Pipelines of unequal stages under 1F1B, interleaved or not, have an exact sum instead, from their critical path. A rank
runs N = m v forward passes and as many backward passes; rank r runs W(r) forward passes ahead. A pass waits for the
pass before it on its rank and for its micro-batch on a neighbour. The step takes as long as the longest chain of passes
that wait for each other, a walk over the ranks:

    rank 0  F F F F F F F B F B F B F B B B B B B B     forward walk: to the next rank, or stay on a slow one
    rank 1    F F F F F B F B F B F B F B B B B B       pivot: forward and backward passes in turn
    rank 2      F F F B F B F B F B F B B B B           backward walk: back to rank 0

Walks enter and leave a pivot in a few ways only, and their lengths are linear along a run of equal ranks. The
longest chain is therefore the largest of some sums at the first and last ranks of runs of equal ranks. The
orders are those of [Narayanan2021]_; tests compare the sums with a simulation of every pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.steps.pipeline.schedules import BACKWARD, FORWARD, PAIR, WEIGHT, Order

#: Designs of one order that run side by side. [designs]
WIDTH = 16

#: Ranks of all designs that run at once: enough to pay for a slot's calls, few enough for the caches. [ranks]
LANES = 16384

#: Error that may come of periods that are not run, relative to the whole. [-]
PRECISION = 1e-11

#: Slots and ranks of different orders whose sources are looked up at once, at most. [slots x ranks]
CELLS = 4_000_000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TimedPasses:
    """Times of passes on the ranks of each design. [s]"""

    forward: FloatArray  #: (points, ranks)
    backward: FloatArray  #: gradient of the input
    weight: FloatArray
    pair: FloatArray  #: a forward and a whole backward pass that overlap
    message: FloatArray  #: from the end of a pass to its successor's start on another rank; (points,)

    @property
    def whole(self) -> FloatArray:
        """A forward and a whole backward pass, one after the other; (points, ranks). [s]"""
        return self.forward + self.backward + self.weight

    def entries(self, points: IntArray, p: int) -> FloatArray:
        """Times of the kinds of entries, by their bits; (8, p, points). [s]"""
        times = np.zeros((PAIR + 1, p, points.size))
        forward, backward, weight = (values[points, :p].T for values in (self.forward, self.backward, self.weight))
        times[FORWARD], times[BACKWARD], times[WEIGHT] = forward, backward, weight
        times[BACKWARD | WEIGHT] = backward + weight
        times[PAIR] = self.pair[points, :p].T
        return times


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ends:
    """End times of ranks, and the change of their state in the last period before their order's cut. [s]

    A run depends only on the state at the cut: the times at which each rank finished the slots that later ones refer
    to. If the whole state is later by some time, all later slots are too. A period that shifts the whole state by one
    time does so in all later periods.
    """

    end: FloatArray  #: of the last entry; (points, ranks)
    shift: FloatArray  #: of the state from one period to the next; (points,)
    spread: FloatArray  #: by how much the shift of some of it differs; (points,)

    def settled(self, turns: FloatArray) -> BoolArray:
        """Points for which some periods more only add their shift, to the precision of the clock."""
        most: FloatArray = self.end.max(axis=1)
        return turns * self.spread <= PRECISION * (most + turns * self.shift)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Designs of one order, simulated at once; the last is repeated where they do not fill the width. [-]"""

    order: Order
    points: IntArray

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of slots and of ranks of the order."""
        slots, ranks = self.order.entry.shape
        return slots, ranks


def ends_of_ranks(orders: Sequence[Order], of_order: Sequence[IntArray], passes: TimedPasses) -> Ends:
    """When each rank of each design has run its last entry, from the start of the first rank.

    An entry starts when the one before it on its rank is done and its sources have arrived; messages take
    time but keep no rank from running. Points that follow none of the orders are done at 0.
    """
    points = passes.message.size
    ends = Ends(end=np.zeros(passes.forward.shape), shift=np.zeros(points), spread=np.zeros(points))
    alike: dict[tuple[int, int, int], list[Piece]] = {}
    for order, points_of_order in zip(orders, of_order, strict=True):
        for width in (1, WIDTH):
            kind = (len(order.sources), order.window, width)
            alike.setdefault(kind, []).extend(Piece(order, designs) for designs in _pieces(points_of_order, width))
    for (_, window, width), pieces in alike.items():
        for batch in _batches(pieces, width):
            _run(batch, passes, window, width, ends)
    return ends


def _pieces(points: IntArray, width: int) -> list[IntArray]:
    """The points in pieces of a width: full ones, and one that is at least half full; other points run alone."""
    whole = points.size // WIDTH * WIDTH
    if 2 * (points.size - whole) >= WIDTH:
        points = np.concatenate([points, np.repeat(points[-1:], whole + WIDTH - points.size)])
        whole = points.size
    chosen = points[:whole] if width == WIDTH else points[whole:]
    return list(chosen.reshape(-1, width))


def _batches(pieces: list[Piece], width: int) -> list[list[Piece]]:
    """Pieces that run together, those with most slots first."""
    batches: list[list[Piece]] = []
    lanes, slots = LANES, 0
    for piece in sorted(pieces, key=lambda one: one.shape, reverse=True):
        ranks = piece.shape[1]
        if lanes + ranks * width > LANES or (lanes // width + ranks) * slots > CELLS:
            batches.append([])
            lanes, slots = 0, piece.shape[0]
        batches[-1].append(piece)
        lanes += ranks * width
    return batches


def _run(batch: list[Piece], passes: TimedPasses, window: int, width: int, ends: Ends) -> None:
    """Time the pieces of a batch and put down when their ranks are done."""
    ranks = [piece.shape[1] for piece in batch]
    firsts = np.cumsum([0, *ranks])
    lanes = int(firsts[-1])
    entry, sources = _places(batch, firsts)
    times = np.concatenate([passes.entries(piece.points, piece.shape[1]) for piece in batch], axis=1)
    message = np.repeat(passes.message[np.stack([piece.points for piece in batch])], ranks, axis=0)
    states = _States(batch, firsts)
    # done[slot % window, 0] is when each rank is done with a slot, [..., 1] when its message has arrived.
    done = np.zeros((window, 2, lanes, width))
    flat, flat_times = done.reshape(-1, width), times.reshape(-1, width)
    start, time = np.empty((2, lanes, width))
    for slot, count in enumerate(_running(batch, firsts)):
        if slot in states.due:
            states.note(slot, done)
        ends_of_slot, arrived = done[slot % window, :, :count]
        begin, took = start[:count], time[:count]
        np.copyto(begin, done[slot % window - 1, 0, :count])
        for source in sources:
            flat.take(source[slot, :count], axis=0, out=took, mode="clip")
            np.maximum(begin, took, out=begin)
        flat_times.take(entry[slot, :count], axis=0, out=took, mode="clip")
        np.add(begin, took, out=ends_of_slot)
        np.add(ends_of_slot, message[:count], out=arrived)
    for piece, first in zip(batch, firsts, strict=False):
        slots, p = piece.shape
        ends.end[piece.points, :p] = done[(slots - 1) % window, 0, first : first + p].T
        if (noted := states.shifts.get(int(first))) is not None:
            ends.shift[piece.points], ends.spread[piece.points] = noted


def _running(batch: list[Piece], firsts: IntArray) -> list[int]:
    """Ranks of a batch that still run in each slot; they come first."""
    slots = np.array([piece.shape[0] for piece in batch])
    count = np.searchsorted(-slots, -np.arange(slots[0]), side="left")
    running: list[int] = firsts[count].tolist()
    return running


class _States:
    """States of the pieces of a batch a period before their cuts, and how much later they are there."""

    def __init__(self, batch: list[Piece], firsts: IntArray) -> None:
        self.pieces = list(zip(batch, firsts.tolist(), strict=False))
        self.due: dict[int, list[int]] = {}
        self.before: dict[int, FloatArray] = {}
        #: First lane of a piece -> the shift of its state, and how much that varies. [s]
        self.shifts: dict[int, tuple[FloatArray, FloatArray]] = {}
        for number, piece in enumerate(batch):
            if piece.order.cut >= piece.order.period:
                for slot in (piece.order.cut - piece.order.period, piece.order.cut):
                    self.due.setdefault(slot, []).append(number)

    def note(self, slot: int, done: FloatArray) -> None:
        """Look at the pieces that are due before a slot."""
        for number in self.due[slot]:
            piece, first = self.pieces[number]
            back = (slot - 1 - np.arange(piece.order.reach)) % len(done)
            state = done[back, 0, first : first + piece.shape[1]].reshape(-1, done.shape[-1])
            if number not in self.before:
                self.before[number] = state
                continue
            state -= self.before.pop(number)
            least, most = state.min(axis=0), state.max(axis=0)
            self.shifts[first] = (least + most) / 2, most - least


def _places(batch: list[Piece], firsts: IntArray) -> tuple[IntArray, list[IntArray]]:
    """Where a batch finds the time of each entry, and when its sources are done; (slots, ranks) each."""
    shape = batch[0].shape[0], int(firsts[-1])
    entry = np.empty(shape, np.intp)
    sources = [np.empty(shape, np.intp) for _ in batch[0].order.sources]
    for piece, first in zip(batch, firsts.tolist(), strict=False):
        slots, p = piece.shape
        cells = slice(None, slots), slice(first, first + p)
        np.multiply(piece.order.entry, shape[1], out=entry[cells], dtype=np.intp)
        entry[cells] += np.arange(first, first + p)
        for places, (source, rank) in zip(sources, piece.order.sources, strict=True):
            np.multiply(source, shape[1], out=places[cells], dtype=np.intp)
            places[cells] += rank
            places[cells] += first
    return entry, sources


def chunk_by_chunk(
    p: FloatArray, v: FloatArray, m: FloatArray, *, forward: FloatArray, backward: FloatArray, message: FloatArray
) -> FloatArray:
    """End of each rank's last backward pass if all micro-batches pass a chunk before the next; (points, ranks). [s]

    A pipeline has p ranks of v chunks, and m micro-batches. [-] `forward` and `backward` are times of one chunk's
    passes, (points, ranks), `message` is that of a message between ranks, (points,). [s]

    Exact, from the first and the last micro-batch alone: if micro-batch j arrives at a stage at a convex
    function of j, so it leaves: it waits for its own arrival, or for all before it since the first started.
    """
    points = np.arange(p.size)
    free = np.zeros(forward.shape)
    stages = (p * v).astype(np.intp)
    for times, back in ((forward, False), (backward, True)):
        first, last = np.zeros(p.size), np.zeros(p.size)
        for step in range(int(stages.max())):
            stage = stages - 1 - step if back else np.full(p.size, step)
            rank = stage % p.astype(np.intp)
            took, hop = times[points, rank], message * (step > 0)
            start = np.maximum(first + hop, free[points, rank])
            within = step < stages
            last = np.where(within, np.maximum(last + hop, start + (m - 1) * took) + took, last)
            first = np.where(within, start + took, first)
            free[points[within], rank[within]] = last[within]
    return free


#: Pipelines whose chains are added up at once: their arrays stay in the caches. [pipelines]
BLOCK: Final = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """Sizes of 1F1B pipelines; (points,) columns, `rank` (ranks, points). [-]"""

    rank: FloatArray  #: ascending: first ranks of runs of equal ranks, or `corners`; repeated behind the last
    pp: FloatArray
    vpp: FloatArray
    passes: FloatArray  #: forward passes of a rank, N; interleaved, a multiple of pp * vpp

    def take(self, rows: IntArray) -> Sizes:
        """Sizes of some of the pipelines."""
        return Sizes(*(np.take(column, rows, axis=-1) for column in (self.rank, self.pp, self.vpp, self.passes)))

    @property
    def last(self) -> FloatArray:
        """Last rank of the run that each rank begins; (runs, points)."""
        behind = np.concatenate([self.rank[1:], self.pp[np.newaxis]])
        return np.where(behind > self.rank, behind, self.pp) - 1

    def corners(self) -> tuple[Sizes, IntArray]:
        """Ranks at which chains of passes may turn, and the run of each; (corners, points).

        These are the first and last ranks of runs, which are cut in two where forward and backward passes of their
        ranks begin to meet.
        """
        last, meeting = self.last, np.maximum(self.pp - self.passes, 0.0)
        meeting = np.where(self.vpp > 1, np.ceil((self.pp - 1) / 2), meeting)
        ranks = np.sort(np.stack([*self.rank, *last, np.maximum(meeting - 1, 0.0), meeting]), axis=0)
        ranks[1:] = np.where(ranks[1:] > ranks[:-1], ranks[1:], self.pp - 1)
        ranks = np.sort(ranks, axis=0)[: 1 + int((np.diff(ranks, axis=0) > 0).sum(axis=0).max())]
        return replace(self, rank=ranks), (last[:, np.newaxis] < ranks).sum(axis=0)

    @property
    def ahead(self) -> FloatArray:
        """Forward passes that each rank runs before its first pair, W; (corners, points)."""
        step = np.where(self.vpp > 1, 2.0, 1.0)
        return (self.vpp - 1) * self.pp + step * (self.pp - 1 - self.rank)

    @property
    def has_room(self) -> BoolArray:
        """Where every way into a pivot leaves time for every way out of it; (points,)."""
        return np.asarray(self.passes > (self.vpp + 5) * self.pp)


def _accumulated(combine: np.ufunc, values: FloatArray) -> FloatArray:
    """Each row combined with all rows before it; `ufunc.accumulate` is slow along the first axis."""
    combined = values.copy()
    for row in range(1, len(combined)):
        combine(combined[row - 1], combined[row], out=combined[row])
    return combined


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Walks through passes of one direction; (corners, points) arrays.

    Backward passes, mirrored in time, are walked through as forward passes are: from rank 0 to the last.
    """

    sizes: Sizes
    reached: FloatArray  #: passes and messages from rank 0 to each corner [s]
    slowest_before: FloatArray  #: longest pass of the ranks up to each corner [s]
    around: FloatArray  #: passes and messages of one round over all ranks; (points,) [s]
    message: FloatArray
    interleaved: bool  #: whether vpp is above 1, for all points alike

    @classmethod
    def of(cls, time: FloatArray, message: FloatArray, sizes: Sizes, *, interleaved: bool) -> Lane:
        """A lane of passes that take some time on each of the ranks up to a corner, after the one before."""
        steps = np.diff(sizes.rank, axis=0, prepend=-1.0)
        reached = _accumulated(np.add, steps * time)
        reached += sizes.rank * message
        slowest = _accumulated(np.maximum, time)
        return cls(sizes, reached, slowest, reached[-1] + message, message, interleaved)

    def walk(self, stays: FloatArray) -> FloatArray:
        """Longest walk from rank 0 to each corner that stays on ranks for some passes. [s]

        It stays on the slowest rank before the corner; or goes round once, or through all chunks, and stays
        on the slowest rank of all. The last chunk of a group of micro-batches does not lead on to a rank.
        """
        pp, rest = self.sizes.pp, self.sizes.vpp - 1
        gained = stays * self.slowest_before
        if self.interleaved:
            gaining = self.slowest_before[-1] - self.slowest_before
            # Without messages, staying on the slowest rank is at least as long as going round once more.
            late = (self.message > 0) & (rest > 1)
            for rounds, where in ((1.0, rest > 0), (rest, late))[: 1 + bool(late.any())]:
                left = stays - rounds * pp
                anywhere = np.minimum(left, (rest - rounds + 1) * pp - 1)
                longer = left * self.slowest_before + anywhere * gaining + rounds * self.around
                gained = np.where(where & (left >= 0), np.maximum(gained, longer), gained)
        return self.reached + gained


def one_forward_one_backward_time(
    forward: FloatArray, backward: FloatArray, *, message: FloatArray, sizes: Sizes
) -> FloatArray:
    """Time from the first pass of a 1F1B pipeline to its last.

    Parameters
    ----------
    forward, backward : (runs, ..., points) array
        Passes of a micro-batch through one chunk of the ranks of each run of equal ranks. [s]
    message : (..., points) array
        From the end of a pass to its successor's start on another rank: at most any pass, and 0 where vpp is 1. [s]
    sizes : Sizes
        First ranks of the runs, and sizes of the pipelines. [-]

    Returns
    -------
    time : (..., points) array
        [s]

    Notes
    -----
    Where the last rank is the slowest in both directions, and messages take no time, it works without a break
    from the first micro-batch that reaches it until the last one leaves it.
    """
    lengths = np.diff(sizes.last, axis=0, prepend=-1.0)
    every, last_is_slowest = np.zeros(()), message == 0
    for ranks, out, back in zip(lengths, forward, backward, strict=True):
        every = every + ranks * (out + back)
        last_is_slowest = last_is_slowest & (out <= forward[-1]) & (back <= backward[-1])
    pair = forward[-1] + backward[-1]
    longest: FloatArray = sizes.passes * pair + (every - pair)
    others = np.flatnonzero(~last_is_slowest)
    late = np.broadcast_to(message, longest.shape).reshape(-1)
    forward, backward = (times.reshape(len(times), -1) for times in (forward, backward))
    for alike in (sizes.vpp <= 1, (sizes.vpp > 1) & sizes.has_room, (sizes.vpp > 1) & ~sizes.has_room):
        if not (of_kind := others[alike[others % alike.size]]).size:
            continue
        rows, points = np.unique(of_kind % alike.size, return_inverse=True)
        corners, runs = sizes.take(rows).corners()
        for start in range(0, of_kind.size, BLOCK):
            cells, row = of_kind[start : start + BLOCK], points[start : start + BLOCK]
            out, back = (times[np.take(runs, row, axis=1), cells] for times in (forward, backward))
            np.put(longest, cells, _longest_of(out, back, late[cells], corners.take(row)))
    return longest


def _longest_of(forward: FloatArray, backward: FloatArray, message: FloatArray, sizes: Sizes) -> FloatArray:
    """Longest chain of passes on the `corners` of pipelines that are alike: interleaved, with room, or not. [s]"""
    interleaved, has_room = bool(sizes.vpp[0] > 1), bool(sizes.has_room[0])
    out, back = (Lane.of(time, message, sizes, interleaved=interleaved) for time in (forward, backward))
    pair = forward + backward
    passes, ahead = sizes.passes, sizes.ahead
    few = np.minimum(ahead, passes - 1)
    first, last = out.walk(few), back.walk(few)
    longest = np.zeros(pair.shape[1:])
    if (few < ahead).any():  # ranks that run no pairs: all forward passes come before the first backward pass
        separate = np.maximum(first + back.walk(passes - 1), out.walk(passes - 1) + last).max(axis=0)
        longest = np.where((few < ahead).any(axis=0), separate, 0.0)
    entries, exits = _entries(out, back, first, pair, ahead), _entries(back, out, last, pair, ahead)
    if has_room:
        entries, exits = ([(np.maximum.reduce([chain for chain, _ in ways]), 0 * ahead)] for ways in (entries, exits))
    room = passes - 1 + ahead
    middle = room * pair
    for before, room_before in entries:
        for behind, room_behind in exits:
            chain = np.where(room >= room_before + room_behind, before + behind + middle, 0.0)
            longest = np.maximum(longest, chain.max(axis=0))
    return longest


def _entries(
    lane: Lane, other: Lane, first: FloatArray, pair: FloatArray, ahead: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Chains from the first pass to each pivot, less the pairs that the pivot lacks; and their passes.

    A chain turns at a corner, into its first pair, and comes back by passes of the other lane. Interleaved,
    it may run pairs on another rank until that rank's next group begins, and go round to the pivot; or turn
    and go round by passes of the other lane.
    """
    p, v = lane.sizes.pp, lane.sizes.vpp
    runs_pairs = lane.sizes.passes > ahead
    turned = np.where(runs_pairs, first + other.reached, -np.inf)
    latest = _accumulated(np.maximum, turned[::-1])[::-1]
    direct = np.where(runs_pairs, latest - other.reached - ahead * pair, -np.inf)
    if not lane.interleaved:
        return [(direct, ahead)]
    until = np.where(v * p > ahead, direct + v * p * pair + lane.around - lane.reached, -np.inf).max(axis=0)
    round_on = until + lane.reached - (v + 1) * p * pair
    round_back = latest[0] + other.around - other.reached - (ahead + p) * pair
    return [(direct, ahead), (round_on, (v + 1) * p + 0 * ahead), (round_back, ahead + p)]
