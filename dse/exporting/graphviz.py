"""Pictures of graphs of kernels, drawn by Graphviz."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from costmodel.errors import DseError

#: Edges up to which Graphviz lays out a graph as a whole. Its time grows with how far edges reach: 333 of a
#: compiled program take 2 s, 1,556 of another more than ten minutes.
MOST_EDGES: Final = 500

#: What each run of Graphviz may take. [s]
PATIENCE: Final = 120.0

#: A line of an edge, with its ends.
_EDGE: Final = re.compile(r"^ *(\w+) -> (\w+) \[.*\];$")


def svg(dot: str) -> bytes:
    """DOT text drawn by Graphviz.

    Parameters
    ----------
    dot : str
        A graph; each edge has a line of its own, and so has the last brace.

    Notes
    -----
    Where there are more than `MOST_EDGES` edges, one into each node decides where it lies: one from the
    producer that is furthest down, so that the node is as far down as in the whole graph. All edges are then
    straight lines.

    Raises
    ------
    DseError
        If Graphviz is not installed, refuses the text, or takes longer than `PATIENCE`.
    """
    program = shutil.which("dot")
    if program is None:
        raise DseError(
            "svg: needs Graphviz, whose `dot` is not on PATH; install graphviz, or take --format dot, "
            "which needs nothing"
        )
    lines = dot.splitlines()
    edges = {place: (found[1], found[2]) for place, line in enumerate(lines) if (found := _EDGE.match(line))}
    if len(edges) <= MOST_EDGES:
        return _output([program, "-Tsvg"], dot)
    others = edges.keys() - deciding_edges(edges)
    tree = "\n".join(line for place, line in enumerate(lines) if place not in others)
    placed = _output([program, "-Tdot", "-Gnewrank=true"], tree).decode().rstrip().removesuffix("}")
    whole = "\n".join([placed, *(lines[place] for place in sorted(others)), "}"])
    return _output([program, "-Kneato", "-n", "-Gsplines=line", "-Tsvg"], whole)


def deciding_edges(edges: Mapping[int, tuple[str, str]]) -> set[int]:
    """For each node that has edges into it, one from a producer that is furthest down.

    >>> sorted(deciding_edges({0: ("a", "b"), 1: ("a", "c"), 2: ("b", "c")}))
    [0, 2]
    """
    level = {name: 0 for ends in edges.values() for name in ends}
    for _ in level:  # as often as the longest way may have nodes; fewer rounds do, but for cycles
        before = dict(level)
        for start, end in edges.values():
            level[end] = max(level[end], level[start] + 1)
        if level == before:
            break
    deciding: dict[str, int] = {}
    for place, (start, end) in edges.items():
        if end not in deciding or level[start] > level[edges[deciding[end]][0]]:
            deciding[end] = place
    return set(deciding.values())


def _output(command: Sequence[str], text: str) -> bytes:
    """What Graphviz makes of a text."""
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise DseError(
            f"svg: {command[0]}: not done after {PATIENCE:g} s; --format dot writes the graph for other tools"
        ) from None
    if done.returncode:
        raise DseError(f"svg: {command[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
