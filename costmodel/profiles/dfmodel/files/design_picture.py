"""Designs as pictures: a layer's graph with the native model's splits, and the collectives between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from costmodel.profiles.dfmodel.assigned import PRODUCTS, VECTORS
from costmodel.profiles.dfmodel.files.picture import drawn
from costmodel.profiles.dfmodel.graph import Graph
from costmodel.steps.tensor_parallel import changes
from costmodel.training.design import DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import Precision
from costmodel.training.sharding import EDGES, Edge

CORE: Final = "core"
#: Kernel of the graph, without the ending of a gradient -> kernel of the native model; others are the core.
NATIVE: Final = {
    name.removesuffix("_bwd"): native
    for table in (VECTORS, PRODUCTS)
    for native, own in table.items()
    for name in own
}
_ENDINGS: Final = ("_weight_update", "_bwd", "_bwd1", "_bwd2")


def design_picture(graph: Graph, model: ModelShape, design: DesignPoints, precision: Precision) -> str:
    """One design as DOT text.

    Parameters
    ----------
    graph : Graph
        The model's layer, `model_graph(model)`.
    model : ModelShape
        The transformer.
    design : DesignPoints
        One row, its sharding settled.
    precision : Precision
        Bytes of operands.

    Notes
    -----
    A collective is drawn on the edge whose tensor it changes, on each where several kernels use the
    result; the one of a gradient that leaves the graph, at its kernel.
    """
    drawer = _Collectives(model, design, precision)
    natives = [native_kernel(name) for name in graph.names]
    ways = {**design.ways(0), CORE: "heads"} if design.tp[0] > 1 else {}
    gradients = "reduce-scatter" if design.distributed_optimizer[0] > 0 else "all-reduce"
    sinks = {*range(len(graph))} - {*graph.start.tolist()}
    of_kernels = []
    for place, name in enumerate(graph.names):
        if name.endswith("_weight_update"):
            of_kernels.append(f"{gradients} of gradients" if design.dp[0] > 1 else "")
        elif place in sinks and graph.backward[place]:
            of_kernels.append(drawer.gradient(BEFORE[natives[place]], natives[place]))
        else:
            of_kernels.append("")
    of_edges = []
    for start, end in zip(graph.start.tolist(), graph.end.tolist(), strict=True):
        pair = natives[start], natives[end]
        if graph.backward[start]:
            of_edges.append(drawer.gradient(*reversed(pair)))
        else:
            of_edges.append(drawer.again(*pair) if graph.backward[end] else drawer.activation(*pair))
    return drawn(graph, [ways.get(native, "") for native in natives], of_kernels, of_edges)


def native_kernel(name: str) -> str:
    """The kernel of the native model whose work a kernel of the graph does.

    >>> native_kernel("FFN0_bwd_weight_update"), native_kernel("SOFTMAX_bwd")
    ('mlp_up', 'core')
    """
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return NATIVE.get(name, CORE)


#: Kernel -> the one before it, along the products and not past them.
BEFORE: Final = {edge.end: edge.start for edge in reversed(EDGES) if edge.part == "layer"}


class _Collectives:
    """Words for the collectives of one design, by native kernels."""

    def __init__(self, model: ModelShape, design: DesignPoints, precision: Precision) -> None:
        self._moved: dict[tuple[str, str], tuple[list[str], list[str], list[str]]] = {}
        for edge in EDGES:
            if edge.part == "layer" and design.tp[0] > 1:
                self._moved[edge.start, edge.end] = _moved(edge, model, design, precision)

    def activation(self, start: str, end: str) -> str:
        """What an activation on its way needs."""
        return ", ".join(word for edge in _path(start, end) for word in self._words(edge)[0])

    def gradient(self, start: str, end: str) -> str:
        """What the gradient of an activation needs, on its way back."""
        back = reversed(list(_path(start, end)))
        return ", ".join(word for edge in back for word in self._words(edge)[1])

    def again(self, start: str, end: str) -> str:
        """What an activation that was kept needs for the gradient of a weight."""
        return ", ".join(word for edge in _path(start, end) for word in self._words(edge)[2])

    def _words(self, edge: tuple[str, str]) -> tuple[list[str], list[str], list[str]]:
        return self._moved.get(edge, ([], [], []))


def _moved(
    edge: Edge, model: ModelShape, design: DesignPoints, precision: Precision
) -> tuple[list[str], list[str], list[str]]:
    """Collectives of an edge: forward, of the gradient, and of the input that is gathered again."""
    forward, back = changes(edge, model, design, precision)
    again = [change for change in back if (change.hidden_by or ("", ""))[1] == "activation_gradient"]
    gradient = [change for change in back if change not in again]
    words = [[change.name.replace("_", "-") for change in some] for some in (forward, gradient, again)]
    return words[0], words[1], words[2]


def _path(start: str, end: str) -> Iterator[tuple[str, str]]:
    """Edges of the native layer from one kernel to another, past at most one that the graph lacks."""
    pairs = [(edge.start, edge.end) for edge in EDGES if edge.part == "layer"]
    if start == end or (start, end) in pairs:
        yield from [(start, end)] * (start != end)
        return
    for between in dict.fromkeys(np.ravel(pairs).tolist()):
        if (start, between) in pairs and (between, end) in pairs:
            yield from ((start, between), (between, end))
            return
