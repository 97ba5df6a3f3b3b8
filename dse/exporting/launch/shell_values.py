"""Values in shell scripts: arithmetic, conditions, parts of texts, and what small programs print."""

from __future__ import annotations

import operator
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

#: Most words of an expression, and largest exponent. [-]
MOST_WORDS: Final = 100
MOST_EXPONENT: Final = 64

#: Longest value that is gone through by its places. [characters]
MOST_CHANGED: Final = 1000
_TOKEN: Final = re.compile(r"[0-9]{1,15}|\*\*|&&|\|\||[<>=!]=|[-+*/%()<>!]|\S")


def _quotient(left: int, right: int) -> int:
    """Towards zero, as C divides."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


#: Operators between two numbers, those that bind least first.
_LEVELS: Final[tuple[Mapping[str, Callable[[int, int], int | bool]], ...]] = (
    {"||": lambda left, right: bool(left or right)},
    {"&&": lambda left, right: bool(left and right)},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda left, right: left - _quotient(left, right) * right},
)


def whole_arithmetic(text: str) -> int:
    """Value of an expression of whole numbers, with brackets and comparisons, as a shell has it.

    Raises
    ------
    ValueError
        If it is none.

    >>> whole_arithmetic("2 * (3 + 4) / 7 - 1"), whole_arithmetic("2 ** 3 > 7 && 1")
    (1, 1)
    """
    tokens = _TOKEN.findall(text)
    if len(tokens) > MOST_WORDS:
        raise ValueError(text)

    def atom() -> int:
        token = tokens.pop(0) if tokens else ""
        if token == "(":
            inner = level(0)
            if not tokens or tokens.pop(0) != ")":
                raise ValueError(text)
        elif token in ("-", "+", "!"):
            other = atom()
            return int(not other) if token == "!" else -other if token == "-" else other
        elif not (token.isascii() and token.isdigit()):
            raise ValueError(text)
        else:
            inner = int(token)
        if tokens and tokens[0] == "**":
            tokens.pop(0)
            if not 0 <= (exponent := atom()) <= MOST_EXPONENT:
                raise ValueError(text)
            return int(inner**exponent)
        return inner

    def level(place: int) -> int:
        if place == len(_LEVELS):
            return atom()
        value = level(place + 1)
        while tokens and tokens[0] in _LEVELS[place]:
            value = int(_LEVELS[place][tokens.pop(0)](value, level(place + 1)))
        return value

    value = level(0)
    if tokens:
        raise ValueError(text)
    return value


_COMPARED: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}


def holds(words: Sequence[str | None]) -> bool | None:
    """Whether a condition of a shell holds; None where nothing here knows.

    >>> holds(["8b", "==", "8*", "&&", "-n", ""]), holds(["2", "-gt", "1"]), holds(["-f", "data"])
    (False, True, None)
    """
    for joint, decides in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        if joint in words[1:-1]:
            at = words.index(joint, 1)
            sides = holds(words[:at]), holds(words[at + 1 :])
            return decides if decides in sides else None if None in sides else not decides
    if words[:1] == ["!"]:
        inner = holds(words[1:])
        return None if inner is None else not inner
    if None in words:
        return None
    match words:
        case []:
            return False
        case [str(word)]:
            return word != ""
        case ["-z" | "-n" as which, str(word)]:
            return (word == "") == (which == "-z")
        case [str(left), "=" | "==" | "!=" as which, str(right)]:
            return fnmatchcase(left, right) == (which != "!=")
        case [str(left), str(which), str(right)] if which in _COMPARED:
            try:
                return _COMPARED[which](whole_arithmetic(left or "0"), whole_arithmetic(right or "0"))
            except (ValueError, ZeroDivisionError):
                return None
    return None


def changed(value: str, change: str, filled: Callable[[str], str]) -> str:
    """A value as `${NAME%ending}`, `${NAME/old/new}` and their like change it.

    >>> changed("a/b.sh", "%.sh", str), changed("a/b.sh", "##*/", str), changed("7b", "^^", str)
    ('a/b', 'b.sh', '7B')
    """
    if change in ("^^", ",,"):
        return value.upper() if change == "^^" else value.lower()
    if found := re.fullmatch(r"(//?)((?:[^/\\]|\\.)+)(?:/(.*))?", change, re.DOTALL):
        old, new = filled(found[2]), filled(found[3] or "")
        return value.replace(old, new, -1 if found[1] == "//" else 1)
    found = re.fullmatch(r"(%%?|##?)(.*)", change, re.DOTALL)
    if not found or len(value) > MOST_CHANGED:
        return value
    pattern = filled(found[2])
    ends = found[1][0] == "%"
    places = [*range(len(value), -1, -1)] if ends else [*range(len(value) + 1)]
    for place in places if len(found[1]) == 1 else places[::-1]:
        if fnmatchcase(value[place:] if ends else value[:place], pattern):
            return value[:place] if ends else value[place:]
    return value


#: Programs that print the last of their words, as far as that matters here.
_SAME: Final = ("realpath", "readlink")


def line_of(words: Sequence[str]) -> str | None:
    """What a program prints, None where that is not known.

    >>> line_of(["dirname", "a/b.sh"]), line_of(["basename", "a/b.sh", ".sh"]), line_of(["date"])
    ('a', 'b', None)
    """
    match words:
        case ["echo", *texts]:
            return " ".join(text for text in texts if text not in ("-n", "-e"))
        case ["dirname", *_, path]:
            return posixpath.dirname(path) or "."
        case ["basename", path, *ending]:
            return posixpath.basename(path.rstrip("/")).removesuffix("".join(ending[:1]))
        case ["expr", *terms]:
            try:
                return str(whole_arithmetic(" ".join(terms)))
            except (ValueError, ZeroDivisionError):
                return None
        case [program, *_, path] if program in _SAME:
            return path
    return None


def is_number(text: str) -> bool:
    """Whether a text is a short number of ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) < 10
