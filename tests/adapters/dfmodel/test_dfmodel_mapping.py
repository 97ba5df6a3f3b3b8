"""DFModel's mappings: groups, tiles, sizes of dimensions and capacities, against trying everything."""

import functools
import itertools
import json
import re
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.errors import DseError
from dse.adapters.dfmodel import cores as dfmodel_cores
from dse.adapters.dfmodel.evaluation import evaluate
from dse.adapters.dfmodel.files import load_setup, setup_bytes, setup_file, setup_message, setup_text
from dse.adapters.dfmodel.graph import OUTER, PUBLISHED, DfmodelGraph, K, M, N, least_moving
from dse.adapters.dfmodel.layer import layer_graph
from dse.adapters.dfmodel.mapping import fastest_mapping, fused_ways, shortage, with_tiles
from dse.adapters.dfmodel.network import sized
from dse.adapters.dfmodel.report import evaluated_file
from dse.adapters.dfmodel.setup import Setup
from tests.support.cases import by_table, cases
from tests.support.commands import outputs_of, stdout_of

KERNELS = 6
OVERLAPS = ("none", "perfect", "compute_memory")


def toy_graph(rng: np.random.Generator) -> DfmodelGraph:
    """Half of the kernels forward, then half backward; products, with weights or without, and vectors."""
    systolic = rng.random(KERNELS) < 0.6
    weighted = systolic & (rng.random(KERNELS) < 0.6)
    outer, m, n = rng.integers(1, 9, (3, KERNELS)) * 1.0
    k = np.where(systolic, rng.integers(1, 30, KERNELS), 1.0)
    pairs = [pair for pair in itertools.combinations(range(KERNELS), 2) if rng.random() < 0.45]
    start, end = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return DfmodelGraph(
        names=tuple("abcdef"), backward=np.arange(KERNELS) >= KERNELS // 2, systolic=systolic,
        weighted=weighted, tiling=np.where(systolic & ~weighted & (rng.random(KERNELS) < 0.4), K, N),
        outer=outer, m=m + 1, k=k + systolic, n=4 * n, first_bytes=outer * m,
        second_bytes=outer * k * systolic, output_bytes=outer * (m + 1) * 4 * n * 2,
        start=start, end=end, repeats=rng.integers(1, 3, KERNELS).astype(float),
        memory_bytes=rng.integers(0, 9, KERNELS).astype(float), zero_out=rng.random(start.size) < 0.1,
        streamed=rng.random(KERNELS) < 0.2,
    )  # fmt: skip


def toy_setup(**changes: object) -> Setup:
    """Two chips, small cores, and a DRAM about as slow as they are."""
    columns = cases(__file__, "toy_setup") | changes
    rows = {name: [value] for name, value in columns.items() if name != "overlap"}
    return Setup.of(topology="r", roles=("TP",), overlap=changes.get("overlap", "none"), **rows)


class Loop:
    """The rules of the reference, kernel by kernel, for one design."""

    def __init__(self, graph, setup, sharding):
        self.graph, self.sharding = graph, sharding
        self.a = {name: float(values.flat[0]) for name, values in setup.columns().items()}
        self.overlap, self.tiles = setup.overlap, ceil(self.a["seq_len"] / self.a["tile_size"])
        self.levels, self.time = graph.levels(), functools.cache(self.group_time)
        direct = evaluate(graph, setup, sharding, generation="gen2a")
        self.network = direct.network_time[0].tolist()

    def shard(self, kernel):
        """Its m, k and n on one chip, for one tile."""
        g, code, tp = self.graph, self.sharding[kernel], self.a["x"]
        m = ceil(g.outer[kernel] * g.m[kernel] / (tp if code in (OUTER, M) else 1))
        k = ceil(ceil(g.k[kernel] / (tp if code == K else 1)) / (self.tiles if g.tiling[kernel] == K else 1))
        n = ceil(ceil(g.n[kernel] / (tp if code == N else 1)) / (self.tiles if g.tiling[kernel] == N else 1))
        return m, k, n

    def edges(self):
        """Start, end, bytes of one tile."""
        for edge, (s, e) in enumerate(zip(self.graph.start, self.graph.end, strict=True)):
            m, _, n = self.shard(s)
            yield int(s), int(e), 0 if self.graph.zero_out[edge] else 2 * m * n

    def weight(self, kernel):
        m, k, _ = self.shard(kernel)
        return 2 * m * k * self.graph.weighted[kernel]

    def sram(self, group):
        """Bytes that a group needs, outputs of the n-th weight those of the n-th edge, and parts of its weights."""
        tensors, edges, weighted = 0, [*self.edges()], np.flatnonzero(self.graph.weighted).tolist()
        for edge, (s, e, _) in enumerate(edges):
            start, end, size = edges[min(weighted.index(s), len(edges) - 1) if s in weighted else edge]
            if s in group and e in group:
                tensors += (self.levels[end] - self.levels[start] + 1) * size
            elif s in group or e in group:
                tensors += 2 * size
        weights = sum(self.weight(kernel) for kernel in group if not self.graph.streamed[kernel])
        for passes in range(1, 999 if len(group) == 1 and self.a["sram_bytes"] else 2):
            if tensors + weights / passes <= self.a["sram_bytes"] * (1 + 1e-12):
                return tensors + weights / passes, passes
        return tensors + weights, 1

    def cycles(self, kernel, lanes, stages):
        m, k, n = self.shard(kernel)
        width, height = self.a["array_width"], self.a["array_height"]
        per_tile = ceil(m / (lanes * width)) * (ceil(n / (stages * height)) * k if self.graph.systolic[kernel] else n)
        return per_tile * self.tiles * self.graph.repeats[kernel]

    def slowest(self, group, cores, *, whole=False):
        """Fewest cycles of the slowest kernel, all ways to share the cores out tried."""
        if not group:
            return 0.0
        (kernel, *rest), best = group, inf
        for lanes, stages in itertools.product(range(1, cores + 1), repeat=2):
            used = lanes * stages
            if used > cores or (whole and used != cores) or (stages > 1 and not self.graph.systolic[kernel]):
                continue
            best = min(best, max(self.cycles(kernel, lanes, stages), self.slowest(rest, cores - used)))
        return best

    def compute(self, group, passes):
        if self.a["utilization"]:
            peak = 2 * self.a["array_width"] * self.a["array_height"] * self.a["cores"] * self.a["frequency"]
            dims = [self.shard(kernel) for kernel in group]
            work = sum(
                (2 if self.graph.systolic[i] else 1) * m * k * n * self.tiles * self.graph.repeats[i]
                for i, (m, k, n) in zip(group, dims, strict=True)
            )
            return work / (self.a["utilization"] * peak)
        return self.slowest(group, int(self.a["cores"]), whole=passes > 1) / self.a["frequency"]

    def group_time(self, group, bandwidth):
        """Time of a group; infinite where SRAM or cores do not do."""
        need, passes = self.sram(group)
        if self.a["sram_bytes"] and need > self.a["sram_bytes"] * (1 + 1e-12):
            return inf
        compute, network = self.compute(group, passes), sum(self.network[kernel] for kernel in group)
        crossing = sum(size for s, e, size in self.edges() if (s in group) != (e in group))
        stated = sum(self.graph.memory_bytes[kernel] for kernel in group)
        memory = (self.tiles * crossing + stated) / bandwidth
        if self.overlap == "none":
            return compute + memory + network
        return max(compute, memory, network) if self.overlap == "perfect" else max(compute, memory) + network

    def dram(self, member):
        """Weights of all layers, and the most of the tensors between groups that is alive at a time."""
        weights = sum(self.weight(kernel) for kernel in range(KERNELS)) * self.a["num_layers"]
        alive = [
            sum(
                size * self.tiles * self.a["micro_batch_size"]
                for s, e, size in self.edges()
                if member[s] <= group <= member[e] and member[s] != member[e]
            )
            for group in member
        ]
        return weights + max(alive)

    def total(self, member):
        """Time of all groups; infinite where they do not fit."""
        first, second, need = self.a["dram_bytes"], self.a["second_dram_bytes"], self.dram(member)
        if first and need > (first + second) * (1 + 1e-12):
            return inf
        bandwidth = self.a["dram_bandwidth"]
        if first and need > first * (1 + 1e-12):
            bandwidth = (first * bandwidth + second * self.a["second_dram_bandwidth"]) / (first + second)
        groups = [tuple(k for k in range(KERNELS) if member[k] == g) for g in sorted(set(member))]
        return sum(self.time(group, bandwidth) for group in groups)


def legal_groupings(graph, count, pins):
    """Forward kernels in the first half, backward ones in the second, the middle shared; edges lead on."""
    halves = {False: range((count + 1) // 2), True: range(count // 2, count)}
    allowed = [
        [group for group in halves[bool(backward)] if pin in (-1, group)]
        for pin, backward in zip(pins, graph.backward, strict=True)
    ]
    for member in itertools.product(*allowed):
        if all(member[s] <= member[e] for s, e in zip(graph.start, graph.end, strict=True)):
            yield member


OPEN = [-1] * KERNELS
#: What binds -> SRAM as a share of what all kernels in one group need; tiers of DRAM as shares of what
#: kernels that run alone need.
CASES = {
    "nothing binds": (0, 0, 0),
    "SRAM binds": (0.45, 0, 0),
    "DRAM binds": (0, 0.96, 0),
    "both bind": (0.6, 0.97, 0),
    "two tiers": (0.8, 0.9, 0.07),
}


def constrained(graph, case, **changes):
    """A set-up whose capacities are shares of what the graph needs."""
    sram, first, second = CASES[case]
    free = toy_setup()
    sharding = least_moving(graph).choices
    alone = evaluate(graph, free, sharding, generation="gen2a").dram_bytes[0]
    together = evaluate(graph, free, sharding, generation="gen2a", groups=np.zeros(KERNELS, int))
    return toy_setup(
        sram_bytes=sram * together.sram_bytes.sum(), dram_bytes=first * alone,
        second_dram_bytes=second * alone, second_dram_bandwidth=17, **changes,
    ), sharding  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("utilization", [0, 0.7])
@pytest.mark.parametrize("case", CASES)
def test_small_graphs_agree_with_trying_every_grouping(seed, count, utilization, case):
    """By the rules in loops, each way to share out the cores tried: the same least time, or none fits."""
    rng = np.random.default_rng(seed)
    graph, overlap = toy_graph(rng), OVERLAPS[seed % 3]
    setup, sharding = constrained(graph, case, utilization=utilization, overlap=overlap)
    pins = np.where(rng.random(KERNELS) < 0.1, rng.integers(0, count, KERNELS), -1) if seed > 2 else OPEN
    loop = Loop(graph, setup, sharding)
    totals = {member: loop.total(member) for member in legal_groupings(graph, count, pins)}
    least = min(totals.values(), default=inf)
    try:
        ways = fused_ways(graph, count, np.array(pins))
    except DseError:
        assert not totals
        return
    assert totals
    actual = fastest_mapping(graph, setup, sharding, ways, generation="gen2a")
    assert (actual is None) == np.isinf(least)
    if actual is None:
        assert "more than there are" in shortage(graph, setup, sharding, ways, generation="gen2a") or (
            setup.cores < KERNELS
        )
        return
    priced_again = evaluate(graph, setup, sharding, generation="gen2a", groups=actual.groups)
    assert priced_again.group_time.sum() == pytest.approx(least, rel=1e-12)
    assert priced_again.fits.all()
    chosen = tuple(actual.groups.tolist())
    assert loop.total(chosen) == pytest.approx(least, rel=1e-12)
    assert priced_again.dram_bytes[0] == loop.dram(chosen)
    needs = [loop.sram(tuple(np.flatnonzero(actual.groups == g)))[0] for g in range(max(chosen) + 1)]
    assert priced_again.sram_bytes[0].tolist() == pytest.approx(needs, rel=1e-12)


# Laws, on a layer of a transformer


@pytest.fixture(scope="module")
def layer() -> DfmodelGraph:
    """41 kernels."""
    return layer_graph(64, 4, 32)


@pytest.fixture(scope="module")
def forward() -> DfmodelGraph:
    """The 18 of them that infer."""
    return layer_graph(64, 4, 32, backward=False)


def layer_setup(**changes: object) -> Setup:
    """Four chips that are all tensor parallel, with SRAM for about half of the layer's weights."""
    return toy_setup(**cases(__file__, "layer_setup") | changes)


#: Groupings and shardings of graphs that many set-ups share.
layer_ways, layer_sharding = functools.cache(fused_ways), functools.cache(least_moving)


def layer_time(layer: DfmodelGraph, count: int, **changes: object) -> float:
    """Time of the fastest mapping of a layer into so many groups; infinite where none fits."""
    setup, sharding = layer_setup(**changes), layer_sharding(layer).choices
    actual = fastest_mapping(layer, setup, sharding, layer_ways(layer, count), generation="gen1")
    if actual is None:
        return inf
    return float(evaluate(layer, setup, sharding, generation="gen1", groups=actual.groups).iteration_time.item())


@pytest.mark.parametrize("utilization", [0, 0.9])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_more_sram_is_never_slower(forward, utilization, overlap):
    times = [
        layer_time(forward, 12, sram_bytes=sram, utilization=utilization, overlap=overlap)
        for sram in (1e3, 5e3, 1e4, 2e4, 1e5, 0)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] == inf > times[2] > times[-2] == times[-1]


@pytest.mark.parametrize("utilization", [0, 0.9])
@pytest.mark.slow
def test_more_groups_are_never_slower(layer, utilization):
    """From an even number to the next, two more; from one to the odd one above, which has a middle group."""
    time = {
        count: layer_time(layer, count, utilization=utilization, sram_bytes=9e3)
        for count in (12, 16, 18, 19, 20, 21, 82)
    }
    assert time[12] == inf > time[16] >= time[18] >= time[20] >= time[82]
    assert time[18] >= time[19] >= time[21] <= time[20]
    assert (time[19] < time[20]) == (utilization == 0)  # where kernels run side by side, the middle helps


def every_split(graph, setup, sharding, groups):
    """Cycles of groups by trying all lanes, all stages and all numbers of cores; loops over one design."""
    loop, cores, cycles = Loop(graph, setup, sharding), int(setup.cores.item()), []
    for group in range(max(groups) + 1):
        least = [0.0] * (cores + 1)  # of the kernels so far, on so many cores
        for kernel in np.flatnonzero(np.equal(groups, group)):
            cheapest = [inf] * (cores + 1)
            for lanes, stages in itertools.product(range(1, cores + 1), repeat=2):
                if lanes * stages <= cores and (stages == 1 or graph.systolic[kernel]):
                    cheapest[lanes * stages] = min(cheapest[lanes * stages], loop.cycles(kernel, lanes, stages))
            least = [
                min((max(cheapest[used], least[n - used]) for used in range(1, n + 1)), default=inf)
                for n in range(cores + 1)
            ]
        cycles.append(least[-1])
    return cycles


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("chunk", [1, 1 << 18])
def test_designs_share_out_their_cores_as_each_would_alone(seed, chunk, monkeypatch):
    """Designs of other arrays, cores and tiles at once, in pieces of one or all: against every split."""
    monkeypatch.setattr(dfmodel_cores, "CHUNK", chunk)
    rng = np.random.default_rng(seed)
    graph, points = toy_graph(rng), 5
    graph = replace(graph, m=graph.m * rng.integers(1, 40, KERNELS), n=graph.n * rng.integers(1, 20, KERNELS))
    columns = {"cores": [1, 2, 7, 24, 40], "array_width": [1, 2, 2, 3, 1], "tile_size": [1, 2, 4, 8, 8]}
    order = rng.permutation(points)
    setup = replace(toy_setup(), **{name: np.array(v, dtype=float)[order] for name, v in columns.items()})
    sharding, groups = least_moving(graph).choices, rng.integers(0, 3, KERNELS)
    groups = np.unique(groups, return_inverse=True)[1]
    actual = evaluate(graph, setup, sharding, generation="gen2a", groups=groups).compute_time
    every = [every_split(graph, setup.take(np.array([p])), sharding, groups) for p in range(points)]
    assert actual == pytest.approx(np.array(every) / 11, rel=1e-14)


# Tiles, tiers and sizes


def test_the_fastest_tile_is_the_best_of_all(forward):
    """Each size with its own fastest groups; without limits, small tiles cost nothing and come first."""
    sharding, ways = layer_sharding(forward).choices, layer_ways(forward, 12)
    for utilization in (0, 0.9):
        rows = with_tiles(layer_setup(utilization=utilization), "gen3")
        assert rows.tile_size.tolist() == [1, 2, 4, 8, 16, 32]
        times = [layer_time(forward, 12, utilization=utilization, tile_size=size) for size in rows.tile_size]
        actual = fastest_mapping(forward, rows, sharding, ways, generation="gen1")
        assert actual.setup.tile_size.item() == rows.tile_size[np.argmin(times)]
    free = with_tiles(layer_setup(utilization=0.9, sram_bytes=0), "gen3")
    assert fastest_mapping(forward, free, sharding, ways, generation="gen1").setup.tile_size.item() == 1


@pytest.mark.parametrize("seq_len", [1, 7, 12, 30])
def test_tiles_divide_the_sequence_or_where_the_last_may_be_smaller_make_every_number(seq_len):
    setup = toy_setup(seq_len=seq_len)
    divided, ragged = with_tiles(setup, "gen3"), with_tiles(setup, "gen2a")
    assert divided.tile_size.tolist() == [size for size in range(1, seq_len + 1) if seq_len % size == 0]
    assert (divided.tiles * divided.tile_size).tolist() == [seq_len] * divided.tiles.size
    smallest = {ceil(seq_len / size): size for size in range(seq_len, 0, -1)}
    assert dict(zip(ragged.tiles.tolist(), ragged.tile_size.tolist(), strict=True)) == smallest
    assert ragged.tile_size.tolist() == sorted(smallest.values())


def test_a_second_tier_of_dram_takes_the_mean_of_both_bandwidths(layer):
    """3 parts of 200 kB/s and 1 of 40: 160 kB/s, as soon as the first is too small."""
    sharding = layer_sharding(layer).choices
    need = evaluate(layer, layer_setup(), sharding, generation="gen2a").dram_bytes.item()
    tiers = {"second_dram_bytes": need / 4, "second_dram_bandwidth": 4e4}
    alone, small, both = (
        evaluate(layer, layer_setup(dram_bytes=first, **changes), sharding, generation="gen2a")
        for first, changes in ((need, tiers), (need * 3 / 4, {}), (need * 3 / 4, tiers))
    )
    assert alone.fits
    assert both.fits
    assert not small.fits
    assert both.memory_time.sum() == pytest.approx(alone.memory_time.sum() * 200 / 160)
    assert alone.memory_time.tolist() == small.memory_time.tolist()


def open_network(chips: int, *, given: tuple[int, int, int] = (0, 0, 0), batch: int = 24) -> Setup:
    """Three dimensions of different links, of sizes that are given or 0."""
    columns = layer_setup(
        num_chips=chips, global_batch_size=batch, num_layers=6, utilization=0.9, sram_bytes=0,
        x=given[0], y=given[1], z=given[2], x_bandwidth=7e5, y_bandwidth=3e5, z_bandwidth=2e5,
    ).columns()  # fmt: skip
    return Setup.of(topology="r_r_r", roles=("TP", "PP", "DP"), **columns)


@pytest.mark.parametrize(("chips", "given"), [(12, (0, 0, 0)), (12, (0, 3, 0)), (30, (0, 0, 5)), (24, (2, 0, 2))])
def test_open_sizes_are_all_that_make_the_chips_and_whole_micro_batches(chips, given):
    rows = sized(open_network(chips, given=given, batch=40))
    legal = [
        sizes
        for sizes in itertools.product(range(1, chips + 1), repeat=3)
        if np.prod(sizes) == chips
        and all(size == stated for size, stated in zip(sizes, given, strict=True) if stated)
        and 40 % (2 * sizes[2]) == 0
    ]
    assert list(zip(*(rows.columns()[axis].tolist() for axis in "xyz"), strict=True)) == legal


def test_open_sizes_of_many_chips_are_found_at_once():
    """2 to the 40 chips: as many ways as there are to share 40 halvings out; a prime has one way a place."""
    assert sized(open_network(2**40, batch=2**41)).num_points == 42 * 41 // 2
    prime = sized(open_network(2**31 - 1, batch=2))
    assert prime.x.tolist() == [1, 2**31 - 1]
    assert prime.z.tolist() == [1, 1]
    assert sized(toy_setup(num_chips=7e9, x=0)).x == 7e9


@pytest.mark.parametrize(("overlap", "dram_bytes"), [("none", 6e3), ("perfect", 0), ("compute_memory", 6e3)])
@pytest.mark.parametrize(("seed", "utilization"), [(0, 0), (1, 0), (2, 0), (3, 0.7)])
def test_designs_that_share_their_groups_are_as_fast_as_each_alone(seed, utilization, overlap, dram_bytes):
    """All sizes of 12 chips, with all tiles: the time of the best of designs that are mapped one by one."""
    graph = toy_graph(np.random.default_rng(seed))
    columns = toy_setup(
        num_chips=12, x=0, y=0, z=0, y_bandwidth=31, z_bandwidth=23, num_layers=6, global_batch_size=24,
        dram_bytes=dram_bytes, sram_bytes=9e3, utilization=utilization,
    ).columns()  # fmt: skip
    rows = with_tiles(sized(Setup.of(topology="r_r_r", roles=("TP", "PP", "DP"), overlap=overlap, **columns)), "gen2a")
    sharding, ways = least_moving(graph).choices, fused_ways(graph, 4)

    def best(designs):
        actual = fastest_mapping(graph, designs, sharding, ways, generation="gen2a")
        if actual is None:
            return inf
        again = evaluate(graph, actual.setup, sharding, generation="gen2a", groups=actual.groups)
        assert again.fits.all()
        return again.iteration_time.item()

    assert best(rows) == min(best(rows.take(np.array([row]))) for row in range(rows.num_points)) < inf


def test_sizes_that_cannot_be_are_told():
    with pytest.raises(DseError, match=r"system.r_r_r: no sizes .* make 14 chips and whole micro-batches"):
        sized(open_network(14, given=(2, 1, 0)))


# What the command does


@pytest.fixture
def file(layer, tmp_path):
    """A file of the layer that fuses kernels: groups by an array, -1 where they are open."""

    def write(groups: Any = -1, *, generation: str = "gen1", num_config: int = 6, **changes: object) -> Path:
        setup = replace(layer_setup(**{"utilization": 0.5} | changes), kernel_by_kernel=False)
        message = setup_message(
            layer, setup, layer_sharding(layer).choices, generation=generation, groups=np.zeros(41, int)
        )
        run = message.miscellany if generation == "gen1" else message.execution
        run.num_config = num_config
        for kernel, group in zip(message.dataflow_graph.kernels, np.broadcast_to(groups, 41), strict=True):
            kernel.config = int(group)
        path = tmp_path / "setup.txt"
        path.write_text(setup_text(message))
        return path

    return write


def cost(*words: object, code: int = 0) -> dict[str, Any]:
    """Figures and complaints that `dse cost` prints."""
    told = outputs_of("cost", *map(str, words), "--format", "json", code=code)
    return {"error": told.err, **json.loads(told.out or "{}")}


def least_bytes(error: str) -> int:
    """The need that a complaint states. [B]"""
    return int(error.split("at least ")[1].split(" ")[0].replace(",", ""))


def test_groups_that_a_file_leaves_open_are_found(layer, file):
    actual = cost(file(), "--tile-size", 4)
    assert actual["final_s"] == pytest.approx(layer_time(layer, 6, utilization=0.5))
    assert actual["fits"]
    assert not actual["error"]
    assert max(actual["sram_bytes"]) <= 2e4
    assert len(actual["groups"]) == len(actual["sram_bytes"]) <= 6
    assert actual["tile_size"] == 4


def test_groups_that_a_file_gives_some_kernels_are_kept(layer, file):
    """Q in the first group and K in the second, which no mapping of its own accord does: it is slower."""
    pinned = np.select([np.array(layer.names) == "Q", np.array(layer.names) == "K"], [0, 1], -1)
    free = cost(file(sram_bytes=0))
    actual = cost(file(pinned, sram_bytes=0))
    member = {name: group for group, names in enumerate(actual["groups"]) for name in names}
    assert (member["Q"], member["K"]) == (0, 1)
    assert actual["final_s"] > free["final_s"]
    assert cost(file(pinned, sram_bytes=0), "--resolve")["groups"] == free["groups"]


def test_own_groups_are_kept_and_told_where_they_do_not_fit(layer, file):
    actual = cost(file(np.where(layer.backward, 1, 0)))
    assert [len(group) for group in actual["groups"]] == [18, 23]
    assert not actual["fits"]
    assert "does not fit: SRAM of group 0 (Add_Prev_Layer, LayerNorm_1, " in actual["error"]
    short = actual["sram_bytes"][0] - 2e4
    assert f"{actual['sram_bytes'][0]:,.0f} bytes are needed, {short:,.0f} more than there are" in actual["error"]
    assert cost(file(np.where(layer.backward, 1, 0)), "--groups", 6)["fits"]


@pytest.mark.slow
def test_tiles_are_kept_unless_they_are_open(layer, file):
    for generation in ("gen2a", "gen1"):
        path = file(tile_size=8, sram_bytes=6e4, generation=generation)
        limited, fixed = cost(path), cost(path, "--tile-size", 8)
        assert limited["tile_size"] <= fixed["tile_size"] == 8  # the file has the largest tile
        assert limited["final_s"] <= fixed["final_s"]
        assert (limited["tile_size_chosen"], fixed["tile_size_chosen"]) == (limited["tile_size"] < 8, False)
    assert cost(path, "--tile-size", 16)["tile_size"] == 16
    best = cost(path, "--tile-size", "best")
    times = {
        size: layer_time(layer, 6, utilization=0.5, sram_bytes=6e4, tile_size=size) for size in (1, 2, 4, 8, 16, 32)
    }
    assert best["final_s"] == pytest.approx(min(times.values()))
    path.write_text(path.read_text().replace("    tile_size: 8\n", ""))
    left_open = cost(path)
    assert (left_open["tile_size"], left_open["final_s"]) == (best["tile_size"], best["final_s"])


# DFModel at commit 04f93d5, LLM/sram_dram/KBK/{l,m,s}_sram_l_dram: the 18 kernels of GPT-3's forward pass,
# each alone, on 4 x 2 chips, without tile_size and compute_util. The tile that the reference's solver chose
# within its 180 s, and what its run printed.
OPEN_TILES = cases(__file__, "OPEN_TILES")
# The same commit, LLM/dataflow_mapping/kbk_8x1: on 8 chips, with compute_util, solved to the end.
AT_GIVEN_UTILIZATION = 4909.147625881573


@pytest.fixture
def published(tmp_path):
    """Writes a published set-up of GPT-3 whose kernels run alone, tiles open; as text, or binary."""

    def write(generation: str, topology: str, *, binary: bool = False, **changes: float) -> Path:
        columns = cases(__file__, "published") | changes
        roles = ("TP", "DP")[: len(topology.split("_"))]
        rows = {name: [value] for name, value in columns.items()}
        setup = Setup.of(topology=topology, roles=roles, overlap="perfect", **rows)
        graph = layer_graph(12288, 96, 2048, backward=False)
        sharding = least_moving(graph, prefer=PUBLISHED["inference"]).choices
        message = setup_message(graph, setup, sharding, generation=generation, tiles_open=True)
        path = tmp_path / "published"
        path.write_bytes(setup_bytes(message) if binary else setup_text(message).encode())
        return path

    return write


@pytest.mark.parametrize(("sram", "tokens", "printed"), OPEN_TILES)
def test_an_open_tile_is_at_least_as_fast_as_the_references_solver_found(sram, tokens, printed, published):
    """And hardly faster: its solver stopped within five percent. Tiles of a token take ten times as long."""
    path = published("gen2a", "r_r", x=4, y=2, dram_bandwidth=600e9, sram_bytes=sram)
    actual = cost(path)
    assert actual["tile_size_chosen"]
    assert actual["fits"]
    assert not actual["error"]
    assert 0.95 * printed < actual["final_s"] <= cost(path, "--tile-size", tokens)["final_s"] <= printed
    assert cost(path, "--tile-size", 1)["final_s"] > 10 * printed


def test_an_open_tile_is_of_no_account_at_a_given_utilization(published):
    path = published("gen1", "r", dram_bandwidth=100e9, sram_bytes=335544320, utilization=0.9)
    actual = cost(path)
    assert actual["final_s"] == pytest.approx(AT_GIVEN_UTILIZATION, rel=1e-12)
    assert (actual["tile_size"], actual["tile_size_chosen"]) == (1, True)
    for tokens in (1, 16, 1024):
        assert cost(path, "--tile-size", tokens)["final_s"] == pytest.approx(actual["final_s"], rel=1e-14)


@pytest.fixture
def alone(layer, tmp_path):
    """Writes a file of the layer whose kernels run alone; tiles open unless they are told."""

    def write(tile_size: float | None = None, **changes: object) -> Path:
        setup = layer_setup(**changes, **({} if tile_size is None else {"tile_size": tile_size}))
        message = setup_message(layer, setup, layer_sharding(layer).choices, tiles_open=tile_size is None)
        path = tmp_path / f"alone_{len([*tmp_path.iterdir()])}.txt"
        path.write_text(setup_text(message))
        return path

    return write


def test_kernels_that_run_alone_have_the_fastest_tile_that_fits(layer, alone):
    """Against pricing each size by itself, without limits of SRAM and with one that forbids the largest."""
    chosen = set()
    for sram in (0, 3e4, 1e4):
        path = alone(sram_bytes=sram)
        sizes = [cost(path, "--tile-size", tokens) for tokens in (1, 2, 4, 8, 16, 32)]
        assert not any(size["tile_size_chosen"] for size in sizes)
        actual = cost(path)
        assert actual["final_s"] == min(size["final_s"] for size in sizes if size["fits"])
        chosen.add(actual["tile_size"])
    assert len(chosen) > 1


def test_the_table_says_that_the_tile_was_chosen(alone):
    """And which: the fastest that fits, or where none does and all are as fast, the smallest."""
    for path, said in (
        (alone(4), "4 of 32 tokens"),
        (alone(sram_bytes=0), "32 of 32 tokens, chosen: the fastest that fits"),
        (alone(sram_bytes=100, utilization=0.5), "1 of 32 tokens, chosen: the smallest"),
    ):
        [line] = [line for line in stdout_of("cost", str(path)).splitlines() if line.startswith("tile ")]
        assert line.split(maxsplit=1)[1].rstrip() == said


def test_no_tile_that_fits_is_told_and_refused_where_the_time_depends_on_it(alone):
    """At a given utilization it does not: the smallest tile is evaluated, with what is short of it."""
    path = alone(sram_bytes=100)
    refused = cost(path, code=1)
    assert refused == cost(path, "--tile-size", "best", code=1)
    assert "no size of a tile or of a dimension makes the groups fit: SRAM: at least " in refused["error"]
    path = alone(sram_bytes=100, utilization=0.5)
    actual = cost(path)
    assert not actual["fits"]
    assert "does not fit: SRAM of group 0 (Add_Prev_Layer): " in actual["error"]
    assert {**actual, "tile_size_chosen": False} == cost(path, "--tile-size", 1)
    cost(path, "--tile-size", "best", code=1)


@pytest.mark.parametrize("utilization", [0, 0.5])
@pytest.mark.parametrize("case", ["plain", "tokens that are split"])
@pytest.mark.parametrize("tokens", [1, 4])
def test_a_file_has_the_price_of_the_set_up_that_it_was_written_from(tokens, case, utilization, tmp_path):
    """It states the tile where another is faster: 8 tokens of a chip fill no 32 tiles."""
    graph = layer_graph(64, 4, 32)
    sharding = least_moving(graph).choices
    if case == "tokens that are split":
        sharding = np.where(np.array(graph.names) == "GeLU", N, sharding)
    setup = layer_setup(tile_size=tokens, utilization=utilization, sram_bytes=0)
    path = tmp_path / "setup.txt"
    path.write_text(setup_text(setup_message(graph, setup, sharding)))
    direct = evaluate(graph, setup, sharding, generation="gen1").iteration_time.item()
    assert cost(path)["final_s"] == pytest.approx(direct, rel=1e-6)  # files hold 32 bits
    best = cost(path, "--tile-size", "best")["final_s"]
    assert ("tile_size" in path.read_text()) == (tokens > 1 or best < 0.9999 * direct)


@by_table("changes", "options", "said")
def test_what_a_file_cannot_have_is_told(changes, options, said, file):
    assert said in cost(file(**changes), *options, code=1)["error"]


@pytest.mark.slow
def test_what_is_short_is_told(file):
    """SRAM of the tightest groups there are, DRAM of weights and tensors: so much is enough, and no less."""
    for what, column in (("SRAM", "sram_bytes"), ("DRAM", "dram_bytes")):
        limits = {"sram_bytes": 0, column: 1e3}
        actual = cost(file(**limits), "--tile-size", 4, code=1)
        assert f"no mapping into at most 6 groups fits: {what}: at least " in actual["error"]
        least = least_bytes(actual["error"])
        assert f"{least - 1000:,} more than there are (tile_size 4, TP 4)" in actual["error"]
        assert cost(file(**limits | {column: least}), "--tile-size", 4)["fits"]
        cost(file(**limits | {column: least - 1}), "--tile-size", 4, code=1)


def test_more_groups_are_advised_where_kernels_fit_alone(file):
    """A byte less than two groups need is not too little for smaller ones."""
    least = least_bytes(cost(file(sram_bytes=100), "--groups", 2, code=1)["error"])
    path = file(sram_bytes=least - 1)
    assert cost(path, "--groups", 2, code=1)["error"].rstrip().endswith("; allow more groups")
    assert cost(path, "--groups", 46)["fits"]


def test_a_second_tier_and_weights_that_stream_are_read_back(layer, file):
    """In a file of the one generation that has tiers; the time is that of the graph and set-up written."""
    graph = replace(layer, streamed=np.array([name == "FFN0" for name in layer.names]))
    setup = layer_setup(utilization=0.5, dram_bytes=2e5, second_dram_bytes=1e5, second_dram_bandwidth=1e5, sram_bytes=0)
    sharding, path = least_moving(graph).choices, file()
    path.write_text(setup_text(setup_message(graph, setup, sharding, generation="gen2a")))
    actual = cost(path, "--profile", "dfmodel-gen2a")
    direct = evaluate(graph, setup, sharding, generation="gen2a")
    assert 2e5 < direct.dram_bytes.item() < 3e5
    assert actual["final_s"] == pytest.approx(direct.iteration_time.item())
    assert actual["sram_bytes"] == direct.sram_bytes[0].tolist()
    assert direct.sram_bytes[0, 13] < evaluate(layer, setup, sharding, generation="gen2a").sram_bytes[0, 13]


def test_sizes_that_a_file_leaves_open_are_the_fastest(layer, tmp_path):
    """All three left open in a file: the fastest are reported."""
    rows, sharding, path = sized(open_network(12)), layer_sharding(layer).choices, tmp_path / "setup.txt"
    text = setup_text(setup_message(layer, rows.take(np.array([3])), sharding))
    text = re.sub(r"^    [xyz]: \d+\n", "", text, flags=re.MULTILINE)
    path.write_text(text)
    actual = cost(path)
    times = evaluate(layer, rows, sharding, generation="gen1").iteration_time
    assert actual["final_s"] == pytest.approx(times.min())
    assert actual["network"] == rows.take(np.array([np.argmin(times)])).shape()
    report = evaluated_file(path, generation="gen1")
    written = tmp_path / "sizes.txt"
    written.write_text(setup_text(setup_message(layer, report.setup, report.sharding)))
    assert 0 not in setup_file(load_setup(written), "sizes").setup.columns()["z"]
    assert cost(written)["final_s"] == actual["final_s"]
    path.write_text(text.replace("num_chip: 12", "num_chip: 14").replace("  r_r_r {", "  r_r_r {\n y: 3"))
    assert "system.r_r_r: 0 x 3 x 0 is not num_chip, 14" in cost(path, code=1)["error"]
    for chips in ("0", "-12", "20000000000000"):
        path.write_text(text.replace("num_chip: 12", f"num_chip: {chips}"))
        assert f"system.num_chip: {chips}; expected 1 to 1e+13" in cost(path, code=1)["error"]


WRONG = cases(__file__, "WRONG")


@pytest.mark.parametrize(("right", "wrong", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_told_where_and_what(right, wrong, said, file):
    path = file(generation="gen2a")
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong, 1))
    actual = cost(path, code=1)
    assert actual["error"].startswith(f"dse: {path}: ")
    assert said in actual["error"]


def test_own_groups_run_in_order(layer, file):
    actual = cost(file(np.where(np.arange(41) == 12, 0, np.where(layer.backward, 4, 1))), code=1)
    assert "connection 15: leads from 'Add_1' in config 1 back to 'LayerNorm_2' in config 0" in actual["error"]
