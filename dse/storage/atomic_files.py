"""Files that are written whole or not at all, whatever befalls their writer; what killed writers left."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import time
from typing import BinaryIO, Final

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock

#: Names of files that are being written, beside those whose places they take.
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
    clear_away(path.parent.absolute())
    part = path.with_name(f"{PART_BEGINNING}{secrets.token_hex(8)}{PART_ENDING}")
    try:
        with part.open("xb") as file:  # anew: a link of that name is not followed
            locked(file)
            file.writelines(pieces)
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
    """Remove what killed writers left in a folder; once a process, as it may be a large one."""
    with suppress(OSError), os.scandir(folder) as entries:  # what cannot be removed stays
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
    """Folders for what cannot be written where it belongs: where one works, one's own, that of all."""
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
