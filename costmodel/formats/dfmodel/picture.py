"""Graphs of DFModel as text in Graphviz' DOT, which draws them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    Graph,
)
from costmodel.profiles.dfmodel.traffic import Traffic

#: Collective -> what the picture calls it, and its colour.
COLLECTIVES: Final = {
    ALL_REDUCE: ("all-reduce", "firebrick"),
    ALL_GATHER: ("all-gather", "darkorange"),
    ALL_TO_ALL: ("all-to-all", "purple"),
    PERIODIC: ("all-reduce of gradients", "steelblue"),
    POINT_TO_POINT: ("point to point", "seagreen"),
    BROADCAST: ("broadcast", "olive"),
}
_LINE_BREAK: Final = r"\n"
_HEAD: Final = """digraph dataflow {
  graph [fontname="Helvetica", labeljust="l", compound=true];
  node [fontname="Helvetica", fontsize=11, shape=box];
  edge [fontname="Helvetica", fontsize=9, color=gray40];
"""


def picture(graph: Graph, sharding: IntArray | None = None, traffic: Traffic | None = None) -> str:
    """The graph as DOT text.

    Parameters
    ----------
    graph : Graph
        One design; its kernels' dimensions are (kernels,).
    sharding : (kernels,) array of int, optional
        Dimension that each kernel is split by. [code]
    traffic : Traffic, optional
        What moves between chips; by default what the sharding moves.

    Notes
    -----
    Matrix products are boxes, vector kernels ellipses; weights are filled, with their size. Forward and
    backward pass are frames. What moves between chips is coloured, with its whole size.
    """
    if traffic is None and sharding is not None:
        traffic = Traffic.of(graph, sharding)
    of_kernels = np.full(len(graph), NOTHING) if traffic is None else traffic.of_kernels
    of_edges = np.full(graph.start.size, NOTHING) if traffic is None else traffic.of_edges
    lines = [_HEAD]
    for title, backward in (("forward", False), ("backward", True)):
        own = np.flatnonzero(graph.backward == backward).tolist()
        if own:
            frame = [f"  subgraph cluster_{title} {{", f'    label="{title}";']
            nodes = [f"    {_node(graph, place, sharding, int(of_kernels[place]))}" for place in own]
            lines.append("\n".join([*frame, *nodes, "  }\n"]))
    for place, (start, end) in enumerate(zip(graph.start, graph.end, strict=True)):
        moved = int(of_edges[place])
        size = readable(float(graph.output_bytes[start]), "B")
        shown = _attributes(_label([size, *_said(moved)]), _colour(moved))
        lines.append(f"  k{start + 1} -> k{end + 1} [{shown}];\n")
    return "".join([*lines, "}\n"])


def _node(graph: Graph, place: int, sharding: IntArray | None, moved: int) -> str:
    """One kernel: name, dimensions, weight, sharding, collective."""
    dims = ("outer", "m", "k", "n") if graph.systolic[place] else ("outer", "m", "n")
    shape = "  ".join(f"{dim} {float(getattr(graph, dim)[place]):.0f}" for dim in dims)
    lines = [graph.names[place], shape]
    look = [] if graph.systolic[place] else ["shape=ellipse"]
    if graph.weighted[place]:
        lines.append(f"weight {readable(float(graph.second_bytes[place]), 'B')}")
        look.append('style=filled, fillcolor="lightyellow"')
    if sharding is not None:
        lines.append(f"split: {SHARDINGS[int(sharding[place])]}")
    shown = _attributes(_label([*lines, *_said(moved)]), *look, _colour(moved))
    return f"k{place + 1} [{shown}];"


def _said(collective: int) -> Iterator[str]:
    """The name of a collective, if there is one."""
    if collective != NOTHING:
        yield COLLECTIVES[collective][0]


def _colour(collective: int) -> str:
    """How what a collective moves looks."""
    return "" if collective == NOTHING else f'color="{COLLECTIVES[collective][1]}", penwidth=2'


def _label(lines: Iterable[str]) -> str:
    """Lines as one quoted label."""
    return 'label="' + _LINE_BREAK.join(escaped(line) for line in lines) + '"'


def _attributes(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def escaped(text: str) -> str:
    r"""Any text inside the quotes of DOT.

    >>> escaped('a "b" \\ c')
    'a \\"b\\" \\\\ c'
    """
    return " ".join(text.replace("\\", "\\\\").replace('"', '\\"').split("\n"))
