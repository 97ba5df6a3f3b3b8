"""Public names of a package, imported when they are first used, so that the command line starts at once.

The stub next to the `__init__.py` of a package lists them: ``from MODULE import NAME as NAME``. Type checkers read
it directly; at run time it is the table of names and their modules, so that no name is written twice.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path


@cache
def homes(package: str) -> dict[str, str]:
    """Public name of a package -> the module that has it."""
    stub = Path(str(import_module(package).__file__)).with_suffix(".pyi")
    imports = (node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def attribute(package: str, name: str) -> object:
    """A public name of a package, or all of them for ``__all__``; an `AttributeError` for another."""
    if name == "__all__":
        return sorted(homes(package).keys() - {"__version__"})
    if (name.startswith("__") and name != "__version__") or name not in homes(package):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(homes(package)[name]), name)
