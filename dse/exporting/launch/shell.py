"""Shell scripts read without running them: their commands, with the variables that they set written out.

Enough of the language of launch scripts: assignments, arrays, quotes, continued lines, comments, `$NAME`,
`${NAME}`, `${NAME:-usual}`, `${NAME[@]}` and `$((arithmetic))`. Conditions and loops are not followed: of
several assignments the last one before a command counts. What a command or the caller would fill in stays as
it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from costmodel.errors import DseError

#: Most characters that a command may grow to. [characters]
MOST: Final = 1_000_000

_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_ENDS: Final = ("\n", ";", "&", "|", "(", ")", "<", ">")
#: Words before an assignment.
_DECLARING: Final = ("export", "declare", "local", "readonly", "typeset")


@dataclass(frozen=True, slots=True)
class WordPart:
    """Part of a word between quotes, or outside of them."""

    text: str
    quote: str  #: `"`, `'`, or nothing


Word = list[WordPart]


@dataclass
class Script:
    """A script as far as it has been read."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    size: int = 0

    @classmethod
    def read(cls, text: str) -> Script:
        """All commands of a script.

        Raises
        ------
        DseError
            If a quote or a bracket is left open, or variables grow without bound.

        >>> script = 'TP=8\\nARGS=(--tp $TP # of a node\\n --pp "$((TP * 2))")\\nrun ${ARGS[@]} $X'
        >>> Script.read(script).commands
        [['run', '--tp', '8', '--pp', '16', '$X']]
        """
        script = cls()
        lexer = Lexer(text.replace("\r\n", "\n").replace("\\\n", " "))
        try:
            for words in lexer.commands():
                script.run(words)
        except RecursionError:
            raise DseError("variables of the script are nested without bound") from None
        return script

    def run(self, words: list[Word | ArrayWord]) -> None:
        """Take up the assignments of a command, and keep the rest of it."""
        rest: list[str] = []
        for word in words:
            if isinstance(word, ArrayWord):
                items = [item for one in word.words for item in self.expanded(one)]
                held = self.variables.get(word.name, []) if word.append else []
                self.variables[word.name] = self.measured([*held, *items])
                continue
            head = word[0].text if word and not word[0].quote else ""
            assigned = _ASSIGNED.fullmatch(head)
            if assigned and not [one for one in rest if one not in _DECLARING]:
                name, append, first = assigned.groups()
                value = self.joined([WordPart(first, ""), *word[1:]])
                before = " ".join(self.variables.get(name, [])) if append else ""
                self.variables[name] = self.measured([before + value])
            else:
                rest += self.expanded(word)
        if [one for one in rest if one not in _DECLARING]:
            self.commands.append(self.measured(rest))

    def measured(self, words: list[str]) -> list[str]:
        """Words of a script, unless there are too many."""
        self.size += sum(map(len, words)) + len(words)
        if self.size > MOST:
            raise DseError("variables of the script grow without bound")
        return words

    def joined(self, word: Word) -> str:
        """A word as one text: of an assignment."""
        return "".join(part if quote == "'" else self.filled(part) for part, quote in _parts(word))

    def expanded(self, word: Word) -> list[str]:
        """A word with its variables written out: several where one holds several and is not quoted."""
        found, open_word = [""], any(fragment.quote for fragment in word)
        for fragment in word:
            whole = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", fragment.text)
            if whole and fragment.quote != "'":
                items = self.variables.get(whole[1], [fragment.text])
            elif fragment.quote:
                items = [fragment.text if fragment.quote == "'" else self.filled(fragment.text)]
            else:
                filled = self.filled(fragment.text)
                items = filled.split() if filled != fragment.text else [filled]
            if items:
                found[-1] += items[0]
                found += items[1:]
        return [one for one in found if one or open_word]

    def filled(self, text: str) -> str:
        """A text with its variables written out."""
        pieces, place, size = [], 0, 0
        while (at := text.find("$", place)) >= 0:
            end = dollar_end(text, at)
            pieces += [text[place:at], self.value(text[at:end])]
            place, size = end, size + len(pieces[-1])
            if size > MOST:
                raise DseError("variables of the script grow without bound")
        return "".join([*pieces, text[place:]])

    def value(self, written: str) -> str:
        """What `$NAME` and its kin stand for; what is not known stays as it is."""
        if written.startswith("$((") and written.endswith("))"):
            return self.arithmetic(written)
        inner = written[2:-1] if written.startswith("${") else written[1:]
        name = _NAME.match(inner)
        if not name:
            return written
        known, rest = self.variables.get(name[0]), inner[name.end() :]
        usual = re.fullmatch(r":?[-=](.*)", rest, flags=re.DOTALL)
        if known is not None and (known != [""] or not usual):
            return " ".join(known)
        return self.filled(usual[1].strip("\"'")) if usual else written

    def arithmetic(self, written: str) -> str:
        """Whole-number arithmetic, where all of its names are known."""
        text = self.filled(written[3:-2])
        text = re.sub(r"[A-Za-z_]\w*", lambda name: " ".join(self.variables.get(name[0], [name[0]])), text)
        try:
            return str(whole_arithmetic(text))
        except (ValueError, ZeroDivisionError):
            return written


def _parts(word: Word) -> Iterator[tuple[str, str]]:
    return ((fragment.text, fragment.quote) for fragment in word)


@dataclass(frozen=True, slots=True)
class ArrayWord:
    """Assignment of an array in a shell script, `NAME=( ... )`."""

    name: str
    append: bool
    words: list[Word]


def dollar_end(text: str, at: int) -> int:
    """Where what starts with `$` ends."""
    for opening, closing in (("$((", "))"), ("$(", ")"), ("${", "}")):
        if text.startswith(opening, at):
            end = _closed(text, at + len(opening), opening[1], closing[0])
            return end + len(closing) - 1 if closing == "))" else end
    name = _NAME.match(text, at + 1)
    return name.end() if name else min(at + 2, len(text))


def _closed(text: str, start: int, opening: str, closing: str) -> int:
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place + 1
    raise DseError(f"a {opening} is never closed")


def whole_arithmetic(text: str) -> int:
    """A sum of products of whole numbers, with brackets.

    Raises
    ------
    ValueError
        If it is none.

    >>> whole_arithmetic("2 * (3 + 4) / 7 - 1")
    1
    """
    tokens = re.findall(r"\d{1,15}|[-+*/%()]|\S", text)
    if len(tokens) > 100:
        raise ValueError(text)

    def atom() -> int:
        token = tokens.pop(0) if tokens else ""
        if token == "(":
            inner = addition()
            if not tokens or tokens.pop(0) != ")":
                raise ValueError(text)
            return inner
        return -atom() if token == "-" else int(token)

    def product() -> int:
        value = atom()
        while tokens and tokens[0] in "*/%":
            sign, other = tokens.pop(0), atom()
            value = value * other if sign == "*" else value // other if sign == "/" else value % other
        return value

    def addition() -> int:
        value = product()
        while tokens and tokens[0] in "+-":
            value += product() if tokens.pop(0) == "+" else -product()
        return value

    value = addition()
    if tokens:
        raise ValueError(text)
    return value


class Lexer:
    """Words of a script, command by command."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def commands(self) -> Iterator[list[Word | ArrayWord]]:
        """Words of each command of a script."""
        words: list[Word | ArrayWord] = []
        while self.at < len(self.text):
            if self.text[self.at] in _ENDS:
                self.at += 1
                if words:
                    yield words
                words = []
            elif not self.skipped():
                words.append(self.word())
        if words:
            yield words

    def skipped(self) -> bool:
        """Whether blanks or a comment were passed over."""
        char = self.text[self.at]
        if char == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char in " \t\r":
            self.at += 1
        else:
            return False
        return True

    def word(self) -> Word | ArrayWord:
        """Next word of a script."""
        fragments: Word = []
        plain = ""
        while self.at < len(self.text) and (char := self.text[self.at]) not in (" ", "\t", "\r"):
            array = re.fullmatch(r"([A-Za-z_]\w*)(\+?)=", plain) if char == "(" and not fragments else None
            if array:
                return self.array(array[1], bool(array[2]))
            if char in _ENDS:
                break
            if char in "\"'`":
                fragments += [WordPart(plain, "")] if plain else []
                fragments.append(self.quoted(char))
                plain = ""
            elif char == "$":
                end = dollar_end(self.text, self.at)
                plain += self.text[self.at : end]
                self.at = end
            else:
                self.at += 2 if char == "\\" else 1
                plain += self.text[self.at - 1 : self.at]
        return [*fragments, WordPart(plain, "")] if plain or not fragments else fragments

    def quoted(self, quote: str) -> WordPart:
        """What stands between two quotes."""
        pieces: list[str] = []
        start, self.at = self.at, self.at + 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == quote:
                self.at += 1
                return WordPart("".join(pieces), "'" if quote == "`" else quote)
            if (
                char == "\\"
                and quote == '"'
                and self.text[self.at + 1 : self.at + 2] in ("$", '"', "\\", "`")
            ):
                self.at += 1
                char = self.text[self.at]
            pieces.append(char)
            self.at += 1
        line = self.text.count("\n", 0, start) + 1
        raise DseError(f"line {line}: a {quote} is never closed")

    def array(self, name: str, append: bool) -> ArrayWord:
        """The words of an array, to its closing bracket."""
        self.at += 1
        words: list[Word] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                return ArrayWord(name, append, words)
            if char == "\n":
                self.at += 1
            elif not self.skipped():
                word = self.word()
                if isinstance(word, ArrayWord) or not word or (not word[0].text and len(word) == 1):
                    raise DseError(f"{name}=(: expected words, and a closing bracket")
                words.append(word)
        raise DseError(f"{name}=(: is never closed")
