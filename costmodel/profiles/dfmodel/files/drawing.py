"""Graphs of DFModel as text in Graphviz' DOT, which draws them."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np

from costmodel.columns import IntArray
from costmodel.formats.quantity import readable
from costmodel.profiles.dfmodel.graph import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    NOTHING,
    PERIODIC,
    POINT_TO_POINT,
    SHARDINGS,
    DfmodelGraph,
)
from costmodel.profiles.dfmodel.sharding import Traffic

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
    NOTHING: "",
    ALL_REDUCE: "all-reduce",
    ALL_GATHER: "all-gather",
    ALL_TO_ALL: "all-to-all",
    PERIODIC: "all-reduce of gradients",
    POINT_TO_POINT: "point to point",
    BROADCAST: "broadcast",
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
    of_kernels = np.full(len(graph), NOTHING) if traffic is None else traffic.of_kernels
    of_edges = np.full(graph.start.size, NOTHING) if traffic is None else traffic.of_edges
    splits = [""] * len(graph) if sharding is None else [SHARDINGS[int(code)] for code in sharding]
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
