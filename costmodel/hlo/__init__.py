"""HLO modules: the text that XLA prints of a compiled program, read without XLA.

Rooms in the order in which they are read; those on one line do not know each other:

    text
    work
    buffers
    training
    analysis
    summary
    steps
"""

from __future__ import annotations

from pathlib import Path

from costmodel.errors import DseError
from costmodel.formats.input_files import content
from costmodel.hlo.analysis import Analysis
from costmodel.hlo.steps.program import memory, program
from costmodel.hlo.summary.figures import figures
from costmodel.hlo.text.module import Computation, Instruction, Module, Shape
from costmodel.hlo.text.parser import HEAD, other_text, parse
from costmodel.hlo.work.kernel_graph import BARRIERS, HloGraph, graph

__all__ = [
    "BARRIERS",
    "Analysis",
    "Computation",
    "HloGraph",
    "Instruction",
    "Module",
    "Shape",
    "figures",
    "graph",
    "load_module",
    "memory",
    "parse",
    "program",
]


def load_module(path: Path) -> Module:
    """The module in a file, which may be compressed by gzip.

    Raises `DseError` if the file cannot be read, is no compiled module, or for the first mistake in it, with its line
    and token.
    """
    encoded = content(path)
    try:
        text = encoded.decode("utf-8-sig")
    except UnicodeDecodeError:
        what = other_text(encoded[:HEAD]) or "not a text file; expected HLO as XLA prints it, in UTF-8"
        raise DseError(f"{path}: {what}") from None
    return parse(text, str(path))
