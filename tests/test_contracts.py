"""What holds for the whole tree: imports go one way, docstrings have units, commands have examples."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from costmodel.references import REFERENCES
from dse.cli import parser
from dse.search.samplers import DEFAULT_SAMPLER, SAMPLERS

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path
    for package in ("costmodel", "dse")
    for path in (ROOT / package).rglob("*.py")
    if not path.stem.endswith("_pb2")  # generated
)

#: Floors of the house, from the ground: a module imports from its own and from lower ones, for types too.
FLOORS = (
    ("costmodel.columns", "costmodel.errors", "costmodel.references", "costmodel.figures"),
    ("costmodel.machine", "costmodel.solve"),
    ("costmodel.training",),
    ("costmodel.workload",),
    ("costmodel.kernels",),
    ("costmodel.steps",),
    ("costmodel.formats",),
    ("costmodel.hlo",),
    ("costmodel.profiles",),
    ("costmodel",),
    ("dse.predictions",),
    ("dse.spaces", "dse.fronts"),
    ("dse.pricing", "dse.storage", "dse.validation", "dse.figures"),
    ("dse.search", "dse.calibration", "dse.explain"),
    ("dse.report", "dse.export"),
    ("dse.cli",),
    ("dse",),
)
#: Reference models stand beside the native one and beside each other.
REFERENCE_MODELS = ("deepflow", "dfmodel", "simai")

#: Libraries that the cost model does without: it knows nothing of studies and databases.
NOT_IN_THE_COST_MODEL = {"optuna", "sqlalchemy", "rich", "joblib", "argparse"}

#: The longest a module and a function may be; the longest functions fill a table, a line a column. [lines]
LONGEST_MODULE, LONGEST_FUNCTION = 400, 40


def named(path: Path) -> str:
    """Dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


#: What may be imported from here.
NAMES = {named(path) for package in ("costmodel", "dse") for path in (ROOT / package).rglob("*.py")}


def floor(module: str) -> int:
    """Place of a module in `FLOORS`, by the longest name there that it begins with."""
    _, place = max(
        (len(name), place)
        for place, names in enumerate(FLOORS)
        for name in names
        if f"{module}.".startswith(f"{name}.")
    )
    return place


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules that a module imports: of ``from a import b`` the module a.b where there is one, else a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            longer = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from longer & NAMES or {node.module or ""}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Every function and method."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_imports_go_one_way(path):
    own = named(path)
    for module in imports(ast.parse(path.read_text())):
        if module in NAMES:
            assert floor(module) <= floor(own), f"{own} imports {module}, which is above it"
        if own.startswith("costmodel"):
            assert module.split(".")[0] not in NOT_IN_THE_COST_MODEL, f"{own} imports {module}"


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_a_reference_model_knows_no_other(name):
    others = [f"costmodel.profiles.{other}" for other in REFERENCE_MODELS if other != name]
    for path in (ROOT / "costmodel" / "profiles" / name).rglob("*.py"):
        for module in imports(ast.parse(path.read_text())):
            assert not module.startswith(tuple(others)), f"{named(path)} imports {module}"


def test_there_is_no_circle_of_modules():
    """Not even one of imports within functions."""
    trees = {named(path): ast.parse(path.read_text()) for path in MODULES}
    needs = {own: {*imports(tree)} & trees.keys() for own, tree in trees.items()}
    free: set[str] = set()
    while ready := {own for own, needed in needs.items() if needed <= free} - free:
        free |= ready
    assert needs.keys() - free == set()


def test_no_two_classes_have_one_name():
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(named(path))
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_every_number_in_a_docstring_has_a_unit(path):
    """A numpydoc entry whose type is a number or an array says its unit: ``[s]``, ``[-]``, ``[SI units]``."""
    for function in functions(ast.parse(path.read_text())):
        for name, kind, text in entries(ast.get_docstring(function) or ""):
            if re.search(r"\b(float|array|FloatArray)\b", kind) and "bool" not in kind:
                assert re.search(r"\[[^\]]+\]", text), f"{named(path)}.{function.name}: {name} has no [unit]"


def entries(docstring: str) -> Iterator[tuple[str, str, str]]:
    """Name, type and text of the entries under ``Parameters`` and ``Returns``."""
    sections = re.split(r"^(\w[\w ]*)\n-{3,}$", docstring, flags=re.MULTILINE)
    for title, body in zip(sections[1::2], sections[2::2], strict=True):
        if title in ("Parameters", "Returns", "Attributes"):
            yield from re.findall(r"^(\S[^:\n]*?) : (.+)\n((?: {4}.*\n?|\n)*)", body, flags=re.MULTILINE)


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_cited_sources_are_in_the_references(path):
    cited = set(re.findall(r"\[([A-Z][A-Za-z]+\d{4})\]_?", path.read_text()))
    assert cited <= REFERENCES.keys()


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_modules_and_functions_are_short_and_named_for_their_results(path):
    text = path.read_text()
    assert text.count("\n") <= LONGEST_MODULE
    for function in functions(ast.parse(text)):
        lines = (
            (function.end_lineno or 0)
            - function.lineno
            - len((ast.get_docstring(function) or "").splitlines())
        )
        assert lines <= LONGEST_FUNCTION, f"{named(path)}.{function.name}"
        assert not re.match(r"(get|calc|compute)_", function.name), f"{named(path)}.{function.name}"


def commands() -> dict[str, argparse.ArgumentParser]:
    """Every command's own parser."""
    [action] = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


@pytest.mark.parametrize("name", commands())
def test_every_command_has_help_and_an_example(name):
    command = commands()[name]
    assert command.description
    assert re.search(rf"^  dse {name}\b", command.epilog or "", flags=re.MULTILINE)
    for action in command._actions:
        assert action.help, f"dse {name}: {action.dest}"


@pytest.mark.parametrize("name", commands())
def test_examples_parse(name):
    epilog = (commands()[name].epilog or "").replace("\\\n", " ")
    for example in re.findall(r"^  dse (.*)$", epilog, flags=re.MULTILINE):
        words = shlex.split(re.split(r"\s{3,}\S|[|>]", example)[0])
        assert parser().parse_args(words).run


def test_the_help_of_search_names_every_sampler():
    text = commands()["search"].format_help()
    assert all(re.search(rf"\b{name}\b", text) for name in SAMPLERS)
    assert f"{DEFAULT_SAMPLER} (default)" in text
