"""The rooms of the house: packages, the modules in them, and who imports what; read from the source.

A package that has rooms says in which order they are read: its docstring has a line for each floor, from the
ground up. `test_contracts` holds these floors, and `python -m tests.house` draws them.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("costmodel", "dse")

#: What stands before the floors in the docstring of a package that has rooms.
ORDER: Final = "Rooms in the order in which they are read; those on one line do not import each other:"


def named(path: Path) -> str:
    """Dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


#: Module -> its file; packages among them.
FILES: Final = {named(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}
#: Packages.
ROOMS: Final = tuple(name for name, path in FILES.items() if path.name == "__init__.py")


@cache
def tree(name: str) -> ast.Module:
    """A module, parsed."""
    return ast.parse(FILES[name].read_text())


@cache
def nodes(name: str) -> list[ast.AST]:
    """Every node of a module."""
    return [*ast.walk(tree(name))]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Statements of a module, within others too; expressions are passed over, which are most of a tree."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, part, ()) if not isinstance(node, ast.expr) else ():
            yield statement
            yield from statements(statement)


def imported(module: ast.AST) -> Iterator[str]:
    """Modules that code imports, within functions too: of ``from a import b`` a.b if it is one, else a."""
    for node in statements(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            longer = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from longer & FILES.keys() or {node.module or ""}


@cache
def arrows() -> dict[str, set[str]]:
    """Module -> modules of the house that it imports."""
    return {name: {*imported(tree(name))} & FILES.keys() for name in FILES}


def children(room: str) -> list[str]:
    """Names of what stands in a package: modules, and rooms of its own."""
    return sorted({name.removeprefix(f"{room}.").split(".")[0] for name in FILES if name.startswith(f"{room}.")})


def floors(room: str) -> list[list[str]]:
    """Children of a package, floor by floor from the ground, as its docstring lists them; [] if it lists none."""
    text = ast.get_docstring(tree(room)) or ""
    if ORDER not in text:
        return []
    lines = text.split(ORDER)[1].splitlines()
    return [re.findall(r"\w+", line) for line in lines if line.startswith("    ")]


def child_of(room: str, name: str) -> str:
    """The child of a package that a module is, or is part of; "" if the module is elsewhere."""
    return name.removeprefix(f"{room}.").split(".")[0] if name.startswith(f"{room}.") else ""


def arrows_between(room: str) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Pairs of what stands in a package of which the first imports the second, with the modules that do."""
    actual: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for name, needed in arrows().items():
        for other in needed:
            ends = child_of(room, name), child_of(room, other)
            if all(ends) and ends[0] != ends[1]:
                actual[ends].append((name, other))
    return actual
