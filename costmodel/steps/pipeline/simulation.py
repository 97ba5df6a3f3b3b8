"""End times of the ranks of many pipelines, simulated together, slot by slot of their orders.

A pass starts when the pass before it on its rank is done and its input has arrived. So the end of a slot is a maximum
of earlier ends plus a time, and all ranks of all designs of one order take a slot in one NumPy call. A full pipeline
repeats itself: once a period shifts all ends by the same time, further periods are multiplied instead of simulated
(`Ends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    A run depends on the state at the cut, that is when each rank was done with the slots that later ones look
    back to, and on nothing before; if all of that state is later by some time, so is all that follows. A
    period that shifts the whole state by one time will do so for ever.
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
    """When each rank is done if all micro-batches pass a chunk before the next, and back. [s]

    Parameters
    ----------
    p, v, m : (points,) array
        Ranks, chunks per rank, micro-batches. [-]
    forward, backward : (points, ranks) array
        Times of one chunk's forward and whole backward pass. [s]
    message : (points,) array
        Time of a message between ranks. [s]

    Returns
    -------
    ends : (points, ranks) array
        End of a rank's last backward pass. [s]

    Notes
    -----
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
