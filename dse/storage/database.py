"""A connection to SQLite or PostgreSQL, plain SQL on it, its failures in one line each, and backups of SQLite.

Both databases look alike to callers: named parameters, transactions, waiting for locks, one line for each failure.
SQLAlchemy is not imported, so that commands start faster.

An SQLite database in use is a file and its write-ahead log, ``dse.db-wal``. A backup is one file without a log. SQLite
replays the log into any file of the name, so the log of a killed writer would destroy a copy that takes the place of
its database. `restore` moves the old files away together, and `Database` sets aside a log next to a file that has none.
"""

from __future__ import annotations

import logging
import os
import random
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from shutil import copyfileobj
from typing import Any, Final, Literal
from urllib.parse import parse_qs, quote

from costmodel.errors import DseError, masked
from costmodel.formats.input_files import data_beside
from costmodel.installation import installation
from dse.storage.atomic_files import beside, sync_folder

#: Where studies live when neither ``--storage`` nor ``$DSE_STORAGE`` says otherwise.
DEFAULT_URL = "sqlite:///dse.db"

#: Mode of opening a database: read only, write to an existing one, or write and create missing tables.
Mode = Literal["read", "write", "create"]

#: How long to wait for another program's transaction; ``sqlite:///dse.db?timeout=300`` waits longer. [s]
PATIENCE: ContextVar[float] = ContextVar("patience", default=60.0)

#: Of that, how long to wait without a word, and the longest pause between two attempts. [s]
IN_SILENCE, PAUSE = 2.0, 0.01

#: Time for an interrupted process to close its connection. [s]
HURRY = 1.0

#: Longest wait for an answer of a PostgreSQL server, and for sent data to arrive, where its URL has no other. [s], [ms]
ANSWER: dict[str, Any] = {"connect_timeout": 10, "tcp_user_timeout": 30_000}

LOG = logging.getLogger(__name__)

#: Rows that are fetched at once, and the longest value, more than any that dse writes. [-], [B]
ROWS_AT_ONCE, LONGEST = 10_000, 8 << 20

#: Texts of Optuna's tables without a longest length on PostgreSQL, and an expression that fails for a long one.
TEXTS: Final = r"\b(value_json|distribution_json)\b"
BOUNDED: Final = (
    rf"CASE WHEN octet_length(\1) > {LONGEST} THEN CAST(CAST(octet_length(\1) AS smallint) AS text) ELSE \1 END"
)

#: SQLite settings of a connection. A write-ahead log takes one fsync per transaction, and readers and the writer do not
#: block each other; "full": acknowledged data survives a killed process and a power cut.
READING = ("query_only=ON",)
WRITING = ("journal_mode=WAL", "synchronous=FULL")

#: Views in the place of Optuna's tables, and triggers of them, of SQLite.
RUNNING = "SELECT 1 FROM sqlite_master WHERE type IN ('view', 'trigger') AND lower(tbl_name) GLOB '[ts][rt][iu][ad]*'"

#: Parts of the messages of drivers -> message and remedy. The first match wins.
FAILURES: Final[tuple[tuple[list[str], str], ...]] = tuple(
    (row["messages"], row["say"]) for row in data_beside(__file__, "failures.yaml")
)


def storage_url(url: str | None = None) -> str:
    """The storage that a command uses: the given URL, else ``$DSE_STORAGE``, else `DEFAULT_URL`."""
    return url or os.environ.get("DSE_STORAGE") or DEFAULT_URL


def is_postgresql(url: str) -> bool:
    """True if a URL names a PostgreSQL database: ``postgresql://``, or ``postgres://`` as some write it."""
    return re.match(r"postgres(ql)?(\+psycopg)?://", url) is not None


def optuna_url(url: str) -> str:
    """The URL as Optuna takes it, which must name the driver."""
    return f"postgresql+psycopg://{url.partition('://')[2]}" if is_postgresql(url) else url


def shown(url: str) -> str:
    """The URL as messages show it: one line, without its password.

    >>> shown("postgresql://me:secret@host/dse")
    'postgresql://me:***@host/dse'
    """
    return masked(" ".join(url.splitlines()))


class Database:
    """One connection. Parameters of statements are written ``:name``.

    `url` is ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME``; only the mode "create" creates an SQLite file.
    Raises `DseError` in every method for errors of the driver; here also for a URL of another kind.
    """

    def __init__(self, url: str, mode: Mode) -> None:
        self.where = shown(url)
        self.is_sqlite = re.match(r"sqlite(\+pysqlite)?://", url) is not None
        self._driver_error: type[Exception] = sqlite3.Error
        self._too_long: type[Exception] = sqlite3.DataError
        self._within = False  # a transaction
        self._patience = PATIENCE.get()
        self._path = Path()  # of SQLite
        self._identity: tuple[int, int] | None = None
        self.table = ""  #: which a query read last
        self._connection: Any
        if "".join(url.splitlines()) != url:
            raise DseError(f"storage {self.where}: a URL has no line breaks")
        if self.is_sqlite:
            self._connection = self._sqlite(url, mode)
        elif is_postgresql(url):
            self._connection = self._postgresql(url)
        elif "://" in url:
            raise DseError(f"storage {self.where}: expected sqlite:///FILE or postgresql://USER@HOST/NAME")
        else:
            raise DseError(f"storage {url!r}: not a database URL, such as {DEFAULT_URL}")

    def _sqlite(self, url: str, mode: Mode) -> sqlite3.Connection:
        path, query = sqlite_path(url) or Path(), url.partition("?")[2]
        if path.name in ("", ":memory:"):
            raise DseError(f"storage {self.where}: a study in memory cannot be resumed; name a file: {DEFAULT_URL}")
        if not path.parent.is_dir():
            raise DseError(f"storage {self.where}: no folder {str(path.parent)!r}; create it first")
        if mode != "create" and not path.exists():
            raise DseError(f"storage {self.where}: no database there; `dse search` starts one")
        self._patience = waiting_time(parse_qs(query).get("timeout", [str(PATIENCE.get())])[0], self.where)
        set_aside_foreign_log(path, self.where)
        file = f"file:{quote(str(path))}?{sqlite_access(path, mode)}"
        with self._failures_in_one_line():
            connection = sqlite3.connect(file, uri=True, timeout=0, isolation_level=None)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
            try:
                for pragma in READING if mode == "read" else WRITING:
                    # SQLite itself does not wait for a lock before it changes the journal.
                    self._patiently(partial(connection.execute, f"PRAGMA {pragma}"))
                connection.execute(f"PRAGMA busy_timeout={1000 * self._patience:.0f}")
            except sqlite3.Error:
                connection.close()
                raise
        self._path, self._identity = path.absolute(), identity(path)
        return connection

    def _postgresql(self, url: str) -> Any:
        try:
            import psycopg
        except ImportError:
            raise DseError(f"storage {self.where}: needs a driver; install it: {installation('postgresql')}") from None
        self._driver_error, self._too_long = psycopg.Error, psycopg.errors.NumericValueOutOfRange
        with self._failures_in_one_line():
            given = parse_qs(url.partition("?")[2])
            unsaid = {name: value for name, value in ANSWER.items() if name not in given}
            connection = psycopg.connect(f"postgresql://{url.partition('://')[2]}", autocommit=True, **unsaid)
            longest = f"{max(1, round(1000 * self._patience))}"  # 0 would wait without end
            connection.execute("SELECT set_config('lock_timeout', %s, false)", [longest])
            return connection

    def copy_to(self, file: Path) -> None:
        """Write an SQLite database to a new file without a log, as the last transaction left it."""
        with self._failures_in_one_line(), closing(sqlite3.connect(file)) as copy:
            self._connection.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[None]:
        """All statements of a block, or none of them: one that writes has its lock from the start, one that
        only reads sees the database as it was at its first statement. Within another it is part of that.
        """
        if self._within:
            yield
            return
        with self._failures_in_one_line():
            self._begin(writes)
            self._within = True
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            finally:
                self._within = False

    def _begin(self, writes: bool) -> None:
        """Start a transaction that has its snapshot or its lock."""
        if not self.is_sqlite:
            self._connection.execute("BEGIN" if writes else "BEGIN ISOLATION LEVEL REPEATABLE READ")
            return
        self._connection.execute("PRAGMA busy_timeout=0")  # its own attempts become rare: others starve us
        self._patiently(self._begin_sqlite_writing if writes else self._begin_sqlite_reading)
        self._connection.execute(f"PRAGMA busy_timeout={1000 * self._patience:.0f}")

    def _begin_sqlite_writing(self) -> None:
        """Start a transaction that has the lock, of the file that has the name still: SQLite itself would go
        on to write to one that was deleted, or moved away.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        if identity(self._path) != self._identity:
            self._connection.execute("ROLLBACK")
            raise DseError(
                f"storage {self.where}: the file is gone, or another is in its place; put it back, then `dse resume`"
            )

    def _begin_sqlite_reading(self) -> None:
        """Start a transaction that has its snapshot, or none."""
        self._connection.execute("BEGIN")
        try:
            if self._connection.execute(RUNNING).fetchone():
                raise DseError(f"storage {self.where}: has views or triggers, which dse does not run; drop them")
        except (sqlite3.Error, DseError):
            self._connection.execute("ROLLBACK")
            raise

    def _patiently(self, attempt: Callable[[], object]) -> None:
        """Repeat an action that SQLite refuses while others hold a lock, as long as patience lasts."""
        start, said = time.monotonic(), False
        while True:
            try:
                attempt()
                return
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - start
                is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not is_busy or waited >= self._patience:
                    raise
                if waited > IN_SILENCE and not said:
                    said = True
                    LOG.warning(
                        "dse: storage %s: locked by another program; waiting up to %g s for it (--wait)",
                        self.where,
                        self._patience,
                    )
            time.sleep(random.uniform(0, PAUSE))

    def _roll_back(self) -> None:
        """Undo an open transaction, unless a failure has undone it already; the caller reports that failure."""
        with suppress(self._driver_error):
            if not self.is_sqlite or self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """A block in which no lock of SQLite's is waited for longer than `HURRY`."""
        before, self._patience = self._patience, min(self._patience, HURRY)
        try:
            yield
        finally:
            self._patience = before

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        self.table = table_of(statement)
        try:
            return [*self._connection.execute(self._spelt(statement), parameters)]
        except self._too_long:
            raise self._long_value() from None

    def each(self, statement: str, **parameters: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, some thousands at a time in memory; within a transaction."""
        self.table = table_of(statement)
        cursor = self._connection.cursor(**({} if self.is_sqlite else {"name": "each"}))  # of the server
        try:
            cursor.execute(self._spelt(statement), parameters)
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield from rows
        except self._too_long:
            raise self._long_value() from None
        finally:
            with suppress(self._driver_error):  # an interrupted caller may close the connection first
                cursor.close()

    def _long_value(self) -> sqlite3.DataError:
        """An error that names the first row of the table in which a value is too long."""
        columns = f"SELECT name FROM pragma_table_info('{self.table}')"
        if self.is_sqlite:
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 30)
        else:
            self._connection.execute("ROLLBACK")  # the server has given up this transaction
            columns = f"SELECT attname FROM pg_attribute WHERE attrelid = '{self.table}'::regclass AND attnum > 0"
        names = [name.replace('"', '""') for (name,) in self._connection.execute(columns).fetchall()]
        size, row = ("length(CAST({} AS BLOB))", "rowid") if self.is_sqlite else ("octet_length({}::text)", names[0])
        is_long = " OR ".join(size.format(f'"{name}"') + f" > {LONGEST}" for name in names)
        [(first,)] = self._connection.execute(f"SELECT min({row}) FROM {self.table} WHERE {is_long}").fetchall()
        if self.is_sqlite:
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        return sqlite3.DataError(f"{self.table}: row {first}: a value of more than {LONGEST:,} bytes")

    def change(self, statement: str, **parameters: Any) -> int:
        """Number of rows that a statement changed. [-]"""
        self._check_lengths([parameters])
        return int(self._connection.execute(self._spelt(statement), parameters).rowcount)

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows, which all have the same columns."""
        self._check_lengths(rows)
        columns = ", ".join(f'"{name}"' for name in rows[0])
        values = ", ".join(f":{name}" for name in rows[0])
        statement = self._spelt(f"INSERT INTO {table} ({columns}) VALUES ({values})")
        self._connection.cursor().executemany(statement, rows)

    def _check_lengths(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Refuse texts that are too long, as SQLite does."""
        if not self.is_sqlite and any(isinstance(v, str) and len(v) > LONGEST for row in rows for v in row.values()):
            raise self._too_long("string or blob too big")

    def has_table(self, name: str) -> bool:
        """True if there is a table of that name."""
        catalogue = (
            "sqlite_master WHERE type = 'table' AND name = :name"
            if self.is_sqlite
            else "information_schema.tables WHERE table_schema = current_schema() AND table_name = :name"
        )
        return bool(self.rows(f"SELECT 1 FROM {catalogue}", name=name))

    def _spelt(self, statement: str) -> str:
        """A statement with its parameters as the driver wants them."""
        if self.is_sqlite:
            return statement
        bounded = re.sub(TEXTS, BOUNDED, statement) if statement.startswith("SELECT") else statement
        return re.sub(r":(\w+)", r"%(\1)s", bounded)

    @contextmanager
    def _failures_in_one_line(self) -> Iterator[None]:
        """Turn errors of the driver into a `DseError` with a remedy."""
        try:
            yield
        except (self._driver_error, sqlite3.DataError) as error:
            raise self.failure(error) from error

    def failure(self, error: BaseException) -> DseError:
        """The error for a driver's complaint, with a remedy."""
        message = str(error).strip() or type(error).__name__
        meaning = next((words for signs, words in FAILURES if any(s in message for s in signs)), None)
        return DseError(f"storage {self.where}: {(meaning or '{}').format(message.splitlines()[0])}")


@contextmanager
def patience(seconds: float | None) -> Iterator[None]:
    """Databases that are opened in this block wait so long for the locks of others; None as ever. [s]"""
    token = PATIENCE.set(PATIENCE.get() if seconds is None else seconds)
    try:
        yield
    finally:
        PATIENCE.reset(token)


def table_of(query: str) -> str:
    """The first table that a query names; nothing where it names none."""
    match = re.search(r"FROM (\w+)", query)
    return match[1] if match else ""


def identity(path: Path) -> tuple[int, int] | None:
    """Identity of a file, which another file of the same name does not have; None where it does not exist. [-]"""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def waiting_time(text: str, url: str) -> float:
    """Time to wait for a locked database. [s]"""
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]*)?(e[-+]?[0-9]{1,2})?", text):
        raise DseError(f"storage {url}: timeout={text}: expected a number of seconds, such as timeout=10")
    return float(text)


def sqlite_path(url: str) -> Path | None:
    """The file of an SQLite URL; None for other databases."""
    return Path(url.partition("://")[2].partition("?")[0].removeprefix("/")) if url.startswith("sqlite") else None


def set_aside_foreign_log(path: Path, url: str) -> None:
    """Rename a write-ahead log that belongs to another file of the name, as a killed writer leaves it.

    Files with a log differ in their header from backups. SQLite would replay the log into it.
    """
    log = path.with_name(path.name + "-wal")
    try:
        size = log.stat().st_size  # before the header, which a writer changes before it starts a log
        with path.open("rb") as file:
            versions = file.read(20)[18:]
    except OSError:
        return
    if size and versions == b"\x01\x01":
        aside = log.with_name(f"{log.name}.foreign-{secrets.token_hex(4)}")
        try:
            log.rename(aside)
        except OSError as error:
            raise DseError(f"storage {url}: {log.name} is of another file; move it away ({error.strerror})") from None
        LOG.warning("dse: storage %s: %s belongs to another file; it is %s now", url, log.name, aside.name)


def sqlite_access(path: Path, mode: Mode) -> str:
    """The mode in which SQLite opens a file. Its write-ahead log needs files next to it, even to read, and only users
    who may write remove them; where nobody may write, and no log is left, the file cannot change.
    """
    if mode == "create":
        return "mode=rwc"
    if mode == "write" or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return "mode=rw"
    log = path.with_name(path.name + "-wal")
    return "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"


def back_up(url: str, file: Path) -> int:
    """Write a copy of a database to a file, as the last finished transaction left it; returns its size. [B]

    Raises `DseError` if the database is not an SQLite file, or the copy cannot be written.
    """
    source = required_path(url, "pg_dump DATABASE > FILE")
    if file.exists() and (not file.is_file() or (source.exists() and file.samefile(source))):
        raise DseError(f"--backup {file}: is the database itself, or no regular file; name another file")
    if not file.parent.is_dir():
        raise DseError(f"--backup {file}: no folder {str(file.parent)!r}; create it first")
    database = Database(url, "read")
    database.where += f", copied to {file}"
    try:
        with beside(file, durable=True) as copy:  # a folder without rights is a fault of the copy, not of the database
            database.copy_to(Path(copy.name))
    except OSError as error:
        raise DseError(f"--backup {file}: {error.strerror or error}") from None
    finally:
        database.close()
    return file.stat().st_size


def restore(url: str, file: Path) -> Path | None:
    """Put a backup in the place of a database; returns the name that the old database has now, None if none was there.

    Raises `DseError` if the file is not a whole database of studies, or cannot be put there.
    """
    target = required_path(url, "psql DATABASE < FILE")
    if target.exists() and file.exists() and file.samefile(target):
        raise DseError(f"--restore {file}: is the database itself; name a backup")
    checked(file)
    old = target.with_name(f"{target.name}.replaced-{secrets.token_hex(4)}")
    try:
        with file.open("rb") as backup, beside(target, durable=True) as copy:
            copyfileobj(backup, copy)
            copy.seek(18)  # versions of the format: those of a file without a log, see `set_aside_foreign_log`
            copy.write(b"\x01\x01")
            copy.flush()
            os.fsync(copy.fileno())  # the copy is whole before the old database gets its name: the disk may be full
            with suppress(FileNotFoundError):
                try:
                    os.link(target, old, follow_symlinks=False)  # `target` is a database at any moment
                except (OSError, NotImplementedError):  # a file system without links
                    target.rename(old)
        for ending in ("-wal", "-shm"):  # the old log stays with the old file, and is foreign to the new one
            with suppress(FileNotFoundError):
                target.with_name(target.name + ending).rename(old.with_name(old.name + ending))
        sync_folder(target.parent)
    except OSError as error:
        raise DseError(f"--restore {file}: {error.filename or target}: {error.strerror or error}") from None
    return old if old.exists() else None


def required_path(url: str, instead: str) -> Path:
    """The file of an SQLite database; a `DseError` that names the program of PostgreSQL for others."""
    if path := sqlite_path(url):
        return path
    raise DseError(f"backups: PostgreSQL has its own program: {instead}")


def checked(file: Path) -> None:
    """Refuse a file that is not a whole database of studies; a `DseError`."""
    if not file.is_file():
        raise DseError(f"--restore {file}: no such file, or no regular one")
    if (log := file.with_name(file.name + "-wal")).exists() and log.stat().st_size:
        raise DseError(f"--restore {file}: has a log, {log.name}: name a file that `dse studies --backup` wrote")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as copy:
            [(verdict,)] = copy.execute("PRAGMA quick_check(1)").fetchall()
            copy.execute("SELECT count(*) FROM studies")
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        raise DseError(f"--restore {file}: no whole database of studies ({verdict.splitlines()[-1]})")
