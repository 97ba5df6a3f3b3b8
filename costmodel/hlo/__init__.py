"""HLO modules: the text that XLA prints of a compiled program, read without XLA."""

from __future__ import annotations

from pathlib import Path

from costmodel.errors import DseError
from costmodel.formats.packed import content
from costmodel.hlo.analysis import Analysis
from costmodel.hlo.figures import figures
from costmodel.hlo.graph import BARRIERS, HloGraph, graph
from costmodel.hlo.module import Computation, Instruction, Module, Shape
from costmodel.hlo.other_texts import HEAD, other_text
from costmodel.hlo.parser import parse
from costmodel.hlo.tables import memory, program

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

    Raises
    ------
    DseError
        If the file cannot be read, is no compiled module, or for the first mistake in it, with its line and
        token.
    """
    encoded = content(path)
    try:
        text = encoded.decode("utf-8-sig")
    except UnicodeDecodeError:
        what = other_text(encoded[:HEAD]) or "not a text file; expected HLO as XLA prints it, in UTF-8"
        raise DseError(f"{path}: {what}") from None
    return parse(text, str(path))
