"""Connections to a study's database, and its failures told in one line each."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.pool import StaticPool

from costmodel.errors import DseError

#: Where studies live when neither ``--storage`` nor ``$DSE_STORAGE`` says otherwise.
DEFAULT_URL = "sqlite:///dse.db"

#: How a database is opened: only read, write what is there, or write and set up what is missing.
Mode = Literal["read", "write", "create"]

#: Seconds to wait for another program's transaction; ``sqlite:///dse.db?timeout=60`` waits longer.
PATIENCE = 10.0

#: SQLite settings of a connection. A write-ahead log takes one fsync per transaction, and lets readers and
#: the writer be; "full": what was acknowledged survives not only a killed process but also a power cut.
READING = ("query_only=ON",)
WRITING = ("journal_mode=WAL", "synchronous=FULL")

#: What a driver's message means -> what to say and do. The first match wins.
FAILURES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("database is locked", "database table is locked", "lock timeout"),
        "locked by another program; wait until it is done, or name another --storage",
    ),
    (
        ("file is not a database", "malformed", "file is encrypted"),
        "not an SQLite database, or a damaged one; restore a copy, or name another --storage",
    ),
    (
        ("disk is full", "disk I/O error", "No space left"),
        "the disk is full or failing; finished trials are kept: make room, then `dse resume`",
    ),
    (
        ("readonly database", "read-only"),
        "cannot be written; change its permissions, or name another --storage",
    ),
    (("unable to open database file",), "cannot be opened; check the path and its permissions"),
    (
        ("Connection refused", "could not connect"),
        "no server answers there; start it, or check host and port",
    ),
    (
        ("could not translate host", "failed to resolve host", "Name or service not known"),
        "no such host; check the URL",
    ),
    (
        ("password authentication failed", "no password supplied", "role "),
        "the server refuses this user; check user and password",
    ),
    (("does not exist",), "no such database on the server; create it first (`createdb NAME`)"),
)


def storage_url(url: str | None = None) -> str:
    """The storage that a command uses: what it was told, else ``$DSE_STORAGE``, else `DEFAULT_URL`."""
    return url or os.environ.get("DSE_STORAGE") or DEFAULT_URL


def connect(url: str, mode: Mode) -> Engine:
    """An engine for an SQLite or PostgreSQL URL, ready to use.

    Raises
    ------
    DseError
        For a URL of another kind, a missing driver, or a database that is not there.
    """
    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        raise DseError(f"storage {url!r}: not a database URL, such as {DEFAULT_URL}") from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return sqlite_engine(parsed, mode)
    if backend in ("postgresql", "postgres"):
        return postgresql_engine(parsed)
    raise DseError(f"storage {shown(parsed)}: expected sqlite:///FILE or postgresql://USER@HOST/NAME")


def sqlite_engine(url: URL, mode: Mode) -> Engine:
    """One connection to an SQLite file, which only mode ``create`` brings into being."""
    if not url.database or url.database == ":memory:":
        raise DseError(f"storage {url}: a study in memory cannot be resumed; name a file: {DEFAULT_URL}")
    path = Path(url.database)
    if not path.parent.is_dir():
        raise DseError(f"storage {url}: no folder {str(path.parent)!r}; create it first")
    if mode != "create" and not path.exists():
        raise DseError(f"storage {url}: no database there; `dse search` starts one")
    patience = float(str(url.query.get("timeout", PATIENCE)))
    access = sqlite_access(path, mode)

    def connection() -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(str(path))}?{access}", uri=True, timeout=patience, isolation_level=None
        )

    engine = sqlalchemy.create_engine("sqlite://", creator=connection, poolclass=StaticPool)
    event.listen(engine, "begin", begin_sqlite)
    try:
        with failures_in_one_line(shown(url)), engine.connect() as opened:
            driver = opened.connection.cursor()
            for pragma in READING if mode == "read" else WRITING:
                driver.execute(f"PRAGMA {pragma}")
    except DseError:
        engine.dispose()
        raise
    return engine


def sqlite_access(path: Path, mode: Mode) -> str:
    """How SQLite opens a file. Its write-ahead log needs files beside it, even to read, and only those
    who may write clear them away; where nobody may write, and no log is left, the file cannot change.
    """
    if mode == "create":
        return "mode=rwc"
    if mode == "write" or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return "mode=rw"
    log = path.with_name(path.name + "-wal")
    return "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"


def begin_sqlite(connection: Connection) -> None:
    """Start a transaction at once: the driver would wait for the first write, too late for a lock."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def postgresql_engine(url: URL) -> Engine:
    """An engine that speaks to PostgreSQL through psycopg 3."""
    try:
        return sqlalchemy.create_engine(url.set(drivername="postgresql+psycopg"))
    except ModuleNotFoundError:
        raise DseError(
            f"storage {shown(url)}: needs a driver; install it: pip install 'dse[postgresql]'"
        ) from None


def shown(url: URL) -> str:
    """The URL as messages show it, without its password."""
    return url.render_as_string(hide_password=True)


@contextmanager
def failures_in_one_line(where: str) -> Iterator[None]:
    """Turn what a driver raises into a `DseError` that says what would do."""
    try:
        yield
    except (exc.DBAPIError, sqlite3.Error) as error:
        message = str(getattr(error, "orig", None) or error).strip()
        meaning = next((told for signs, told in FAILURES if any(s in message for s in signs)), None)
        raise DseError(f"storage {where}: {meaning or message.splitlines()[0]}") from error
