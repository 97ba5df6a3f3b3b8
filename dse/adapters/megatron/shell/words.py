"""Words of shell scripts with their variables written out: quotes, arrays, arithmetic and substitutions.

The values of arithmetic, conditions and small programs are known where all that they read is known.
"""

from __future__ import annotations

import ast
import operator
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from costmodel.errors import DseError
from dse.adapters.megatron.shell.tokens import array_items, skipped
from dse.launches.launch import LONGEST

#: Longest expression, and longest value that is gone through by its places. [characters]
MOST_CHANGED: Final = 1000
_AS_PYTHON: Final = {"&&": " and ", "||": " or ", "!": " not ", "/": "//"}


def _quotient(left: int, right: int) -> int:
    """Towards zero, as C divides."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


#: Signs between numbers and before one, as Python's parser names them -> their functions.
_OPERATORS: Final[dict[type, Callable[..., int | bool]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: _quotient, ast.Mod: lambda left, right: left - _quotient(left, right) * right,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}  # fmt: skip


def whole_arithmetic(text: str) -> int:
    """Value of an expression of whole numbers, with brackets and comparisons, as a shell has it.

    Raises `ValueError` if it is none.

    >>> whole_arithmetic("2 * (3 + 4) / 7 - 1"), whole_arithmetic("2 * 4 > 7 && 1")
    (1, 1)
    """
    if len(text) > MOST_CHANGED or not re.fullmatch(r"(?!.*(\+\+|--))[-+*/%()<>!=&|0-9\s]*", text, re.ASCII):
        raise ValueError(text)
    python = re.sub(r"&&|\|\||!(?!=)|/", lambda sign: _AS_PYTHON[sign[0]], " ".join(text.split()))
    try:
        return _whole(ast.parse(python.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(text) from None


def _whole(node: ast.expr) -> int:
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.BinOp(left, sign, right) | ast.Compare(left, [sign], [right]) if type(sign) in _OPERATORS:
            return int(_OPERATORS[type(sign)](_whole(left), _whole(right)))
        case ast.UnaryOp(sign, operand):
            return int(_OPERATORS[type(sign)](_whole(operand)))
        case ast.BoolOp(sign, values):
            return int((all if isinstance(sign, ast.And) else any)(map(_whole, values)))
    raise ValueError(ast.dump(node)[:80])


_COMPARED: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt,
    "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge,
}  # fmt: skip


def holds(words: Sequence[str | None]) -> bool | None:
    """The value of a condition of a shell; None where it is unknown here.

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


def line_of(words: Sequence[str]) -> str | None:
    """The output of a program; None where it is unknown.

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
        case ["realpath" | "readlink", *_, path]:
            return path
    return None


def is_number(text: str) -> bool:
    """True if a text is a short number of ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) < 10


_SHORT: Final = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"}


def slurm_options(text: str) -> dict[str, str]:
    """Options of the `#SBATCH` lines of a script, by their long names.

    >>> slurm_options("#SBATCH -N 4 --exclusive -n32 --gres=gpu:8 # of a node\\n")
    {'--nodes': '4', '--exclusive': '', '--ntasks': '32', '--gres': 'gpu:8'}
    """
    options: dict[str, str] = {}
    for line in re.findall(r"^[ \t]*#SBATCH[ \t]+([^#\n]*)", text, re.MULTILINE):
        for name, value in re.findall(r"(?<!\S)(-[NnG]|-[\w-]+)(?:(?:=|[ \t]*(?!-))(\S+))?", line):
            options.setdefault(_SHORT.get(name, name), value)
    return options


def slurm_sizes(options: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    """Nodes, tasks and GPUs of a node that options of Slurm name; None where they do not. [-]

    >>> slurm_sizes({"--nodes": "4", "--ntasks-per-node": "2", "--gres": "gpu:a100:8,nvme:1"})
    (4, 8, 8)
    """

    def number(name: str, pattern: str = r"(\d{1,7})") -> int | None:
        match = re.fullmatch(pattern, options.get(name, ""), re.ASCII)
        return int(match[1]) if match else None

    nodes, tasks, node_tasks = map(number, ("--nodes", "--ntasks", "--ntasks-per-node"))
    gpus = number("--gpus-per-node", r"(?:\w+:)?(\d{1,4})") or number("--gres", r".*\bgpu(?::\w+)?:(\d{1,4})\b.*")
    if nodes and not gpus and (total := number("--gpus", r"(?:\w+:)?(\d{1,7})")):
        gpus = total // nodes
    return nodes, tasks or (nodes * node_tasks if nodes and node_tasks else None), gpus


def slurm_variables(options: Mapping[str, str]) -> dict[str, str]:
    """Variables that Slurm sets for a job with these options."""
    nodes, tasks, gpus = slurm_sizes(options)
    values = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": options.get("--ntasks-per-node"), "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": options.get("--gpus-per-node"),
    }  # fmt: skip
    return {name: str(value) for name, value in values.items() if value}


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

    path: Path | None = None  #: of the script; files are searched in its folder
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
