"""Public names: each is there in whatever order they are imported, and has its documented defaults."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from types import ModuleType

import pytest

import costmodel
import dse
from dse.adapters.simai.command import network_of, simai_cost
from dse.cli import COMMANDS
from dse.registry import workload_kinds
from tests.house import ROOMS
from tests.support.cases import cases
from tests.support.paths import ROOT

#: Takes the names of a package forwards and backwards, each time in a package imported afresh, and prints
#: those that turn into something else on the way.
IN_EVERY_ORDER = cases(__file__, "IN_EVERY_ORDER")


@pytest.mark.parametrize("package", [dse, costmodel], ids=lambda package: package.__name__)
def test_every_name_is_there_in_every_order(package):
    """Of any two names, each comes before the other in some order."""
    done = subprocess.run(
        [sys.executable, "-c", IN_EVERY_ORDER, package.__name__], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == ""


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_has_the_name_of_something_that_its_folder_offers(room):
    """Importing such a module would put it in the place of the name."""
    package = importlib.import_module(room)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    offered = {name for name, member in vars(package).items() if not isinstance(member, ModuleType)}
    assert not modules & {*offered, *getattr(package, "__all__", ())}


def test_every_command_has_a_function_of_python():
    """The table of docs/python.md names each command, and functions and methods that are there."""
    page = (ROOT / "docs" / "python.md").read_text()
    rows = re.findall(r"^\| (`.+?`) \| (.+) \|$", page, flags=re.MULTILINE)
    assert {name for words, _ in rows for name in re.findall(r"`(\w+)`", words)} == COMMANDS.keys()
    homes = {"dse": dse, "study": dse.Study}
    called = {call for _, text in rows for call in re.findall(r"`(dse|study)\.(\w+)\(", text)}
    called |= {call for _, text in rows for call in re.findall(r"[ (](dse|study)\.(\w+)\(", text)}
    assert not [call for call in called if not (getattr(homes[call[0]], call[1]).__doc__ or "").strip()]


def test_the_function_for_workload_files_has_the_defaults_of_the_command():
    known = {**inspect.signature(network_of).parameters, **inspect.signature(simai_cost).parameters}
    defaults = workload_kinds()["aicb"].defaults
    assert {name: known[name].default for name in defaults} == defaults


def test_a_name_that_is_not_there_is_refused():
    for package in (dse, costmodel):
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            getattr(package, "nonsense")  # noqa: B009


def test_designs_of_a_space_are_priced_by_evaluate(small_space, tmp_path):
    space = dse.Space.from_text(small_space)
    assert dse.evaluate(space, space.encode([{"tp": 2, "pp": 4, "recompute": "full"}] * 3)).values.shape == (3, 2)
    storage = f"sqlite:///{tmp_path}/dse.db"
    study = dse.Study.open(space, storage=storage)
    study.run(8)
    assert repr(study).startswith("<Study 'small' of space small: 8 trials, ")
    assert study._repr_html_().count("<tr") == 1 + min(5, len(study.pareto_front()))
    assert [study.name for study in dse.studies(storage)] == ["small"]
    assert issubclass(dse.DseError, Exception)


def test_the_wheel_holds_every_package_that_the_program_imports():
    """An editable install finds them all whatever the wheel holds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == packages
