"""HLO modules: load, analyse and summarize the text that XLA prints of a compiled program."""

from __future__ import annotations

from pathlib import Path

from costmodel.errors import DseError
from costmodel.formats.input_files import content
from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.steps.program import memory, program
from dse.adapters.xla.summary.figures import figures
from dse.adapters.xla.text.module import Computation, Instruction, Module, Shape
from dse.adapters.xla.text.parser import HEAD, other_text, parse
from dse.adapters.xla.work.kernel_graph import BARRIERS, HloGraph, graph

__all__ = [
    "BARRIERS", "Analysis", "Computation", "HloGraph", "Instruction", "Module", "Shape", "figures", "graph",
    "load_module", "memory", "parse", "program",
]  # fmt: skip


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
