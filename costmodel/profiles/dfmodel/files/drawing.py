"""Graphs of DFModel, and designs, as text in Graphviz' DOT, which draws them.

A design is a layer's graph with the native model's splits, and the collectives between them.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from costmodel.columns import IntArray
from costmodel.formats.quantity import readable
from costmodel.profiles.dfmodel import graph as codes
from costmodel.profiles.dfmodel.assigned import rows_of
from costmodel.profiles.dfmodel.graph import DfmodelGraph, Traffic
from costmodel.steps.micro_batch.tensor_parallel import layout_changes
from costmodel.training.blocks import Edge, Layer
from costmodel.training.kernel_kind import Kernel
from costmodel.training.run import RankRun, TransformerRun, rank_run

#: Collective -> its colour.
COLOURS: Final = {
    "all-reduce": "firebrick",
    "reduce-scatter": "deeppink",
    "all-gather": "darkorange",
    "all-to-all": "purple",
    "all-reduce of gradients": "steelblue",
    "reduce-scatter of gradients": "steelblue",
    "point to point": "seagreen",
    "broadcast": "olive",
}
#: The format's code of a collective -> what a picture calls it.
NAMES: Final = {
    codes.NOTHING: "",
    codes.ALL_REDUCE: "all-reduce",
    codes.ALL_GATHER: "all-gather",
    codes.ALL_TO_ALL: "all-to-all",
    codes.PERIODIC: "all-reduce of gradients",
    codes.POINT_TO_POINT: "point to point",
    codes.BROADCAST: "broadcast",
}
_LINE_BREAK: Final = r"\n"
_HEAD: Final = """digraph dataflow {
  graph [fontname="Helvetica", labeljust="l", compound=true];
  node [fontname="Helvetica", fontsize=11, shape=box];
  edge [fontname="Helvetica", fontsize=9, color=gray40];
"""


def picture(graph: DfmodelGraph, sharding: IntArray | None = None, traffic: Traffic | None = None) -> str:
    """The graph as DOT text.

    Parameters
    ----------
    graph : DfmodelGraph
        One design; its kernels' dimensions are (kernels,).
    sharding : (kernels,) array of int, optional
        Dimension that each kernel is split by. [code]
    traffic : Traffic, optional
        What moves between chips; by default what the sharding moves.

    Notes
    -----
    As for `drawn`.
    """
    if traffic is None and sharding is not None:
        traffic = Traffic.of(graph, sharding)
    of_kernels = np.full(len(graph), codes.NOTHING) if traffic is None else traffic.of_kernels
    of_edges = np.full(graph.start.size, codes.NOTHING) if traffic is None else traffic.of_edges
    splits = [""] * len(graph) if sharding is None else [codes.SHARDINGS[int(code)] for code in sharding]
    return drawn(graph, splits, [NAMES[int(c)] for c in of_kernels], [NAMES[int(c)] for c in of_edges])


def drawn(
    graph: DfmodelGraph,
    splits: Sequence[str],
    of_kernels: Sequence[str],
    of_edges: Sequence[str],
    *,
    title: Sequence[str] = (),
) -> str:
    """The graph as DOT text, with words for how kernels are split and what moves.

    Parameters
    ----------
    graph : DfmodelGraph
        One design; its kernels' dimensions are (kernels,).
    splits, of_kernels : sequence of str
        How each kernel is split, and what moves once it is done, a key of `COLOURS`; empty for nothing.
    of_edges : sequence of str
        What moves along each edge.
    title : sequence of str
        Lines above the graph; with them comes a legend.

    Notes
    -----
    Matrix products are boxes, vector kernels ellipses; weights are filled, with their size. Forward and
    backward pass are frames. What moves between chips is coloured, with its whole size.
    """
    lines = [_HEAD]
    if title:
        present = {word for text in (*of_kernels, *of_edges) for word in text.split(", ") if word}
        lines.append(_heading(title, present))
    for frame_title, backward in (("forward", False), ("backward", True)):
        own = np.flatnonzero(graph.backward == backward).tolist()
        if own:
            frame = [f"  subgraph cluster_{frame_title} {{", f'    label="{frame_title}";']
            nodes = [f"    {_node(graph, place, splits[place], of_kernels[place])}" for place in own]
            lines.append("\n".join([*frame, *nodes, "  }\n"]))
    for start, end, moved in zip(graph.start, graph.end, of_edges, strict=True):
        size = readable(float(graph.output_bytes[start]), "B")
        shown = _attributes(_label([size, moved]), _colour(moved))
        lines.append(f"  k{start + 1} -> k{end + 1} [{shown}];\n")
    return "".join([*lines, "}\n"])


def _heading(title: Sequence[str], present: Collection[str]) -> str:
    """Title, and what shapes and colours mean: of the collectives that are present."""
    known = [f"<font color='{colour}'>{name}</font>" for name, colour in COLOURS.items() if name in present]
    legend = ["box: matrix product", "ellipse: other kernel", "yellow: has a weight", *known]
    lines = [*map(html.escape, title), " &#183; ".join(legend)]
    return f"  labelloc=t; fontsize=14; label=<{'<br/>'.join(lines)}>;\n"


def _node(graph: DfmodelGraph, place: int, split: str, moved: str) -> str:
    """One kernel: name, dimensions, weight, sharding, collective."""
    dims = ("outer", "m", "k", "n") if graph.systolic[place] else ("outer", "m", "n")
    shape = "  ".join(f"{dim} {float(getattr(graph, dim)[place]):.0f}" for dim in dims)
    lines = [graph.names[place], shape]
    look = [] if graph.systolic[place] else ["shape=ellipse"]
    if graph.weighted[place]:
        lines.append(f"weight {readable(float(graph.second_bytes[place]), 'B')}")
        look.append('style=filled, fillcolor="lightyellow"')
    if split:
        lines.append(f"split: {split}")
    shown = _attributes(_label([*lines, moved]), *look, _colour(moved))
    return f"k{place + 1} [{shown}];"


def _colour(collective: str) -> str:
    """How what a collective moves looks; of several the first."""
    return f'color="{COLOURS[collective.split(", ")[0]]}", penwidth=2' if collective else ""


def _label(lines: Iterable[str]) -> str:
    """Lines as one quoted label, empty ones left out."""
    return 'label="' + _LINE_BREAK.join(escaped(line) for line in lines if line) + '"'


def _attributes(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def escaped(text: str) -> str:
    r"""Any text inside the quotes of DOT.

    >>> escaped('a "b" \\ c')
    'a \\"b\\" \\\\ c'
    """
    return " ".join(text.replace("\\", "\\\\").replace('"', '\\"').split("\n"))


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
    gradients = "reduce-scatter" if design.zero[0] > 0 else "all-reduce"
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
    """Lines that say which layer of which design is drawn, and what its sizes are of."""
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
