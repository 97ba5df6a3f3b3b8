"""HLO modules: the text that XLA prints of a compiled program, read without XLA."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from costmodel.hlo.analysis import Analysis
from costmodel.hlo.figures import figures
from costmodel.hlo.graph import BARRIERS, Graph, graph
from costmodel.hlo.module import Computation, Instruction, Module, Shape
from costmodel.hlo.parser import parse
from costmodel.hlo.tables import peak, program

__all__ = [
    "BARRIERS",
    "Analysis",
    "Computation",
    "Graph",
    "Instruction",
    "Module",
    "Shape",
    "figures",
    "graph",
    "is_hlo",
    "load_module",
    "parse",
    "peak",
    "program",
]

_GZIP: Final = b"\x1f\x8b"
_START: Final = b"HloModule"


def load_module(path: Path) -> Module:
    """The module in a file, which may be compressed by gzip.

    Raises
    ------
    DseError
        If the file cannot be read, or for the first mistake in it, with its line and token.
    """
    encoded = _opened(path)
    try:
        text = encoded.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DseError(f"{path}: not a text file; expected HLO as XLA prints it, in UTF-8") from None
    return parse(text, str(path))


def is_hlo(path: Path) -> bool:
    """Whether a file begins as an HLO module does, whatever it is called.

    Raises
    ------
    DseError
        If it cannot be read.
    """
    return _opened(path, most=4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_START)


def _opened(path: Path, most: int = -1) -> bytes:
    """The first bytes of a file, or all, unpacked if it is packed."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        with gzip.open(path) if packed else path.open("rb") as content:
            return content.read(most)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DseError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise DseError(f"{path}: {(error.strerror or str(error)).lower()}") from None
