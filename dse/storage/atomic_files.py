"""Files that are written whole or not at all, even if their writer dies; files of lines that survive its death.

A line log syncs each line behind its CRC-32. A power cut damages at most the last line; the next writer removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from stat import S_ISREG
from time import time
from typing import BinaryIO, Final

from costmodel.errors import DseError

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock

#: Names of files that are being written, next to the files that they replace.
PART_BEGINNING, PART_ENDING = ".dse-", ".part"
#: How old such a file must be to be one that a killed writer left: another needs less to lock its own. [s]
LEFT: Final = 60.0
#: Most characters of a study's name in that of a file.
NAMED: Final = 60


def write_beside(path: Path, pieces: Iterable[bytes], *, durable: bool = False) -> None:
    """Write a file under a temporary name in the same folder, and rename it once it is whole.

    A killed process leaves the temporary file; the next process that writes into the folder removes it. With `durable`,
    the file survives a power cut. Raises `OSError` if it cannot be written; nothing is left of it then.
    """
    with beside(path, durable=durable) as file:
        file.writelines(pieces)


@contextmanager
def beside(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A new file of a temporary name, which replaces another file at the end of a block: see `write_beside`."""
    clear_away(path.parent.absolute())
    part = path.with_name(f"{PART_BEGINNING}{secrets.token_hex(8)}{PART_ENDING}")
    try:
        with part.open("xb") as file:  # created: a link of that name is not followed
            locked(file)
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        part.replace(path)
        if durable:
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):  # the first error tells more
            part.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Wait until a power cut changes no name in a folder; Windows has no call for that."""
    if sys.platform != "win32":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def locked(file: BinaryIO) -> bool:
    """Lock a file for its writer, where the file system has locks; False if another process has locked it."""
    if sys.platform != "win32":
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True


@cache
def clear_away(folder: Path) -> None:
    """Remove leftovers of killed writers in a folder; once a process, as it may be a large one."""
    with suppress(OSError), os.scandir(folder) as entries:  # files that cannot be removed stay
        for entry in entries:
            if entry.name.startswith(PART_BEGINNING) and re.search(rf"{PART_ENDING}(-wal|-shm)?$", entry.name):
                _remove_if_left(Path(entry.path))


def _remove_if_left(part: Path) -> None:
    """Remove a file that is old and that no writer has locked."""
    with suppress(OSError):
        if time() - part.lstat().st_mtime < LEFT or not part.is_file() or part.is_symlink():
            return
        with part.open("rb") as file:
            if sys.platform != "win32":  # which removes no open file anyway
                flock(file, LOCK_EX | LOCK_NB)  # fails while it is written
            part.unlink()


def refuges() -> Iterator[Path]:
    """Folders for files that cannot be written to their folder: the working folder, the user's, the shared one."""
    with suppress(OSError):  # the folder where one works may be gone
        yield Path.cwd()
    with suppress(OSError, RuntimeError):  # some users have no home
        state = Path(os.environ.get("XDG_STATE_HOME") or ".")
        folder = (state if state.is_absolute() else Path.home() / ".local" / "state") / "dse"
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    with suppress(OSError):
        yield Path(tempfile.gettempdir())


def file_name(study: str) -> str:
    """A file name for a study: its name without characters that lead to other folders.

    >>> file_name("gpt3 (2)"), file_name("../../.profile")
    ('gpt3_2_', '__.._.profile')
    """
    return re.sub(r"^\.+|[^\w.-]+", "_", study)[:NAMED]


#: Most bytes of a line. [B]
LONGEST: Final = 1 << 28
#: Bytes of a line before and after its text. [B]
FRAME: Final = 10
#: Flags that open a file as bytes, and a pipe without a wait for its writer, where the system has them.
READING: Final[int] = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class LineLog:
    """A file that one process reads, and then appends lines to."""

    def __init__(self, path: Path, first: bytes) -> None:
        """Open a file, and create it with a first line if there is none.

        Raises `DseError` if another process writes to it, or it is not a file of lines.
        """
        self.path = path
        try:
            if not path.exists() or (path.is_file() and not path.stat().st_size):
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
        with os.fdopen(os.open(path, READING), "rb") as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DseError(f"{path}: a pipe or device; copy its content to a file")
            damaged = 0
            for number, raw in enumerate(iter(lambda: file.readline(LONGEST), b""), start=1):
                line = raw[FRAME - 1 : -1]
                if not damaged and raw == framed(line):
                    yield line
                elif number == 1 or (damaged and raw == framed(line)):
                    raise DseError(f"{path}: not a checkpoint, or damaged (line {damaged or 1}); name another file")
                damaged = damaged or number * (raw != framed(line))
    except OSError as error:
        raise DseError(f"{path}: {error.strerror or error}") from None
