"""Words of shell scripts with their variables written out: quotes, arrays, arithmetic and substitutions."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from costmodel.errors import DseError
from dse.adapters.megatron.shell.tree import text_of
from dse.adapters.megatron.shell.values import is_number, line_of, whole_arithmetic
from dse.launches.launch import LONGEST

if TYPE_CHECKING:
    from tree_sitter import Node

_KEPT: Final = re.compile(r"\$(\{\w+\}|\w+)")
#: Value of a variable that a statement sets which is not followed: `$(for:12)`, with the line.
_DECIDED: Final = re.compile(r"\$\([a-z-]+:\d+\)")
_EXPANDING: Final = {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
#: Variables that any environment sets: a condition on one depends on the machine.
_SURROUNDING: Final = re.compile(r"\$\{?(HOSTNAME|HOME|USER|PATH|RANDOM|SLURM_\w+)\b")


class WordPart(NamedTuple):
    """Part of a word: what it stands for."""

    values: list[str]
    quoted: bool = False
    expands: bool = False
    each: bool = False  #: its values are words of their own in quotes too, as of "$@"


@dataclass
class Words:
    """Variables and arguments of a script, and the words that they make."""

    path: Path | None = None  #: of the script; files are looked for beside it
    variables: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[str] | None = None  #: of a script that another starts
    slurm: dict[str, str] = field(default_factory=dict)  #: options of `#SBATCH` lines and of `sbatch`
    folder: str = ""  #: current folder, relative to that of the script
    strict: bool = False  #: whether an unknown variable is empty, as in conditions
    sizes: list[int] = field(default_factory=lambda: [0])  #: characters so far [-]

    def gone(self, words: list[str]) -> bool:
        """Go to another folder."""
        where = words[-1] if words else "~"
        if "$" not in where:
            here = self.folder or (str(self.path.parent) if self.path else ".")
            self.folder = posixpath.normpath(posixpath.join(here, where))
        return True

    def known(self, nodes: Sequence[Node]) -> list[str | None]:
        """Words of a condition: what the caller would fill in is empty, what a program would is None."""
        before, self.strict = self.strict, True
        texts = [self.text(node) for node in nodes]
        self.strict = before
        unknown = (re.search(r"\$\(", text) or _SURROUNDING.search(text) for text in texts)
        return [None if own else _KEPT.sub("", text) for own, text in zip(unknown, texts, strict=True)]

    def arithmetic(self, text: str) -> int | None:
        """Whole-number arithmetic, where all of its names are known."""
        try:
            return whole_arithmetic(re.sub(r"[A-Za-z_]\w*", self._number, text))
        except (ValueError, ZeroDivisionError):
            return None

    def _number(self, name: re.Match[str]) -> str:
        held = self.held(name[0], None)
        return f"({held[0]})" if held else "0" if self.strict else name[0]

    # Words

    def assigned(self, node: Node) -> str:
        """Make an assignment; returns the name of the variable."""
        target, sign, *values = node.children
        index = target.child_by_field_name("index")
        name = text_of(target.child_by_field_name("name") or target)
        held = self.variables.get(name, [])
        if values and values[0].type == "array":
            words = [child for child in values[0].children if child.type not in ("(", ")", "comment")]
            if any(re.match(r"\[[^]]*\]=", text_of(word)) for word in words):
                self.variables[name] = [f"$(declare:{node.start_point[0] + 1})"]
                return name
            items = [item for own in words for item in self.expanded(own)]
            self.variables[name] = self.measured([*(held if sign.type == "+=" else []), *items])
            return name
        value = self.text(values[0]) if values else ""
        key = "0" if index is None else self.text(index)
        if not is_number(key):
            self.variables[name] = [f"$(declare:{node.start_point[0] + 1})"]
            return name
        place = min(int(key), len(held))
        before = "".join(held[place : place + 1]) if sign.type == "+=" else ""
        kept = (held[:place], held[place + 1 :]) if index is not None else ([], [])
        self.variables[name] = [*kept[0], *self.measured([before + value]), *kept[1]]
        return name

    def measured(self, words: list[str]) -> list[str]:
        """Words of a script, unless there are too many."""
        self.sizes[0] += sum(map(len, words)) + len(words)
        if self.sizes[0] > LONGEST:
            raise DseError("variables of the script grow without bound")
        return words

    def pieces(self, node: Node, quoted: bool = False, start: int | None = None) -> Iterator[WordPart]:
        """Parts of a word: what stands for something, and the text between."""
        if node.type in _EXPANDING:
            text = text_of(node).lstrip(" \t\n\\")
            yield WordPart(self.value(node), quoted, True, bool(re.search(r"\[@\]\}$|^\$@$|^\$\{@\}$", text)))
        elif node.type in ("raw_string", "ansi_c_string"):
            yield WordPart([text_of(node).lstrip("$")[1:-1]], True)
        elif node.type == "process_substitution":
            yield WordPart([text_of(node)], True)
        else:
            yield from self.mixed(node, quoted, start)

    def mixed(self, node: Node, quoted: bool, start: int | None) -> Iterator[WordPart]:
        """Parts of a word that has several, or of none but text."""
        source, at, end = node.text or b"", start or node.start_byte, node.end_byte
        if node.type == "string":
            quoted, at, end = True, node.children[0].end_byte, node.children[-1].start_byte
            yield WordPart([""], True)
        escaped = r'\\([$"\\`\n])' if quoted else r"\\(.)"

        def literal(to: int) -> WordPart:
            text = source[at - node.start_byte : to - node.start_byte].decode(errors="replace")
            if not quoted and re.search(r"\{[^{}\s]*(,|\.\.)[^{}\s]*\}", text):
                text = "$(braces)"
            return WordPart([re.sub(escaped, lambda own: own[1].strip("\n"), text, flags=re.DOTALL)], quoted)

        for child in node.children:
            if child.start_byte >= at and (child.children or child.type == "raw_string"):
                written = child.text or b""  # blanks before it belong to some
                blank = len(written) - len(written.lstrip(b" \t\n\\")) if child.type in _EXPANDING else 0
                yield literal(child.start_byte + blank)
                yield from self.pieces(child, quoted)
                at = child.end_byte
        yield literal(end)

    def text(self, node: Node, quoted: bool = False, start: int | None = None) -> str:
        """A part of a script as one text, with its variables written out."""
        texts = [" ".join(piece.values) for piece in self.pieces(node, quoted, start)]
        return self.measured(["".join(texts)])[0]

    def expanded(self, node: Node) -> list[str]:
        """A word with its variables written out: several where one holds several or, unquoted, has blanks."""
        found, pieces = [""], list(self.pieces(node))
        for piece in pieces:
            values = piece.values
            if piece.expands and not piece.quoted:
                text = " ".join(values)
                values = text.split()
                found += [""] * (text[:1].isspace() and found[-1] != "")
            elif piece.expands and not piece.each:
                values = [" ".join(values)]
            found[-1] += values[0] if values else ""
            found += self.measured(values[1:])
        quoted = any(piece.quoted for piece in pieces) and not any(piece.each for piece in pieces)
        return [one for one in found if one] or ([""] if quoted else [])

    def value(self, node: Node) -> list[str]:
        """What `$NAME`, `$(command)` and their kin stand for; what is not known stays as it is."""
        written = text_of(node).lstrip(" \t\n\\")
        if written.startswith("$((") and written.endswith("))"):  # which behind `:-` is a substitution to it
            known = node.type == "arithmetic_expansion"
            inner = "".join(self.text(child) for child in node.children[1:-1]) if known else written[3:-2]
            number = self.arithmetic(re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", inner))
            return ["".join(written.split()) if number is None else str(number)]
        if node.type == "command_substitution":
            text = self.output(node)
            first = "".join(re.findall(r"[-./\w]+", written)[:1])
            return [f"$({first})" if text is None else text]
        children = node.children[1:-1] if node.type == "expansion" else node.children[1:]
        marked = len(children) > 1 and not children[0].is_named
        if not children or not children[marked].is_named or " " in text_of(children[marked]):
            return [written]
        return self.parameter(node, children[0].type if marked else "", children[marked:])

    def parameter(self, node: Node, mark: str, parts: Sequence[Node]) -> list[str]:
        """What a variable stands for: its name, then what is to be done with it."""
        written, target = text_of(node).lstrip(" \t\n\\"), parts[0]
        index = target.child_by_field_name("index")
        key = None if index is None else self.text(index)
        name = text_of(target.child_by_field_name("name") or target)
        held = self.held(name, key)
        if mark == "#":
            return [str(len(held or []) if key in ("@", "*") else len("".join(held or [])))]
        sign = parts[1].type if len(parts) > 1 else ""
        asks = self.slurm or not name.startswith("SLURM_")
        hides = self.strict and not (asks and _SURROUNDING.match(f"${name}"))
        kept = [] if hides else [f"${name}" if sign else written]
        if not sign and mark != "!":
            return kept if held is None else held
        if sign.strip(":") not in ("-", "=", "+", "?"):
            return kept if held is None else [f"$({name})"]
        there = held is not None and not (sign[0] == ":" and "".join(held) == "")
        text = "".join(" ".join(own.values) for own in self.mixed(node, False, parts[1].end_byte))[:-1]
        if sign[-1] == "+":
            return [text] if there else []
        if there or sign[-1] == "?":
            return held if there and held is not None else kept
        if sign[-1] == "=":
            self.variables[name] = [text]
        return [text]

    def held(self, name: str, key: str | None) -> list[str] | None:
        """What a variable holds, all of it or one item; None if nothing is known of it."""
        if name in ("@", "*"):
            return self.arguments or []
        if name == "#":
            return [str(len(self.arguments or []))]
        if is_number(name) and name != "0":
            return (self.arguments or [])[int(name) - 1 : int(name)] or None
        if name in ("0", "BASH_SOURCE"):
            return [str(self.path)] if self.path else None
        if name in ("?", "PWD"):
            return ["0" if name == "?" else self.folder or "."]
        values = self.variables.get(name)
        if not values or key in ("@", "*") or _DECIDED.match(values[0]):
            return [""] if values == [] and key not in ("@", "*") else values
        index = int(key) if key and is_number(key) else 0
        return values[index : index + 1] or None

    def output(self, node: Node) -> str | None:
        """What a substituted command prints, where nothing but `echo`, `dirname` and their like does."""
        printed: list[str] = []
        there = replace(self)
        for own in _steps(node):
            command, *_ = own.children if own.type == "redirected_statement" else [own]
            if command.type != "command":
                return None
            words = [word for child in command.children for word in there.expanded(child)]
            if words[:1] == ["cd"]:
                there.gone(words[1:])
                continue
            line = (there.folder or ".") if words == ["pwd"] else line_of(words)
            if line is None:
                return None
            printed.append(line)
        return self.measured(["\n".join(printed).rstrip("\n")])[0]


def _steps(node: Node) -> Iterator[Node]:
    """Statements of a substitution in turn."""
    for child in node.children:
        if child.type == "list":
            yield from _steps(child)
        elif child.is_named:
            yield child
