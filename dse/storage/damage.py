"""Content of a database that is none: said in one line, where it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import Concatenate, ParamSpec, TypeVar

from costmodel.errors import DseError, shortened
from dse.storage.database import Database

P = ParamSpec("P")
R = TypeVar("R")

#: What reading a text as something else, or a row that is not there, raises.
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@contextmanager
def content_of(where: str) -> Iterator[None]:
    """Turn what damaged content raises within a block into one line; `where` is the storage as shown.

    Raises
    ------
    DseError
        Saying what could not be read.
    """
    try:
        yield
    except _DAMAGED as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DseError(
            shortened(
                f"storage {where}: damaged, or changed by other programs ({what}); restore a copy of it"
            )
        ) from error


def reads_content(
    read: Callable[Concatenate[Database, P], R],
) -> Callable[Concatenate[Database, P], R]:
    """A function that reads from a database, with `content_of` around it."""

    def reading(database: Database, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with content_of(database.where):
            return read(database, *args, **kwargs)

    update_wrapper(reading, read)
    return reading
