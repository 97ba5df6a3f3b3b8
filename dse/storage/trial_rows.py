"""Trials as rows of Optuna's tables: five tables and their texts, written and read.

Optuna inserts the parts of a trial one by one. Here the finished trials of a whole batch are written with one
statement for each table, with the rows and texts that Optuna would write, so that Optuna and its dashboard read them.
Reading goes table by table too, and makes each `FrozenTrial` once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import index
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.trial import FrozenTrial, TrialState

from dse.storage.database import Database
from dse.storage.trial_columns import (
    CONSTRAINT,
    CONSTRAINTS,
    INFINITE,
    distribution_of,
    is_violated,
    number_of,
    value_of,
)

#: What a finished trial is, beside its times.
PACKED = ("params", "values", "user_attrs", "system_attrs")
TIMES = ("datetime_start", "datetime_complete")


def write_trials(database: Database, study_id: int, trials: Sequence[FrozenTrial], *, first: int, last_id: int) -> None:
    """Insert finished trials as Optuna would, table by table: from a number on, after a last identity."""
    heads = [
        {
            "number": number,
            "study_id": study_id,
            "state": trial.state.name,
            "datetime_start": utc_text(trial.datetime_start),
            "datetime_complete": utc_text(trial.datetime_complete),
        }
        for number, trial in enumerate(trials, start=first)
    ]
    if not heads:
        return
    database.insert("trials", heads)
    query = "SELECT trial_id FROM trials WHERE study_id = :study_id AND trial_id > :last_id ORDER BY number"
    ids = [trial_id for (trial_id,) in database.rows(query, study_id=study_id, last_id=last_id)]
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for trial_id, trial in zip(ids, trials, strict=True):
        for table, row in trial_rows(trial):
            rows[table].append({"trial_id": trial_id, **row})
    for table, table_rows in rows.items():
        database.insert(table, table_rows)


def trial_rows(trial: FrozenTrial) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of one trial in the tables that hang on it, without its id."""
    for name, value in trial.params.items():
        distribution = trial.distributions[name]
        stored = {"param_name": name, "param_value": distribution.to_internal_repr(value)}
        yield "trial_params", stored | {"distribution_json": distribution_text(distribution)}
    for objective, value in enumerate(trial.values):
        kind = next((name for name, infinite in INFINITE.items() if value == infinite), "FINITE")
        number = value if kind == "FINITE" else None
        yield "trial_values", {"objective": objective, "value": number, "value_type": kind}
    for key, value in trial.user_attrs.items():
        yield "trial_user_attributes", {"key": key, "value_json": json.dumps(value)}
    for key, value in trial.system_attrs.items():
        yield "trial_system_attributes", {"key": key, "value_json": json.dumps(value)}


def read_trials(database: Database, meant: str, *, user_attrs: bool = True) -> list[FrozenTrial]:
    """Trials whose identities a list or a query gives, by number; user attributes only if wanted."""
    read = _TrialReader()
    tables: dict[str, tuple[str, str, Callable[..., None]]] = {
        "trials": ("number, state, datetime_start, datetime_complete", "number", read.head),
        "trial_params": ("param_name, param_value, distribution_json", "param_id", read.param),
        "trial_values": ("objective, value, value_type", "objective", read.value),
        "trial_user_attributes": ('"key", value_json', "trial_user_attribute_id", read.user_attribute),
        "trial_system_attributes": ('"key", value_json', "trial_system_attribute_id", read.system_attribute),
    }
    for table, (columns, order, fill) in tables.items():
        if table == "trial_user_attributes" and not user_attrs:
            continue
        query = f"SELECT trial_id, {columns} FROM {table} WHERE trial_id IN ({meant}) ORDER BY {order}"
        for trial_id, *cells in database.rows(query):
            fill(trial_id, *cells)
    return list(read.trials.values())


class _TrialReader:
    """Trials that are filled in from table after table, row by row."""

    def __init__(self) -> None:
        self.trials: dict[int, FrozenTrial] = {}

    def head(self, trial_id: int, number: int, state: str, *times: str | datetime | None) -> None:
        """A row of `trials`."""
        self.trials[trial_id] = bare_trial(trial_id, index(number), state, *times)

    def param(self, trial_id: int, name: str, number: float, text: str) -> None:
        """A row of `trial_params`."""
        distribution = distribution_of(text)
        self.trials[trial_id].params[name] = value_of(distribution, number)
        self.trials[trial_id].distributions[name] = distribution

    def value(self, trial_id: int, objective: int, number: float | None, kind: str) -> None:
        """A row of `trial_values`, which come in order."""
        trial = self.trials[trial_id]
        known = trial.values or []
        if objective != len(known):
            raise ValueError("values are counted from 0")
        trial.values = [*known, number_of(number, kind)]

    def user_attribute(self, trial_id: int, key: str, text: str) -> None:
        """A row of `trial_user_attributes`."""
        self.trials[trial_id].user_attrs[key] = json.loads(text)

    def system_attribute(self, trial_id: int, key: str, text: str) -> None:
        """A row of `trial_system_attributes`."""
        value = self.trials[trial_id].system_attrs[key] = json.loads(text)
        if key == CONSTRAINTS or key.startswith(CONSTRAINT):
            is_violated(key, value)


def packed_trial(trial: FrozenTrial) -> dict[str, Any]:
    """A finished trial as text and numbers that JSON knows, without its number and its distributions."""
    return {name: getattr(trial, name) for name in PACKED} | {name: utc_text(getattr(trial, name)) for name in TIMES}


def unpacked_trial(packed: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """The opposite of `packed_trial`; its parameters are among those distributions."""
    trial = bare_trial(0, 0, TrialState.COMPLETE.name, *(packed[name] for name in TIMES))
    trial.distributions = {name: distributions[name] for name in packed["params"]}
    for name in PACKED:
        setattr(trial, name, packed[name])
    return trial


def bare_trial(
    trial_id: int, number: int, state: str, start: str | datetime | None, complete: str | datetime | None
) -> FrozenTrial:
    """A trial as its own row tells it, before the other tables fill it in."""
    return FrozenTrial(
        trial_id=trial_id,
        number=number,
        state=TrialState[state],
        value=None,
        values=None,
        datetime_start=local_time(start),
        datetime_complete=local_time(complete),
        params={},
        distributions={},
        user_attrs={},
        system_attrs={},
        intermediate_values={},
    )


def distribution_text(distribution: BaseDistribution) -> str:
    """A distribution as Optuna writes it."""
    return _text(repr(distribution), distribution)


@lru_cache(maxsize=1024)
def _text(written: str, distribution: BaseDistribution) -> str:
    """`distribution_text`; choices 0 and 1 are equal to false and true, but `written` differs."""
    return distribution_to_json(distribution)


def utc_text(local: datetime | None) -> str | None:
    """Trials hold naive local time; the tables hold naive UTC."""
    if local is None:
        return None
    return local.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def local_time(utc: str | datetime | None) -> datetime | None:
    """The inverse of `utc_text`; PostgreSQL has a type for times, SQLite has text."""
    if utc is None:
        return None
    moment = datetime.fromisoformat(utc) if isinstance(utc, str) else utc
    return moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)
