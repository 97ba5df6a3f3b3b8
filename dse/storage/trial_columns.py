"""Trials in Optuna's tables: finished ones as columns, for studies of any size, and single ones as `FrozenTrial`.

Queries return one column for all trials. NumPy arrays are made from them directly; texts of distributions are decoded
once, since a study repeats few of them. Optuna inserts the parts of a trial one by one. Here the finished trials of a
whole batch are written with one statement for each table, with the rows and texts that Optuna would write, so that
Optuna and its dashboard read them.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.storage.database import Database

#: Infinite values are stored by name, without a number.
INFINITE = {"INF_POS": float("inf"), "INF_NEG": float("-inf")}
NAMES = {infinite: name for name, infinite in INFINITE.items()}

#: System attributes of a trial that hold its violations: one each, or, as before Optuna 5, a list of them.
CONSTRAINT, CONSTRAINTS = "constraints:", "constraints"

#: Trials of a study that are finished, from a number on.
FINISHED = "SELECT trial_id FROM trials WHERE study_id = :study_id AND state = 'COMPLETE' AND number >= :first"


@dataclass(frozen=True)
class TrialColumns:
    """Finished trials of a study, by number."""

    ids: IntArray  #: (trials,)
    numbers: IntArray  #: (trials,)
    objectives: FloatArray  #: (trials, objectives) values, NaN where there is none [the unit of each]
    feasible: BoolArray  #: (trials,) whether no constraint is violated
    winners: IntArray | None = None  #: (trials,) place among the winners of the trial

    def take(self, rows: IntArray) -> TrialColumns:
        """Columns of some of the trials."""
        winners = None if self.winners is None else self.winners[rows]
        objectives, feasible = self.objectives[rows], self.feasible[rows]
        return TrialColumns(self.ids[rows], self.numbers[rows], objectives, feasible, winners)


@dataclass(frozen=True)
class TrialDetails:
    """Attributes of some trials besides their values, one list each in the same order."""

    params: Mapping[str, list[Any]]  #: parameter -> values
    attributes: Mapping[str, list[str]]  #: user attribute -> JSON texts, "" where a trial has none
    completed: list[datetime | None]  #: when each was finished, in UTC


def read_columns(
    database: Database, study_id: int, objectives: int, *, attribute: str | None = None, first: int = 0
) -> TrialColumns:
    """Finished trials of a study with this number of objectives, within a transaction.

    With `attribute`, only trials that have a user attribute of this name; of number `first` or later. [-]
    """
    meant: dict[str, Any] = {"study_id": study_id, "first": first}
    heads = f"SELECT trial_id, number FROM trials WHERE trial_id IN ({FINISHED})"
    if attribute is not None:
        of_trial = 'trial_user_attributes.trial_id = trials.trial_id AND "key" = :attribute'
        heads += f" AND EXISTS (SELECT 1 FROM trial_user_attributes WHERE {of_trial})"
    rows = list(database.each(f"{heads} ORDER BY number", **meant, attribute=attribute))
    trials = np.array(rows, dtype=np.intp).reshape(-1, 2)
    if not np.diff(trials[:, 1]).all():
        raise ValueError("two trials of one number")
    row_of = {trial_id: row for row, trial_id in enumerate(trials[:, 0].tolist())}
    values = _values(database, meant, row_of, objectives)
    feasible = np.ones(len(trials), dtype=bool)
    feasible[[row_of[trial_id] for trial_id in violating(database, meant) if trial_id in row_of]] = False
    return TrialColumns(trials[:, 0], trials[:, 1], values, feasible)


def _values(database: Database, meant: dict[str, Any], row_of: Mapping[int, int], objectives: int) -> FloatArray:
    """Objective values of some finished trials, (trials, objectives) in the unit of each."""
    values = np.full((len(row_of), objectives), np.nan)
    places = {objective: objective for objective in range(objectives)}
    query = f"SELECT trial_id, objective, value, value_type FROM trial_values WHERE trial_id IN ({FINISHED})"
    for trial_id, objective, value, kind in database.each(query, **meant):
        if trial_id in row_of:
            values[row_of[trial_id], places[objective]] = number_of(value, kind)
    if np.isnan(values).any():
        raise LookupError("a trial without a value")
    return values


def number_of(value: Any, kind: str) -> float:
    """The number that a row of `trial_values` holds.

    Raises `ValueError` or `TypeError` or `KeyError` if it holds none.
    """
    number = float(value) if kind == "FINITE" else INFINITE[kind]
    if math.isnan(number):
        raise ValueError("no number")
    return number


def value_of(distribution: BaseDistribution, stored: Any) -> Any:
    """The value that a stored number of a parameter represents.

    Raises `ValueError` or `TypeError` if it stands for nothing.
    """
    number = float(stored)
    count = len(distribution.choices) if isinstance(distribution, CategoricalDistribution) else math.inf
    if not math.isfinite(number) or (count < math.inf and not 0 <= number < count):
        raise ValueError("outside the distribution")
    return distribution.to_external_repr(number)


@lru_cache(maxsize=1024)
def distribution_of(text: str) -> BaseDistribution:
    """A distribution from its text; the same texts come back in every trial."""
    return json_to_distribution(text)


def read_details(database: Database, ids: IntArray, names: Sequence[str]) -> TrialDetails:
    """Parameters and user attributes of finished trials of one study, within a transaction.

    The trials, (trials,) identities, have the same parameters. [-]
    """
    meant = ", ".join(map(str, ids.tolist()))
    row_of = {trial_id: row for row, trial_id in enumerate(ids.tolist())}
    query = f"SELECT trial_id, datetime_complete FROM trials WHERE trial_id IN ({meant})"
    moments = {trial_id: moment_of(moment) for trial_id, moment in database.each(query)}
    attributes = {name: [""] * len(ids) for name in names}
    wanted = {f"name_{number}": name for number, name in enumerate(names)}
    query = (
        f'SELECT trial_id, "key", value_json FROM trial_user_attributes WHERE trial_id IN ({meant}) '
        f'AND "key" IN ({", ".join(f":{key}" for key in wanted)})'
    )
    for trial_id, name, text in database.each(query, **wanted):
        attributes[name][row_of[trial_id]] = text
    return TrialDetails(read_params(database, ids, meant), attributes, [moments.get(i) for i in row_of])


def moment_of(stored: str | datetime | None) -> datetime | None:
    """A time that is stored in UTC, with its time zone; PostgreSQL has a type for times."""
    moment = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return moment.replace(tzinfo=UTC) if moment else None


def violating(database: Database, meant: dict[str, Any]) -> set[int]:
    """Identities of the finished trials that violate a constraint."""
    query = (
        f'SELECT trial_id, "key", value_json FROM trial_system_attributes WHERE trial_id IN ({FINISHED}) '
        f'AND (substr("key", 1, {len(CONSTRAINT)}) = :prefix OR "key" = :name)'
    )
    rows = list(database.each(query, prefix=CONSTRAINT, name=CONSTRAINTS, **meant))
    decoded = decoded_texts([text for *_, text in rows])
    return {row[0] for row, value in zip(rows, decoded, strict=True) if is_violated(row[1], value)}


def decoded_texts(texts: Sequence[str]) -> list[Any]:
    """Values of JSON texts, all at once. Raises `ValueError` if one of them is something else."""
    values: list[Any] = json.loads(f"[{','.join(texts)}]")
    if len(values) != len(texts):
        raise ValueError("several values in one text")
    return values


def is_violated(key: str, violation: Any) -> bool:
    """True if a system attribute of a trial, `CONSTRAINTS` or one that begins with `CONSTRAINT`, reports a violation.

    Raises `ValueError` or `TypeError` if it holds no number, or is not a list of them: neither kept nor violated.
    """
    numbers = violation if key == CONSTRAINTS else [violation]
    for number in numbers:
        if type(number) not in (int, float) or math.isnan(number):
            raise ValueError("no number")
    return max(numbers, default=0) > 0


def read_params(database: Database, ids: IntArray, meant: str, **named: Any) -> dict[str, list[Any]]:
    """Parameter -> its value in each of some finished trials, (trials,) identities, within a transaction. [-]

    Optuna restricts a parameter to one kind of distribution, and a categorical one to its choices, throughout a study,
    so that those of one trial decode the stored numbers of all. `meant` is a list of identities or a query with `named`
    parameters, which may have other trials too.
    """
    if not len(ids):
        return defaultdict(list)  # every parameter has no values
    query = "SELECT param_name, distribution_json FROM trial_params WHERE trial_id = :trial_id"
    distributions = {name: distribution_of(text) for name, text in database.rows(query, trial_id=int(ids[0]))}
    row_of = {trial_id: row for row, trial_id in enumerate(ids.tolist())}
    known: dict[str, dict[float, Any]] = {name: {} for name in distributions}
    columns: dict[str, list[Any]] = {name: [None] * len(ids) for name in distributions}
    query = f"SELECT trial_id, param_name, param_value FROM trial_params WHERE trial_id IN ({meant})"
    for trial_id, name, number in database.each(query, **named):
        if trial_id in row_of and name in known:
            if number not in known[name]:
                known[name][number] = value_of(distributions[name], number)
            columns[name][row_of[trial_id]] = known[name][number]
        elif trial_id in row_of:
            columns[name] = [None]
    if any(None in column for column in columns.values()):
        raise LookupError("trials of unlike parameters")
    return columns


#: Fields of a finished trial, except its times.
PACKED = ("params", "values", "user_attrs", "system_attrs")
TIMES = ("datetime_start", "datetime_complete")
EMPTY = ("params", "distributions", "user_attrs", "system_attrs", "intermediate_values")


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
    distributions = {id(of): of for trial in trials for of in trial.distributions.values()}
    texts = {key: distribution_to_json(of) for key, of in distributions.items()}  # trials share them
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for trial_id, trial in zip(ids, trials, strict=True):
        head = {"trial_id": trial_id}
        for name, value in trial.params.items():
            of = trial.distributions[name]
            number, text = of.to_internal_repr(value), texts[id(of)]
            rows["trial_params"].append(head | {"param_name": name, "param_value": number, "distribution_json": text})
        for objective, value in enumerate(trial.values):
            finite = None if value in NAMES else value
            kind = NAMES.get(value, "FINITE")
            rows["trial_values"].append(head | {"objective": objective, "value": finite, "value_type": kind})
        for kind, attributes in (("user", trial.user_attrs), ("system", trial.system_attrs)):
            for key, value in attributes.items():
                rows[f"trial_{kind}_attributes"].append(head | {"key": key, "value_json": json.dumps(value)})
    for table, table_rows in rows.items():
        database.insert(table, table_rows)


def read_trials(database: Database, meant: str, *, user_attrs: bool = True) -> list[FrozenTrial]:
    """Trials whose identities a list or a query gives, by number; user attributes only if wanted."""

    def rows(table: str, columns: str, order: str) -> list[Any]:
        query = f"SELECT trial_id, {columns} FROM {table} WHERE trial_id IN ({meant}) ORDER BY {order}"
        return database.rows(query)

    heads = rows("trials", "number, state, datetime_start, datetime_complete", "number")
    trials = {trial_id: bare_trial(trial_id, index(number), *head) for trial_id, number, *head in heads}
    for trial_id, name, number, text in rows("trial_params", "param_name, param_value, distribution_json", "param_id"):
        distribution = trials[trial_id].distributions[name] = distribution_of(text)
        trials[trial_id].params[name] = value_of(distribution, number)
    for trial_id, objective, number, kind in rows("trial_values", "objective, value, value_type", "objective"):
        known = trials[trial_id].values or []
        if objective != len(known):
            raise ValueError("values are counted from 0")
        trials[trial_id].values = [*known, number_of(number, kind)]
    if user_attrs:
        for trial_id, key, text in rows("trial_user_attributes", '"key", value_json', "trial_user_attribute_id"):
            trials[trial_id].user_attrs[key] = json.loads(text)
    for trial_id, key, text in rows("trial_system_attributes", '"key", value_json', "trial_system_attribute_id"):
        value = trials[trial_id].system_attrs[key] = json.loads(text)
        if key == CONSTRAINTS or key.startswith(CONSTRAINT):
            is_violated(key, value)
    return list(trials.values())


def packed_trial(trial: FrozenTrial) -> dict[str, Any]:
    """A finished trial as texts and numbers for JSON, without its number and its distributions."""
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
    """A trial with the columns of its row, before those of other tables are added."""
    empty: dict[str, Any] = {name: {} for name in EMPTY}
    return FrozenTrial(
        trial_id=trial_id,
        number=number,
        state=TrialState[state],
        value=None,
        datetime_start=local_time(start),
        datetime_complete=local_time(complete),
        **empty,
    )


def utc_text(local: datetime | None) -> str | None:
    """Trials hold naive local time; the tables hold naive UTC."""
    if local is None:
        return None
    return local.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def local_time(utc: str | datetime | None) -> datetime | None:
    """The inverse of `utc_text`; PostgreSQL has a type for times, SQLite has text."""
    moment = moment_of(utc)
    return moment and moment.astimezone().replace(tzinfo=None)
