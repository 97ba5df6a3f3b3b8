"""Lists of layers as Megatron-LM writes them, in Python, read without running them."""

from __future__ import annotations

import re
from typing import Final

from costmodel.errors import DseError
from costmodel.training.dimensions import MOST_LAYERS

#: Most brackets of a pattern.
MOST_BRACKETS: Final = 50


def pattern(text: str) -> list[int]:
    """A sum of multiples of lists of 0 and 1.

    Raises
    ------
    DseError
        If it is none, or very long.

    >>> pattern("([0]*2+[1]*3)*2")
    [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]
    """
    reader = PatternReader(re.findall(r"\d{1,6}|[][()+*,]|\S", text))
    if len(reader.tokens) <= MOST_LAYERS and text.count("(") <= MOST_BRACKETS:
        try:
            layers = reader.total()
        except (ValueError, IndexError):
            layers = []
        if layers and not reader.tokens:
            return layers
    raise DseError(f"{text[:40]!r}: expected a list of layers, such as ([0]*3+[1]*58)")


class PatternReader:
    """Tokens of a pattern, read in turn; `ValueError` or `IndexError` where one is wrong."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def total(self) -> list[int]:
        """Multiples between plus signs."""
        found = self.multiple()
        while self.tokens and self.tokens[0] == "+":
            self.take("+")
            found = found + self.multiple()
        return found

    def multiple(self) -> list[int]:
        """A list, so many times."""
        found = self.item()
        while self.tokens and self.tokens[0] == "*":
            self.take("*")
            times = int(self.tokens.pop(0))
            if len(found) * times > MOST_LAYERS:
                raise ValueError(times)
            found = found * times
        return found

    def item(self) -> list[int]:
        """A list, or a sum in brackets."""
        if self.tokens[0] == "(":
            self.take("(")
            found = self.total()
            self.take(")")
            return found
        self.take("[")
        found = []
        while self.tokens[0] != "]":
            token = self.tokens.pop(0)
            if token != ",":
                found.append(("0", "1").index(token))
        self.take("]")
        return found

    def take(self, expected: str) -> None:
        """The next token, which must be this one."""
        if (token := self.tokens.pop(0)) != expected:
            raise ValueError(token)
