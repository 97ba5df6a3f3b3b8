"""Values in shell scripts: arithmetic, conditions, parts of texts, and what small programs print."""

from __future__ import annotations

import ast
import operator
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

#: Longest expression, and longest value that is gone through by its places. [characters]
MOST_CHANGED: Final = 1000
_AS_PYTHON: Final = {"&&": " and ", "||": " or ", "!": " not ", "/": "//"}


def _quotient(left: int, right: int) -> int:
    """Towards zero, as C divides."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


#: Signs between numbers and before one, as Python's parser names them -> what they do.
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
