"""Files of lines that survive the death of their writer: each line is synced, and stands behind its CRC-32.

A power cut damages at most the last line. The next writer removes it.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from costmodel.errors import DseError
from dse.storage.atomic_files import locked, write_beside

#: Most bytes of a line. [B]
LONGEST: Final = 1 << 28
#: Bytes of a line before and after its text. [B]
FRAME: Final = 10


class LineLog:
    """A file that one process reads, and then appends lines to."""

    def __init__(self, path: Path, first: bytes) -> None:
        """Open a file, and create it with a first line if there is none.

        Raises `DseError` if another process writes to it, or it is no file of lines.
        """
        self.path = path
        try:
            if not path.exists() or not path.stat().st_size:
                write_beside(path, [framed(first)], durable=True)
            deque(lines_of(path), maxlen=0)  # a file of another kind is refused
            self.file: BinaryIO = path.open("r+b", buffering=0)
        except OSError as error:
            raise DseError(f"{path}: {error.strerror or error}") from None
        if not locked(self.file):
            self.file.close()
            raise DseError(f"{path}: another command writes to this file; wait for it, or name another file")
        self.lines = [*lines_of(path)]  #: texts that earlier processes wrote
        self.file.truncate(sum(len(line) + FRAME for line in self.lines))
        self.file.seek(0, os.SEEK_END)

    def append(self, line: bytes) -> None:
        """Add a line, which the file has after a power cut too. Raises `DseError` if the disk does not take it."""
        try:
            rest = memoryview(framed(line))
            while rest:
                rest = rest[self.file.write(rest) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            raise DseError(f"{self.path}: {error.strerror or error}; the same command continues") from None


def framed(line: bytes) -> bytes:
    """A line as files hold it."""
    return b"%08x %s\n" % (zlib.crc32(line), line)


def lines_of(path: Path) -> Iterator[bytes]:
    """Texts of the lines of a file, without a last one that is damaged.

    Raises `DseError` if a damaged line is followed by another, or the first one is damaged.
    """
    try:
        with path.open("rb") as file:
            number, damaged = 0, 0
            while raw := file.readline(LONGEST):
                number += 1
                line = raw[FRAME - 1 : -1]
                if not damaged and raw == framed(line):
                    yield line
                elif number == 1 or (damaged and raw == framed(line)):
                    raise DseError(f"{path}: not a checkpoint, or damaged (line {damaged or 1}); name another file")
                damaged = damaged or number * (raw != framed(line))
    except OSError as error:
        raise DseError(f"{path}: {error.strerror or error}") from None
