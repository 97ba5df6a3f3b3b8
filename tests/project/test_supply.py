"""Dependencies with tested lower bounds, and readers that run nothing."""

import ast
import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import pytest

from costmodel.installation import DISTRIBUTION, installation
from tests import sbom
from tests.support.cases import by_table
from tests.support.paths import ROOT

MODULES = [path for package in ("costmodel", "dse", "search_spaces") for path in (ROOT / package).rglob("*.py")]

#: Modules that make objects of bytes, and so can run what is in them; and names that do, or run text.
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "shelve", "marshal", "dill", "cloudpickle", "jsonpickle"}
UNSAFE_NAMES = {
    *("Loader", "CLoader", "UnsafeLoader", "CUnsafeLoader", "FullLoader", "CFullLoader"),
    *("read_pickle", "to_pickle", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all"),
    *("np.load", "np.fromfile", "eval()", "exec()", "compile()", "__import__()"),
}


#: Every package that a part of the project needs -> the versions that it asks for.
DEPENDENCIES = {name: versions for name, (versions, _) in sbom.requirements(without=()).items()}


def test_every_extra_that_is_named_exists():
    """Of this distribution alone: the package index has another project called dse."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md")]
    texts = {path: path.read_text() for path in [*MODULES, *pages, ROOT / "pyproject.toml"]}
    named = {
        extra
        for text in texts.values()
        for actual in re.findall(rf"{DISTRIBUTION}\[([\w,]+)\]|installation\(.(\w+).\)|'\.\[(\w+)\]'", text)
        for extra in "".join(actual).split(",")
    }
    assert {"report", "dashboard", "dask", "postgresql"} <= named <= set(project["optional-dependencies"])
    assert not [path for path, text in texts.items() if re.search(r"install [^`\n]*\bdse\[", text)]


def test_the_bill_of_materials_lists_every_dependency():
    """`python -m tests.sbom` writes it anew; the licences are those that the newest packages declare."""
    stored = {component["name"]: component for component in json.loads(sbom.FILE.read_text())["components"]}
    asked = sbom.requirements()
    assert stored.keys() == asked.keys()
    for name, (versions, extra) in asked.items():
        properties = {line["name"]: line["value"] for line in stored[name]["properties"]}
        assert properties == {"dse:versions": versions} | ({"dse:extra": extra} if extra else {})
        assert stored[name]["purl"] == f"pkg:pypi/{name.lower()}"
    licences = {line["expression"] for component in stored.values() for line in component["licenses"]}
    ids = {word for expression in licences for word in expression.split(" AND ")}
    assert ids <= {"MIT", "BSD-3-Clause", "Apache-2.0", "MPL-2.0", "0BSD", "Zlib", "CC0-1.0", "LGPL-3.0-only"}


@by_table("origin", "command")
def test_an_extra_comes_from_where_the_program_came_from(origin, command, monkeypatch):
    """An index may not have it, and another version than the one of the clone would be another program."""
    distribution = SimpleNamespace(read_text=lambda file: origin and json.dumps(origin))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: distribution)
    assert installation("report") == command


def test_every_dependency_has_a_lower_bound():
    """`.ci/lowest` runs tests on exactly these versions."""
    assert [name for name, asked in DEPENDENCIES.items() if not re.match(r">=\d", asked)] == []


@pytest.mark.parametrize("name", DEPENDENCIES)
def test_what_is_installed_is_not_older(name):
    try:
        installed = version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    assert numbers(installed) >= numbers(DEPENDENCIES[name].removeprefix(">=").split(",")[0])


def numbers(text: str) -> list[int]:
    """The numbers that a version starts with."""
    actual = re.match(r"\d+(\.\d+)*", text)
    assert actual
    return [int(part) for part in actual[0].split(".")]


def unsafe(path: Path) -> list[str]:
    """Names in a module that can run the content of a file, by line."""
    actual = []
    for node in ast.walk(ast.parse(path.read_text())):
        modules, names = [], set()
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules, names = [node.module or ""], {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names = {node.attr}
            if isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy"):
                names = {f"np.{node.attr}", node.attr}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = {f"{node.func.id}()"}
        roots = {name.split(".")[0] for name in modules}
        if unwanted := (roots & UNSAFE_MODULES) | (names & UNSAFE_NAMES):
            actual.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {', '.join(sorted(unwanted))}")
    return actual


@pytest.mark.slow
def test_nothing_that_is_read_can_run():
    """No pickle, no evaluation of text, YAML by safe loaders alone.

    What joblib and Dask send between a search's own processes they do pickle; no file and no database is.
    """
    assert [line for path in MODULES for line in unsafe(path)] == []
