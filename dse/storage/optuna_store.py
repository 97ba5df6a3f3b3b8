"""Studies and their trials in Optuna's own tables, a batch of trials to a transaction.

The tables are Optuna's, so that its dashboard and its samplers read them. Optuna commits several times for each trial;
here a batch has one commit, so that a kill leaves whole batches. For a study that cannot be read, an error names the
study, the database and the table.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from sqlite3 import DataError
from typing import Any, Final

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState

from costmodel.columns import IntArray
from costmodel.errors import DseError, printable, suggestion
from dse.spaces.sections.parameters import Direction
from dse.storage import trial_columns
from dse.storage.atomic_files import PART_BEGINNING, PART_ENDING, clear_away, sync_folder
from dse.storage.database import Database, Mode, optuna_url, sqlite_path
from dse.storage.trial_columns import FINISHED, TrialColumns, TrialDetails

#: Errors of reading content as another type.
DAMAGED: Final = (DataError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
#: Characters that a message quotes of a failure.
QUOTED: Final = 80


def unreadable(study: str, where: str, table: str, error: Exception) -> DseError:
    """One line on a study that cannot be read.

    >>> print(unreadable("s", "sqlite:///dse.db", "study_directions", KeyError("SIDEWAYS")))
    study 's' of sqlite:///dse.db cannot be read: study_directions: KeyError('SIDEWAYS'); restore a copy of \
the database, or delete the study with `dse studies s --delete`
    >>> print(unreadable("s", "sqlite:///dse.db", "trial_params", KeyError("qkv_tile_m")))
    study 's' of sqlite:///dse.db cannot be read: trial_params: no 'qkv_tile_m', a parameter of its space in this \
version; read a study of an earlier dse with that dse, or search again: `dse search ... --study NEW`; else \
restore a copy of the database, or delete the study with `dse studies s --delete`
    """
    failure = str(error).partition("\n")[0] if isinstance(error, DseError | DataError) else repr(error)
    failure = failure.removeprefix(f"{table}: ")
    what = failure if len(failure) <= QUOTED else f"{failure[:QUOTED]}..."
    remedy = f"restore a copy of the database, or delete the study with `dse studies {quote(study)} --delete`"
    if table == "trial_params" and type(error) is KeyError:
        what = f"no {error}, a parameter of its space in this version"
        again = "read a study of an earlier dse with that dse, or search again: `dse search ... --study NEW`"
        remedy = f"{again}; else {remedy}"
    return DseError(f"study {study!r} of {where} cannot be read: {table}: {what}; {remedy}")


#: Revision of Optuna's tables that dse reads and writes; unchanged from Optuna 3.2 to 5.
REVISION: Final = "v3.2.0.a"
TABLES: Final = Path(__file__).with_name("optuna_tables.sql")


def set_up(database: Database, url: str) -> None:
    """Create Optuna's tables where they are missing.

    Optuna's own set-up of an SQLite file takes 70 to 80 fsyncs and an import of SQLAlchemy and alembic;
    this is one transaction. On PostgreSQL it is Optuna's.
    """
    if database.is_sqlite:
        with database.transaction(writes=True):
            if database.has_table("studies"):
                return
            for statement in TABLES.read_text(encoding="utf-8").split(";\n"):
                database.change(statement)
            version = {"version_info_id": 1, "schema_version": 12, "library_version": optuna.__version__}
            database.insert("version_info", [version])
            database.insert("alembic_version", [{"version_num": REVISION}])
        return
    from sqlalchemy.exc import SQLAlchemyError  # a quarter of a second, which SQLite needs not
    from sqlalchemy.pool import NullPool

    with database.transaction(writes=True):
        database.rows("SELECT pg_advisory_xact_lock(20190402)")  # any number; Optuna's set-up has no lock
        if not database.has_table("alembic_version"):
            try:
                optuna.storages.RDBStorage(optuna_url(url), engine_kwargs={"poolclass": NullPool})
            except (SQLAlchemyError, StorageInternalError) as error:
                raise database.failure(error.__cause__ or error) from error


def create_file(url: str) -> None:
    """Create the file of a new SQLite database with all its tables, or no file.

    A power cut while SQLite creates a file in its place can leave one that is not a database. Where the folder has no
    links or cannot be written, or another process is first, `Database` opens or creates the file, or refuses it.
    """
    path = sqlite_path(url)
    if path is None or path.name in ("", ":memory:") or path.exists() or not path.parent.is_dir():
        return
    clear_away(path.parent.absolute())
    part = path.with_name(f"{PART_BEGINNING}{secrets.token_hex(8)}{PART_ENDING}")
    with suppress(DseError, OSError):
        try:
            with closing(Database(f"sqlite:///{part}", "create")) as database:
                set_up(database, url)
            os.link(part, path)
            sync_folder(path.parent)
        finally:
            for ending in ("", "-wal", "-shm"):
                part.with_name(part.name + ending).unlink(missing_ok=True)


#: Directions as Optuna stores them.
DIRECTIONS: Final[Mapping[str, Direction]] = {"MINIMIZE": "minimize", "MAXIMIZE": "maximize"}


def read_study_attributes(database: Database, kind: str, study_id: int, name: str | None = None) -> dict[str, Any]:
    """The "user" or "system" attributes of a study; only one of them, if one is named."""
    query = f'SELECT "key", value_json FROM study_{kind}_attributes WHERE study_id = :study_id'
    only, named = ("", {}) if name is None else (' AND "key" = :name', {"name": name})
    return {str(key): json.loads(text) for key, text in database.rows(query + only, study_id=study_id, **named)}


def read_last(database: Database, study_id: int) -> tuple[int, int]:
    """Identity of the last trial of a study, and how many there are: numbers go on without a gap. [-]"""
    query = "SELECT trial_id, number FROM trials WHERE study_id = :id ORDER BY trial_id DESC LIMIT 1"
    rows = database.rows(query, id=study_id)
    return (rows[0][0], rows[0][1] + 1) if rows else (0, 0)


#: A trial of another program is marked as failed after so long without a heartbeat, or, if it never has one, so long
#: after its start: training runs take hours.
BEATS, OLD = timedelta(minutes=10), timedelta(days=1)

#: Attribute in which Optuna keeps the names of objectives.
METRIC_NAMES: Final = "study:metric_names"

#: Query of a user attribute of finished trials.
ATTRIBUTE: Final = (
    f'SELECT trial_id, value_json FROM trial_user_attributes WHERE trial_id IN ({FINISHED}) AND "key" = :name'
)

#: Trials that are asked for by their identities in one query, and numbers of all trials.
IDS_AT_ONCE, EVERY = 500, range(1 << 31)


@dataclass(frozen=True)
class StoredStudy:
    """One study as the database holds it, without its trials."""

    study_id: int
    name: str
    directions: tuple[Direction, ...]  #: one per objective
    user_attrs: Mapping[str, Any]
    system_attrs: Mapping[str, Any]


@dataclass(frozen=True)
class Moment:
    """A study as the database held it at one moment."""

    rows: int  #: trials, in any state
    trials: TrialColumns  #: some of the finished ones
    params: Mapping[str, list[Any]]  #: parameter -> its value in each of these
    user_attrs: Mapping[str, Any]


class StudyDeleted(DseError):
    """A study is no longer there to be written to."""


class Store(AbstractContextManager["Store"]):
    """A database of studies. Use it in a ``with`` block, or call `close`.

    Raises `DseError` in every method, when the database cannot be reached, read or written.
    """

    def __init__(self, url: str, mode: Mode) -> None:
        if mode == "create":
            create_file(url)
        self.database = Database(url, mode)
        self.where = self.database.where
        try:
            if mode == "create":
                set_up(self.database, url)
            with self.database.transaction():
                self._has_tables = self._checked()
        except DseError:
            self.close()
            raise

    def _checked(self) -> bool:
        """True if Optuna's tables exist; those of another revision are refused."""
        if not self.database.has_table("studies"):
            return False
        has_version = self.database.has_table("alembic_version")
        rows = self.database.rows("SELECT version_num FROM alembic_version") if has_version else []
        revision = rows[0][0] if len(rows) == 1 else None
        if revision != REVISION:
            raise DseError(
                f"storage {self.where}: tables of another Optuna (revision {revision}, not {REVISION}); "
                f"run `optuna storage upgrade --storage {self.where}`"
            )
        return True

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self.database.close()

    @contextmanager
    def reading(self, study_id: int, table: str = "") -> Iterator[None]:
        """A block that reads a study at one moment, and decodes its content.

        `table` is the one that the block decodes, by default the last one read. Raises `DseError` (`unreadable`) if its
        content is not that of a study.
        """
        with self.database.transaction():
            try:
                yield
            except DAMAGED as error:
                table = table or self.database.table
                query = "SELECT study_name FROM studies WHERE study_id = :study_id"
                [(name,)] = self.database.rows(query, study_id=study_id) or [(study_id,)]
                raise unreadable(str(name), self.where, table, error) from error

    def names(self) -> list[str]:
        """Names of the studies, oldest first."""
        if not self._has_tables:
            return []
        with self.database.transaction():
            rows = self.database.rows("SELECT study_name FROM studies ORDER BY study_id")
        return [str(name) for (name,) in rows]

    def find(self, name: str) -> StoredStudy | None:
        """The study of that name, if there is one."""
        if not self._has_tables:
            return None
        with self.database.transaction():
            study_id = self._study_id(name)
            if study_id is None:
                return None
            with self.reading(study_id):
                query = "SELECT direction FROM study_directions WHERE study_id = :study_id ORDER BY objective"
                directions = tuple(DIRECTIONS[word] for (word,) in self.database.rows(query, study_id=study_id))
                if not directions:
                    raise LookupError("no objectives")
                attributes = [read_study_attributes(self.database, kind, study_id) for kind in ("user", "system")]
        return StoredStudy(study_id, name, directions, *attributes)

    def _study_id(self, name: str) -> int | None:
        shown = "".join(printable(name).splitlines())
        if shown.encode(errors="replace") != name.encode(errors="backslashreplace"):
            raise DseError(f"study {name!r}: a name is text without control characters and line breaks")
        rows = self.database.rows("SELECT study_id FROM studies WHERE study_name = :name", name=name)
        return rows[0][0] if rows else None

    def study(self, name: str) -> StoredStudy:
        """The study of that name; without it, a `DseError` that suggests another."""
        stored = self.find(name)
        if stored is None:
            raise self._no_study(name)
        return stored

    def study_id(self, name: str) -> int:
        """Identity of the study of that name, which may be damaged; a `DseError` as from `study`."""
        with self.database.transaction():
            identity = self._study_id(name) if self._has_tables else None
        if identity is None:
            raise self._no_study(name)
        return identity

    def _no_study(self, name: str) -> DseError:
        names = self.names()
        hint = suggestion(name, names)
        if not names:
            hint = "; it holds no studies yet, `dse search` starts one"
        elif not hint:
            nearest = ", ".join(get_close_matches(name, names, cutoff=0))
            hint = f"; the nearest are {nearest}; `dse studies` lists all {len(names)}"
        return DseError(f"storage {self.where}: no study {name!r}{hint}")

    def create_study(
        self, name: str, directions: Sequence[Direction], *, user_attrs: Mapping[str, Any], metric_names: Sequence[str]
    ) -> StoredStudy:
        """Store a study with its attributes; one that is already there stays as it is."""
        with self.database.transaction(writes=True):
            # Of two processes that get here together, the second finds the study of the first.
            insert = "INSERT INTO studies (study_name) VALUES (:name) ON CONFLICT DO NOTHING"
            if self.database.change(insert, name=name):
                study_id = self._study_id(name)
                rows = [
                    {"study_id": study_id, "objective": i, "direction": direction.upper()}
                    for i, direction in enumerate(directions)
                ]
                self.database.insert("study_directions", rows)
                self._set_attributes("user", study_id, user_attrs)
                self._set_attributes("system", study_id, {METRIC_NAMES: list(metric_names)})
        return self.study(name)

    def set_user_attrs(self, study_id: int, attributes: Mapping[str, Any]) -> None:
        """Set attributes of a study, new ones and old ones."""
        with self.database.transaction(writes=True):
            self._set_attributes("user", study_id, attributes)

    def _set_attributes(self, kind: str, study_id: int | None, attributes: Mapping[str, Any]) -> None:
        """Set attributes of a study, new ones and old ones."""
        for key, value in attributes.items():
            self.database.change(
                f'INSERT INTO study_{kind}_attributes (study_id, "key", value_json) '
                "VALUES (:study_id, :name, :text) "
                'ON CONFLICT (study_id, "key") DO UPDATE SET value_json = excluded.value_json',
                study_id=study_id,
                name=key,
                text=json.dumps(value),
            )

    def named(self, study_id: int, prefix: str) -> list[str]:
        """Names of the attributes of a study that begin so."""
        query = 'SELECT "key" FROM study_user_attributes WHERE study_id = :id AND substr("key", 1, :size) = :prefix'
        with self.database.transaction():
            rows = self.database.rows(query, id=study_id, size=len(prefix), prefix=prefix)
        return [key for (key,) in rows]

    def user_attr(self, study_id: int, name: str) -> Any:
        """One attribute of a study; None where it has none of that name."""
        with self.reading(study_id):
            return read_study_attributes(self.database, "user", study_id, name).get(name)

    def drop_user_attrs(self, study_id: int, names: Sequence[str]) -> None:
        """Remove attributes of a study, where they are there."""
        with self.database.transaction(writes=True):
            for name in names:
                statement = 'DELETE FROM study_user_attributes WHERE study_id = :study_id AND "key" = :name'
                self.database.change(statement, study_id=study_id, name=name)

    def rows(self, study_id: int) -> int:
        """Trials of a study, in any state. [-]"""
        with self.reading(study_id):
            return read_last(self.database, study_id)[1]

    def counts(self, study_id: int) -> Counter[TrialState]:
        """Number of trials of a study in each state."""
        every, others = "FROM trials WHERE study_id = :study_id", "AND state <> 'COMPLETE' GROUP BY state"
        query = f"SELECT 'COMPLETE', COUNT(*) {every} UNION ALL SELECT state, COUNT(*) {every} {others}"
        with self.reading(study_id):
            rows = self.database.rows(query, study_id=study_id)
            counts = Counter({TrialState[state]: count for state, count in rows})
        counts[TrialState.COMPLETE] -= counts.total() - counts[TrialState.COMPLETE]  # all, less the others
        return counts

    def trials(self, study_id: int, numbers: range = EVERY) -> list[FrozenTrial]:
        """Trials of a study with these numbers, by number, in five queries."""
        query = f"SELECT trial_id FROM trials WHERE study_id = {study_id:d} AND number >= {numbers.start:d}"
        with self.reading(study_id):
            return trial_columns.read_trials(self.database, f"{query} AND number < {numbers.stop:d}")

    def some_trials(self, study_id: int, ids: IntArray, *, user_attrs: bool = True) -> list[FrozenTrial]:
        """Trials of a study with these identities, (trials,), by number; user attributes if wanted."""
        with self.reading(study_id):
            trials = [
                trial
                for first in range(0, len(ids), IDS_AT_ONCE)
                for trial in trial_columns.read_trials(
                    self.database, ", ".join(map(str, ids[first : first + IDS_AT_ONCE].tolist())), user_attrs=user_attrs
                )
            ]
        return sorted(trials, key=lambda trial: trial.number)

    def details(self, study_id: int, ids: IntArray, names: Sequence[str]) -> TrialDetails:
        """Attributes of trials of a study with these identities, (trials,), besides values: `read_details`."""
        with self.reading(study_id):
            return trial_columns.read_details(self.database, ids, names)

    def keys(self, stored: StoredStudy, name: str) -> list[str]:
        """Every key of a user attribute of the finished trials of a study: a mapping whose keys have no quotes."""
        with self.reading(stored.study_id):
            texts = self.database.each(ATTRIBUTE, study_id=stored.study_id, first=0, name=name)
            key_lists = dict.fromkeys(tuple(str(text).split('"')[1::2]) for _, text in texts)
        return list(dict.fromkeys(key for keys in key_lists for key in keys))

    def has(self, stored: StoredStudy, name: str) -> bool:
        """True if some finished trial of a study has a user attribute."""
        with self.database.transaction():
            return bool(self.database.rows(f"{ATTRIBUTE} LIMIT 1", study_id=stored.study_id, first=0, name=name))

    def columns(self, stored: StoredStudy, *, attribute: str | None = None, first: int = 0) -> TrialColumns:
        """Finished trials of a study in bulk, from number `first` on; with `attribute`, only those that have it."""
        study_id, objectives = stored.study_id, len(stored.directions)
        with self.reading(study_id):
            return trial_columns.read_columns(self.database, study_id, objectives, attribute=attribute, first=first)

    def attribute(self, stored: StoredStudy, name: str, *, first: int = 0) -> dict[int, Any]:
        """Identity -> a user attribute, of the finished trials of a number and later that have it."""
        with self.reading(stored.study_id):
            texts = self.database.each(ATTRIBUTE, study_id=stored.study_id, first=first, name=name)
            return {trial_id: json.loads(text) for trial_id, text in texts}

    def moment(self, stored: StoredStudy, *, attribute: str, first: int) -> Moment:
        """State of a study at one moment, with finished trials from number `first` on that have an attribute."""
        database, study_id = self.database, stored.study_id
        with self.reading(study_id):
            rows = read_last(self.database, study_id)[1]
            trials = trial_columns.read_columns(
                database, study_id, len(stored.directions), attribute=attribute, first=first
            )
            params = trial_columns.read_params(database, trials.ids, FINISHED, study_id=study_id, first=first)
            return Moment(rows, trials, params, read_study_attributes(database, "user", study_id))

    @contextmanager
    def turn(self, study_id: int) -> Iterator[None]:
        """A block in one transaction, within which no other process writes to the study."""
        with self.database.transaction(writes=True):
            # SQLite locks all for one writer; on PostgreSQL, writers of a study queue.
            queue = "" if self.database.is_sqlite else " FOR UPDATE"
            if not self.database.rows(f"SELECT 1 FROM studies WHERE study_id = :id{queue}", id=study_id):
                raise StudyDeleted(f"storage {self.where}: another program has deleted this study meanwhile")
            yield

    def append(
        self, study_id: int, trials: Sequence[FrozenTrial], *, after: int, user_attrs: Mapping[str, Any] | None = None
    ) -> bool:
        """Store finished trials, all of them or none, if the study still holds `after` trials, in any state.

        Numbers are assigned here, from `after` on. `user_attrs` of the study are set in the same transaction. Returns
        False when another process has added trials: read again, and decide again.
        """
        with self.turn(study_id):
            last_id, rows = read_last(self.database, study_id)
            if rows != after:
                return False
            trial_columns.write_trials(self.database, study_id, trials, first=after, last_id=last_id)
            self._set_attributes("user", study_id, user_attrs or {})
        return True

    def fail_running(self, study_id: int) -> int:
        """Mark trials that another program no longer works on as failed; returns their number. [-]

        Programs may be at work on trials: one whose heart beats (`optuna.storages.RDBStorage` writes that,
        if asked to) is alive until it has missed `BEATS`; one without a heartbeat until it is `OLD`.
        """
        now = datetime.now()
        age = (
            "(julianday('now') - julianday(heartbeat)) * 86400"
            if self.database.is_sqlite
            else "EXTRACT(EPOCH FROM CAST(CURRENT_TIMESTAMP AS timestamp) - heartbeat)"
        )
        beats = "SELECT {} FROM trial_heartbeats WHERE trial_heartbeats.trial_id = trials.trial_id"
        with self.database.transaction(writes=True):
            return self.database.change(
                "UPDATE trials SET state = 'FAIL', datetime_complete = :now "
                "WHERE study_id = :study_id AND state = 'RUNNING' AND CASE "
                f"WHEN EXISTS ({beats.format(1)}) THEN ({beats.format(f'MIN({age})')}) > :beats "
                "ELSE datetime_start < :long_ago END",
                study_id=study_id,
                now=trial_columns.utc_text(now),
                beats=BEATS.total_seconds(),
                long_ago=trial_columns.utc_text(now - OLD),
            )


#: Tables with rows of single trials, and of studies, those that others refer to last.
OF_TRIALS: Final = (
    *("trial_heartbeats", "trial_intermediate_values", "trial_values", "trial_params"),
    *("trial_system_attributes", "trial_user_attributes"),
)
OF_STUDIES: Final = (*("trials", "study_system_attributes", "study_user_attributes", "study_directions", "studies"),)


def delete_study(store: Store, study_id: int) -> int:
    """Delete a study with all of its trials in one transaction; the number of trials. [-]

    A `DseError` if the database cannot be written; then nothing is deleted.
    """
    named = {"study_id": study_id}
    with store.database.transaction(writes=True):
        trials = count_trials(store, study_id)
        for table in OF_TRIALS:
            store.database.change(
                f"DELETE FROM {table} WHERE trial_id IN (SELECT trial_id FROM trials WHERE study_id = :study_id)",
                **named,
            )
        for table in OF_STUDIES:
            store.database.change(f"DELETE FROM {table} WHERE study_id = :study_id", **named)
    return trials


def count_trials(store: Store, study_id: int) -> int:
    """Number of trials of a study, in any state. [-]"""
    with store.database.transaction():
        query = "SELECT count(*) FROM trials WHERE study_id = :study_id"
        [(trials,)] = store.database.rows(query, study_id=study_id)
    return int(trials)
