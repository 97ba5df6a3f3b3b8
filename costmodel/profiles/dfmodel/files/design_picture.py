"""Designs as pictures: a layer's graph with the native model's splits, and the collectives between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from costmodel.profiles.dfmodel.assigned import rows_of
from costmodel.profiles.dfmodel.files.drawing import drawn
from costmodel.profiles.dfmodel.graph import DfmodelGraph
from costmodel.steps.micro_batch.tensor_parallel import layout_changes
from costmodel.training.blocks import Edge, Layer
from costmodel.training.kernel_kind import Kernel
from costmodel.training.run import RankRun, TransformerRun, rank_run

#: How the attention core is split, in words.
HEADS: Final = "heads"


def design_picture(graph: DfmodelGraph, run: TransformerRun) -> str:
    """One design as DOT text.

    Parameters
    ----------
    graph : DfmodelGraph
        The model's layer, `model_graph(model)`.
    run : TransformerRun
        A model of one kind of layers, and one design, its sharding named or explicit.

    Notes
    -----
    A collective is drawn on the edge whose tensor it changes, on each where several kernels use the
    result; the one of a gradient that leaves the graph, at its kernel.
    """
    [layer], design, ranks = run.model.kinds, run.design, rank_run(run)
    drawer, rows = _Collectives(layer, ranks), rows_of(graph, layer)
    shape = ranks.design
    words = shape.assignments.words(float(shape.assignment.flat[0])) if design.tp[0] > 1 else {}
    words |= {kernel.name: HEADS for kernel in layer.kernels if kernel.is_core and words}
    gradients = "reduce-scatter" if design.zero_stage[0] > 0 else "all-reduce"
    sinks = {*range(len(graph))} - {*graph.start.tolist()}
    of_kernels = []
    for place, name in enumerate(graph.names):
        if name.endswith("_weight_update"):
            of_kernels.append(f"{gradients} of gradients" if design.dp[0] > 1 else "")
        elif place in sinks and graph.backward[place]:
            of_kernels.append(drawer.gradient(layer.input_of(rows[place]), rows[place]))
        else:
            of_kernels.append("")
    of_edges = []
    for start, end in zip(graph.start.tolist(), graph.end.tolist(), strict=True):
        pair = rows[start], rows[end]
        if graph.backward[start]:
            of_edges.append(drawer.gradient(*reversed(pair)))
        else:
            of_edges.append(drawer.again(*pair) if graph.backward[end] else drawer.activation(*pair))
    splits = [words.get(row.name, "") for row in rows]
    return drawn(graph, splits, of_kernels, of_edges, title=_title(run))


def _title(run: TransformerRun) -> list[str]:
    """Which layer of which design is drawn, and of what its sizes are."""
    model, design = run.model, run.design
    tp, pp, dp, micro = (float(own[0]) for own in (design.tp, design.pp, design.dp, design.micro_batch_size))
    ranks = f" on all {tp:g} tensor-parallel ranks together" if tp > 1 else ""
    sequences = "1 sequence" if micro == 1 else f"{micro:g} sequences"
    return [
        f"{model.title or model.name}: one of {model.num_layers:g} layers, tp={tp:g} pp={pp:g} dp={dp:g}",
        f"sizes are of one sequence of {model.seq_len:,.0f} tokens{ranks}; a micro-batch is {sequences}",
    ]


class _Collectives:
    """Words for the collectives of one design, by rows of its layer."""

    def __init__(self, layer: Layer, ranks: RankRun) -> None:
        self._layer = layer
        self._moved: dict[Edge, tuple[list[str], list[str], list[str]]] = {}
        if ranks.design.tp[0] > 1:
            self._moved = {edge: _moved(edge, ranks) for edge in layer.edges}

    def activation(self, start: Kernel, end: Kernel) -> str:
        """What an activation on its way needs."""
        return ", ".join(word for edge in self._path(start, end) for word in self._words(edge)[0])

    def gradient(self, start: Kernel, end: Kernel) -> str:
        """What the gradient of an activation needs, on its way back."""
        back = reversed(list(self._path(start, end)))
        return ", ".join(word for edge in back for word in self._words(edge)[1])

    def again(self, start: Kernel, end: Kernel) -> str:
        """What an activation that was kept needs for the gradient of a weight."""
        return ", ".join(word for edge in self._path(start, end) for word in self._words(edge)[2])

    def _words(self, edge: Edge) -> tuple[list[str], list[str], list[str]]:
        return self._moved.get(edge, ([], [], []))

    def _path(self, start: Kernel, end: Kernel) -> Iterator[Edge]:
        """Edges of the layer from one kernel to another, past at most one that the graph lacks."""
        edges = self._layer.edges
        if start == end or Edge(start, end) in edges:
            yield from [Edge(start, end)] * (start != end)
            return
        for between in self._layer.kernels:
            if Edge(start, between) in edges and Edge(between, end) in edges:
                yield from (Edge(start, between), Edge(between, end))
                return


def _moved(edge: Edge, ranks: RankRun) -> tuple[list[str], list[str], list[str]]:
    """Collectives of an edge: forward, of the gradient, and of the input that is gathered again."""
    forward, back = layout_changes(ranks, edge)
    again = [change for change in back if (change.hidden_by or ("", ""))[1] == "activation_gradient"]
    gradient = [change for change in back if change not in again]
    words = [[change.name.replace("_", "-") for change in some] for some in (forward, gradient, again)]
    return words[0], words[1], words[2]
