"""Content of a database that is none: said in one line, with the row where it stands, when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from costmodel.errors import DseError
from dse.storage.database import Database

#: What reading a cell as something else raises.
DAMAGED: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)

#: What the rows of a table hold.
ROWS: Final = {
    "alembic_version": "one row, the revision of Optuna's tables",
    "studies": "a name for each study",
    "study_directions": "MINIMIZE or MAXIMIZE for each objective",
    "study_user_attributes": "a name and JSON",
    "study_system_attributes": "a name and JSON",
    "trials": "a number, a state such as COMPLETE, and when it was begun and finished",
    "trial_params": "a name, a number and the distribution that it is of, for each parameter of the study",
    "trial_values": "an objective, a number for it, and FINITE (INF_POS, INF_NEG: no number)",
    "trial_user_attributes": "a name and JSON",
    "trial_system_attributes": "a name and JSON, which is a number for a constraint",
}
#: Characters of a cell that a message quotes.
QUOTED: Final = 40


def damaged(where: str, place: str, found: object, expected: str) -> DseError:
    """One line on content that cannot be read: where it stands, what it is, what is expected.

    >>> print(damaged("sqlite:///dse.db", "study 's': study_directions", "SIDEWAYS", "MINIMIZE"))
    storage sqlite:///dse.db: study 's': study_directions: SIDEWAYS: damaged, or changed by other programs; \
expected MINIMIZE; restore a copy of the database
    """
    cells = found if isinstance(found, tuple) else (found,)
    return DseError(
        f"storage {where}: {place}: {', '.join(map(_quoted, cells)) or 'nothing'}: damaged, or changed by "
        f"other programs; expected {expected}; restore a copy of the database"
    )


def damaged_row(database: Database, table: str, cells: Sequence[Any], **own: Any) -> DseError:
    """The same of a row of a table; `own` is the identity that it hangs on, `trial_id` or `study_id`."""
    return damaged(database.where, f"{owner(database, **own)}: {table}", tuple(cells), ROWS[table])


def owner(database: Database, *, trial_id: Any = None, study_id: Any = None) -> str:
    """A study, or a trial with its study, in words; by its identity alone where its row is gone."""
    if study_id is not None:
        found = database.rows("SELECT study_name FROM studies WHERE study_id = :own", own=study_id)
        return f"study {_quoted(found[0][0])!r}" if found else f"study_id {_quoted(study_id)}"
    query = "SELECT study_id, number FROM trials WHERE trial_id = :own"
    found = database.rows(query, own=trial_id)
    if not found or found[0][0] is None:
        return f"trial_id {_quoted(trial_id)}"
    return f"{owner(database, study_id=found[0][0])}, trial {_quoted(found[0][1])}"


def _quoted(cell: object) -> str:
    """A cell, or its beginning."""
    text = "NULL" if cell is None else str(cell)
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."
