"""Syntax of shell scripts: words and their quotes, commands, conditions, loops, functions, here-documents.

What stands behind `$` stays text here; `shell` says what it stands for. A word knows which of its parts are
quoted, so that blanks split the others alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from costmodel.errors import DseError

_BLANKS: Final = " \t\r"
_ENDS: Final = _BLANKS + "\n;&|()<>"
_OPERATOR: Final = re.compile(r"\d*(<<<|<<-?|<&|>&|>\||<>|<|>>?)|&>>?|&&|\|\||\|&|;;&|;&|;;|[;&|()\n]")
_ARRAY: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_NAME: Final = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
#: Words behind which a command starts.
_OPENING: Final = ("if", "elif", "while", "until", "then", "else", "do", "!", "{", "for")


class WordPart(NamedTuple):
    """WordPart of a word."""

    text: str
    quoted: bool = False
    expands: bool = False  #: it starts with `$` or a backquote, and stands for something


Word = tuple[WordPart, ...]


@dataclass(frozen=True)
class ArrayWord:
    """Assignment of an array, `NAME=( ... )`."""

    name: str
    append: bool
    words: list[Word]


@dataclass
class Document:
    """Text that a command reads: behind `<<WORD` or `<<<`."""

    word: Word = ()


class Operator(str):
    """What stands between commands, or `((arithmetic))` with its brackets."""


Token = Word | ArrayWord | Document | Operator


@dataclass
class Simple:
    """A command: assignments, then words."""

    words: list[Word | ArrayWord] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)


@dataclass
class Condition:
    """A condition between `[[` and `]]`; or arithmetic, as one word with its brackets."""

    words: list[Word]


@dataclass
class Branches:
    """`if` and its like: conditions with what follows from them; the last one of `else` is empty."""

    branches: list[tuple[list[Chain], list[Chain]]]


@dataclass
class Case:
    """A choice by the patterns that a word fits."""

    word: Word
    branches: list[tuple[list[Word], list[Chain]]]


@dataclass
class Loop:
    """A loop over words, or while a condition holds."""

    name: str  #: "" of a condition's
    words: list[Word]
    condition: list[Chain]
    until: bool
    body: list[Chain]


@dataclass
class Grouped:
    """Commands between brackets."""

    body: list[Chain]


@dataclass
class Function:
    """A function as it is defined."""

    name: str
    body: Node


Node = Simple | Condition | Branches | Case | Loop | Grouped | Function


class PipedCommands(NamedTuple):
    """A pipeline of commands, and what stands before it: `&&`, `||`, or nothing."""

    joint: str
    negated: bool
    commands: list[Node]


Chain = list[PipedCommands]


def parsed(text: str) -> list[Chain]:
    """Commands of a script.

    Raises
    ------
    DseError
        If a quote or a bracket is left open.
    """
    return _ShellParser(list(_ShellLexer(text.replace("\r\n", "\n")).tokens())).commands()


def whole_word(text: str) -> Word:
    """A text as one word, whatever blanks it has."""
    found = _ShellLexer(text).word(ends="")
    return found if isinstance(found, tuple) else ()


def quoted_word(text: str) -> Word:
    """A text as it reads between double quotes."""
    return tuple(_ShellLexer(text).quoted(""))


def expansion_end(text: str, at: int) -> int:
    """Where what starts with `$` or a backquote ends."""
    if text[at] == "`":
        place = at + 1
        while place < len(text) and text[place] != "`":
            place += 2 if text[place] == "\\" else 1
        if place >= len(text):
            raise DseError(f"line {_line(text, at)}: a ` is never closed")
        return place + 1
    if text.startswith("$((", at):
        end = _closed(text, at + 3, ")")
        if text.startswith(")", end):
            return end + 1
    if text.startswith("$(", at):
        return _closed(text, at + 2, ")")
    if text.startswith("${", at):
        return _closed(text, at + 2, "}")
    name = _NAME.match(text, at)
    return name.end() if name else at + 1


def _closed(text: str, start: int, closing: str) -> int:
    """Behind the bracket that closes the one before `start`, past quotes and brackets inside."""
    opening, at = "(" if closing == ")" else "{", start
    while at < len(text):
        char = text[at]
        if char == closing:
            return at + 1
        if char == opening:
            at = _closed(text, at + 1, closing)
        elif char == "'" and closing == ")":
            at = _behind(text, at)
        elif char == '"':
            lexer = _ShellLexer(text, at + 1)
            lexer.quoted('"')
            at = lexer.at
        elif char in "$`":
            at = expansion_end(text, at)
        elif char == "#" and closing == ")" and text[at - 1] in " \t\n":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            at += 2 if char == "\\" else 1
    raise DseError(f"line {_line(text, start)}: a {opening} is never closed")


def _behind(text: str, at: int) -> int:
    """Behind the single quote that closes the one at some place."""
    end = text.find("'", at + 1)
    if end < 0:
        raise DseError(f"line {_line(text, at)}: a ' is never closed")
    return end + 1


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


class _ShellLexer:
    """Words and operators of a text."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at
        self.open: list[tuple[Document, str, bool, bool]] = []  # document, its end, quoted, tabs cut off

    def tokens(self) -> Iterator[Token]:
        """Words and operators in turn; redirections are passed over."""
        last: Token | None = None
        while self.at < len(self.text):
            if self.skipped():
                continue
            token = self.token(last is None or isinstance(last, Operator) or plain(last) in _OPENING)
            if token is not None:
                last = token
                yield token
            if token == "\n":
                self.documents()

    def token(self, starts: bool) -> Token | None:
        """The next word or operator, where a command starts or within one; nothing of a redirection."""
        start = self.at
        if starts and self.text.startswith("((", start):
            self.at = _closed(self.text, start + 2, ")") + 1
            return Operator(self.text[start : self.at])
        if self.text.startswith(("<(", ">("), start):
            self.at = _closed(self.text, start + 2, ")")
            return (WordPart(self.text[start : self.at], True),)
        if found := _OPERATOR.match(self.text, start):
            self.at = found.end()
            return self.redirected(found[1] or found[0])
        return self.word()

    def redirected(self, operator: str) -> Token | None:
        """An operator between commands; of one that redirects the text that it gives to the command."""
        if "<" not in operator and ">" not in operator:
            return Operator(operator)
        while self.at < len(self.text) and self.text[self.at] in _BLANKS:
            self.at += 1
        word = self.word()
        if operator == "<<<" and not isinstance(word, ArrayWord):
            return Document(word)
        if operator not in ("<<", "<<-") or isinstance(word, ArrayWord):
            return None
        document = Document()
        end = "".join(part.text for part in word)
        self.open.append((document, end, any(part.quoted for part in word), operator == "<<-"))
        return document

    def documents(self) -> None:
        """Read the here-documents that the line before asked for."""
        for document, end, quoted, cut in self.open:
            lines: list[str] = []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line, self.at = self.text[self.at : stop], stop + 1
                line = line.lstrip("\t") if cut else line
                if line == end:
                    break
                lines.append(line)
            body = "\n".join([*lines, ""])
            document.word = (WordPart(body, True),) if quoted else quoted_word(body)
        self.open = []

    def skipped(self) -> bool:
        """Whether blanks, a comment or the end of a continued line were passed over."""
        if self.text[self.at] == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif self.text[self.at] in _BLANKS:
            self.at += 1
        elif self.text.startswith("\\\n", self.at):
            self.at += 2
        else:
            return False
        return True

    def word(self, ends: str = _ENDS) -> Word | ArrayWord:
        """Next word; with no characters that end it, all that is left."""
        parts: list[WordPart] = []
        while self.at < len(self.text) and (char := self.text[self.at]) not in ends:
            start = self.at
            if char == "\\":
                self.at += 2
                if self.text[start + 1 : self.at] != "\n":
                    parts.append(WordPart(self.text[start + 1 : self.at], True))
            elif char == "'" or self.text.startswith("$'", start):
                self.at = _behind(self.text, start + (char == "$"))
                parts.append(WordPart(self.text[start + 1 + (char == "$") : self.at - 1], True))
            elif char == '"':
                self.at += 1
                parts += self.quoted('"') or [WordPart("", True)]
            elif char in "$`":
                self.at = expansion_end(self.text, start)
                found = self.text[start : self.at]
                parts.append(WordPart(found, False, found != "$"))
            else:
                while self.at < len(self.text) and self.text[self.at] not in ends + "\\'\"$`":
                    self.at += 1
                parts.append(WordPart(self.text[start : self.at]))
        array = _ARRAY.fullmatch(plain(tuple(parts)))
        if array and ends and self.text.startswith("(", self.at):
            return self.array(array[1], bool(array[2]))
        return tuple(parts)

    def quoted(self, closing: str) -> list[WordPart]:
        """What stands between double quotes, to the closing one or the end of the text."""
        parts, literal, start = [], "", self.at
        while self.at < len(self.text) and (char := self.text[self.at]) != closing:
            end = self.at + 1
            if char == "\\" and self.text[end : end + 1] in ("$", '"', "\\", "`", "\n"):
                literal += self.text[end : end + 1].strip("\n")
                end += 1
            elif char in "$`" and (end := expansion_end(self.text, self.at)) > self.at + 1:
                parts += [WordPart(literal, True)] * bool(literal) + [
                    WordPart(self.text[self.at : end], True, True)
                ]
                literal = ""
            else:
                literal += char
            self.at = end
        if closing and self.at >= len(self.text):
            raise DseError(f"line {_line(self.text, start)}: a {closing} is never closed")
        self.at += len(closing)
        return parts + [WordPart(literal, True)] * bool(literal)

    def array(self, name: str, append: bool) -> ArrayWord:
        """The words of an array, to its closing bracket."""
        self.at += 1
        words: list[Word] = []
        while self.at < len(self.text):
            if self.text[self.at] == ")":
                self.at += 1
                return ArrayWord(name, append, words)
            if self.text[self.at] == "\n":
                self.at += 1
            elif not self.skipped():
                word = self.word()
                if isinstance(word, ArrayWord) or not word:
                    raise DseError(f"{name}=(: expected words, and a closing bracket")
                words.append(word)
        raise DseError(f"{name}=(: is never closed")


def plain(token: Token | None) -> str:
    """A word without quotes and variables as text; "" of anything else."""
    if not isinstance(token, tuple) or len(token) != 1:
        return ""
    return "" if token[0].quoted or token[0].expands else token[0].text


def _arithmetic(text: str) -> Condition:
    return Condition([(WordPart(f"(({text}))"),)])


class _ShellParser:
    """Commands of a script from its words; what no shell would take is passed over."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at = tokens, 0

    @property
    def next(self) -> str:
        """The next operator or plain word as text."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        return str(token) if isinstance(token, Operator) else plain(token)

    def taken(self, *words: str) -> bool:
        """Whether the next word is one of some, which is then passed over."""
        found = self.at < len(self.tokens) and self.next in words
        self.at += found
        return found

    def commands(self, *ends: str) -> list[Chain]:
        """Commands up to a word that ends them, which is left."""
        found: list[Chain] = []
        while self.at < len(self.tokens) and self.next not in ends:
            if self.taken("\n", ";", "&", ")", ";;", ";&", ";;&", "|", "|&", "&&", "||"):
                continue
            found.append(self.chain(ends))
        return found

    def chain(self, ends: tuple[str, ...]) -> Chain:
        """Pipelines with `&&` and `||` between them."""
        chain, joint = [], ""
        while self.at < len(self.tokens) and self.next not in ends:
            negated = self.taken("!")
            pipeline = [self.command()]
            while self.taken("|", "|&"):
                self.blank()
                pipeline.append(self.command())
            chain.append(PipedCommands(joint, negated, pipeline))
            joint = self.next
            if not self.taken("&&", "||"):
                break
            self.blank()
        return chain

    def blank(self) -> None:
        """Pass over ends of lines."""
        while self.taken("\n"):
            pass

    def command(self) -> Node:
        """A command of any kind."""
        word = self.next
        if word in ("if", "for", "select", "while", "until", "case", "[[", "{", "("):
            self.at += 1
            if word == "if":
                return self.branches()
            if word == "case":
                return self.case()
            if word == "[[":
                return self.test()
            return self.group("}" if word == "{" else ")") if word in "{(" else self.loop(word)
        if word.startswith("(("):
            self.at += 1
            return Condition([(WordPart(word),)])
        return self.simple()

    def simple(self) -> Simple | Function:
        """Words up to the end of a command; or a function."""
        found = Simple()
        named = self.taken("function")
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                if len(found.words) == 1 and (token == "(" or named):
                    return self.function(plain(found.words[0]))
                break
            if named and found.words and self.next == "{":
                return self.function(plain(found.words[0]))
            self.at += 1
            if isinstance(token, Document):
                found.documents.append(token)
            else:
                found.words.append(token)
        if not found.words and not found.documents:
            self.at += 1
        return found

    def function(self, name: str) -> Function:
        """The body of a function behind its name."""
        self.taken("(")
        self.taken(")")
        self.blank()
        return Function(name, self.command() if self.at < len(self.tokens) else Simple())

    def group(self, end: str) -> Grouped:
        """Commands to a closing bracket."""
        body = self.commands(end)
        self.taken(end)
        return Grouped(body)

    def branches(self) -> Branches:
        """Branches of an `if` behind that word."""
        found = []
        while True:
            condition = self.commands("then")
            self.taken("then")
            found.append((condition, self.commands("elif", "else", "fi")))
            if not self.taken("elif"):
                break
        if self.taken("else"):
            found.append(([], self.commands("fi")))
        self.taken("fi")
        return Branches(found)

    def case(self) -> Case:
        """A choice by patterns behind the word `case`."""
        word = self.word()
        self.blank()
        self.taken("in")
        found: list[tuple[list[Word], list[Chain]]] = []
        while self.at < len(self.tokens) and not self.taken("esac"):
            if self.taken("\n", "(", ";;", ";&", ";;&", "|"):
                continue
            patterns = [self.word()]
            while self.taken("|"):
                patterns.append(self.word())
            self.taken(")")
            found.append((patterns, self.commands(";;", ";&", ";;&", "esac")))
        return Case(word, found)

    def loop(self, kind: str) -> Loop | Grouped:
        """A loop behind its first word."""
        name, words = "", []
        condition: list[Chain] = []
        counted = self.next[2:-2].split(";") if self.next.startswith("((") and kind == "for" else []
        if len(counted) == 3:
            start, held, step = ([PipedCommands("", False, [_arithmetic(own)])] for own in counted)
            self.at += 1
            return Grouped(
                [start, [PipedCommands("", False, [Loop("", [], [held], False, [*self.body(), step])])]]
            )
        if kind in ("for", "select") and not self.next.startswith("(("):
            name = plain(self.word()) or "_"
            self.blank()
            if self.taken("in"):
                while self.at < len(self.tokens) and self.next not in (";", "\n"):
                    words.append(self.word())
        else:
            condition = self.commands("do")
        return Loop(name, words, condition, kind == "until", self.body())

    def body(self) -> list[Chain]:
        """Commands between `do` and `done`."""
        self.commands("do")
        self.taken("do")
        body = self.commands("done")
        self.taken("done")
        return body

    def test(self) -> Condition:
        """A condition behind `[[`."""
        words = []
        while self.at < len(self.tokens) and not self.taken("]]"):
            words.append(self.word())
        return Condition(words)

    def word(self) -> Word:
        """The next word, or an operator as one."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else ()
        self.at += 1
        if isinstance(token, Operator):
            return (WordPart(str(token)),)
        return token if isinstance(token, tuple) else ()
