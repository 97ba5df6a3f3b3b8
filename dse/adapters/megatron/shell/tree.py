"""Syntax trees of shell scripts by tree-sitter's grammar of Bash, and what is wrong where there is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import process_time
from typing import TYPE_CHECKING, Final

from costmodel.errors import DseError

if TYPE_CHECKING:
    from tree_sitter import Node

#: Most time that a script may take to parse: a broken one may take the square of its length. [s]
MOST_TIME: Final = 0.5
#: Most text that is parsed, and most signs of pipelines; scripts in the field have up to 40,000 and 240.
MOST_TEXT: Final = 60_000
MOST_PIPES: Final = 1_000

#: What Bash or its writer takes otherwise than the grammar -> the same in its words.
_REWRITTEN: Final[tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]] = (
    (r"\r\n", "\n"),
    (r"\\\s*\Z", ""),  # a last line that is continued
    (r"(?<![^=\s:/])<(?=[A-Za-z])[^<>\n'\"]*>(?:[\s\\]*\(e\.g\.[^\n)]*\))?", ""),  # a place to be filled in
    (r"\$\{(\w+):\$(\w+)(?=[+-])", r"${\1:\2"),  # arithmetic in ${NAME:$PLACE+1}
    (r"\[\[ [^\n]*? \]\]", lambda own: own[0].replace(" = ", " == ")),
)
_OPENING: Final = {'"', "`", "(", "((", "$(", "$((", "${", "[", "[[", "{", "if", "case", "do", "'"}


def parsed(text: str) -> Node:
    """Tree of a script.

    Raises `DseError` if a quote or a bracket is left open, or it is no script; with the line.
    """
    if len(text) > MOST_TEXT or text.count("|") > MOST_PIPES or "\0" in text:
        raise DseError(f"expected a script: at most {MOST_TEXT:,} characters of text, {MOST_PIPES:,} of them |")
    for pattern, other in _REWRITTEN:
        text = re.sub(pattern, other, text)
    root = _tree(text.encode(errors="replace"))
    if cut := _cut(root):
        root = _tree(_braced(root.text or b"", cut))
    if root.has_error:
        raise DseError(_mistake(root))
    return root


def _tree(source: bytes) -> Node:
    from tree_sitter import Language, Parser
    from tree_sitter_bash import language

    last, parser = process_time() + MOST_TIME, Parser(Language(language()))
    try:
        parser.parse(lambda at, _: source[at : at + 4096], progress_callback=lambda *_: process_time() > last)
    except ValueError:
        raise DseError("brackets or quotes of the script are open or nested without bound") from None
    return parser.parse(source).root_node  # which knows its text


def _cut(root: Node) -> list[int]:
    """Where a `$` stands without its name, from the end on."""
    rest, found = [root], []
    while rest:
        for child in rest.pop().children:
            if child.type == "$":
                found.append(child.start_byte)
            elif child.type != "simple_expansion" and child.child_count:
                rest.append(child)
    return sorted(found, reverse=True)


def _braced(source: bytes, cut: list[int]) -> bytes:
    """A script with `${NAME}` where the grammar cuts `$NAME` in two, as it may behind `*` or `-`."""
    for place in cut:
        word = re.compile(rb"[^\s\"'`;|&()<>]*").match(source, place)
        if word:
            source = source[:place] + re.sub(rb"\$([A-Za-z_]\w*|\d)", rb"${\1}", word[0]) + source[word.end() :]
    return source


def text_of(node: Node) -> str:
    """What a node is written as."""
    return (node.text or b"").decode(errors="replace")


def _mistake(node: Node) -> str:
    """The first mistake in a tree: its line, and the bracket or quote that is left open, or the text."""
    while not (node.is_error or node.is_missing):
        node = next(child for child in node.children if child.has_error or child.is_missing)
    around = node.parent if node.is_missing and node.parent else node
    opened = [child for child in around.children if child.type in _OPENING and not child.is_missing]
    line = (opened[-1] if opened else node).start_point[0] + 1
    if opened:
        return f"line {line}: a {opened[-1].type} is never closed"
    return f"line {line}: expected a command of Bash, not {(text_of(node) or text_of(around))[:40]!r}"
