"""Studies and their trials in Optuna's own tables, a batch of trials to a transaction.

Optuna writes a trial in twenty or more transactions, each of them an ``fsync``, and looks rows up one
by one. Here a batch is a handful of multi-row inserts in one transaction, into the same tables, so that
``optuna.load_study`` opens the result as its own. No trial is ever stored before it is finished.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Self

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Column, MetaData, String, Table, func, insert, inspect, select, update
from sqlalchemy.engine import Connection, make_url

from costmodel.errors import DseError, suggestion
from dse.database import Mode, connect, failures_in_one_line, shown
from dse.objectives import Direction

TABLES: Mapping[str, Table] = models.BaseModel.metadata.tables
STUDIES = TABLES["studies"]
DIRECTIONS = TABLES["study_directions"]
STUDY_USER_ATTRS = TABLES["study_user_attributes"]
STUDY_SYSTEM_ATTRS = TABLES["study_system_attributes"]
TRIALS = TABLES["trials"]
PARAMS = TABLES["trial_params"]
VALUES = TABLES["trial_values"]
USER_ATTRS = TABLES["trial_user_attributes"]
SYSTEM_ATTRS = TABLES["trial_system_attributes"]
VERSION_INFO = TABLES["version_info"]

#: Revision of Optuna's tables that this module reads and writes; unchanged from Optuna 3.2 to 5.
REVISION = "v3.2.0.a"
REVISION_TABLE = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


DIRECTION_NAMES: Mapping[StudyDirection, Direction] = {
    StudyDirection.MINIMIZE: "minimize",
    StudyDirection.MAXIMIZE: "maximize",
}


@dataclass(frozen=True)
class StoredStudy:
    """What the database holds of one study, its trials aside."""

    study_id: int
    name: str
    directions: tuple[Direction, ...]  #: one per objective
    user_attrs: Mapping[str, Any]
    system_attrs: Mapping[str, Any]


class Store:
    """A database of studies. Use it in a ``with`` block, or call `close`.

    Raises
    ------
    DseError
        In every method, when the database cannot be reached, read or written.
    """

    def __init__(self, url: str, mode: Mode) -> None:
        self.url = url
        self.engine = connect(url, mode)
        self.where = shown(make_url(url))
        try:
            with failures_in_one_line(self.where):
                if mode == "create":
                    with self._writing() as connection:
                        set_up(connection)
                with self.engine.begin() as connection:
                    self._has_tables = self._checked(connection)
        except DseError:
            self.close()
            raise

    def _checked(self, connection: Connection) -> bool:
        """Whether Optuna's tables are there; those of another revision are refused."""
        tables = inspect(connection).get_table_names()
        if STUDIES.name not in tables:
            return False
        revision = (
            connection.scalar(select(REVISION_TABLE.c.version_num)) if REVISION_TABLE.name in tables else None
        )
        if revision != REVISION:
            raise DseError(
                f"storage {self.where}: tables of another Optuna (revision {revision}, not {REVISION}); "
                f"run `optuna storage upgrade --storage {self.where}`"
            )
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()

    def names(self) -> list[str]:
        """Names of the studies, oldest first."""
        if not self._has_tables:
            return []
        with failures_in_one_line(self.where), self.engine.begin() as connection:
            query = select(STUDIES.c.study_name).order_by(STUDIES.c.study_id)
            return list(connection.scalars(query))

    def find(self, name: str) -> StoredStudy | None:
        """The study of that name, if there is one."""
        if not self._has_tables:
            return None
        with failures_in_one_line(self.where), self.engine.begin() as connection:
            study_id = connection.scalar(select(STUDIES.c.study_id).where(STUDIES.c.study_name == name))
            if study_id is None:
                return None
            query = (
                select(DIRECTIONS.c.direction)
                .where(DIRECTIONS.c.study_id == study_id)
                .order_by(DIRECTIONS.c.objective)
            )
            directions = tuple(DIRECTION_NAMES[direction] for direction in connection.scalars(query))
            user_attrs, system_attrs = (
                {key: json.loads(text) for key, text in connection.execute(query)}
                for query in (
                    select(table.c.key, table.c.value_json).where(table.c.study_id == study_id)
                    for table in (STUDY_USER_ATTRS, STUDY_SYSTEM_ATTRS)
                )
            )
        return StoredStudy(study_id, name, directions, user_attrs, system_attrs)

    def study(self, name: str) -> StoredStudy:
        """The study of that name; without it, a `DseError` that suggests another."""
        found = self.find(name)
        if found is None:
            names = self.names()
            hint = suggestion(name, names) or "; it holds no studies yet, `dse search` starts one"
            raise DseError(f"storage {self.where}: no study {name!r}{hint}")
        return found

    def create_study(
        self,
        name: str,
        directions: Sequence[str],
        *,
        user_attrs: Mapping[str, Any],
        metric_names: Sequence[str],
    ) -> StoredStudy:
        """Store a study with its attributes; one that is already there stays as it is."""
        with failures_in_one_line(self.where), self._writing() as connection:
            if connection.scalar(select(STUDIES.c.study_id).where(STUDIES.c.study_name == name)) is None:
                connection.execute(insert(STUDIES).values(study_name=name))
                study_id = connection.scalar(select(STUDIES.c.study_id).where(STUDIES.c.study_name == name))
                rows = [
                    {"study_id": study_id, "objective": i, "direction": StudyDirection[direction.upper()]}
                    for i, direction in enumerate(directions)
                ]
                connection.execute(insert(DIRECTIONS), rows)
                set_study_attrs(connection, STUDY_USER_ATTRS, study_id, user_attrs)
                system_attrs = {"study:metric_names": list(metric_names)}
                set_study_attrs(connection, STUDY_SYSTEM_ATTRS, study_id, system_attrs)
        return self.study(name)

    def counts(self, study_id: int) -> Counter[TrialState]:
        """How many trials a study has in each state."""
        with failures_in_one_line(self.where), self.engine.begin() as connection:
            query = select(TRIALS.c.state, func.count()).where(TRIALS.c.study_id == study_id)
            rows = connection.execute(query.group_by(TRIALS.c.state))
            return Counter(dict(map(tuple, rows)))

    def trials(self, study_id: int) -> list[FrozenTrial]:
        """Every trial of a study, by number, in five queries."""
        with failures_in_one_line(self.where), self.engine.begin() as connection:
            return read_trials(connection, study_id)

    def append(
        self,
        study_id: int,
        trials: Sequence[FrozenTrial],
        *,
        after: int,
        user_attrs: Mapping[str, Any] | None = None,
    ) -> bool:
        """Store finished trials, all of them or none, if the study still holds `after` trials.

        Parameters
        ----------
        study_id : int
            The study. [-]
        trials : sequence of FrozenTrial
            Finished trials; their numbers are assigned here, from `after` on. [-]
        after : int
            Trials that the caller believes to be stored, in any state. [-]
        user_attrs : mapping, optional
            Attributes of the study to set in the same transaction.

        Returns
        -------
        stored : bool
            False when another process has added trials: read again, and decide anew.
        """
        with failures_in_one_line(self.where), self._writing() as connection:
            # PostgreSQL: the row lock lets one writer at a time count and insert. SQLite has a lock for all.
            connection.execute(
                select(STUDIES.c.study_id).where(STUDIES.c.study_id == study_id).with_for_update()
            )
            here = TRIALS.c.study_id == study_id
            if connection.scalar(select(func.count()).where(here)) != after:
                return False
            write_trials(connection, study_id, trials, first=after)
            set_study_attrs(connection, STUDY_USER_ATTRS, study_id, user_attrs or {})
        return True

    def fail_running(self, study_id: int) -> int:
        """Mark trials that another program left unfinished as failed; how many there were. [-]"""
        stale = (TRIALS.c.study_id == study_id) & TRIALS.c.state.in_([TrialState.RUNNING, TrialState.WAITING])
        failed = {"state": TrialState.FAIL, "datetime_complete": datetime.now(UTC).replace(tzinfo=None)}
        with failures_in_one_line(self.where), self._writing() as connection:
            return int(connection.execute(update(TRIALS).where(stale).values(failed)).rowcount)

    def _writing(self) -> Any:
        """A transaction that holds the right to write from its start."""
        return self.engine.execution_options(writes=True).begin()


def set_up(connection: Connection) -> None:
    """Create Optuna's tables where they are missing, and say which revision they are.

    Optuna's own set-up takes 70 to 80 fsyncs and an import of alembic; this is one transaction.
    """
    models.BaseModel.metadata.create_all(connection)
    if connection.scalar(select(func.count()).select_from(VERSION_INFO)) == 0:
        connection.execute(
            insert(VERSION_INFO).values(
                schema_version=models.SCHEMA_VERSION, library_version=optuna.__version__
            )
        )
        REVISION_TABLE.create(connection)
        connection.execute(insert(REVISION_TABLE).values(version_num=REVISION))


def set_study_attrs(connection: Connection, table: Table, study_id: int, attrs: Mapping[str, Any]) -> None:
    """Set attributes of a study, new ones and old ones."""
    for key, value in attrs.items():
        text = json.dumps(value)
        changed = connection.execute(
            update(table).where(table.c.study_id == study_id, table.c.key == key).values(value_json=text)
        )
        if changed.rowcount == 0:
            connection.execute(insert(table).values(study_id=study_id, key=key, value_json=text))


def write_trials(connection: Connection, study_id: int, trials: Sequence[FrozenTrial], *, first: int) -> None:
    """Insert finished trials as Optuna would, table by table."""
    if not trials:
        return
    heads = [
        {
            "number": number,
            "study_id": study_id,
            "state": trial.state,
            "datetime_start": to_utc(trial.datetime_start),
            "datetime_complete": to_utc(trial.datetime_complete),
        }
        for number, trial in enumerate(trials, start=first)
    ]
    connection.execute(insert(TRIALS), heads)
    query = select(TRIALS.c.trial_id).where(TRIALS.c.study_id == study_id, TRIALS.c.number >= first)
    ids = connection.scalars(query.order_by(TRIALS.c.number)).all()
    rows: dict[Table, list[dict[str, Any]]] = defaultdict(list)
    for trial_id, trial in zip(ids, trials, strict=True):
        for table, row in trial_rows(trial):
            rows[table].append({"trial_id": trial_id, **row})
    for table, table_rows in rows.items():
        connection.execute(insert(table), table_rows)


def trial_rows(trial: FrozenTrial) -> list[tuple[Table, dict[str, Any]]]:
    """Rows of one trial in the tables that hang on it, without its id."""
    rows: list[tuple[Table, dict[str, Any]]] = []
    for name, value in trial.params.items():
        distribution = trial.distributions[name]
        stored = {"param_name": name, "param_value": distribution.to_internal_repr(value)}
        rows.append((PARAMS, stored | {"distribution_json": distribution_text(distribution)}))
    for objective, value in enumerate(trial.values):
        stored_value, kind = models.TrialValueModel.value_to_stored_repr(value)
        rows.append((VALUES, {"objective": objective, "value": stored_value, "value_type": kind}))
    for table, attrs in ((USER_ATTRS, trial.user_attrs), (SYSTEM_ATTRS, trial.system_attrs)):
        rows.extend((table, {"key": key, "value_json": json.dumps(value)}) for key, value in attrs.items())
    return rows


def read_trials(connection: Connection, study_id: int) -> list[FrozenTrial]:
    """Trials of a study, by number."""
    query = select(
        TRIALS.c.trial_id,
        TRIALS.c.number,
        TRIALS.c.state,
        TRIALS.c.datetime_start,
        TRIALS.c.datetime_complete,
    )
    trials = {
        trial_id: FrozenTrial(
            trial_id=trial_id,
            number=number,
            state=state,
            value=None,
            values=None,
            datetime_start=to_local(start),
            datetime_complete=to_local(complete),
            params={},
            distributions={},
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )
        for trial_id, number, state, start, complete in connection.execute(
            query.where(TRIALS.c.study_id == study_id).order_by(TRIALS.c.number)
        )
    }

    def rows(table: Table, *columns: str) -> Any:
        """Chosen columns of a table that hangs on trials, in the order they were written."""
        joined = table.join(TRIALS, table.c.trial_id == TRIALS.c.trial_id)
        query = select(table.c.trial_id, *(table.c[name] for name in columns)).select_from(joined)
        [key] = table.primary_key
        return connection.execute(query.where(TRIALS.c.study_id == study_id).order_by(key))

    for trial_id, name, value, text in rows(PARAMS, "param_name", "param_value", "distribution_json"):
        distribution = distribution_of(text)
        trials[trial_id].params[name] = distribution.to_external_repr(value)
        trials[trial_id].distributions[name] = distribution
    values: dict[int, dict[int, float]] = defaultdict(dict)
    for trial_id, objective, value, kind in rows(VALUES, "objective", "value", "value_type"):
        values[trial_id][objective] = models.TrialValueModel.stored_repr_to_value(value, kind)
    for trial_id, numbers in values.items():
        trials[trial_id].values = [numbers[objective] for objective in sorted(numbers)]
    for trial_id, key, text in rows(USER_ATTRS, "key", "value_json"):
        trials[trial_id].user_attrs[key] = json.loads(text)
    for trial_id, key, text in rows(SYSTEM_ATTRS, "key", "value_json"):
        trials[trial_id].system_attrs[key] = json.loads(text)
    return list(trials.values())


@lru_cache(maxsize=1024)
def distribution_of(text: str) -> BaseDistribution:
    """A distribution from its text; the same few texts come back in every trial."""
    return json_to_distribution(text)


@lru_cache(maxsize=1024)
def distribution_text(distribution: BaseDistribution) -> str:
    """A distribution as Optuna writes it."""
    return distribution_to_json(distribution)


def to_utc(local: datetime | None) -> datetime | None:
    """Trials hold naive local time; the tables hold naive UTC."""
    return local.astimezone(UTC).replace(tzinfo=None) if local else None


def to_local(utc: datetime | None) -> datetime | None:
    """The inverse of `to_utc`."""
    return utc.replace(tzinfo=UTC).astimezone().replace(tzinfo=None) if utc else None
