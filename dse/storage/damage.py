"""A study that cannot be read: one line with the study, the database and the table."""

from __future__ import annotations

from shlex import quote
from typing import Final

from costmodel.errors import DseError

#: What reading content as something else raises.
DAMAGED: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
#: Characters that a message quotes of a failure.
QUOTED: Final = 80


def unreadable(study: str, where: str, table: str, error: Exception) -> DseError:
    """One line on a study that cannot be read.

    >>> print(unreadable("s", "sqlite:///dse.db", "study_directions", KeyError("SIDEWAYS")))
    study 's' of sqlite:///dse.db cannot be read: study_directions: KeyError('SIDEWAYS'); restore a copy of \
the database, or delete the study with `dse studies s --delete`
    """
    failure = str(error).partition("\n")[0] if isinstance(error, DseError) else repr(error)
    what = failure if len(failure) <= QUOTED else f"{failure[:QUOTED]}..."
    return DseError(
        f"study {study!r} of {where} cannot be read: {table}: {what}; restore a copy of the database, or "
        f"delete the study with `dse studies {quote(study)} --delete`"
    )
