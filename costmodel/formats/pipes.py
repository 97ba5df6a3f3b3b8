"""Content of pipes, such as a shell's ``<(zcat step.hlo.gz)``: read once, up to a limit and a silence."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Final

from costmodel.errors import DseError

#: How long a pipe may be silent. [s]
SILENCE = 10.0
#: Most that is read of a pipe, and at once. [B]
MOST_PIPED, AT_ONCE = 64 << 20, 1 << 16

#: Pipe -> when it was last written to, and its content, which cannot be read again. [-] -> [ns]
_READ: Final[dict[tuple[int, int], tuple[int, bytes]]] = {}


def piped(path: Path, largest: int) -> bytes:
    """What comes out of a pipe until its writer closes it, or came out of it before.

    Raises
    ------
    DseError
        If it is more than `largest` or `MOST_PIPED` [B], or nothing comes for `SILENCE`.
    """
    found = path.stat()
    pipe, room = (found.st_dev, found.st_ino), min(largest, MOST_PIPED)
    written, content = _READ.get(pipe, (-1, b""))
    if written != found.st_mtime_ns:
        content = _drained(path, room)
        _READ[pipe] = path.stat().st_mtime_ns, content
    if len(content) > room:
        raise DseError(f"{path}: a pipe of more than {room:,} bytes; copy its content to a file")
    return content


def _drained(path: Path, room: int) -> bytes:
    """All that comes out of a pipe, or a byte more than there is room for. [B]"""
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for a writer
    pieces, size, last = list[bytes](), 0, time.monotonic()
    try:
        while size <= room:
            left = last + SILENCE - time.monotonic()
            if left <= 0:
                raise DseError(f"{path}: a pipe that is silent for {SILENCE:g} s; copy its content to a file")
            if not select.select([pipe], [], [], left)[0]:
                continue
            piece = os.read(pipe, min(AT_ONCE, room + 1 - size))
            if piece:
                pieces.append(piece)
                size, last = size + len(piece), time.monotonic()
            elif pieces:
                break
            else:
                time.sleep(0.01)  # no writer has come yet
    finally:
        os.close(pipe)
    return b"".join(pieces)
