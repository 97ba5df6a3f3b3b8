"""The fastest groups of kernels on a chip, and the fastest size of a tile; exact.

For many designs they are found once for each chip, share of the work and tile. Groups follow one another in the order
of the graph; `cheapest` finds the best ones exactly. The native model needs no search of this kind: its blocks define
the fused kernels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from math import isqrt
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, distinct_rows, distinct_table_rows, divisors, per_kernel
from costmodel.errors import DseError
from costmodel.training.model import ModelShape
from dse.adapters.dfmodel.evaluation import (
    OVERLAPPED,
    ROUNDING,
    Groups,
    Loads,
    dram_capacity,
    dram_tiers,
    evaluate,
    group_costs,
    iteration_time,
    kernel_groups,
    loads,
    resident_bytes,
    tensor_bytes,
    within_capacity,
)
from dse.adapters.dfmodel.graph import DfmodelGraph, published_sharding
from dse.adapters.dfmodel.layer import model_graph
from dse.adapters.dfmodel.setup import BATCH, GENERATIONS, IDLE, NETWORK, Setup

#: The most entries of one table; the 41 kernels of a transformer layer need five million.
LARGEST_TABLE: Final = 50_000_000

#: Totals that differ by less are equal: sums in another order do. [-]
TIE: Final = 1e-13

_BLOCK: Final = 32  #: designs whose bounds are looked at together


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """All ways to fill one group: pairs of the kernels done before it and those done after it.

    The set of kernels that are done is closed under predecessors: an order ideal of the graph.
    """

    earlier: BoolArray  #: (ideals, nodes)
    later: BoolArray  #: (ideals, nodes)
    before: IntArray  #: places in `earlier`; (ways,)
    after: IntArray  #: places in `later`, ascending, every one of them; (ways,)
    nodes: IntArray  #: content of the group: positions in the sets of the groupings; (ways,)
    bounds: IntArray  #: first way to each place of `later`, and the number of ways; (ideals + 1,)


@dataclass(frozen=True, slots=True, eq=False)
class Groupings:
    """Every way to put the nodes of a graph into groups that follow one another."""

    start: IntArray  #: (edges,)
    end: IntArray  #: (edges,)
    sets: BoolArray  #: possible contents of groups; the first is empty; (sets, nodes)
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
    as `windows` leaves them. [-] Groups may stay empty. Raises `DseError` if there are too many ways.
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
    """Sets closed under predecessors that hold all of `must` and only nodes of `may`, the largest first."""
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
    """Pairs of ideals whose later one holds the earlier, in the order of the later, then the earlier."""
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
    """The cheapest ways to each set of kernels done after some group; (ideals,)."""

    cost: FloatArray
    groups: FloatArray  #: fewest that are not empty, of equally cheap ways [-]

    def after(self, step: Step, costs: FloatArray) -> _Best:
        """The cheapest ways once another group is filled, at `costs`."""
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
    """The least sum of the costs of groups, and the group of each node; None where no way is left.

    `costs` are those of groups that hold each set of `candidates`, infinite where they may not, (sets,). [cost] `sizes`
    are carried by each edge between groups, (edges,) [size]; `room` is the most that edges may carry into, out of and
    past any one group. [size]

    Groups in order are a chain of order ideals, and the cost of a group depends only on its nodes: the cheapest way to
    each ideal with some number of groups is the cheapest over those one group before. Among equally cheap ones, those
    of the fewest groups, and of these the one whose last group holds the fewest nodes, then the group before it.
    """
    costs = np.concatenate([np.zeros(1), costs[1:]])  # an empty group costs nothing
    owns = {step: costs[step.nodes] for step in dict.fromkeys(candidates.steps)}
    if sizes is not None and np.isfinite(room):
        owns = {s: np.where(carried(candidates, s, sizes) <= room, costs, np.inf) for s, costs in owns.items()}
    best = [_Best(np.zeros(1), np.zeros(1))]
    for step, last in zip(candidates.steps, (None, *candidates.steps), strict=False):
        # Another group like the last one changes nothing where that one did not.
        settled = step is last and all(map(np.array_equal, astuple(best[-1]), astuple(best[-2])))
        best.append(best[-1] if settled else best[-1].after(step, owns[step]))
    if not np.isfinite(best[-1].cost[0]):
        return None
    member, position = np.empty(candidates.sets.shape[1], dtype=np.intp), 0
    for group, step in reversed(list(enumerate(candidates.steps))):
        way = best[group + 1].way(best[group], step, owns[step], position)
        member[candidates.sets[step.nodes[way]]] = group
        position = int(step.before[way])
    return float(best[-1].cost[0]), member


#: Columns of a set-up that do not decide on the fastest groups where the network's time adds to theirs.
_ALIKE: Final = {*IDLE, *NETWORK, "global_batch_size"}


@dataclass(frozen=True, slots=True, eq=False)
class Mapping:
    """The fastest design of several, with the groups of its kernels."""

    setup: Setup  #: one row
    groups: IntArray  #: group of each kernel, without gaps; (kernels,)


def group_windows(graph: DfmodelGraph, most_groups: int, pins: IntArray | None = None) -> tuple[IntArray, IntArray]:
    """First and last group that each kernel may be in.

    Forward kernels take the first half of `most_groups` and backward ones the second; of an odd number, those of either
    direction may be in the middle one. Groups may stay empty. `pins` hold a kernel to a group, (kernels,); -1 where it
    is open. [-] Raises `DseError` if a kernel has no group left.
    """
    first, last = np.zeros(len(graph), dtype=np.intp), np.full(len(graph), most_groups - 1)
    if graph.backward.any():
        first[graph.backward] = most_groups // 2
        last[~graph.backward] = (most_groups + 1) // 2 - 1
    if pins is not None:
        first = np.where(pins >= 0, np.maximum(first, pins), first)
        last = np.where(pins >= 0, np.minimum(last, pins), last)
    first, last = windows(graph.start, graph.end, first, last)
    crossed = np.flatnonzero(first > last)
    if crossed.size:
        raise DseError(
            f"kernel {graph.names[crossed[0]]!r}: none of {most_groups} groups is left for it: forward "
            "kernels come before backward ones, and no edge leads back; change config or num_config"
        )
    return first, last


def fused_ways(graph: DfmodelGraph, most_groups: int, pins: IntArray | None = None) -> Groupings:
    """Legal ways to fuse the kernels of a graph."""
    first, last = group_windows(graph, most_groups, pins)
    return groupings(graph.start, graph.end, first, last, most_groups)


def fastest_mapping(
    graph: DfmodelGraph, setup: Setup, sharding: IntArray, ways: Groupings, *, generation: str
) -> Mapping | None:
    """The fastest design that fits, and its fastest groups; the first of equally fast ones.

    `setup` has the designs to choose from, (points,) columns; `ways` are groups to choose from, such as `fused_ways`
    lists; the other arguments are those of `evaluate`.

    Each distinct set of kernels is evaluated once. With a second tier of DRAM the fastest groups within the first
    compete with the fastest within both. Unless the network hides behind other work, designs that differ only in it
    share their fastest groups. Designs are tried in the order of the time that they would take without memory traffic
    and if no core waited. Once that exceeds the best time found, no design left can be faster.
    """
    load, points = loads(graph, setup, sharding, generation), (setup.num_points,)
    network = np.broadcast_to(np.sum(load.network_time, axis=-1).max(axis=0), points)
    overlapped = OVERLAPPED[setup.overlap]
    shortest = overlapped(np.sum(load.work_time, axis=-1), np.zeros(1), network)
    bound = np.broadcast_to(iteration_time(graph, setup, shortest, load.rules), points)
    inside = setup.overlap == "perfect" or len(load.network_time) > 1  # the network's time depends on the groups
    added = np.zeros(points) if inside else overlapped(np.zeros(1), np.zeros(1), network)

    def demands(designs: IntArray) -> Loads:
        of_designs = loads(graph, setup.take(designs), sharding, generation)
        return replace(of_designs, network_time=of_designs.network_time * inside)

    def times(designs: IntArray, layer_time: float) -> FloatArray:
        time = iteration_time(graph, setup.take(designs), layer_time + added[designs], load.rules)
        return np.broadcast_to(time, designs.shape)

    sets = kernel_groups(graph, ways.sets.T.astype(np.float64))
    search = _MappingSearch(demands, times, _same_groups(setup, inside), ways, sets, np.full(points, np.inf))
    order, size = np.argsort(bound, kind="stable"), max(1, min(_BLOCK, _BLOCK * 20_000 // len(ways.sets)))
    for block in np.split(order, range(size, order.size, size)):
        search.explore(block[bound[block] <= search.longest])
    first = int(np.argmax(search.tried <= search.longest))
    if not np.isfinite(search.longest):
        return None
    return Mapping(setup.take(np.array([first])), search.known[search.same[first]][1])


@dataclass(slots=True)
class _MappingSearch:
    """The fastest groups of designs, block by block.

    No design of a block is faster than the cheapest groups would be if each took the least time of all designs of the
    block, on cores that never wait. Blocks that this bound does not leave out are halved.
    """

    demands: Callable[[IntArray], Loads]  #: of designs, without a network that hides behind no other work
    times: Callable[[IntArray, float], FloatArray]  #: of an iteration of designs, from that of a layer by `demands` [s]
    same: IntArray  #: a number for each design, the same for designs with the same fastest groups; (points,)
    ways: Groupings
    sets: Groups
    tried: FloatArray  #: time of an iteration, infinite where it is not known; (points,) [s]
    known: dict[int, tuple[float, IntArray]] = field(default_factory=dict)  #: by `same`: time of a layer, and groups

    @property
    def longest(self) -> float:
        """The longest time that still equals the best. [s]"""
        return float(self.tried.min()) * (1 + TIE)

    def explore(self, designs: IntArray, bounds: FloatArray | None = None) -> None:
        """Find the groups of designs, unless their `bounds`, (designs, sets), are above the best time. [s]"""
        kinds, first, back = np.unique(self.same[designs], return_index=True, return_inverse=True)
        if kinds.size == 1:
            if kinds[0] not in self.known:
                self.known[kinds[0]] = _fastest_groups(self.demands(designs[:1]), self.ways, self.sets)
            self.tried[designs] = self.times(designs, self.known[kinds[0]][0])
        elif kinds.size:
            bounds = self._bounds(self.demands(designs[first]))[back] if bounds is None else bounds
            least = cheapest(self.ways, bounds.min(axis=0))
            times = self.times(designs, np.inf if least is None else least[0])
            fast = np.isfinite(times) & (times <= self.longest)
            for half in np.array_split(np.flatnonzero(fast), 2):
                self.explore(designs[half], bounds[half])

    def _bounds(self, load: Loads) -> FloatArray:
        """Times that groups take at least, infinite where the SRAM is too small; (designs, sets). [s]"""
        costs = group_costs(load, self.sets, np.atleast_1d(dram_tiers(load.setup)[0][0]), at_least=True)
        fits = within_capacity(costs.sram_bytes, per_kernel(load.setup.sram_bytes))
        return np.where(fits, costs.group_time, np.inf)


def _same_groups(setup: Setup, inside: bool) -> IntArray:
    """A number for each design, the same for designs with the same fastest groups on any network; (points,).

    Networks that count `inside` of groups differ. The layers of a stage count only where DRAM holds their weights and
    has an end.
    """
    points = np.arange(setup.num_points)
    if inside:
        return points
    layers = np.where(dram_capacity(setup) > 0, setup.stage_layers, 0)
    columns = [values for name, values in setup.columns().items() if name not in _ALIKE]
    return np.broadcast_to(distinct_rows(*columns, setup.degree("TP"), layers)[1], points.shape)


def fastest_design(
    graph: DfmodelGraph, setup: Setup, sharding: IntArray, groups: IntArray, *, generation: str
) -> Mapping | None:
    """The fastest design that fits, of several with the same groups; the first of equally fast ones."""
    evaluation = evaluate(graph, setup, sharding, generation=generation, groups=groups)
    time = np.broadcast_to(np.where(evaluation.fits, evaluation.iteration_time, np.inf), (setup.num_points,))
    if not np.isfinite(time).any():
        return None
    return Mapping(setup.take(np.array([np.argmax(time <= time.min() * (1 + TIE))])), groups)


def _fastest_groups(load: Loads, ways: Groupings, sets: Groups) -> tuple[float, IntArray]:
    """Time of one layer and micro-batch of one design, infinite where no groups fit, and the groups."""
    setup = load.setup
    best = np.inf, np.full(len(load.graph), -1)
    weights = float(resident_bytes(load).flat[0])
    for bandwidth, capacity in dram_tiers(setup):
        costs = group_costs(load, sets, np.atleast_1d(bandwidth))
        fits = within_capacity(costs.sram_bytes[0], setup.sram_bytes)
        room = float(capacity.flat[0]) * (1 + ROUNDING) - weights if np.any(capacity) else np.inf
        sizes = tensor_bytes(setup, load.edge_bytes)[0]
        limited = sizes if sizes.sum() > room else None
        groups_of_least = cheapest(ways, np.where(fits, costs.group_time[0], np.inf), sizes=limited, room=room)
        if groups_of_least is not None and groups_of_least[0] < best[0]:
            best = groups_of_least[0], np.unique(groups_of_least[1], return_inverse=True)[1]
    return best


def with_tiles(setup: Setup, generation: str, largest: float = np.inf) -> Setup:
    """Each row once for each size of a tile: those that divide the sequence, the smallest first.

    Where the last tile may be smaller, sizes that make the same number of tiles cost the same: the smallest stands for
    all. With a `largest` size [tokens], only sizes up to it, itself first.
    """
    seq_len = int(setup.seq_len.flat[0])
    if GENERATIONS[generation].ragged_tiles:
        few = np.arange(1.0, isqrt(seq_len) + 2)
        sizes = np.unique(np.ceil(seq_len / np.ceil(seq_len / np.concatenate([few, np.ceil(seq_len / few)]))))
    else:
        sizes = divisors(seq_len)
    if np.isfinite(largest):
        sizes = np.append(largest, sizes[sizes < largest])
    if setup.num_points * sizes.size > LARGEST_TABLE // 256:
        raise DseError(f"tile_size: {setup.num_points * sizes.size:,} sizes of tiles and dimensions to try; give one")
    rows = setup.take(np.repeat(np.arange(setup.num_points), sizes.size))
    return replace(rows, tile_size=np.tile(sizes, setup.num_points))


def shortage(graph: DfmodelGraph, setup: Setup, sharding: IntArray, ways: Groupings, *, generation: str) -> str:
    """The resource that no mapping has enough of, and the amount, for the closest of designs that do not fit."""
    row = setup.take(np.array([_closest(graph, setup, sharding, generation)]))
    load = loads(graph, row, sharding, generation)
    (sram,), (crowded,) = _least_sram(load, ways.sets)
    on_cores = np.where(crowded, np.inf, 0.0)
    if cheapest(ways, on_cores) is None:
        return f"a group would have more kernels than the {row.cores.flat[0]:.0f} cores; allow more groups"
    least = _least(sram, lambda room: cheapest(ways, np.where(sram <= room, on_cores, np.inf)) is not None)
    capacity = float(row.sram_bytes.flat[0])
    if 0 < capacity < least:
        remedy = _less_sram(row) if sram_shortage(load) else "allow more groups"
        return f"SRAM: {_short(row, least, capacity)}; {remedy}"
    held = np.where(within_capacity(sram, row.sram_bytes), on_cores, np.inf)
    sizes = tensor_bytes(row, load.edge_bytes)[0]
    peaks = np.concatenate([carried(ways, step, sizes) for step in dict.fromkeys(ways.steps)])
    alive = _least(peaks, lambda room: cheapest(ways, held, sizes=sizes, room=room) is not None)
    needed = float(resident_bytes(load).flat[0]) + alive
    return f"DRAM: {_short(row, needed, float(dram_capacity(row).flat[0]))}; split the layers over more chips"


def sram_shortage(load: Loads) -> str:
    """The SRAM that kernels lack even alone, with a remedy; "" where each fits alone. One design."""
    setup = load.setup
    (least,) = _least_sram(load, np.eye(len(load.graph), dtype=bool))[0].max(axis=-1)
    if within_capacity(least, setup.sram_bytes):
        return ""
    return f"SRAM: {_short(setup, float(least), float(setup.sram_bytes.flat[0]))}; {_less_sram(setup)}"


def _closest(graph: DfmodelGraph, setup: Setup, sharding: IntArray, generation: str) -> int:
    """The design whose kernels alone, and weights, exceed SRAM and DRAM least."""
    load = loads(graph, setup, sharding, generation)
    sram = _least_sram(load, np.eye(len(graph), dtype=bool))[0].max(axis=-1)
    weights = resident_bytes(load)
    parts = [(sram, setup.sram_bytes), (weights, dram_capacity(setup))]
    used = [needed / np.where(room_of > 0, room_of, np.inf) for needed, room_of in parts]
    return int(np.argmin(np.maximum(*used)))


def _least_sram(load: Loads, sets: BoolArray) -> tuple[FloatArray, BoolArray]:
    """SRAM that each set of kernels needs at least, and whether it has more kernels than there are cores.

    The weights of a kernel that is alone may pass in any number of parts, hence only its tensors count.
    """
    groups = kernel_groups(load.graph, sets.T.astype(np.float64))
    bandwidth = np.atleast_1d(load.setup.dram_bandwidth)
    endless = replace(load, setup=replace(load.setup, sram_bytes=np.zeros(1)))
    whole = group_costs(endless, groups, bandwidth)
    passing = replace(endless, graph=replace(load.graph, streamed=np.ones(1, dtype=bool)))
    tensors = group_costs(passing, groups, bandwidth).sram_bytes
    sram = np.where(sets.sum(axis=1) == 1, tensors, whole.sram_bytes)
    return sram, ~np.isfinite(whole.group_time)


def _least(values: FloatArray, suffices: Callable[[float], bool]) -> float:
    """The least of some values that suffices, where all larger ones do. [B]"""
    ranked = np.unique(values)
    rank = bisect_left(range(ranked.size - 1), True, key=lambda at: suffices(float(ranked[at])))
    return float(ranked[rank])


def _less_sram(row: Setup) -> str:
    """A remedy for a kernel that exceeds the SRAM by itself."""
    return "take a smaller tile_size" if row.tile_size.flat[0] > 1 else "take more SRAM, or a larger tp"


def _short(row: Setup, needed: float, capacity: float) -> str:
    return (
        f"at least {needed:,.0f} bytes are needed, {needed - capacity:,.0f} more than there are "
        f"(tile_size {row.tile_size.flat[0]:.0f}, {row.shape()})"
    )


#: Columns that decide where arithmetic counts.
_RATES: Final = ("cores", "array_width", "array_height", "frequency", "utilization", "dram_bandwidth")


@lru_cache(maxsize=16)
def sharded_graph(model: ModelShape, element_bytes: float) -> tuple[DfmodelGraph, IntArray]:
    """The graph of a layer, and the sharding that moves least, for any layout."""
    graph = model_graph(model, element_bytes=element_bytes)
    return graph, published_sharding(graph).choices


@lru_cache(maxsize=16)
def layer_ways(model: ModelShape, element_bytes: float) -> Groupings:
    """Legal ways to fuse the kernels of a layer, with as many groups as kernels of either direction."""
    graph, _ = sharded_graph(model, element_bytes)
    of_either = max(np.count_nonzero(graph.backward), np.count_nonzero(~graph.backward))
    return fused_ways(graph, 2 * int(of_either))


def fastest_groups(
    model: ModelShape, setup: Setup, *, element_bytes: float, generation: str
) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows that share their fastest groups, and these; rows whose tiles exceed the SRAM are left out.

    At a given utilization, arithmetic and the network take the same time however kernels are grouped. They do not count
    where they add to a group's time. Nor does the bubble, or DRAM, on whose capacity the caller decides.
    """
    bare = _decisive(setup, generation)
    columns = {name: np.broadcast_to(v, (setup.num_points,)) for name, v in bare.columns().items()}
    rows, back = distinct_rows(*columns.values())
    back = np.broadcast_to(back, (setup.num_points,))
    shared = tuple((name, getattr(bare, name)) for name in ("topology", "roles", "overlap", "doubled"))
    for index, row in enumerate(rows):
        named_values = tuple((name, float(values[row])) for name, values in columns.items())
        groups = _groups(model, element_bytes, generation, (*shared, *named_values))
        if groups is not None:
            yield np.flatnonzero(back == index), groups


def _decisive(setup: Setup, generation: str) -> Setup:
    """The set-up with one value in each column that does not decide on the fastest groups, and no limit of DRAM."""
    one, endless, nothing = np.ones(1), np.full(1, np.inf), np.zeros(1)
    fixed: dict[str, Any] = dict.fromkeys(IDLE, one)
    fixed |= dict.fromkeys(("dram_bytes", "second_dram_bandwidth", "second_dram_bytes"), nothing)
    if setup.overlap == "perfect" or GENERATIONS[generation].networks_at_once:
        return replace(setup, **fixed)
    fixed |= dict.fromkeys((*NETWORK, *BATCH), one) | {"domain_size": nothing, "link_latency": nothing}
    fixed |= {"x": setup.degree("TP"), "x_bandwidth": endless}
    if setup.overlap == "none":
        fixed |= dict.fromkeys(_RATES, one) | {"frequency": endless}
    return replace(setup, topology="sw", roles=("TP",), **fixed)


@lru_cache(maxsize=4096)
def _groups(
    model: ModelShape, element_bytes: float, generation: str, row: tuple[tuple[str, Any], ...]
) -> IntArray | None:
    """The fastest groups of one row of decisive columns; None where none fit."""
    graph, sharding = sharded_graph(model, element_bytes)
    setup = Setup.of(**dict(row), kernel_by_kernel=False)
    ways = layer_ways(model, element_bytes)
    fastest = fastest_mapping(graph, setup, sharding, ways, generation=generation)
    return None if fastest is None else fastest.groups
