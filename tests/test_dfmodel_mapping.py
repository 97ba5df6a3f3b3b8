"""DFModel's mappings: groups, tiles, sizes of dimensions and capacities, against trying everything."""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import replace
from math import ceil, inf
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import DseError
from costmodel.formats.dfmodel import load_setup, priced, setup_message, setup_text
from costmodel.profiles.dfmodel import PUBLISHED, Graph, Setup, evaluate, layer_graph, least_moving
from costmodel.profiles.dfmodel.graph import OUTER, K, M, N
from costmodel.profiles.dfmodel.mapping import (
    fastest_design,
    fastest_mapping,
    fused_ways,
    group_windows,
    shortage,
    with_tiles,
)
from costmodel.profiles.dfmodel.network import sized
from dse.cli import main

SEED = Path(__file__).parents[2] / "shared" / "seeds" / "000_dbf3928d681bd342.txt"
KERNELS = 6
OVERLAPS = ("none", "perfect", "compute_memory")


def toy_graph(rng: np.random.Generator) -> Graph:
    """Half of the kernels forward, then half backward; products, with weights or without, and vectors."""
    systolic = rng.random(KERNELS) < 0.6
    weighted = systolic & (rng.random(KERNELS) < 0.6)
    outer, m, n = rng.integers(1, 9, (3, KERNELS)) * 1.0
    k = np.where(systolic, rng.integers(1, 30, KERNELS), 1.0)
    pairs = [pair for pair in itertools.combinations(range(KERNELS), 2) if rng.random() < 0.45]
    start, end = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return Graph(
        names=tuple("abcdef"), backward=np.arange(KERNELS) >= KERNELS // 2, systolic=systolic,
        weighted=weighted, tiling=np.where(systolic & ~weighted & (rng.random(KERNELS) < 0.4), K, N),
        outer=outer, m=m + 1, k=k + systolic, n=4 * n, first_bytes=outer * m,
        second_bytes=outer * k * systolic, output_bytes=outer * (m + 1) * 4 * n * 2,
        start=start, end=end, repeats=rng.integers(1, 3, KERNELS) * 1.0,
        memory_bytes=rng.integers(0, 9, KERNELS) * 1.0, zero_out=rng.random(start.size) < 0.1,
        streamed=rng.random(KERNELS) < 0.2,
    )  # fmt: skip


def toy_setup(**changes: object) -> Setup:
    """Two chips, small cores, and a DRAM about as slow as they are."""
    columns = {
        "num_chips": 2, "x": 2, "x_bandwidth": 47, "cores": 5, "array_width": 2, "array_height": 3,
        "frequency": 11, "dram_bandwidth": 61, "hidden_size": 8, "head_size": 4, "num_attention_heads": 2,
        "seq_len": 8, "num_layers": 3, "global_batch_size": 4, "micro_batch_size": 2, "tile_size": 2,
    }  # fmt: skip
    rows = {name: [value] for name, value in (columns | changes).items() if name != "overlap"}
    return Setup.of(topology="r", roles=("TP",), overlap=changes.get("overlap", "none"), **rows)


class Loop:
    """The rules of the reference, kernel by kernel, for one design."""

    def __init__(self, graph, setup, sharding):
        self.graph, self.sharding = graph, sharding
        self.a = {name: float(values.flat[0]) for name, values in setup.columns().items()}
        self.overlap, self.tiles = setup.overlap, ceil(self.a["seq_len"] / self.a["tile_size"])
        self.levels, self.time = graph.levels(), functools.cache(self.group_time)
        own = evaluate(graph, setup, sharding, generation="gen2a")
        self.network = own.network_time[0].tolist()

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
        """Bytes that a group needs, and the parts that its weights pass in."""
        tensors = 0
        for s, e, size in self.edges():
            if s in group and e in group:
                tensors += (self.levels[e] - self.levels[s] + 1) * size
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
        per_tile = ceil(m / (lanes * width)) * (
            ceil(n / (stages * height)) * k if self.graph.systolic[kernel] else n
        )
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
    own = [
        [group for group in halves[bool(backward)] if pin in (-1, group)]
        for pin, backward in zip(pins, graph.backward, strict=True)
    ]
    for member in itertools.product(*own):
        if all(member[s] <= member[e] for s, e in zip(graph.start, graph.end, strict=True)):
            yield member


OPEN = [-1] * KERNELS
#: What binds -> SRAM as a share of what all kernels in one group need; tiers of DRAM as shares of what
#: kernels that run alone need.
CASES = {
    "nothing binds": (0, 0, 0),
    "SRAM binds": (0.45, 0, 0),
    "SRAM is short": (0.3, 0, 0),
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
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
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
    found = fastest_mapping(graph, setup, sharding, ways, generation="gen2a")
    assert (found is None) == np.isinf(least)
    if found is None:
        assert "more than there are" in shortage(graph, setup, sharding, ways, generation="gen2a") or (
            setup.cores < KERNELS
        )
        return
    priced_again = evaluate(graph, setup, sharding, generation="gen2a", groups=found.groups)
    assert priced_again.group_time.sum() == pytest.approx(least, rel=1e-12)
    assert priced_again.fits.all()
    chosen = tuple(found.groups.tolist())
    assert loop.total(chosen) == pytest.approx(least, rel=1e-12)
    assert priced_again.dram_bytes[0] == loop.dram(chosen)
    needs = [loop.sram(tuple(np.flatnonzero(found.groups == g)))[0] for g in range(max(chosen) + 1)]
    assert priced_again.sram_bytes[0].tolist() == pytest.approx(needs, rel=1e-12)


def test_the_cases_bind():
    """Of graphs that fit without limits, some fit no more, some are fused otherwise, some stream weights."""
    outcomes = {case: set() for case in CASES}
    for case, seed in itertools.product(CASES, range(6)):
        graph = toy_graph(np.random.default_rng(seed))
        setup, sharding = constrained(graph, case, utilization=0)
        ways = fused_ways(graph, 5)
        free = replace(setup, sram_bytes=np.zeros(1), dram_bytes=np.zeros(1), second_dram_bytes=np.zeros(1))
        best = fastest_mapping(graph, free, sharding, ways, generation="gen2a").groups
        found = fastest_mapping(graph, setup, sharding, ways, generation="gen2a")
        outcomes[case].add(
            "none" if found is None else "as free" if np.all(best == found.groups) else "other"
        )
        if found is not None:
            own = evaluate(graph, setup, sharding, generation="gen2a", groups=found.groups)
            whole = evaluate(graph, free, sharding, generation="gen2a", groups=found.groups)
            outcomes[case] |= {"streams"} if np.any(own.sram_bytes < whole.sram_bytes) else set()
            outcomes[case] |= {"both tiers"} if own.dram_bytes > setup.dram_bytes > 0 else set()
    assert outcomes["nothing binds"] == {"as free"}
    assert {"none", "other", "streams"} <= outcomes["SRAM binds"]
    assert {"none", "other"} <= outcomes["both bind"]
    assert "other" in outcomes["DRAM binds"]
    assert "both tiers" in outcomes["two tiers"]


# Laws, on a layer of a transformer


@pytest.fixture(scope="module")
def layer() -> Graph:
    """41 kernels."""
    return layer_graph(64, 4, 32)


def layer_setup(**changes: object) -> Setup:
    """Four chips that are all tensor parallel, with SRAM for about half of the layer's weights."""
    return toy_setup(**{
        "num_chips": 4, "x": 4, "x_bandwidth": 1e6, "cores": 48, "array_width": 4, "array_height": 4,
        "frequency": 1e4, "dram_bandwidth": 2e5, "hidden_size": 64, "head_size": 16, "num_attention_heads": 4,
        "seq_len": 32, "sram_bytes": 2e4, "tile_size": 4,
    } | changes)  # fmt: skip


def layer_time(layer: Graph, count: int, **changes: object) -> float:
    """Time of the fastest mapping of a layer into so many groups; infinite where none fits."""
    setup, sharding = layer_setup(**changes), least_moving(layer).choices
    found = fastest_mapping(layer, setup, sharding, fused_ways(layer, count), generation="gen1")
    if found is None:
        return inf
    return float(
        evaluate(layer, setup, sharding, generation="gen1", groups=found.groups).iteration_time.item()
    )


@pytest.mark.parametrize("utilization", [0, 0.9])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_more_sram_is_never_slower(layer, utilization, overlap):
    times = [
        layer_time(layer, 12, sram_bytes=sram, utilization=utilization, overlap=overlap)
        for sram in (1e3, 1e4, 1.5e4, 3e4, 1e5, 0)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] == inf > times[2] > times[3] > times[-2] == times[-1]


@pytest.mark.parametrize("utilization", [0, 0.9])
def test_more_groups_are_never_slower(layer, utilization):
    """From an even number to the next, two more; from one to the odd one above, which has a middle group."""
    time = {
        count: layer_time(layer, count, utilization=utilization, sram_bytes=9e3)
        for count in (12, 16, 18, 19, 20, 21, 82)
    }
    assert time[12] == inf > time[16] >= time[18] >= time[20] >= time[82]
    assert time[18] >= time[19] >= time[21] <= time[20]
    assert (time[19] < time[20]) == (utilization == 0)  # where kernels run side by side, the middle helps


@pytest.mark.parametrize("utilization", [0, 0.9])
def test_more_overlap_is_never_slower(layer, utilization):
    perfect, compute_memory, none = (
        layer_time(layer, 12, overlap=overlap, utilization=utilization)
        for overlap in ("perfect", "compute_memory", "none")
    )
    assert perfect <= compute_memory <= none
    assert perfect < none


@pytest.mark.parametrize("utilization", [0, 0.9])
def test_no_mapping_that_fits_is_faster(layer, utilization):
    """Each kernel alone, and many ways to cut the layer at random: as a file might."""
    rng = np.random.default_rng(0)
    setup, sharding = layer_setup(utilization=utilization, sram_bytes=2e5), least_moving(layer).choices
    best, tried = layer_time(layer, 82, utilization=utilization, sram_bytes=2e5), []
    for _ in range(200):
        cuts = np.sort(rng.integers(0, 41, rng.integers(1, 12)))
        groups = np.searchsorted(np.unique([*cuts, 18]), np.arange(41), side="right")
        tried.append(evaluate(layer, setup, sharding, generation="gen1", groups=groups))
    tried.append(evaluate(layer, setup, sharding, generation="gen1"))
    times = [own.iteration_time.item() for own in tried if own.fits]
    assert len(times) > 20
    assert best < min(times)


def test_a_kernel_whose_weights_pass_in_parts_takes_all_cores(layer):
    """Of 7 cores 6 are best for a product of 2 x 3 arrays, but weights that do not fit need all 7."""
    graph = layer_graph(8, 1, 16, backward=False)
    place = graph.names.index("FFN1")
    setup = toy_setup(cores=7, array_width=4, array_height=2, tile_size=4, seq_len=16, x=1, num_chips=1)
    sharding = least_moving(graph).choices
    free = evaluate(graph, setup, sharding, generation="gen1")
    room = free.sram_bytes[0, place] - 8 * 32  # half of its weights less
    tight = evaluate(graph, replace(setup, sram_bytes=np.array([room])), sharding, generation="gen1")
    assert tight.sram_bytes[0, place] == room
    assert free.compute_time[0, place] == ceil(8 / (2 * 4)) * ceil(4 / (2 * 2)) * 32 * 4 / 11
    assert tight.compute_time[0, place] == min(
        ceil(8 / (lanes * 4)) * ceil(4 / (stages * 2)) * 32 * 4 / 11 for lanes, stages in ((1, 7), (7, 1))
    )
    assert tight.compute_time[0, place] > free.compute_time[0, place]
