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
    >>> print(unreadable("s", "sqlite:///dse.db", "trial_params", KeyError("qkv_tile_m")))
    study 's' of sqlite:///dse.db cannot be read: trial_params: no 'qkv_tile_m', a parameter of its space in this \
version; read a study of an earlier dse with that dse, or search again: `dse search ... --study NEW`; else \
restore a copy of the database, or delete the study with `dse studies s --delete`
    """
    failure = str(error).partition("\n")[0] if isinstance(error, DseError) else repr(error)
    what = failure if len(failure) <= QUOTED else f"{failure[:QUOTED]}..."
    remedy = f"restore a copy of the database, or delete the study with `dse studies {quote(study)} --delete`"
    if table == "trial_params" and type(error) is KeyError:
        what = f"no {error}, a parameter of its space in this version"
        again = "read a study of an earlier dse with that dse, or search again: `dse search ... --study NEW`"
        remedy = f"{again}; else {remedy}"
    return DseError(f"study {study!r} of {where} cannot be read: {table}: {what}; {remedy}")
