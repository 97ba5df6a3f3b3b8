"""Words of shell scripts with their variables written out: quotes, arrays, arithmetic and substitutions."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from costmodel.errors import DseError
from dse.adapters.megatron.shell.tokens import array_items, skipped
from dse.adapters.megatron.shell.values import is_number, whole_arithmetic
from dse.launches.launch import LONGEST

_KEPT: Final = re.compile(r"\$(\{\w+(\[[^]]*\])?\}|\w+|[@*])")
#: An assignment: name, index, sign and value.
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(?:\[([^]\n]*)\])?(\+?)=(.*)", re.DOTALL)
_PARAMETER: Final = re.compile(
    r"\$\{?([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^]]*)\])?(:?[-=+?]|[^}]?)(.*?)\}?", re.DOTALL
)
#: Value of a variable that a statement sets which is not followed: `$(for:12)`, with the line.
DECIDED: Final = re.compile(r"\$\(([a-z-]+):(?:([^:()]+):)?(\d+)\)")
#: Variables that any environment sets: a condition on one depends on the machine.
_SURROUNDING: Final = re.compile(r"\$\{?(HOSTNAME|HOME|USER|PATH|RANDOM|SLURM_\w+)\b")


class WordPart(NamedTuple):
    """Part of a word: the values that it stands for."""

    values: list[str]
    quoted: bool = False
    expands: bool = False
    separate: bool = False  #: its values are separate words in quotes too, as of "$@"


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
    line: int = 1  #: line of the statement [-]
    file: str = ""  #: file of the statement, if it is not the script

    def refused(self, text: str) -> DseError:
        """The error of a statement, with its line."""
        return DseError(f"{self.file and self.file + ': '}line {self.line}: {text}")

    def unknown(self, kind: str) -> str:
        """Value of a variable that the statement decides, a statement of this kind."""
        return f"$({kind}:{self.file and self.file + ':'}{self.line})"

    def gone(self, words: list[str]) -> bool:
        """Go to another folder."""
        target = words[-1] if words else "~"
        if "$" not in target:
            here = self.folder or (str(self.path.parent) if self.path else ".")
            self.folder = posixpath.normpath(posixpath.join(here, target))
        return True

    def measured(self, words: list[str]) -> list[str]:
        """Words of a script, unless the script has too many."""
        self.sizes[0] += sum(map(len, words)) + len(words)
        if self.sizes[0] > LONGEST:
            raise DseError("variables of the script grow without bound")
        return words

    def parts(self, word: str, quoted: bool = False) -> list[WordPart]:
        """Parts of a word: quoted texts, values of substitutions, and the text between."""
        parts: list[WordPart] = []
        at = 0
        while at < len(word):
            begin, at = at, skipped(word, at, quoted)
            piece = word[begin:at]
            if piece[0] == "\\":
                kept = "\\" * (quoted and piece[1:] not in [*'$"\\`\n'])
                parts.append(WordPart([kept + piece[1:].strip("\n")], piece != "\\\n"))
            elif piece[0] == "'" and not quoted:
                parts.append(WordPart([piece[1:-1]], True))
            elif piece.startswith(('"', '$"')):
                inner = self.parts(piece.lstrip("$")[1:-1], True)
                empty = not inner or not all(part.separate for part in inner)  # "$@" may be no word at all
                parts += [*[WordPart([""], True)] * empty, *inner]
            elif (piece[0] in "$`" or piece.startswith(("<(", ">("))) and len(piece) > 1:
                parts.append(self.substitution(piece, quoted))
            else:
                parts.append(WordPart([piece], quoted))
        return parts

    def text(self, word: str, quoted: bool = False) -> str:
        """A word as one text, with its variables written out."""
        return self.measured(["".join(" ".join(part.values) for part in self.parts(word, quoted))])[0]

    def expanded(self, word: str) -> list[str]:
        """A word, written out: several words if it holds several or, unquoted, has blanks."""
        words, parts = [""], self.parts(word)
        kept: list[int] = []  # words with quotes in them, which remain where they are empty
        if re.search(
            r"\{[^{}\s]*(,|\.\.)[^{}\s]*\}", "".join(" " if p.quoted or p.expands else p.values[0] for p in parts)
        ):
            return ["$(braces)"]
        for part in parts:
            values = part.values
            if part.expands and not part.quoted:
                text = " ".join(values)
                values = [*text.split(), *([""] if text[-1:].isspace() else [])]
                words += [""] * (text[:1].isspace() and words[-1] != "")
            elif part.expands and not part.separate:
                values = [" ".join(values)]
            words[-1] += values[0] if values else ""
            kept += [len(words) - 1] * (part.quoted and (bool(values) or not part.separate))
            words += self.measured(values[1:])
            kept += range(len(words) - len(values) + 1, len(words)) if part.quoted else []
        return [word for number, word in enumerate(words) if word or number in kept]

    def items(self, array: str) -> list[str]:
        """The words between the brackets of an array, written out."""
        return [word for begin, end in array_items(array, 0) for word in self.expanded(array[begin:end])]

    def known(self, word: str) -> str | None:
        """The word of a condition: a value that the caller would give is empty, one of a program is None."""
        before, self.strict = self.strict, True
        text = self.text(word)
        self.strict = before
        return None if re.search(r"\$\(", text) or _SURROUNDING.search(text) else _KEPT.sub("", text)

    def assigned(self, word: str) -> str:
        """Make the assignment that a word is; returns the name of the variable, "" if the word is none."""
        match = ASSIGNMENT.fullmatch(word)
        if not match:
            return ""
        name, key, adds, value = match.groups()
        held, key = self.variables.get(name, []), key and self.text(key)
        items = self.items(value) if value.startswith("(") else None
        sparse = not is_number(key or "0") or int(key or "0") > len(held)
        if sparse or (items is not None and re.search(r"[(\s]\[[^]]*\]=", value)):
            self.variables[name] = [self.unknown("declare")]
        elif items is not None:
            self.variables[name] = self.measured([*(held if adds else []), *items])
        else:
            number = min(int(key or "0"), len(held))
            before = "".join(held[number : number + 1]) if adds else ""
            self.variables[name] = [*held[:number], *self.measured([before + self.text(value)]), *held[number + 1 :]]
        return name

    def substitution(self, piece: str, quoted: bool) -> WordPart:
        """The values of `$NAME`, `$(command)` and their kin; an unknown one stays as it is written."""
        match = _PARAMETER.fullmatch(piece)
        if piece.startswith("$((") and piece.endswith("))"):
            number = self.arithmetic(self.text(piece[3:-2], True))
            values = ["".join(piece.split()) if number is None else str(number)]
        elif piece.startswith(("$(", "`")):
            inner = piece[2:-1] if piece[0] == "$" else re.sub(r"\\([`$\\])", r"\1", piece[1:-1])
            text, first = self.output(inner), "".join(re.findall(r"[-./\w]+", piece)[:1])
            values = [f"$({first})" if text is None else text]
        elif match:
            mark, name, key, sign, rest = match.groups()
            known = self.value(piece, mark, name, key and self.text(key), sign)
            if known is None and not quoted and sign[-1] != "=" and re.search(r"['\"]", rest):
                return WordPart(self.items(f"({rest})"), True, True, True)
            values = [self.text(rest, quoted)] if known is None else known
            if sign[-1:] == "=" and known is None:
                self.variables[name] = values
        else:
            values = [self.unknown("substitution") if piece[0] in "<>" else piece]
        separate = re.fullmatch(r"\$@|\$\{(@|\w+\[@\])\}", piece) is not None
        return WordPart(values, quoted, True, separate)

    def value(self, piece: str, mark: str, name: str, key: str | None, sign: str) -> list[str] | None:
        """The values of a variable; None where the operand of an operation such as `:-` is its value."""
        held = self.held(name, key)
        if mark == "#" and any("$(" in word for word in held or []):
            return [f"$({name})"]
        if mark == "#":
            return [str(len(held or []) if key in ("@", "*") else len(_KEPT.sub("", "".join(held or []))))]
        asks = self.slurm or not name.startswith("SLURM_")
        hidden = self.strict and not (asks and _SURROUNDING.match(f"${name}"))
        kept = [] if hidden else [f"${name}" if sign else piece]
        if not sign and mark != "!":
            return kept if held is None else held
        if mark == "!" or sign.lstrip(":") not in ("-", "=", "+", "?"):
            return kept if held is None else [f"$({name})"]
        is_set = bool(held) and self.variables.get(name) != []
        is_set = is_set and not (sign[0] == ":" and _KEPT.sub("", "".join(held or [])) == "")
        if sign[-1] == "+":
            return None if is_set else []
        if is_set or sign[-1] == "?":
            return held if is_set and held is not None else kept
        return None

    def held(self, name: str, key: str | None) -> list[str] | None:
        """The values of a variable, or one item of it; None if nothing is known of it."""
        if name in ("@", "*"):
            return self.arguments or []
        if name == "#":
            given = self.arguments or []
            return [self.unknown("arguments") if any("$(" in word for word in given) else str(len(given))]
        if is_number(name) and name != "0":
            return (self.arguments or [])[int(name) - 1 : int(name)] or None
        if name in ("0", "BASH_SOURCE"):
            return [str(self.path)] if self.path else None
        if name in ("?", "PWD"):
            return ["0" if name == "?" else self.folder or "."]
        values = self.variables.get(name)
        if not values or key in ("@", "*") or DECIDED.match(values[0]):
            return [""] if values == [] and key not in ("@", "*") else values
        index = self.arithmetic(key) if key else 0
        if index is None or -index > len(values):
            return [self.unknown("subscript")]
        index += len(values) * (index < 0)  # from the end
        return values[index : index + 1] or None

    def arithmetic(self, text: str) -> int | None:
        """Whole-number arithmetic; None if a name is not known."""
        text = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", text)
        try:
            return whole_arithmetic(re.sub(r"[A-Za-z_]\w*", self._operand, text))
        except (ValueError, ZeroDivisionError):
            return None

    def _operand(self, name: re.Match[str]) -> str:
        held = self.held(name[0], None)
        return f"({held[0]})" if held else "0" if self.strict else name[0]

    def output(self, text: str) -> str | None:
        """The output of a substituted command; None if it is not known."""
        raise NotImplementedError
