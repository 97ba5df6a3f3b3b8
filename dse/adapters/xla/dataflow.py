"""A module's kernels as a graph of DFModel: what one device runs, and what moves between devices.

Both have matrix products, vector kernels, edges and collectives; the rest is said by rules. A product is of
features (m) by tokens (n), where one of its operands is a weight. A vector kernel has the last two
dimensions of what it makes, the others are outer ones. A fusion of several products is as many kernels in a
row, and what else it makes of them a vector kernel after it. Another output of a vector kernel is a kernel
that waits for it and reads nothing (zero_out). What waits for a backward kernel is of the backward pass,
whatever its name says: no edge leads back to the forward pass. A kernel that reads more than two arrays has
the largest as its first input and all others as its second. An all-reduce belongs to the kernel that alone
makes what it sums; every other collective is a vector kernel, and moves on the edges that feed it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np

from costmodel.errors import DseError
from dse.adapters.dfmodel import graph as codes
from dse.adapters.dfmodel.graph import DfmodelGraph, Traffic
from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.text.module import Instruction, Shape
from dse.adapters.xla.work.cost_analysis import product_instructions
from dse.adapters.xla.work.kernel_graph import HloEdge, HloGraph, HloKernel, Leaf, output_shape
from dse.adapters.xla.work.matrix_products import Product

#: Instructions through which an operand of a fused product is still the same array.
_SAME_ARRAY: Final = ("bitcast", "convert", "copy", "reshape", "transpose")


def weight_sides(analysis: Analysis, graph: HloGraph) -> list[tuple[int | None, ...]]:
    """For each product of each kernel which operand is a weight: 0, 1, or None where none or both are.

    A weight is a parameter that the step updates, and what kernels make of weights alone: a conversion, a
    gathered whole.
    """
    parameters = {int(each.argument) for each in analysis.state.weights}
    made: set[tuple[int, int]] = set()

    def is_weight(leaf: Leaf) -> bool:
        return leaf.parameter in parameters if leaf.source is None else leaf.source in made

    sides = []
    for place, kernel in enumerate(graph.kernels):
        sides.append(tuple(_side(kernel, product, is_weight) for product in product_instructions(kernel.instruction)))
        read = [leaf for leaf in kernel.reads if leaf.source is not None or leaf.parameter is not None]
        if read and not kernel.products and all(map(is_weight, read)):
            made |= {(place, output) for output, _ in enumerate(output_shape(kernel.instruction).leaves())}
    return sides


def _side(kernel: HloKernel, product: Instruction, is_weight: Callable[[Leaf], bool]) -> int | None:
    """The operand of one product that is a weight."""
    leaves = [_leaf(kernel, product, side) for side in (0, 1)]
    found = [side for side, leaf in enumerate(leaves) if leaf is not None and is_weight(leaf)]
    return found[0] if len(found) == 1 else None


def _leaf(kernel: HloKernel, product: Instruction, side: int) -> Leaf | None:
    """The array that a kernel reads for an operand of its product; None where it makes it itself."""
    own, operand = kernel.instruction, product.operands[side]
    if product is not own:
        while operand.opcode in _SAME_ARRAY:
            operand = operand.operands[0]
        if operand.opcode != "parameter" or operand not in own.called[0].instructions:
            return None
        side = int(operand.argument)
    before = sum(len(list(each.shape.leaves())) for each in own.operands[:side])
    return kernel.reads[before]


#: Collective -> its code. The format has no reduce-scatter; a gather of the same array moves as much.
_MOVES: Final = {
    "all-reduce": codes.ALL_REDUCE,
    "all-gather": codes.ALL_GATHER,
    "reduce-scatter": codes.ALL_GATHER,
    "all-to-all": codes.ALL_TO_ALL,
    "ragged-all-to-all": codes.ALL_TO_ALL,
    "collective-permute": codes.POINT_TO_POINT,
    "send": codes.POINT_TO_POINT,
    "collective-broadcast": codes.BROADCAST,
}
#: Passes that run after the forward pass.
_BACKWARD: Final = ("recompute", "backward", "optimizer")

Move = tuple[int, float]  #: code, and bytes of the whole message [B]


@dataclass(frozen=True, slots=True, eq=False)
class Dataflow:
    """A module as DFModel has it."""

    graph: DfmodelGraph
    traffic: Traffic
    notes: tuple[str, ...]  #: what the format cannot say, and what it says instead


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    """A kernel of the graph; bytes are [B]."""

    name: str
    backward: bool
    repeats: int
    systolic: bool = False
    weighted: bool = False
    outer: int
    m: int
    k: int = 1
    n: int
    first_bytes: int
    second_bytes: int
    output_bytes: int


def dataflow(analysis: Analysis, barriers: str = "barrier") -> Dataflow:
    """The graph of a module's kernels. Raises `DseError` if it has none.

    `barriers`: arrays that pass a barrier wait for themselves ("element"), or for all of them ("barrier").
    """
    builder = _DfmodelGraphBuilder(analysis, barriers)
    if not builder.source.kernels:
        raise DseError("runs no kernels, so that there is no graph to write")
    for place, kernel in enumerate(builder.source.kernels):
        builder.add(place, kernel)
    notes = [*_notes(analysis, builder.source.kernels)]
    late = builder.wait_for_backward()
    if late:
        notes.append(f"kernels that wait for the backward pass, {late}: written as a part of it")
    return Dataflow(builder.graph(), builder.traffic(), tuple(notes))


class _DfmodelGraphBuilder:
    """Goes through kernels in an order in which they can run."""

    def __init__(self, analysis: Analysis, barriers: str) -> None:
        self.analysis = analysis
        self.source = analysis.of(barriers)
        self.sides = weight_sides(analysis, self.source)
        self.incoming: dict[int, list[HloEdge]] = defaultdict(list)
        for edge in self.source.edges:
            self.incoming[edge.consumer].append(edge)
        read = [(edge.producer, edge.output) for edge in self.source.edges]
        self.readers = Counter([*read, *(leaf.source for leaf in self.source.root)])
        self.nodes: list[_Node] = []
        self.edges: list[tuple[int, int, bool]] = []  # start, end, carries nothing
        self.made: dict[tuple[int, int], int] = {}  # kernel, output -> node
        self.last: dict[int, int] = {}  # kernel -> the node that others wait for
        self.kernel_moves: dict[int, Move] = {}
        self.edge_moves: dict[int, Move] = {}

    def add(self, place: int, kernel: HloKernel) -> None:
        """Nodes of a kernel, the edges to them, and what they move."""
        summed = self._summed_by(place, kernel)
        if summed is not None:
            self.made[place, 0] = self.last[place] = summed
            self.kernel_moves[summed] = self._message(place)
            return
        first, fed = len(self.nodes), len(self.edges)
        for edge in self.incoming[place]:
            start = self.last[edge.producer] if edge.output is None else self.made[edge.producer, edge.output]
            self.edges.append((start, first, edge.output is None))
        data = [at for at in range(fed, len(self.edges)) if not self.edges[at][2]]
        leaves = list(output_shape(kernel.instruction).leaves())
        backward = self.analysis.phases[place] in _BACKWARD
        own, main = _own_nodes(kernel, self.sides[place], leaves, backward)
        self.nodes += own
        self.edges += [(first + number, first + number + 1, False) for number in range(len(own) - 1)]
        self.last[place] = len(self.nodes) - 1
        if main is not None:
            self.made[place, main] = self.last[place]
        self._add_other_outputs(place, leaves, kernel)
        if place in self.analysis.collectives:
            self._move(place, data, first)

    def wait_for_backward(self) -> int:
        """Put what comes after a backward kernel into the backward pass, as the format wants; how many."""
        late = 0
        for start, end, _ in sorted(self.edges, key=lambda edge: edge[1]):
            if self.nodes[start].backward and not self.nodes[end].backward:
                self.nodes[end] = replace(self.nodes[end], backward=True)
                late += 1
        return late

    def _summed_by(self, place: int, kernel: HloKernel) -> int | None:
        """The node that alone makes what an all-reduce sums, where nothing else reads that."""
        collective = self.analysis.collectives.get(place)
        if collective is None or collective.name != "all-reduce" or collective.operands != 1:
            return None
        edges = self.incoming[place]
        if len(edges) != 1 or edges[0].output is None:
            return None
        node = self.made[edges[0].producer, edges[0].output]
        alone = self.readers[edges[0].producer, edges[0].output] == 1 and node not in self.kernel_moves
        return node if alone and self.nodes[node].repeats == kernel.count else None

    def _add_other_outputs(self, place: int, leaves: Sequence[Shape], kernel: HloKernel) -> None:
        """A node for each other output that a kernel reads, after the kernel's own."""
        source = self.last[place]
        for output, leaf in enumerate(leaves):
            if (place, output) in self.made or not self.readers[place, output]:
                continue
            name = f"{kernel.name}#{output}"
            self.made[place, output] = len(self.nodes)
            self.edges.append((source, len(self.nodes), not kernel.products))
            read = [self.nodes[source].output_bytes] if kernel.products else []
            backward = self.nodes[source].backward
            self.nodes.append(_vector(name, leaf, read, backward=backward, repeats=kernel.count))

    def _message(self, place: int) -> Move:
        """The collective in the terms of the format, and its whole message."""
        collective = self.analysis.collectives[place]
        code = _MOVES[collective.name]
        if code == codes.ALL_REDUCE and collective.purpose in ("data parallel", "fully sharded"):
            code = codes.PERIODIC
        gathers = collective.name == "all-gather"
        return code, float(collective.result_bytes if gathers else collective.payload_bytes)

    def _move(self, place: int, data: Sequence[int], node: int) -> None:
        """An all-reduce on its own node; another message on the edges that feed it, shared out by bytes."""
        code, size = self._message(place)
        fed = [edge.bytes for edge in self.incoming[place] if edge.output is not None]
        if code in (codes.ALL_REDUCE, codes.PERIODIC) or not sum(fed):
            self.kernel_moves[node] = code, size
            return
        self.edge_moves |= {at: (code, size * own / sum(fed)) for at, own in zip(data, fed, strict=True)}

    def graph(self) -> DfmodelGraph:
        """The nodes and edges as columns."""
        columns: dict[str, Any] = {
            name: np.array([getattr(node, name) for node in self.nodes], dtype=np.float64)
            for name in ("outer", "m", "k", "n", "first_bytes", "second_bytes", "output_bytes", "repeats")
        }
        switches: dict[str, Any] = {
            name: np.array([getattr(node, name) for node in self.nodes])
            for name in ("backward", "systolic", "weighted")
        }
        edges = np.array(self.edges, dtype=np.int64).reshape(-1, 3)
        return DfmodelGraph(
            names=tuple(node.name for node in self.nodes),
            tiling=np.full(len(self.nodes), codes.NONE),
            start=edges[:, 0],
            end=edges[:, 1],
            zero_out=edges[:, 2] > 0,
            **columns,
            **switches,
        )

    def traffic(self) -> Traffic:
        """Bytes that leave nodes and cross edges."""
        kernels = [self.kernel_moves.get(place, (codes.NOTHING, 0.0)) for place in range(len(self.nodes))]
        edges = [self.edge_moves.get(place, (codes.NOTHING, 0.0)) for place in range(len(self.edges))]
        return Traffic(
            of_kernels=np.array([code for code, _ in kernels]),
            kernel_bytes=np.array([size for _, size in kernels]),
            of_edges=np.array([code for code, _ in edges], dtype=np.int64),
            edge_bytes=np.array([size for _, size in edges], dtype=np.float64),
        )


def _own_nodes(
    kernel: HloKernel, sides: Sequence[int | None], leaves: Sequence[Shape], backward: bool
) -> tuple[list[_Node], int | None]:
    """A kernel's products in a row, or itself as a vector kernel; and the output that the last one makes."""
    if kernel.products:
        own = [
            _product(kernel, product, side, number, backward)
            for number, (product, side) in enumerate(zip(kernel.products, sides, strict=True))
        ]
        size = kernel.products[-1].output.size
        main = next((place for place, leaf in enumerate(leaves) if leaf.size == size), None)
        if main is not None:
            own[-1] = replace(own[-1], output_bytes=leaves[main].bytes)
        return own, main
    largest = max(range(len(leaves)), key=lambda place: leaves[place].bytes, default=None)
    shape = Shape("token", ()) if largest is None else leaves[largest]
    read = [leaf.bytes for leaf in kernel.reads]
    return [_vector(kernel.name, shape, read, backward=backward, repeats=kernel.count)], largest


def _product(kernel: HloKernel, product: Product, side: int | None, number: int, backward: bool) -> _Node:
    """A matrix product, its weight as the second operand: C = A B as it is, or transposed."""
    first, second = (operand.bytes for operand in product.operands[:2])
    m, n = product.n, product.m
    if side == 0:
        m, n, first, second = n, m, second, first
    return _Node(
        name=kernel.name + (f".{number + 1}" if number else ""),
        backward=backward,
        repeats=kernel.count,
        systolic=True,
        weighted=side is not None,
        outer=product.batch,
        m=m,
        k=product.k,
        n=n,
        first_bytes=first,
        second_bytes=second,
        output_bytes=product.output.bytes,
    )


def _vector(name: str, made: Shape, read: Sequence[int], *, backward: bool, repeats: int) -> _Node:
    """A vector kernel by what it makes; a scalar, or nothing, as one element."""
    *outer, n, m = (1, 1, *made.dims)
    return _Node(
        name=name,
        backward=backward,
        repeats=repeats,
        outer=max(prod(outer), 1),
        m=max(m, 1),
        n=max(n, 1),
        first_bytes=max(read, default=0),
        second_bytes=sum(read) - max(read, default=0),
        output_bytes=made.bytes,
    )


def _notes(analysis: Analysis, kernels: Sequence[HloKernel]) -> Iterator[str]:
    """Properties of a module that the format cannot express."""
    yield from analysis.graph.notes
    collectives = Counter(each.name for each in analysis.collectives.values())
    scattered = collectives["reduce-scatter"]
    if scattered:
        yield f"reduce-scatters, {scattered}: written as gathers, which move as much"
    if set(analysis.phases) == {"unknown"}:
        yield "the text names no passes: every kernel is of the forward pass"
    if not analysis.state.weights:
        yield "no parameter is updated: no operand is known to be a weight"
    fused = sum(1 for place, kernel in enumerate(kernels) if kernel.products and analysis.work[place].total)
    if fused:
        yield f"fusions with matrix products, {fused}: the other work inside is left out"
