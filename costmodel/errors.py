"""The one exception that a user's mistake raises: where, what, and what would do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DseError(Exception):
    """A mistake in the user's input or surroundings, in one line (or one line per mistake)."""


#: Most words that a message lists.
MOST_LISTED = 24


def suggestion(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'tp'?"`` when a known word is close, else the words that would do, if not too many.

    >>> suggestion("mirco_batch_size", ["tp", "micro_batch_size"])
    "; did you mean 'micro_batch_size'?"
    >>> suggestion("zzz", ["tp", "pp"])
    '; known: pp, tp'
    """
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if 0 < len(known) <= MOST_LISTED else ""
