"""Standard error as text that steers no terminal, whatever names notes quote."""

from __future__ import annotations

import io
from typing import TextIO

from costmodel.errors import printable


class PrintableStream(io.TextIOBase):
    """A stream that shows what would steer a terminal, instead of letting it.

    Parameters
    ----------
    plain : text file
        Where the text goes.
    """

    def __init__(self, plain: TextIO) -> None:
        self.plain = plain

    def write(self, text: str) -> int:
        """Write a text; how much of it was written. [characters]"""
        self.plain.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Pass on what is buffered."""
        self.plain.flush()

    def isatty(self) -> bool:
        """Whether a terminal reads it."""
        return self.plain.isatty()

    def fileno(self) -> int:
        """Number of the file."""
        return self.plain.fileno()


def plain_stream(stream: TextIO) -> TextIO:
    """The stream itself, for what draws on a terminal."""
    return stream.plain if isinstance(stream, PrintableStream) else stream
