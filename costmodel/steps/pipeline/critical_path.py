"""Exact time of 1F1B pipelines of unequal stages, interleaved or not, from their critical paths.

A rank runs N = m v forward passes and as many backward passes; rank r runs W(r) forward passes ahead. A pass
waits for the pass before it on its rank and for its micro-batch on a neighbour. The step takes as long as
the longest chain of passes that wait for each other, a walk over the ranks:

    rank 0  F F F F F F F B F B F B F B B B B B B B     forward walk: to the next rank, or stay on a slow one
    rank 1    F F F F F B F B F B F B F B B B B B       pivot: forward and backward passes in turn
    rank 2      F F F B F B F B F B F B B B B           backward walk: back to rank 0

Walks enter and leave a pivot in a few ways only, and their lengths are linear along a run of equal ranks. The
longest chain is therefore the largest of some sums at the first and last ranks of runs of equal ranks. The
orders are those of [Narayanan2021]_; tests compare the sums with a simulation of every pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray

#: Designs whose chains are added up at once: their arrays stay in the caches. [designs]
BLOCK: Final = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """Sizes of 1F1B pipelines; (points,) columns, `rank` (corners, points). [-]"""

    rank: FloatArray  #: ascending; first and last ranks of runs of equal ranks
    pp: FloatArray
    vpp: FloatArray
    passes: FloatArray  #: forward passes of a rank, N; interleaved, a multiple of pp * vpp

    def take(self, rows: IntArray) -> Sizes:
        """Sizes of some of the pipelines."""
        return Sizes(*(np.take(column, rows, axis=-1) for column in (self.rank, self.pp, self.vpp, self.passes)))

    @property
    def ahead(self) -> FloatArray:
        """Forward passes that each rank runs before its first pair, W; (corners, points)."""
        step = np.where(self.vpp > 1, 2.0, 1.0)
        ahead: FloatArray = (self.vpp - 1) * self.pp + step * (self.pp - 1 - self.rank)
        return ahead

    @property
    def has_room(self) -> BoolArray:
        """Where every way into a pivot leaves time for every way out of it; (points,)."""
        room: BoolArray = self.passes + self.ahead[-1] > 2 * (self.vpp + 2) * self.pp
        return room

    def on_axes(self, values: FloatArray, axes: int) -> FloatArray:
        """A (corners, points) array that broadcasts against arrays of more axes."""
        return values.reshape(values.shape[0], *[1] * (axes - 2), values.shape[1])


def _running(combine: np.ufunc, values: FloatArray) -> FloatArray:
    """Each row combined with all rows before it; `ufunc.accumulate` is slow along the first axis."""
    combined = values.copy()
    for row in range(1, len(combined)):
        combine(combined[row - 1], combined[row], out=combined[row])
    return combined


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Walks through passes of one direction; (corners, ..., points) arrays.

    Backward passes, mirrored in time, are walked through as forward passes are: from rank 0 to the last.
    """

    sizes: Sizes
    reached: FloatArray  #: passes and messages from rank 0 to each corner [s]
    slowest_before: FloatArray  #: longest pass of the ranks up to each corner [s]
    around: FloatArray  #: passes and messages of one round over all ranks; (..., points) [s]
    message: FloatArray
    interleaved: bool  #: whether vpp is above 1, for all points alike

    @classmethod
    def of(cls, time: FloatArray, message: FloatArray, sizes: Sizes, *, interleaved: bool) -> Lane:
        """A lane of passes that take some time on each of the ranks up to a corner, after the one before."""
        rank = sizes.on_axes(sizes.rank, time.ndim)
        steps = rank.copy()
        steps[1:] -= rank[:-1]
        steps[0] += 1
        reached = _running(np.add, steps * time)
        reached += rank * message
        slowest = _running(np.maximum, time)
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
    forward, backward : (corners, ..., points) array
        Passes of a micro-batch through one chunk of each corner rank. [s]
    message : (..., points) array
        From the end of a pass to its successor's start on another rank: at most as long as any pass, and 0
        where vpp is 1. [s]
    sizes : Sizes
        Ranks of the corners, and sizes of the pipelines. [-]

    Returns
    -------
    time : (..., points) array
        [s]

    Notes
    -----
    Where the last rank is the slowest in both directions, and messages take no time, it works without a break
    from the first micro-batch that reaches it until the last one leaves it.
    """
    pair = forward + backward
    steps = np.diff(sizes.rank, axis=0, prepend=-1.0)
    every = _running(np.add, sizes.on_axes(steps, pair.ndim) * pair)[-1]  # in order, for any number of points
    others = every - pair[-1]
    without_break: FloatArray = sizes.passes * pair[-1] + others
    last_is_slowest = (message == 0) & ((forward <= forward[-1]) & (backward <= backward[-1])).all(axis=0)
    rows = np.flatnonzero(~last_is_slowest.reshape(-1, last_is_slowest.shape[-1]).all(axis=0))
    if not rows.size:
        return without_break
    longest = np.array(np.broadcast_to(without_break, last_is_slowest.shape))
    block = max(BLOCK * sizes.pp.size // longest.size, 1)
    interleaved, has_room = sizes.vpp[rows] > 1, sizes.has_room[rows]
    for alike in (~interleaved, interleaved & has_room, interleaved & ~has_room):
        alike_rows = rows[alike]
        for points in (alike_rows[start : start + block] for start in range(0, alike_rows.size, block)):
            late = np.take(np.broadcast_to(message, longest.shape), points, axis=-1)
            out, back = (np.take(time, points, axis=-1) for time in (forward, backward))
            longest[..., points] = _longest_of(out, back, late, sizes.take(points))
    return np.where(last_is_slowest, without_break, longest)


def _longest_of(forward: FloatArray, backward: FloatArray, message: FloatArray, sizes: Sizes) -> FloatArray:
    """Longest chain of passes of pipelines that are all interleaved, with room, or not; (..., points). [s]"""
    interleaved, has_room = bool(sizes.vpp[0] > 1), bool(sizes.has_room[0])
    out, back = (Lane.of(time, message, sizes, interleaved=interleaved) for time in (forward, backward))
    pair = forward + backward
    passes, ahead = sizes.passes, sizes.on_axes(sizes.ahead, pair.ndim)
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
    latest = _running(np.maximum, turned[::-1])[::-1]
    direct = np.where(runs_pairs, latest - other.reached - ahead * pair, -np.inf)
    if not lane.interleaved:
        return [(direct, ahead)]
    until = np.where(v * p > ahead, direct + v * p * pair + lane.around - lane.reached, -np.inf).max(axis=0)
    round_on = until + lane.reached - (v + 1) * p * pair
    round_back = latest[0] + other.around - other.reached - (ahead + p) * pair
    return [(direct, ahead), (round_on, (v + 1) * p + 0 * ahead), (round_back, ahead + p)]
