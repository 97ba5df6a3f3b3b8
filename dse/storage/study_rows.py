"""Studies as rows of Optuna's tables, their trials aside, read within a transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from optuna.trial import TrialState

from dse.spaces.objectives import Direction
from dse.storage.damage import DAMAGED, damaged_row
from dse.storage.database import Database

#: Directions as Optuna stores them.
DIRECTIONS: Final[Mapping[str, Direction]] = {"MINIMIZE": "minimize", "MAXIMIZE": "maximize"}


def read_names(database: Database) -> list[str]:
    """Names of the studies, oldest first."""
    found = database.rows("SELECT study_id, study_name FROM studies ORDER BY study_id")
    for study_id, name in found:
        if not isinstance(name, str):
            raise damaged_row(database, "studies", [name], study_id=study_id)
    return [name for _, name in found]


def read_directions(database: Database, study_id: int) -> tuple[Direction, ...]:
    """Direction of each objective of a study."""
    query = "SELECT direction FROM study_directions WHERE study_id = :study_id ORDER BY objective"
    found = [direction for (direction,) in database.rows(query, study_id=study_id)]
    if not found or not all(direction in DIRECTIONS for direction in found):
        raise damaged_row(database, "study_directions", found, study_id=study_id)
    return tuple(DIRECTIONS[direction] for direction in found)


def read_study_attributes(
    database: Database, kind: str, study_id: int, name: str | None = None
) -> dict[str, Any]:
    """The "user" or "system" attributes of a study; only one of them, if one is named."""
    table = f"study_{kind}_attributes"
    query = f'SELECT "key", value_json FROM {table} WHERE study_id = :study_id'
    only = "" if name is None else ' AND "key" = :name'
    named = {} if name is None else {"name": name}
    found = {}
    for key, text in database.rows(query + only, study_id=study_id, **named):
        try:
            found[key] = json.loads(text)
        except DAMAGED as error:
            raise damaged_row(database, table, [key, text], study_id=study_id) from error
    return found


def read_counts(database: Database, study_id: int) -> Counter[TrialState]:
    """How many trials a study has in each state."""
    query = "SELECT state, COUNT(*) FROM trials WHERE study_id = :study_id GROUP BY state"
    found = database.rows(query, study_id=study_id)
    unknown = [state for state, _ in found if state not in TrialState.__members__]
    if unknown:
        raise damaged_row(database, "trials", unknown, study_id=study_id)
    return Counter({TrialState[state]: count for state, count in found})


def read_last(database: Database, study_id: int) -> tuple[int, int]:
    """Identity of the last trial of a study, and how many there are: numbers go on without a gap. [-]"""
    query = "SELECT trial_id, number FROM trials WHERE study_id = :id ORDER BY trial_id DESC LIMIT 1"
    found = database.rows(query, id=study_id)
    if found and not isinstance(found[0][1], int):
        raise damaged_row(database, "trials", found[0][1:], study_id=study_id)
    return (found[0][0], found[0][1] + 1) if found else (0, 0)
