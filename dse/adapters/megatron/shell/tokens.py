"""Tokens of shell scripts: words as they are written, signs, and the brackets and keywords that belong together.

A script is read once, from left to right. The position of each token is kept, so that messages can name the line.
Grammar is that of POSIX sh with Bash's arrays, here-documents and ``[[``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from costmodel.errors import DseError

#: Longest text; scripts in the field have up to 40,000. [characters]
MOST_TEXT: Final = 60_000
#: Text that Bash or its writer takes otherwise -> the same for the tokens here.
_CLEANED: Final[tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]] = (
    (r"\r\n", "\n"),
    (r"\\\s*\Z", ""),  # a last line that is continued
    (r"(?<![^=\s:/])<(?=[A-Za-z])[^<>\n'\"]*>(?:[\s\\]*\(e\.g\.[^\n)]*\))?",  # a placeholder
     lambda text: "\\\n" * text[0].count("\n")),
)  # fmt: skip
_BLANK: Final = re.compile(r"(?:[ \t\r]|\\\n)*(?:#[^\n]*)?")
_PLAIN: Final = re.compile(r"[^\\'\"$`\s;|&<>(){}]+")
_ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*(?:\[[^]\n]*\])?\+?=")
_SIGN: Final = re.compile(r"\d*(?:<<<|<<-?|<>|>>|>\||[<>]&|[<>])(?!\()|&>>?|;;&?|;&|&&|\|\||\|&|[;|&()\n]")
_HERE: Final = re.compile(r"[ \t]*\\?(['\"]?)([\w.!-]+)\1")
#: Word that opens -> word that closes; words behind which a command begins.
_CLOSERS: Final = {"if": "fi", "case": "esac", "{": "}", "(": ")", "[[": "]]",
                   **dict.fromkeys(("for", "select", "while", "until"), "done")}  # fmt: skip
_ARMS: Final = {"then": "fi", "elif": "fi", "else": "fi", "do": "done"}
_KEYWORDS: Final = {*_CLOSERS, *_CLOSERS.values(), *_ARMS, "in", "!", "function"}
_BEFORE: Final = {*_ARMS, "if", "while", "until", "!", "{", "(", "}", ")", "fi", "done", "esac",
                  "\n", ";", ";;", "&", "&&", "||", "|", "|&"}  # fmt: skip
_ESAC: Final = re.compile(r"esac(?![^\s;|&<>()])")
_CALL: Final = re.compile(r"\(\s*\)\s*")
_CONTINUED: Final = {"&&", "||", "|", "|&"}


class Mistake(Exception):
    """A position at which a text is not a script, and the reason."""


class Token(NamedTuple):
    """A word as it is written, or a sign."""

    text: str
    at: int  #: position in the script [-]
    kind: str  #: "word"; "sign", "redirection"; "keyword"; "function" with its name; "arithmetic"


@dataclass
class Tokens:
    """Tokens of a script, or of a substitution in one: `closing` ends it."""

    source: str
    start: int = 0  #: position of the first token [-]
    closing: str = ""
    tokens: list[Token] = field(default_factory=list)
    closers: dict[int, int] = field(default_factory=dict)  #: ordinal of an opening token -> that of the closing one
    arms: dict[int, list[int]] = field(default_factory=dict)  #: ordinal of `if` or a loop -> those of `then`, `do`
    documents: dict[int, str] = field(default_factory=dict)  #: ordinal of `<<` -> here-document
    end: int = 0  #: position behind the last token [-]

    def __post_init__(self) -> None:
        stack: list[int] = []
        waiting: list[tuple[str, int]] = []
        at = self.start
        while True:
            at = blank_end(self.source, at)
            before = self.tokens[-1] if self.tokens else Token("\n", 0, "sign")
            inner = self.tokens[stack[-1]].text if stack else ""
            begins = inner != "[[" and (before.kind == "function" or (before.kind != "word" and before.text in _BEFORE))
            if at >= len(self.source) or (self.source.startswith(")", at) and not stack and self.closing):
                break
            sign = _SIGN.match(self.source, at)
            if inner == "case" and before.text in ("in", ";;") and not _ESAC.match(self.source, at):
                at = self.pattern(at)
            elif (
                begins and self.source.startswith("((", at) and self.source[: balanced(self.source, at)].endswith("))")
            ):
                end = balanced(self.source, at)
                self.tokens.append(Token(self.source[at + 2 : end - 2], at, "arithmetic"))
                at = end
            elif sign:
                at = self.sign(sign, stack, waiting, inner)
            else:
                end = word_end(self.source, at)
                if end == at:
                    raise Mistake(at, f"expected a command, not {self.source[at : at + 10]!r}")
                self.word(at, end, stack, begins, inner)
                at = blank_end(self.source, end)
                if (begins or self.tokens[-1].kind == "function") and (call := _CALL.match(self.source, at)):
                    name = self.tokens.pop()
                    self.tokens.append(Token(name.text, name.at, "function"))
                    at = call.end()
        if stack:
            opening = self.tokens[stack[-1]]
            raise Mistake(opening.at, f"a {opening.text} is never closed")
        self.end = at

    def pattern(self, at: int) -> int:
        """Add the pattern of a branch of `case`; returns the position behind it."""
        if self.source.startswith("\n", at):
            return at + 1
        end = self.source.find(")", at)
        if end < 0:
            raise Mistake(at, "expected a branch of case")
        self.tokens.append(Token("\n", at, "sign"))
        return end + 1

    def sign(self, sign: re.Match[str], stack: list[int], waiting: list[tuple[str, int]], inner: str) -> int:
        """Add a sign; returns the position behind it, and behind the here-documents of a line that ends."""
        text, at, end = sign[0], sign.start(), sign.end()
        if inner == "[[":
            self.tokens += [Token(text, at, "sign")] * (text != "\n")
        elif "<" in text or ">" in text:
            self.tokens.append(Token(text, at, "redirection"))
            if re.fullmatch(r"\d*<<-?", text):
                if not (tag := _HERE.match(self.source, end)):
                    raise Mistake(at, "expected the end word of a here-document")
                waiting.append((r"[ \t]*" * text.endswith("-") + re.escape(tag[2]), len(self.tokens) - 1))
                end = tag.end()
        elif text in "()":
            self.close(stack, at, text) if text == ")" else stack.append(len(self.tokens))
            self.tokens.append(Token(text, at, "sign"))
        elif text != "\n" or (
            self.tokens and self.tokens[-1].text not in _CONTINUED and self.tokens[-1].kind != "function"
        ):
            self.tokens.append(Token(";;" if text in (";&", ";;&") else text, at, "sign"))
        while text == "\n" and waiting:
            last_line, number = waiting.pop(0)
            last = re.compile(rf"^{last_line}[ \t]*$", re.MULTILINE).search(self.source, end)
            self.documents[number] = self.source[end : last.start() if last else None]
            end = last.end() if last else len(self.source)
        return end

    def close(self, stack: list[int], at: int, text: str) -> None:
        """Close the bracket or keyword that is open."""
        if not stack or _CLOSERS[self.tokens[stack[-1]].text] != text:  # of another opening
            raise Mistake(at, f"expected a command, not {text}")
        self.closers[stack.pop()] = len(self.tokens)

    def word(self, at: int, end: int, stack: list[int], begins: bool, inner: str) -> None:
        """Add a word, or a keyword where one may be."""
        text, before = self.source[at:end], [token.text for token in self.tokens[-2:]]
        keywords = [token.kind == "keyword" for token in self.tokens[-2:]]
        if before[-1:] == ["function"] and keywords[-1]:
            self.tokens[-1] = Token(text, at, "function")
            return
        named = text == "in" and keywords[:1] == [True] and before[0] in ("for", "select", "case")
        if text not in _KEYWORDS or not (begins or named or (inner == "[[" and text == "]]")):
            self.tokens.append(Token(text, at, "word"))
            return
        if text in _CLOSERS.values():
            self.close(stack, at, text)
        elif text in _ARMS:
            if _CLOSERS.get(inner) != _ARMS[text]:
                raise Mistake(at, f"expected a command, not {text}")
            self.arms.setdefault(stack[-1], []).append(len(self.tokens))
        elif text in _CLOSERS:
            stack.append(len(self.tokens))
        self.tokens.append(Token(text, at, "keyword"))


def cleaned(text: str) -> str:
    """A script as the tokens take it. Raises `DseError` if it is too long or no text."""
    if len(text) > MOST_TEXT or "\0" in text:
        raise DseError(f"expected a script: at most {MOST_TEXT:,} characters of text")
    for pattern, other in _CLEANED:
        text = re.sub(pattern, other, text)
    return text


def word_end(source: str, at: int) -> int:
    """Position behind the word at a position, with the array that it assigns."""
    array = _ASSIGNED.match(source, at)
    if array and source.startswith("(", array.end()):
        *_, (last, _) = array_items(source, array.end())
        if not source.startswith(")", last):
            raise Mistake(array.end(), "a ( is never closed")
        return last + 1
    while at < len(source) and (source[at] not in " \t\r\n;|&<>()" or source.startswith(("<(", ">("), at)):
        at = skipped(source, at)
    return at


def array_items(source: str, at: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each word of the array that opens at a position; an empty word where it ends."""
    at, begin = at + 1, at
    while begin != at:
        begin = blank_end(source, at)
        at = begin + 1 if source.startswith("\n", begin) else word_end(source, begin)
        if not source.startswith("\n", begin):
            yield begin, at


def skipped(source: str, at: int, quoted: bool = False) -> int:
    """Position behind plain text, a character, a quoted text or a substitution."""
    begin, char = at, source[at]
    if char == "\\":
        return min(at + 2, len(source))
    if char == "'" and not quoted:
        end = source.find("'", at + 1)
        if end < 0:
            raise Mistake(at, "a ' is never closed")
        return end + 1
    if source.startswith("$'", at) and not quoted:
        raise Mistake(at, "$'...' is not read; write '...'")
    if char in '"`' or source.startswith(("${", '$"'), at):
        closing = "}" if source.startswith("${", at) else source[at + (char == "$")]
        at += 1 + (char == "$")
        while not source.startswith(closing, at):
            if at >= len(source):
                raise Mistake(begin, f"a {'${' if closing == '}' else closing} is never closed")
            inside = closing == '"' or (quoted and closing == "}")
            at = at + 1 + (source[at] == "\\") if closing == "`" else skipped(source, at, inside)
        return at + 1
    if source.startswith("$((", at) and source[: (end := balanced(source, at + 1))].endswith("))"):
        return end
    if source.startswith(("$(", "<(", ">("), at) and (char == "$" or not quoted):
        end = Tokens(source, start=at + 2, closing=")").end
        if end >= len(source):
            raise Mistake(at, f"a {source[at : at + 2]} is never closed")
        return end + 1
    if name := re.compile(r"\$(?:[A-Za-z_]\w*|[\d@*#?$!-])").match(source, at):
        return name.end()
    plain = _PLAIN.match(source, at)
    return plain.end() if plain else at + 1


def blank_end(source: str, at: int) -> int:
    """Position behind blanks and a comment."""
    blank = _BLANK.match(source, at)
    return blank.end() if blank else at


def balanced(source: str, at: int) -> int:
    """Position behind the bracket that closes the one at a position."""
    depth = 0
    for bracket in re.compile("[()]").finditer(source, at):
        depth += 1 if bracket[0] == "(" else -1
        if not depth:
            return bracket.end()
    raise Mistake(at, "a ( is never closed")
