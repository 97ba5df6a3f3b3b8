"""Rules of the whole tree: imports go one way, docstrings have units, commands have examples."""

import ast
import builtins
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from costmodel.columns import grouped
from dse.cli import COMMANDS, parsed
from dse.searching.samplers.samplers import DEFAULT_SAMPLER, SAMPLERS
from tests.house import FILES, ROOMS, ROOT, arrows, arrows_between, children, floors, imported, named, nodes, tree
from tests.house_picture import PICTURE, picture
from tests.support.commands import parsers

#: Reference models stand beside the native one and beside each other.
REFERENCE_MODELS = ("deepflow", "dfmodel", "simai")

#: Libraries that the cost model does without: it knows nothing of studies and databases.
NOT_IN_THE_COST_MODEL = {"optuna", "sqlalchemy", "rich", "joblib", "argparse"}

#: The longest a module and a function may be; the longest functions fill a table, a line a column. [lines]
LONGEST_MODULE, LONGEST_FUNCTION = 600, 40

#: Rooms that have rooms of their own.
WITH_ROOMS = [room for room in ROOMS if any(f"{room}.{name}" in ROOMS for name in children(room))]

#: The most modules in a folder. [-]
MOST_MODULES = 20

#: The most lines of packages and rooms, less others; what would grow beyond says what it deletes. [lines]
BUDGETS = [
    ("costmodel dse", "", 66_780),
    ("costmodel dse", "dse.adapters", 44_808),
    ("costmodel", "costmodel.formats costmodel.lstm costmodel.rules", 13_348),
    ("dse.searching dse.storage", "", 6_697),
    ("dse.adapters", "", 21_972),
    ("dse.adapters.xla", "", 6_461),
    ("dse.adapters.dfmodel", "", 3_957),
    ("tests", "", 29_773),
]

#: Names without a meaning, which no value has.
VAGUE = {"own", "found", "each", "there", "place", "some"}


def functions(name: str) -> Iterator[ast.FunctionDef]:
    """Every function and method of a module."""
    return (node for node in nodes(name) if isinstance(node, ast.FunctionDef))


def test_no_folder_has_too_many_modules():
    sizes = {room: sum(f"{room}.{name}" not in ROOMS for name in children(room)) for room in ROOMS}
    assert not {room: size for room, size in sizes.items() if size > MOST_MODULES}


@pytest.mark.parametrize(("rooms", "others", "most"), BUDGETS)
def test_rooms_keep_to_their_budgets(rooms, others, most):
    every = FILES | {named(path): path for path in (ROOT / "tests").rglob("*.py")}

    def within(names: str) -> set[str]:
        return {name for name in every for room in names.split() if f"{name}.".startswith(f"{room}.")}

    lines = sum(every[name].read_text().count("\n") for name in within(rooms) - within(others))
    assert lines <= most, f"{rooms}: {lines - most} lines above the budget; delete as many in the same folders"


@pytest.mark.parametrize("room", WITH_ROOMS)
def test_imports_go_down_from_floor_to_floor(room):
    """Modules on one floor do not import each other, and nothing imports from above."""
    actual = {name: index for index, names in enumerate(floors(room)) for name in names}
    assert sorted(actual) == children(room), f"the docstring of {room} lists what stands in it"
    assert not [pair for ends, pair in arrows_between(room).items() if actual[ends[1]] >= actual[ends[0]]]


def test_the_picture_of_the_house_is_that_of_its_source():
    """`python -m tests.house_picture` draws it anew."""
    assert PICTURE.read_text() == picture()


def test_the_cost_model_knows_nothing_of_studies():
    modules = [name for name in FILES if name.startswith("costmodel")]
    needs = {(name, module.split(".")[0]) for name in modules for module in imported(tree(name))}
    assert not [(name, needed) for name, needed in needs if needed in {"dse", *NOT_IN_THE_COST_MODEL}]


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_a_reference_model_knows_no_other(name):
    others = tuple(f"dse.adapters.{other}" for other in REFERENCE_MODELS if other != name)
    modules = [module for module in FILES if module.startswith(f"dse.adapters.{name}")]
    assert not [other for module in modules for other in arrows()[module] if other.startswith(others)]


def test_the_core_names_no_adapter():
    """`dse.registry` finds them: nothing outside `dse.adapters` imports one, or writes the name of its modules."""
    core = [name for name in FILES if not name.startswith("dse.adapters")]
    assert not [(name, other) for name in core for other in arrows()[name] if other.startswith("dse.adapters")]
    assert not [name for name in core if re.search(r"dse\.adapters\.[a-z]", FILES[name].read_text())]


def test_there_is_no_circle_of_modules():
    """Not even one of imports within functions."""
    needs = {name: needed & FILES.keys() for name, needed in arrows().items()}
    free: set[str] = set()
    while ready := {module for module, needed in needs.items() if needed <= free} - free:
        free |= ready
    assert needs.keys() - free == set()


def test_no_two_classes_have_one_name():
    homes = grouped((node.name, name) for name in FILES for node in nodes(name) if isinstance(node, ast.ClassDef))
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


def test_every_number_in_a_docstring_has_a_unit():
    """A numpydoc entry whose type is a number or an array says its unit: ``[s]``, ``[-]``, ``[SI units]``."""
    without = [
        f"{name}.{function.name}: {entry}"
        for name in FILES
        for function in functions(name)
        for entry, kind, text in entries(ast.get_docstring(function) or "")
        if re.search(r"\b(float|array|FloatArray)\b", kind) and "bool" not in kind
        if not re.search(r"\[[^\]]+\]", text)
    ]
    assert not without


def docstrings() -> Iterator[tuple[str, str]]:
    """Module and docstring of every module, class and function."""
    for name in FILES:
        for node in nodes(name):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield name, ast.get_docstring(node) or ""


def test_docstrings_begin_with_the_result():
    """Not with a question word; and first lines stand alone, as on an index page they have no line above them."""
    leaning = r"(The same|Those|These|Some of them|All of (it|them)|Of|That of|It|Them|Both\.)\b"
    wrong = re.compile(rf"(What|Whether|How)\b|{leaning}")
    assert not [(name, text.partition("\n")[0]) for name, text in docstrings() if wrong.match(text)]


def test_names_in_docstrings_are_in_the_code():
    """Words in single backticks; names of other programs have two on each side."""
    paths = [*FILES.values(), *(ROOT / "costmodel").rglob("*.yaml"), *(ROOT / "dse").rglob("*.yaml")]
    code = " ".join(re.sub(r"`[^`\n]*`", "", path.read_text()) for path in paths)
    known = {*re.findall(r"\w+", code), *dir(builtins)}
    named = ((name, re.findall(r"(?<!`)`(\w+)`(?!`)", text)) for name, text in docstrings())
    assert not [(name, {*words} - known) for name, words in named if {*words} - known]


def test_names_of_values_have_a_meaning():
    """Of variables and parameters, in tests too; fields of records that are keys of the JSON keep theirs."""
    tests = (node for path in (ROOT / "tests").rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    every = [*(node for name in FILES for node in nodes(name)), *tests]
    keys = {node.target for node in every if isinstance(node, ast.AnnAssign)}
    stored = (node for node in every if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    names = {node.id for node in stored if node not in keys}
    assert not VAGUE & {*names, *(node.arg for node in every if isinstance(node, ast.arg))}


def entries(docstring: str) -> Iterator[tuple[str, str, str]]:
    """Name, type and text of the entries under ``Parameters`` and ``Returns``."""
    sections = re.split(r"^(\w[\w ]*)\n-{3,}$", docstring, flags=re.MULTILINE)
    for title, body in zip(sections[1::2], sections[2::2], strict=True):
        if title in ("Parameters", "Returns", "Attributes"):
            yield from re.findall(r"^(\S[^:\n]*?) : (.+)\n((?: {4}.*\n?|\n)*)", body, flags=re.MULTILINE)


def test_cited_sources_are_in_the_references():
    texts = (path.read_text() for path in FILES.values())
    cited = {key for text in texts for key in re.findall(r"\[([A-Z][A-Za-z]+\d{4})\]_?", text)}
    assert cited <= yaml.safe_load(Path("costmodel/references.yaml").read_text()).keys()


def test_modules_are_short():
    assert not [name for name, path in FILES.items() if path.read_text().count("\n") > LONGEST_MODULE]


def test_functions_are_short_and_named_for_their_results():
    every = [(name, function) for name in FILES for function in functions(name)]
    assert not [f"{name}.{f.name}" for name, f in every if lines_of(f) > LONGEST_FUNCTION]
    assert not [f"{name}.{f.name}" for name, f in every if re.match(r"(get|calc|compute)_", f.name)]


def lines_of(function: ast.FunctionDef) -> int:
    """Lines of a function but for its docstring, and the one that it begins with. [-]"""
    text = ast.get_docstring(function) or ""
    return (function.end_lineno or 0) - function.lineno - len(text.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_an_example(name):
    command = parsers()[name]
    assert command.description
    assert re.search(rf"^  dse {name}\b", command.epilog or "", flags=re.MULTILINE)
    for action in command._actions:
        assert action.help, f"dse {name}: {action.dest}"


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse(name):
    epilog = (parsers()[name].epilog or "").replace("\\\n", " ")
    for example in re.findall(r"^  dse (.*)$", epilog, flags=re.MULTILINE):
        assert parsed(shlex.split(re.split(r"\s{3,}\S|[|>]", example)[0])).run


def test_the_help_of_search_names_every_sampler():
    text = parsers()["search"].format_help()
    assert all(re.search(rf"\b{name}\b", text) for name in SAMPLERS)
    assert f"{DEFAULT_SAMPLER} (default)" in text
