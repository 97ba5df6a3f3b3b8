"""Finished trials as columns, read in bulk: what counts, fronts and samplers need of a study of any size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, json_to_distribution

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.storage.database import Database

#: Infinite values are stored by name, without a number.
INFINITE = {"INF_POS": float("inf"), "INF_NEG": float("-inf")}

#: System attributes of a trial that hold its violations: one each, or, as before Optuna 5, a list of them.
CONSTRAINT, CONSTRAINTS = "constraints:", "constraints"

#: Trials of a study that are finished, from a number on.
FINISHED = (
    "SELECT trial_id FROM trials WHERE study_id = :study_id AND state = 'COMPLETE' AND number >= :first"
)


@dataclass(frozen=True)
class TrialColumns:
    """Finished trials of a study, by number."""

    ids: IntArray  #: (trials,)
    numbers: IntArray  #: (trials,)
    objectives: FloatArray  #: (trials, objectives) values, NaN where there is none [the unit of each]
    feasible: BoolArray  #: (trials,) whether no constraint is violated
    winners: IntArray | None = None  #: (trials,) place among what the trial has found

    def take(self, rows: IntArray) -> TrialColumns:
        """Some of the trials."""
        winners = None if self.winners is None else self.winners[rows]
        objectives, feasible = self.objectives[rows], self.feasible[rows]
        return TrialColumns(self.ids[rows], self.numbers[rows], objectives, feasible, winners)


def read_columns(
    database: Database, study_id: int, objectives: int, *, attribute: str | None = None, first: int = 0
) -> TrialColumns:
    """Finished trials of a study, within a transaction.

    Parameters
    ----------
    database : Database
        In a transaction, so that all columns are of the same trials.
    study_id : int
        The study. [-]
    objectives : int
        Values that a trial has. [-]
    attribute : str, optional
        Only trials that have a user attribute of this name.
    first : int
        Only trials of this number and later. [-]
    """
    meant: dict[str, Any] = {"study_id": study_id, "first": first}
    heads = f"SELECT trial_id, number FROM trials WHERE trial_id IN ({FINISHED})"
    if attribute is not None:
        heads += (
            " AND EXISTS (SELECT 1 FROM trial_user_attributes WHERE trial_user_attributes.trial_id = "
            'trials.trial_id AND "key" = :attribute)'
        )
    named = meant if attribute is None else meant | {"attribute": attribute}
    trials = np.array(list(database.each(f"{heads} ORDER BY number", **named)), dtype=np.intp).reshape(-1, 2)
    row_of = {trial_id: row for row, trial_id in enumerate(trials[:, 0].tolist())}
    values = np.full((len(trials), objectives), np.nan)
    found = "SELECT trial_id, objective, value, value_type FROM trial_values WHERE trial_id IN"
    for trial_id, objective, value, kind in database.each(f"{found} ({FINISHED})", **meant):
        if trial_id in row_of:
            values[row_of[trial_id], objective] = INFINITE.get(kind, value)
    feasible = np.ones(len(trials), dtype=bool)
    feasible[[row_of[trial_id] for trial_id in violating(database, meant) if trial_id in row_of]] = False
    return TrialColumns(trials[:, 0], trials[:, 1], values, feasible)


def read_attribute(database: Database, study_id: int, name: str, *, first: int = 0) -> dict[int, Any]:
    """Identity of each finished trial that has a user attribute of some name -> what it is."""
    query = (
        "SELECT trial_id, value_json FROM trial_user_attributes "
        f'WHERE trial_id IN ({FINISHED}) AND "key" = :name'
    )
    found = database.each(query, study_id=study_id, first=first, name=name)
    return {trial_id: json.loads(text) for trial_id, text in found}


def violating(database: Database, meant: dict[str, Any]) -> set[int]:
    """Identities of the finished trials that violate a constraint."""
    attributes = f"SELECT {{}} FROM trial_system_attributes WHERE trial_id IN ({FINISHED}) AND"
    one = (
        f'CASE WHEN substr("key", 1, {len(CONSTRAINT)}) = :prefix '
        "THEN CAST(value_json AS FLOAT) > 0 ELSE FALSE END"
    )
    found = {
        i for (i,) in database.each(f"{attributes.format('trial_id')} {one}", prefix=CONSTRAINT, **meant)
    }
    several = f'{attributes.format("trial_id, value_json")} "key" = :name'
    for trial_id, text in database.each(several, name=CONSTRAINTS, **meant):
        if any(violation > 0 for violation in json.loads(text)):
            found.add(trial_id)
    return found


def read_params(database: Database, study_id: int, ids: IntArray, *, first: int = 0) -> dict[str, list[Any]]:
    """Parameter -> its value in each of some trials, within a transaction.

    Optuna holds a parameter to one kind of distribution, and a categorical one to its choices, throughout a
    study, so that those of one trial say what the stored numbers of all mean.

    Parameters
    ----------
    database : Database
        In a transaction.
    study_id : int
        The study. [-]
    ids : (trials,) array of int
        Finished trials of it, which have the same parameters. [-]
    first : int
        The least of their numbers. [-]
    """
    if not len(ids):
        return {}
    query = "SELECT param_name, distribution_json FROM trial_params WHERE trial_id = :trial_id"
    distributions: dict[str, BaseDistribution] = {
        name: json_to_distribution(text) for name, text in database.rows(query, trial_id=int(ids[0]))
    }
    row_of = {trial_id: row for row, trial_id in enumerate(ids.tolist())}
    known: dict[str, dict[float, Any]] = {name: {} for name in distributions}
    columns: dict[str, list[Any]] = {name: [None] * len(ids) for name in distributions}
    query = f"SELECT trial_id, param_name, param_value FROM trial_params WHERE trial_id IN ({FINISHED})"
    for trial_id, name, number in database.each(query, study_id=study_id, first=first):
        if trial_id in row_of:
            values = known[name]
            if number not in values:
                values[number] = distributions[name].to_external_repr(number)
            columns[name][row_of[trial_id]] = values[number]
    return columns
