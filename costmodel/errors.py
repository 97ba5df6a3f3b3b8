"""The exception for a user's mistake: its message names the place, the mistake and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Self


class DseError(Exception):
    """A mistake in the user's input or surroundings, in one line (or one line per mistake)."""


class ArgumentText(str):
    """A line in which ``{max_days}`` is `max_days`; `flags` is the line with ``--max-days``."""

    flags: str

    def __new__(cls, text: str) -> Self:
        """Make a line of a text with names of arguments in braces."""
        message = super().__new__(cls, re.sub(r"\{(\w+)\}", r"\1", text))
        message.flags = re.sub(r"\{(\w+)\}", lambda name: f"--{name[1].replace('_', '-')}", text)
        return message

    @classmethod
    def joined(cls, start: str, parts: Sequence[Self]) -> Self:
        """A line of other lines, between commas behind its start."""
        message = cls(start + ", ".join(parts))
        message.flags = start + ", ".join(part.flags for part in parts)
        return message


class ParameterError(DseError):
    """A wrong argument; ``{max_days}`` in the text is `max_days` in Python, ``--max-days`` in a command.

    >>> str(ParameterError("{max_days}: needs {tokens}")), ParameterError("{max_days}: needs {tokens}").flags
    ('max_days: needs tokens', '--max-days: needs --tokens')
    """

    def __init__(self, text: str) -> None:
        super().__init__(str(ArgumentText(text)))
        self.flags = ArgumentText(text).flags


#: Most words that a message lists.
MOST_LISTED = 24
#: Most characters of quoted user input in a message: its two ends and the mistake. [-]
LONGEST = 600


def shortened(text: str) -> str:
    """A message with the middle of long quotations left out.

    >>> shortened("short"), len(shortened("x" * 100_000))
    ('short', 603)
    """
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}...{text[-LONGEST // 2 :]}"


#: Control characters of terminals, and characters that change the direction of writing.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: A password: of a URL, and as one of its options.
_PASSWORDS = re.compile(r"(?<=://)([^\s:/@]*):\S*@|(?i:((?:password|passwd|sslpassword)=))(?:[^\s&;'\"]*[^\s&;'\":])?")


def printable(text: str) -> str:
    """A text as a terminal may show it: nothing in it steers the terminal.

    >>> printable("a\\x1b[31mred")
    'a\\\\x1b[31mred'
    """
    return _STEERING.sub(lambda match: ascii(match[0])[1:-1], text)


def masked(text: str) -> str:
    """A text without the passwords of URLs in it.

    >>> masked("postgresql://me:se/cret@host/dse?password=x")
    'postgresql://me:***@host/dse?password=***'
    """
    return _PASSWORDS.sub(lambda match: f"{match[2]}***" if match[2] else f"{match[1]}:***@", text)


def suggestion(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'tp'?"`` for the known words that are close, else all words, if not too many.

    A word that others begin with, or that is not very close to any, gets up to three that share a number.

    >>> suggestion("mirco_batch_size", ["tp", "micro_batch_size"])
    "; did you mean 'micro_batch_size'?"
    >>> suggestion("llama4", ["llama3_405b", "llama_4_scout", "llama_4_maverick"])
    "; did you mean 'llama_4_maverick' or 'llama_4_scout'?"
    >>> suggestion("gpt4", ["gpt_1t", "gpt3_175b"])
    '; known: gpt3_175b, gpt_1t'
    >>> suggestion("zzz", ["tp", "pp"])
    '; known: pp, tp'
    """
    known, word = sorted(map(shortened, known)), shortened(word)
    plain = {name: re.sub(r"[-_. ]", "", name).lower() for name in known}
    typed = re.sub(r"[-_. ]", "", word).lower()
    close = difflib.get_close_matches(word, known, n=1, cutoff=VERY_CLOSE)
    numbers = {*re.findall(r"\d+", word)}  # gpt4 is neither gpt3_175b nor gpt_1t
    alike = [name for name in known if not numbers or numbers & {*re.findall(r"\d+", name)}]
    if not close:
        close = [name for name in alike if len(typed) > 2 and plain[name].startswith(typed)][:3]
    close = close or difflib.get_close_matches(word, alike, n=3)
    if close:
        *others, last = map(repr, close)
        return f"; did you mean {', '.join(others)} or {last}?" if others else f"; did you mean {last}?"
    return f"; known: {', '.join(known)}" if 0 < len(known) <= MOST_LISTED else ""


#: Likeness of two words, from 0 to 1, beyond which one is taken for the other.
VERY_CLOSE = 0.75
