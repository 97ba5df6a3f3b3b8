"""Gives stored trials other values, violations and attributes; their designs and numbers stay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.storage.database import Database
from dse.storage.trial_columns import CONSTRAINT, CONSTRAINTS, INFINITE


@dataclass(frozen=True)
class NewFigures:
    """What some trials are to hold."""

    ids: IntArray  #: (trials,)
    objectives: FloatArray  #: (trials, objectives) [the unit of each]
    violations: FloatArray  #: (trials, limits), above 0 where one is broken [-]
    limits: Sequence[str]  #: their names
    finite: BoolArray  #: (trials,) whether all objectives are numbers
    attributes: Sequence[Mapping[str, Any]]  #: user attributes of each; others that it has stay


def rewrite(database: Database, new: NewFigures) -> None:
    """Write them over what is stored, within a transaction."""
    if not len(new.ids):
        return
    ids = new.ids.tolist()
    meant = ", ".join(map(str, ids))
    names = dict.fromkeys(name for own in new.attributes for name in own)
    database.change(f"DELETE FROM trial_values WHERE trial_id IN ({meant})")
    database.change(
        f"DELETE FROM trial_system_attributes WHERE trial_id IN ({meant}) "
        f'AND ("key" = :name OR substr("key", 1, {len(CONSTRAINT)}) = :prefix)',
        name=CONSTRAINTS,
        prefix=CONSTRAINT,
    )
    places = {f"name_{place}": name for place, name in enumerate(names)}
    listed = ", ".join(f":{place}" for place in places)
    database.change(
        f'DELETE FROM trial_user_attributes WHERE trial_id IN ({meant}) AND "key" IN ({listed})', **places
    )
    database.insert("trial_values", value_rows(ids, new.objectives))
    told = [
        {"trial_id": trial, "key": key, "value_json": json.dumps(value)}
        for trial, own in zip(ids, new.attributes, strict=True)
        for key, value in own.items()
    ]
    database.insert("trial_user_attributes", told)
    if broken := violation_rows(new):
        database.insert("trial_system_attributes", broken)


def value_rows(ids: Sequence[int], objectives: FloatArray) -> list[dict[str, Any]]:
    """Rows of objective values, as Optuna has them; (trials, objectives) [the unit of each]."""
    kinds = {infinite: name for name, infinite in INFINITE.items()}
    return [
        {
            "trial_id": trial,
            "objective": place,
            "value": None if value in kinds else value,
            "value_type": kinds.get(value, "FINITE"),
        }
        for trial, values in zip(ids, objectives.tolist(), strict=True)
        for place, value in enumerate(values)
    ]


def violation_rows(new: NewFigures) -> list[dict[str, Any]]:
    """Rows of violations; objectives that are no numbers are one of their own."""
    rows = [
        {"trial_id": trial, "key": f"{CONSTRAINT}{name}", "value_json": json.dumps(violation)}
        for trial, own in zip(new.ids.tolist(), new.violations.tolist(), strict=True)
        for name, violation in zip(new.limits, own, strict=True)
    ]
    return rows + [
        {"trial_id": trial, "key": f"{CONSTRAINT}finite_objectives", "value_json": "1.0"}
        for trial in new.ids[~new.finite].tolist()
    ]
