"""Graphs and designs a second, and seconds a mapping: `python benchmarks/dfmodel.py [POINTS]`.

Regenerates the 41-kernel graph of a transformer layer for as many designs, and prices an iteration
of each by DFModel's first rules, on one core: at a given utilization, and without, where cycles follow from
the shapes of the kernels, each alone or in groups that share the cores. Designs differ in model and network;
they share the sharding.
Prices as many designs of a search of networks, memory and energy included. Then finds the fastest groups of
a layer's kernels: of its backward part alone, and of all 41.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from dataclasses import replace

import numpy as np

from costmodel.columns import IntArray
from dse.adapters.dfmodel.evaluation import evaluate
from dse.adapters.dfmodel.graph import DfmodelGraph, least_moving
from dse.adapters.dfmodel.layer import layer_graph
from dse.adapters.dfmodel.mapping import fastest_mapping, fused_ways
from dse.adapters.dfmodel.setup import Setup
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate as evaluated
from dse.spaces.space import Space

#: Designs priced at a time: their tables stay in the cache. [points]
CHUNK = 2048


def designs(points: int) -> Setup:
    """Models of 8 to 199 heads on 4,096 chips."""
    rng = np.random.default_rng(0)
    heads = rng.integers(8, 200, points) * 1.0
    tp = 2.0 ** rng.integers(0, 4, points)
    return Setup.of(
        topology="r_r_r", roles=("TP", "PP", "DP"), x=tp, y=128 / tp, z=32, num_chips=4096,
        x_bandwidth=150e9, y_bandwidth=25e9, z_bandwidth=25e9, cores=432, array_width=16, array_height=16,
        frequency=1.41e9, dram_bandwidth=2039e9, hidden_size=heads * 128, num_attention_heads=heads,
        head_size=128, seq_len=2048, num_layers=128, global_batch_size=3072, utilization=0.9,
    )  # fmt: skip


def search(points: int) -> None:
    """Print designs a second of a search: six parameters, two of them quantities of the machine."""
    space = Space.load("gpt_1t_4096_dfmodel")
    columns = space.legal.random(points, np.random.default_rng(0))
    rules = rules_for(space, "dfmodel-gen1")
    start = time.perf_counter()
    evaluated(space, columns, rules=rules)
    print(f"{points / (time.perf_counter() - start):,.0f} designs/s")


def main() -> None:
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    search(points)
    print(f"{graphs_per_second(points):,.0f} graphs/s")
    print(f"{graphs_per_second(points, utilization=0.0):,.0f} graphs/s without compute_util")
    grouped = graphs_per_second(max(1, points // 20), utilization=0.0, groups=np.arange(41) // 6)
    print(f"{grouped:,.0f} graphs/s without compute_util, kernels in 7 groups")
    for name, part, most_groups in (
        ("23 backward kernels", backward_part(layer_graph(12288, 96, 2048)), 40),
        ("41 kernels", layer_graph(12288, 96, 2048), 40),
        ("41 kernels, one group shared by both directions", layer_graph(12288, 96, 2048), 39),
    ):
        for way, utilization in (("a given utilization", 0.9), ("the best split of the cores", 0.0)):
            seconds = mapping_seconds(part, most_groups, utilization)
            print(f"{name}, at most {most_groups} groups, {way}: {seconds:.2f} s")


def graphs_per_second(points: int, *, utilization: float = 0.9, groups: IntArray | None = None) -> float:
    """Graphs made and priced a second. [1/s]"""
    setup = replace(designs(points), utilization=np.full(1, utilization))
    sharding = least_moving(layer_graph(12288, 96, 2048)).choices
    start = time.perf_counter()
    for first in range(0, points, CHUNK):
        part = setup.take(np.arange(first, min(first + CHUNK, points)))
        graph = layer_graph(part.hidden_size, part.num_attention_heads, part.seq_len)
        evaluate(graph, part, sharding, generation="gen1", groups=groups)
    return points / (time.perf_counter() - start)


def backward_part(graph: DfmodelGraph) -> DfmodelGraph:
    """The kernels of the backward pass, and the edges between them."""
    own = np.flatnonzero(graph.backward)
    edges = np.isin(graph.start, own) & np.isin(graph.end, own)
    kernels = ("backward", "systolic", "weighted", "tiling", "outer", "m", "k", "n",
               "first_bytes", "second_bytes", "output_bytes")  # fmt: skip
    return replace(
        graph,
        names=tuple(graph.names[place] for place in own),
        start=np.searchsorted(own, graph.start[edges]),
        end=np.searchsorted(own, graph.end[edges]),
        **{column: getattr(graph, column)[own] for column in kernels},
    )


def mapping_seconds(graph: DfmodelGraph, most_groups: int, utilization: float) -> float:
    """Seconds until the fastest groups of one design are known, where SRAM binds. [s]"""
    setup = designs(1)
    setup = replace(setup, sram_bytes=np.full(1, 300e6), utilization=np.full(1, utilization))
    sharding = least_moving(graph).choices
    start = time.perf_counter()
    found = fastest_mapping(graph, setup, sharding, fused_ways(graph, most_groups), generation="gen1")
    assert found is not None
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
