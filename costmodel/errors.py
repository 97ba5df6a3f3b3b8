"""The one exception that a user's mistake raises: where, what, and what would do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class DseError(Exception):
    """A mistake in the user's input or surroundings, in one line (or one line per mistake)."""


class ParameterError(DseError):
    """A wrong argument; ``{max_days}`` in the text is `max_days` in Python, ``--max-days`` in a command.

    >>> str(ParameterError("{max_days}: needs {tokens}")), ParameterError("{max_days}: needs {tokens}").flags
    ('max_days: needs tokens', '--max-days: needs --tokens')
    """

    def __init__(self, text: str) -> None:
        super().__init__(re.sub(r"\{(\w+)\}", r"\1", text))
        self.flags = re.sub(r"\{(\w+)\}", lambda name: f"--{name[1].replace('_', '-')}", text)


#: Most words that a message lists.
MOST_LISTED = 24
#: Most characters that a message quotes of what somebody wrote, its two ends and what is wrong with it.
LONGEST = 600


def shortened(text: str) -> str:
    """A message without the middle of what it quotes at length.

    >>> shortened("short"), len(shortened("x" * 100_000))
    ('short', 603)
    """
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}...{text[-LONGEST // 2 :]}"


#: What steers a terminal or turns the direction of writing.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: A password: of a URL, and as one of its options.
_PASSWORDS = re.compile(
    r"(?<=://)([^\s:/@]*):\S*@|(?i:((?:password|passwd|sslpassword)=))(?:[^\s&;'\"]*[^\s&;'\":])?"
)


def printable(text: str) -> str:
    """A text as a terminal may show it: nothing in it steers the terminal.

    >>> printable("a\\x1b[31mred")
    'a\\\\x1b[31mred'
    """
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def masked(text: str) -> str:
    """A text without the passwords of URLs in it.

    >>> masked("postgresql://me:se/cret@host/dse?password=x")
    'postgresql://me:***@host/dse?password=***'
    """
    return _PASSWORDS.sub(lambda found: f"{found[2]}***" if found[2] else f"{found[1]}:***@", text)


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
