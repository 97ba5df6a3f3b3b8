"""A dataflow graph of DFModel, and its sharding over a group: legal choices, moved tensors, the least moving choice.

Kernels are matrix products or vector operations; edges are tensors. Each kernel is split by one dimension or by none.
The split decides the layout of its output (replicated, by rows or by columns) and the layouts that it reads; where
producer and consumer differ, the edge carries an all-gather or an all-to-all, and a product that is split along k ends
in an all-reduce. The sharding that moves the fewest bytes is found exactly by `costmodel.solve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import product
from typing import Any, Final, Self

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, grouped
from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside
from costmodel.solve import Link, optima, optimum

#: Dimensions by which a kernel may be sharded or tiled, by the codes of the format; the last is none.
OUTER, M, K, N, NONE = range(1, 6)
SHARDINGS: Final = {OUTER: "outer", M: "m", K: "k", N: "n", NONE: "none"}

#: Collective along an edge or out of a kernel, by the codes of the format.
NOTHING, ALL_REDUCE, ALL_TO_ALL, ALL_GATHER, PERIODIC, POINT_TO_POINT, BROADCAST = range(7)
#: Collectives that a sharded kernel may state on top of those that follow from its sharding.
STATED: Final = (ALL_TO_ALL, ALL_GATHER)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DfmodelGraph:
    """Kernels C[outer, m, n] (+)= A[outer, m, k] B[outer, k, n]; columns of shape (kernels,).

    Dimensions and sizes of many designs are (points, kernels); all else is shared by the designs.
    """

    names: tuple[str, ...]
    backward: BoolArray
    systolic: BoolArray  #: a matrix product; else a vector kernel
    weighted: BoolArray  #: the second operand is a weight
    tiling: IntArray  #: dimension that streams in tiles
    outer: FloatArray
    m: FloatArray
    k: FloatArray  #: 1 for vector kernels
    n: FloatArray
    first_bytes: FloatArray  #: first input [B]
    second_bytes: FloatArray  #: second input or weight; 0 where there is none [B]
    output_bytes: FloatArray
    start: IntArray  #: producers of the edges, places among kernels; (edges,)
    end: IntArray  #: consumers
    repeats: FloatArray = field(default_factory=lambda: np.zeros(1))  #: inputs in turn; 0 = not stated, one
    memory_bytes: FloatArray = field(default_factory=lambda: np.zeros(1))  #: DRAM traffic that a file states
    sram_bytes: FloatArray = field(default_factory=lambda: np.zeros(1))  #: on top of tensors and weights
    dram_bytes: FloatArray = field(default_factory=lambda: np.zeros(1))  #: likewise
    own_stages: BoolArray = field(default_factory=lambda: np.zeros(1, dtype=bool))  #: stages share k, n passes in turn
    collectives: IntArray = field(default_factory=lambda: np.zeros((2, 1), dtype=np.int64))  #: stated, first and second
    message_bytes: FloatArray = field(default_factory=lambda: np.zeros(1))  #: of the stated collectives
    streamed: BoolArray = field(default_factory=lambda: np.zeros(1, dtype=bool))  #: the weight is not held in SRAM
    zero_out: BoolArray = field(default_factory=lambda: np.zeros(1, dtype=bool))  #: edges that carry nothing

    def __len__(self) -> int:
        return len(self.names)

    def levels(self) -> IntArray:
        """Longest way from a source to each kernel. [edges]

        Raises `DseError` if the edges make a cycle; it names one.
        """
        feeds: dict[int, list[int]] = {kernel: [] for kernel in range(len(self))}
        for start, end in zip(self.start.tolist(), self.end.tolist(), strict=True):
            feeds[end].append(start)
        level = np.zeros(len(self), dtype=np.int64)
        try:
            for kernel in TopologicalSorter(feeds).static_order():
                level[kernel] = max((level[start] + 1 for start in feeds[kernel]), default=0)
        except CycleError as error:
            around = " -> ".join(self.names[kernel] for kernel in error.args[1])
            raise DseError(f"connections make a cycle: {around}; a graph flows one way") from None
        return level


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Traffic:
    """Collectives by the codes of the format, and their whole messages."""

    of_kernels: IntArray  #: (kernels,) [code]
    of_edges: IntArray  #: (edges,) [code]
    kernel_bytes: FloatArray  #: 0 where nothing moves; (kernels,) [B]
    edge_bytes: FloatArray  #: (edges,) [B]

    @classmethod
    def of(cls, graph: DfmodelGraph, sharding: IntArray) -> Self:
        """Tensors that a sharding moves, at their full size."""
        of_kernels, of_edges = kernel_collectives(graph, sharding), edge_collectives(graph, sharding)
        made = graph.output_bytes
        return cls(
            of_kernels=of_kernels,
            of_edges=of_edges,
            kernel_bytes=np.where(of_kernels == NOTHING, 0.0, made),
            edge_bytes=np.where(of_edges == NOTHING, 0.0, made[graph.start]),
        )


_DATA: Final[dict[str, Any]] = data_beside(__file__)
CODES: Final = {word: code for code, word in SHARDINGS.items()}
#: Sharding -> layout of the kernel's output: replicated, rows or columns.
PRODUCED: Final[Mapping[int, str]] = {CODES[word]: layout for word, layout in _DATA["produced"].items()}
#: Kind of consumer -> sharding -> layout that it wants of an input.
WANTED: Final[Mapping[str, Mapping[int, str]]] = {
    kind: dict(zip(CODES.values(), layouts, strict=True)) for kind, layouts in _DATA["wanted"].items()
}
#: Order of choice among equally good shardings: one that splits the work before one that repeats it.
SPLIT_FIRST: Final = (OUTER, M, K, N, NONE)
#: Order of choice of the reference: work repeated on all chips before work split by rows.
WHOLE_FIRST: Final = (NONE, OUTER, K, M, N)

#: Choices of published runs among equally good shardings: run -> kernel -> sharding.
PUBLISHED: Final[Mapping[str, Mapping[str, int]]] = {
    run: {kernel: CODES[word] for kernel, word in choices.items()} for run, choices in _DATA["published"].items()
}


@dataclass(frozen=True, slots=True)
class Sharding:
    """A choice for each kernel, the bytes that it moves, and the number of choices that move the same."""

    choices: IntArray  #: (kernels,)
    moved_bytes: float  #: all-reduces of kernels and changes of layout on edges, of unsharded tensors [B]
    count: int


def options(graph: DfmodelGraph, kernel: int) -> list[int]:
    """Shardings that are legal for a kernel; an outer dimension above 1 is always split."""
    size = {dim: float(np.max(getattr(graph, dim)[..., kernel])) for dim in ("outer", "m", "k", "n")}
    tiled = int(graph.tiling[kernel])
    if size["outer"] > 1:
        return [OUTER] if tiled != OUTER else []
    dims = [(M, "m"), (K, "k"), (N, "n")] if graph.systolic[kernel] else [(M, "m"), (N, "n")]
    split = [code for code, dim in dims if size[dim] > 1 and code != tiled]
    return split if graph.weighted[kernel] else [*split, NONE]


def consumer_kind(graph: DfmodelGraph, edge: int) -> str:
    """The way in which the consumer of an edge uses it: a row of `WANTED`."""
    end = graph.end[edge]
    if graph.systolic[end] and graph.tiling[end] == K:
        return "gradient"
    if not graph.systolic[end]:
        return "vector"
    sizes = graph.output_bytes[..., graph.start[edge]], graph.first_bytes[..., end]
    return "first" if graph.weighted[end] or np.all(sizes[0] == sizes[1]) else "second"


def edge_collective(held: str, wanted: str) -> int:
    """The collective that turns one layout into another."""
    if held in ("replicated", wanted):
        return NOTHING
    return ALL_GATHER if wanted == "replicated" else ALL_TO_ALL


def kernel_collectives(graph: DfmodelGraph, choices: Sequence[int] | IntArray) -> IntArray:
    """The collective of each kernel: a sum where k is split, and gradients once a step."""
    gradient = graph.systolic & (graph.tiling == K) & graph.backward
    return np.where(np.asarray(choices) == K, ALL_REDUCE, np.where(gradient, PERIODIC, NOTHING))


def edge_collectives(graph: DfmodelGraph, choices: Sequence[int] | IntArray) -> IntArray:
    """The collective on each edge; (edges,)."""
    held = [PRODUCED[int(choices[start])] for start in graph.start]
    wanted = [WANTED[consumer_kind(graph, edge)][int(choices[end])] for edge, end in enumerate(graph.end)]
    return np.array([*map(edge_collective, held, wanted)], dtype=np.int64)


def moved_bytes(graph: DfmodelGraph, choices: Sequence[int] | IntArray) -> float:
    """Bytes that all-reduces of kernels and changes of layout on edges move, unsharded; no gradients. [B]"""
    traffic = Traffic.of(graph, np.asarray(choices))
    return float(traffic.kernel_bytes[traffic.of_kernels == ALL_REDUCE].sum() + traffic.edge_bytes.sum())


def least_moving(
    graph: DfmodelGraph, *, prefer: Mapping[str, int] | None = None, order: Sequence[int] = SPLIT_FIRST
) -> Sharding:
    """The sharding of one design that moves the fewest bytes; links and the size of the group have no effect.

    `prefer` maps kernels to shardings to take first among equally good ones, such as a row of `PUBLISHED`.

    Among equally good shardings the first is taken by the order of kernels, and for each kernel by
    `prefer`, then `order` [codes]. The preference never costs bytes.
    """
    prefer = prefer or {}
    ranked = []
    for kernel, name in enumerate(graph.names):
        legal = options(graph, kernel)
        if not legal:
            raise DseError(f"kernel {name!r}: no legal sharding; give a dimension above 1 that is not tiled")
        ranked.append(sorted(legal, key=lambda code: (code != prefer.get(name), order.index(code))))
    best = optimum(*_tables(graph, ranked))
    choices = np.array([codes[choice] for codes, choice in zip(ranked, best.choices, strict=True)])
    return Sharding(choices=choices, moved_bytes=best.cost, count=best.count)


def published_sharding(graph: DfmodelGraph, like: str | None = None, *, by_size: bool = False) -> Sharding:
    """The sharding that moves the fewest bytes; among equally good ones that of a published run, a key of `PUBLISHED`.

    The reference's solver gives no reason for its choice. By default that of most published runs of the same kind; with
    `by_size`, that of the published runs whose tensors have the same size.
    """
    if like is None:
        tensors = graph.output_bytes[..., np.isin(graph.names, [*PUBLISHED["gpt_1t"]])]
        sizes = _DATA["published_from"] if graph.backward.any() else {"inference": 0}
        size = np.max(tensors, initial=0.0) if by_size else np.inf
        like = max((least, run) for run, least in sizes.items() if least <= size)[1]
    return least_moving(graph, prefer=PUBLISHED[like], order=WHOLE_FIRST)


def _tables(graph: DfmodelGraph, ranked: Sequence[Sequence[int]]) -> tuple[list[FloatArray], list[Link]]:
    """Bytes that some options of each kernel move, and that pairs of options move on each edge. [B]"""
    costs = [
        np.array([float(graph.output_bytes[index]) if code == K else 0.0 for code in codes])
        for index, codes in enumerate(ranked)
    ]
    return costs, [_link(graph, edge, ranked) for edge in range(graph.start.size)]


def equal_choices(graph: DfmodelGraph, best: Sharding) -> list[list[dict[int, int]]]:
    """Equally good choices, kernel -> code, of each part of a graph that no other part depends on.

    Kernels of one choice in all best shardings separate the parts: the products of their choices are all of these.
    """
    legal = [options(graph, kernel) for kernel in range(len(graph))]
    tried = [(kernel, code) for kernel, codes in enumerate(legal) for code in codes]
    kernels, codes = np.array(tried, dtype=np.int64).reshape(-1, 2).T
    costs, links = _tables(graph, legal)
    forced = [
        np.where((kernels == kernel) & (codes != np.array(legal[kernel])[:, np.newaxis]), np.inf, cost[:, np.newaxis])
        for kernel, cost in enumerate(costs)
    ]
    least, _ = optima(forced, [(start, end, cost[..., np.newaxis]) for start, end, cost in links], in_order=False)
    free = grouped(pair for pair, cost in zip(tried, least, strict=True) if cost == best.moved_bytes)
    free = {kernel: equal for kernel, equal in free.items() if len(equal) > 1}
    return [_equal_products(graph, best, {kernel: free[kernel] for kernel in part}) for part in _joined(graph, free)]


def _joined(graph: DfmodelGraph, kernels: Iterable[int]) -> list[list[int]]:
    """Some kernels in parts that no edge joins."""
    part = {kernel: kernel for kernel in kernels}
    for start, end in zip(graph.start.tolist(), graph.end.tolist(), strict=True):
        if start in part and end in part and part[start] != part[end]:
            old, new = part[end], part[start]
            part = {kernel: new if label == old else label for kernel, label in part.items()}
    return [[kernel for kernel in part if part[kernel] == label] for label in dict.fromkeys(part.values())]


def _equal_products(graph: DfmodelGraph, best: Sharding, free: Mapping[int, Sequence[int]]) -> list[dict[int, int]]:
    """Choices of some kernels that move as little as the best; all others as there."""
    equal = []
    for codes in product(*free.values()):
        choices = best.choices.copy()
        choices[list(free)] = codes
        if moved_bytes(graph, choices) == best.moved_bytes:
            equal.append(dict(zip(free, codes, strict=True)))
    return equal


def _link(graph: DfmodelGraph, edge: int, ranked: Sequence[Sequence[int]]) -> Link:
    """Bytes on an edge for each pair of options of its kernels. [B]"""
    start, end = int(graph.start[edge]), int(graph.end[edge])
    wanted = WANTED[consumer_kind(graph, edge)]
    size = float(graph.output_bytes[start])
    cost: FloatArray = np.array(
        [[size * (edge_collective(PRODUCED[a], wanted[b]) != NOTHING) for b in ranked[end]] for a in ranked[start]]
    )
    return start, end, cost


def sharding_words(choices: IntArray) -> list[str]:
    """Shardings as reports write them."""
    return [SHARDINGS[int(code)] for code in choices]
