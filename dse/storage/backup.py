"""Backups of SQLite databases: copies that are whole while others write, and their restoration.

A database in use is a file and its write-ahead log, ``dse.db-wal``. A backup is one file without a log. SQLite replays
the log beside any file of the name, so the log of a killed writer would destroy a copy that takes the place of its
database. `restore` moves the old files away together, and `Database` sets aside a log beside a file that has none.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from dse.storage.atomic_files import PART_BEGINNING, PART_ENDING, sync_folder, write_beside
from dse.storage.database import Database, sqlite_path

#: Endings of the files of an SQLite database.
ENDINGS: Final = ("-wal", "-shm", "")
#: Bytes that are copied at once. [B]
PIECE: Final = 1 << 20


def back_up(url: str, file: Path) -> int:
    """Write a copy of a database to a file, as the last finished transaction left it; returns its size. [B]

    Raises `DseError` if the database is no SQLite file, or the copy cannot be written.
    """
    source = required_path(url, "pg_dump DATABASE > FILE")
    if file.exists() and source.exists() and file.samefile(source):
        raise DseError(f"--backup {file}: is the database itself; name another file")
    if not file.parent.is_dir():
        raise DseError(f"--backup {file}: no folder {str(file.parent)!r}; create it first")
    part = file.with_name(f"{PART_BEGINNING}{secrets.token_hex(8)}{PART_ENDING}")
    database = Database(url, "read")
    try:
        database.copy_to(part)
        with part.open("rb") as copy:
            os.fsync(copy.fileno())
        part.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        raise DseError(f"--backup {file}: {error.strerror or error}") from None
    finally:
        database.close()
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return file.stat().st_size


def restore(url: str, file: Path) -> Path | None:
    """Put a backup in the place of a database; returns the name that the old database has now, None if none was there.

    Raises `DseError` if the file is no whole database of studies, or cannot be put there.
    """
    target = required_path(url, "psql DATABASE < FILE")
    if target.exists() and file.exists() and file.samefile(target):
        raise DseError(f"--restore {file}: is the database itself; name a backup")
    checked(file)
    old = target.with_name(f"{target.name}.replaced-{secrets.token_hex(4)}")
    moved = False
    try:
        for ending in ENDINGS:  # the old log stays beside the old file
            log = target.with_name(target.name + ending)
            if log.exists():
                log.rename(old.with_name(old.name + ending))
                moved = True
        with file.open("rb") as copy:
            write_beside(target, iter(lambda: copy.read(PIECE), b""), durable=True)
    except OSError as error:
        raise DseError(f"--restore {file}: {error.filename or target}: {error.strerror or error}") from None
    return old if moved else None


def required_path(url: str, instead: str) -> Path:
    """The file of an SQLite database; a `DseError` that names the program of PostgreSQL for others."""
    path = sqlite_path(url)
    if path is None:
        raise DseError(f"backups: PostgreSQL has its own program: {instead}")
    return path


def checked(file: Path) -> None:
    """Refuse a file that is no whole database of studies; a `DseError`."""
    if not file.is_file():
        raise DseError(f"--restore {file}: no such file")
    if (log := file.with_name(file.name + "-wal")).exists() and log.stat().st_size:
        raise DseError(f"--restore {file}: has a log, {log.name}: name a file that `dse studies --backup` wrote")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as copy:
            [(verdict,)] = copy.execute("PRAGMA quick_check(1)").fetchall()
            copy.execute("SELECT count(*) FROM studies")
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        raise DseError(f"--restore {file}: no whole database of studies ({verdict.splitlines()[0]})")
