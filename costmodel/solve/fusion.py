"""The cheapest way to put the nodes of a graph into groups, one after another; exact.

It serves DFModel's mappings alone: the native model fuses what its blocks say is one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, distinct_table_rows
from costmodel.errors import DseError

#: The most entries of one table; the 41 kernels of a transformer layer need five million.
LARGEST_TABLE: Final = 50_000_000

#: Totals that differ by less are equal: sums in another order do. [-]
TIE: Final = 1e-13


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """All ways to fill one group: pairs of what is done before it and what is done after it.

    What is done is closed under predecessors: an order ideal of the graph.
    """

    earlier: BoolArray  #: (ideals, nodes)
    later: BoolArray  #: (ideals, nodes)
    before: IntArray  #: places in `earlier`; (ways,)
    after: IntArray  #: places in `later`, ascending, every one of them; (ways,)
    nodes: IntArray  #: what the group holds: places in the sets of the groupings; (ways,)
    bounds: IntArray  #: first way to each place of `later`, and the number of ways; (ideals + 1,)


@dataclass(frozen=True, slots=True, eq=False)
class Groupings:
    """Every way to put the nodes of a graph into groups that follow one another."""

    start: IntArray  #: (edges,)
    end: IntArray  #: (edges,)
    sets: BoolArray  #: what groups may hold; the first is nothing; (sets, nodes)
    inside: FloatArray  #: 1 where a set holds both ends of an edge; (edges, sets)
    steps: tuple[Step, ...]  #: one for each group


def windows(start: IntArray, end: IntArray, first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
    """First and last group that nodes may be in, once their edges hold; crossed where there is none."""
    first, last = first.copy(), last.copy()
    for _ in range(first.size):
        np.maximum.at(first, end, first[start])
        np.minimum.at(last, start, last[end])
    return first, last


def shortened(first: IntArray, last: IntArray, count: int) -> tuple[IntArray, IntArray, int]:
    """Windows over fewer groups: of groups that suit the same nodes, one for each node will do."""
    bounds = np.unique(np.concatenate([[0, count], first, last + 1]))
    kept = np.concatenate([[0], np.cumsum(np.minimum(np.diff(bounds), first.size))])
    return kept[np.searchsorted(bounds, first)], kept[np.searchsorted(bounds, last + 1)] - 1, int(kept[-1])


def groupings(start: IntArray, end: IntArray, first: IntArray, last: IntArray, count: int) -> Groupings:
    """The ways to put nodes into groups 0 ... `count` - 1, no edge leading to an earlier group.

    `start` and `end` are the nodes of the edges, without a cycle; `first` and `last` the groups that a node may be in,
    as `windows` leaves them. [-] Groups may stay empty; numbers that no node needs are left out, as `shortened` does.
    Raises `DseError` if there are too many ways.
    """
    first, last, count = shortened(first, last, count)
    feeds = [0] * first.size
    for s, e in zip(start.tolist(), end.tolist(), strict=True):
        feeds[e] |= 1 << s
    families: dict[tuple[int, int], BoolArray] = {(0, 0): np.zeros((1, first.size), dtype=bool)}
    keys = [(0, 0)]
    for group in range(count):
        must, may = (sum(1 << int(v) for v in np.flatnonzero(edge <= group)) for edge in (last, first))
        keys.append((must, may))
        if keys[-1] not in families:
            families[must, may] = _ideals(feeds, must, may)
    kinds = list(dict.fromkeys(pairwise(keys)))
    pairs = [_nested(families[a], families[b]) for a, b in kinds]
    held = [families[b][j] & ~families[a][i] for (a, b), (i, j) in zip(kinds, pairs, strict=True)]
    sets = np.concatenate([np.zeros((1, first.size), dtype=bool), *held])
    kept, places = distinct_table_rows(np.packbits(sets, axis=1))
    sets = sets[kept]
    split = np.split(places[1:], np.cumsum([len(h) for h in held])[:-1])
    steps = {}
    for (a, b), (before, after), nodes in zip(kinds, pairs, split, strict=True):
        bounds = np.searchsorted(after, np.arange(len(families[b]) + 1))
        steps[a, b] = Step(families[a], families[b], before, after, nodes, bounds)
    inside = (sets[:, start] & sets[:, end]).T.astype(np.float64)
    return Groupings(start, end, sets, inside, tuple(steps[kind] for kind in pairwise(keys)))


def _ideals(feeds: Sequence[int], must: int, may: int) -> BoolArray:
    """Sets closed under predecessors that hold all of `must` and nothing but `may`, the largest first."""
    free = [node for node in range(len(feeds)) if (may & ~must) >> node & 1]
    reached, newest = {must}, [must]
    while newest:
        grown = {
            done | 1 << node for done in newest for node in free if not done >> node & 1 and feeds[node] & ~done == 0
        }
        newest = list(grown)
        reached |= grown
        _refuse_above(len(reached), isqrt(LARGEST_TABLE))
    ranked = sorted(reached, key=lambda done: (-done.bit_count(), done))
    return np.array([[done >> node & 1 for node in range(len(feeds))] for done in ranked], dtype=bool)


def _nested(earlier: BoolArray, later: BoolArray) -> tuple[IntArray, IntArray]:
    """Pairs of ideals of which the later holds the earlier, in the order of the later, then the earlier."""
    outside = (~later).astype(np.float32) @ earlier.T.astype(np.float32)
    after, before = np.nonzero(outside == 0)
    _refuse_above(after.size * earlier.shape[1], LARGEST_TABLE)
    return before, after


def _refuse_above(size: int, most: int) -> None:
    if size > most:
        raise DseError(f"kernels are too loosely connected: more than {most:,} possible orders; fix the groups of some")


def carried(candidates: Groupings, step: Step, sizes: FloatArray) -> FloatArray:
    """Sizes that edges carry into, out of and past the group of each way of a step; (ways,). [size]

    `sizes`, (edges,), are carried from the group of an edge's start to that of its end. [size]
    """
    made = step.later[:, candidates.start] @ sizes
    used = step.earlier[:, candidates.end] @ sizes
    kept: FloatArray = sizes @ candidates.inside
    return made[step.after] - used[step.before] - kept[step.nodes]


@dataclass(frozen=True, slots=True, eq=False)
class _Best:
    """The cheapest ways to what is done after some group; (ideals,)."""

    cost: FloatArray
    groups: FloatArray  #: fewest that are not empty, of equally cheap ways [-]

    def after(self, step: Step, costs: FloatArray) -> _Best:
        """The cheapest ways once another group is filled, which costs `own`."""
        bounds = step.bounds
        total, groups = self.cost[step.before] + costs, self.groups[step.before] + (step.nodes > 0)
        cost = np.minimum.reduceat(total, bounds[:-1])
        equal = total <= np.repeat(cost * (1 + TIE), np.diff(bounds))
        return _Best(cost, np.minimum.reduceat(np.where(equal, groups, np.inf), bounds[:-1]))

    def way(self, before: _Best, step: Step, costs: FloatArray, state: int) -> int:
        """The last group on the cheapest way to a place: of equally good ones that of the fewest nodes."""
        first = int(step.bounds[state])
        among = slice(first, int(step.bounds[state + 1]))
        total = before.cost[step.before[among]] + costs[among]
        groups = before.groups[step.before[among]] + (step.nodes[among] > 0)
        equal = (total <= self.cost[state] * (1 + TIE)) & (groups == self.groups[state])
        return first + int(np.argmax(equal))


def cheapest(
    candidates: Groupings, costs: FloatArray, *, sizes: FloatArray | None = None, room: float = np.inf
) -> tuple[float, IntArray] | None:
    """The least sum of what groups cost, and the group of each node; None where no way is left.

    Parameters
    ----------
    found : Groupings
        Ways to choose from.
    costs : (sets,) array
        What a group costs that holds a set; infinite where it may not. [cost]
    sizes : (edges,) array, optional
        What each edge carries from the group of its start to that of its end. [size]
    room : float
        The most that edges may carry into, out of and past any one group. [size]

    Notes
    -----
    Groups in order are a chain of order ideals, and what a group costs depends on its nodes alone: the
    cheapest way to each ideal in so many groups is the cheapest over those one group before. Nothing
    is left out but ways that may not be. Among equally cheap ones, those of the fewest groups, and of
    these the one whose last group holds the fewest nodes, then the group before it, and so on.
    """
    costs = np.concatenate([np.zeros(1), costs[1:]])  # an empty group costs nothing
    owns = {step: costs[step.nodes] for step in dict.fromkeys(candidates.steps)}
    if sizes is not None and np.isfinite(room):
        owns = {s: np.where(carried(candidates, s, sizes) <= room, costs, np.inf) for s, costs in owns.items()}
    best = [_Best(np.zeros(1), np.zeros(1))]
    for step in candidates.steps:
        best.append(best[-1].after(step, owns[step]))
    if not np.isfinite(best[-1].cost[0]):
        return None
    member, position = np.empty(candidates.sets.shape[1], dtype=np.intp), 0
    for group, step in reversed(list(enumerate(candidates.steps))):
        way = best[group + 1].way(best[group], step, owns[step], position)
        member[candidates.sets[step.nodes[way]]] = group
        position = int(step.before[way])
    return float(best[-1].cost[0]), member
