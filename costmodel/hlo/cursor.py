"""A place in HLO text: what stands there, and where that is for people."""

from __future__ import annotations

import re
from math import prod
from typing import Final, NoReturn

from costmodel.errors import DseError
from costmodel.hlo.module import BITS, Shape

#: Most elements of an array, far more than any memory has.
LARGEST: Final = 10**18
_STRING: Final = r'"(?:[^"\\]|\\.)*+"'
_STRING_OR_COMMENT: Final = re.compile(rf"{_STRING}|/\*.*?\*/", re.DOTALL)
_BRACKET: Final = re.compile(rf"{_STRING}|[\"(){{}}\[\]]", re.DOTALL)
_ARRAY: Final = re.compile(r"([a-z][a-z0-9]*)\[([^\]\[(){}\"]*)\](\{[^{}]*\})?")
_SPACE: Final = re.compile(r"\s*")
_TOKEN: Final = re.compile(r"[\w.%-]+|\S|$")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}


def without_comments(text: str) -> str:
    """The text with blanks in place of comments; strings keep what looks like one.

    >>> without_comments('a /*x*/ "/*y*/"')
    'a       "/*y*/"'
    """
    if "/*" not in text:
        return text
    return _STRING_OR_COMMENT.sub(_blanked, text)


def _blanked(found: re.Match[str]) -> str:
    words = found[0]
    return words if words[0] == '"' else re.sub(r"[^\n]", " ", words)


class Cursor:
    """Reads a text from its start to its end."""

    __slots__ = ("_shapes", "at", "name", "text")

    def __init__(self, text: str, name: str) -> None:
        self.text = without_comments(text)
        self.name = name
        self.at = 0
        self._shapes: dict[str, Shape] = {}

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        """Say what is wrong with what stands at a place, by default here.

        Raises
        ------
        DseError
            With the line, the token, and the problem.
        """
        at = self.skip_space() if at is None else at
        line = self.text.count("\n", 0, at) + 1
        token = _TOKEN.match(self.text, at)
        shown = f"{token[0][:80]!r}" if token and token[0] else "the end of the text"
        raise DseError(f"{self.name}: line {line}: {shown}: {problem}")

    def skip_space(self) -> int:
        """Go on to what is no blank."""
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # may be empty
        return self.at

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Go past what a pattern finds here, if it does."""
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def expect(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        """Go past what must stand here."""
        found = self.match(pattern)
        if found is None:
            self.fail(f"expected {wanted}")
        return found

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        return self.text[self.skip_space() : self.at + 1]

    def taken(self, character: str) -> bool:
        """Whether the next character is this one; go past it if so."""
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def balanced(self) -> str:
        """Go past a string, or from a bracket to the one that closes it; the text of it."""
        start, open_brackets = self.at, []
        while True:
            found = _BRACKET.search(self.text, self.at)
            if found is None:
                self.fail("never closed", start)
            self.at, token = found.end(), found[0]
            if token == '"':
                self.fail("a string that never ends", found.start())
            if token in _CLOSING:
                open_brackets.append(_CLOSING[token])
            elif token[0] != '"' and (not open_brackets or open_brackets.pop() != token):
                self.fail("closes nothing", found.start())
            if not open_brackets:
                return self.text[start : self.at]

    def shape(self) -> Shape:
        """Go past a shape: ``f32[2,3]{1,0}`` or ``(f32[], s32[4])``."""
        start = self.skip_space()
        if self.text.startswith("(", start):
            written = self.balanced()
            known = self._shapes.get(written)
            if known is None:
                known = self._shapes[written] = self._tuple_at(start)
            return known
        found = _ARRAY.match(self.text, start)
        if found is None:
            self.fail("expected a shape, such as f32[8,128]")
        self.at = found.end()
        known = self._shapes.get(found[0])
        if known is None:
            known = self._shapes[found[0]] = self._array(found)
        return known

    def _tuple_at(self, start: int) -> Shape:
        self.at = start + 1
        elements: list[Shape] = []
        while not self.taken(")"):
            if elements and not self.taken(","):
                self.fail("expected ',' or ')'")
            elements.append(self.shape())
        return Shape("tuple", (), tuple(elements))

    def _array(self, found: re.Match[str]) -> Shape:
        dtype, dims = found[1], found[2].strip()
        if dtype not in BITS:
            self.fail(f"unknown type of element; known: {', '.join(BITS)}", found.start())
        try:
            sizes = tuple(int(dim.replace("<=", "")) for dim in dims.split(",")) if dims else ()
        except ValueError:
            self.fail("expected whole numbers for dimensions", found.start())
        if any(size < 0 for size in sizes) or prod(sizes) > LARGEST:
            self.fail(f"expected dimensions of at most {LARGEST:.0e} elements together", found.start())
        return Shape(dtype, sizes, layout=found[3] or "")
