"""Content of input files and pipes: of bounded size, unpacked where packed by gzip, read once."""

from __future__ import annotations

import gzip
import os
import select
import stat
import time
import zlib
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from costmodel.errors import DseError

#: How long a pipe may be silent. [s]
SILENCE = 10.0
#: Most that is read of a pipe, and at once. [B]
MOST_PIPED, AT_ONCE = 64 << 20, 1 << 16

#: Pipe -> when it was last written to, and its content, which cannot be read again. [-] -> [ns]
_READ: Final[dict[tuple[int, int], tuple[int, bytes]]] = {}


def piped(path: Path, largest: int) -> bytes:
    """Content of a pipe up to where its writer closes it; a pipe that was read is remembered.

    Raises `DseError` if it is more than `largest` or `MOST_PIPED` [B], or nothing comes for `SILENCE`.
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


_GZIP: Final = b"\x1f\x8b"
#: Largest file of a kind that a person writes: YAML, JSON, a table of measurements. [B]
LARGEST_WRITTEN: Final = 16 << 20
#: Largest file of a kind that a program writes. [B]
LARGEST: Final = 1 << 30
#: What any packed file may unpack to, and how many times its own size it may be beyond that. [B], [-]
UNPACKED, RATIO = 32 << 20, 50


def checked_file(path: Path, largest: int = LARGEST) -> int | None:
    """Size of a file that may be read; None of a pipe. [B]

    Raises `DseError` if there is none, it is neither a regular file nor a pipe (a device need not end), or it is larger
    than `largest`. [B]
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise DseError(f"{path}: {unreadable(error)}") from None
    if stat.S_ISDIR(found.st_mode):
        raise DseError(f"{path}: is a directory")
    if stat.S_ISFIFO(found.st_mode):
        return None
    if not stat.S_ISREG(found.st_mode):
        raise DseError(f"{path}: not a regular file; copy its content to one")
    if found.st_size > largest:
        raise DseError(f"{path}: {found.st_size:,} bytes; at most {largest:,} are read")
    return found.st_size


def unreadable(error: OSError | ValueError) -> str:
    """Why a file cannot be read, in a few words."""
    return ((error.strerror if isinstance(error, OSError) else None) or str(error)).lower()


def file_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """The content of a file or a pipe of at most so many bytes.

    Raises `DseError` if it cannot be read, or `checked_file` or `piped` refuses it.
    """
    is_pipe = checked_file(path, largest) is None
    try:
        return piped(path, largest) if is_pipe else path.read_bytes()
    except OSError as error:
        raise DseError(f"{path}: {unreadable(error)}") from None


def content(path: Path, most: int | None = None) -> bytes:
    """The first bytes of a file, or all, unpacked if it is packed.

    Raises `DseError` if it cannot be read, or unpacks to far more than what files of text do.
    """
    size = checked_file(path)
    try:
        file: BinaryIO
        if size is None:
            whole = piped(path, LARGEST)
            file, size = BytesIO(whole), len(whole)
        else:
            file = path.open("rb")
        with file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            room = max(UNPACKED, RATIO * size) if packed else size
            source = gzip.GzipFile(fileobj=file) if packed else file
            found = source.read(room + 1 if most is None else most)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DseError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise DseError(f"{path}: {unreadable(error)}") from None
    if len(found) > room:
        raise DseError(f"{path}: unpacks to more than {room:,} bytes; unpack it if you trust it")
    return found
