"""Arguments of public functions of wrong types: one line that names the argument, and the value."""

import inspect
import pickle
from contextlib import suppress
from pathlib import Path

import pytest

import dse
from costmodel.errors import DseError, ParameterError
from dse.arguments import checked
from tests.support.cases import cases

#: Arguments that public functions and methods need; others have defaults.
NEEDED = cases(__file__, "NEEDED")
#: Values of which most arguments take none.
STRANGE: tuple[object, ...] = (
    None, [], {}, "", "x" * 5000, "a\0b", b"\xff", -1, 0.5, float("nan"), float("inf"), 10**400, True, object(), [None],
    {1: 2}, {"tp": None}, {"tp": []}, {"tp": object()}, {"tp": float("nan")}, "/nowhere/x.yaml", Path("/"),
)  # fmt: skip


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Objects that arguments in braces stand for."""
    folder = tmp_path_factory.mktemp("arguments")
    (folder / "table.csv").write_text("a,b\n1,2\n")
    plan = dse.plan("llama3_8b", gpus=8, system="h100", storage=f"sqlite:///{folder}/dse.db", study="a")
    return {"{space}": plan.study.space, "{study}": plan.study, "{design}": plan.study.explain(),
            "{csv}": folder / "table.csv", "{plans}": {("h100", 8): plan}}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDED)
def test_whatever_is_passed_only_errors_of_dse_come_out(objects, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    owner, _, method = name.rpartition(".")
    function = getattr(objects[f"{{{owner.lower()}}}"] if owner else dse, method)
    usual = {key: objects.get(str(value), value) for key, value in NEEDED[name].items()}
    for argument in inspect.signature(function).parameters:
        for value in STRANGE:
            with suppress(DseError):
                function(**{**usual, argument: value})


def test_every_public_function_is_attacked():
    assert {name for name in dse.__all__ if name.islower()} == {name for name in NEEDED if "." not in name} | {
        "formula_function"
    }
    assert pickle.loads(pickle.dumps(dse.plan)) is dse.plan


@pytest.mark.parametrize(("function", "arguments", "message"), cases(__file__, "WRONG"))
def test_a_wrong_argument_is_named_with_its_value(function, arguments, message):
    with pytest.raises(ParameterError) as error:
        getattr(dse, function)(**arguments)
    assert str(error.value) == message


def test_one_word_stands_for_a_sequence_and_whole_floats_for_integers():
    word = dse.plan("llama3_8b", gpus=8, system="h100", precision="fp8", objective="step_time")
    listed = dse.plan("llama3_8b", gpus=8.0, system="h100", precision=["fp8"], objective=["step_time"])
    assert word.study.pareto_front().equals(listed.study.pareto_front())
    assert word.study.space.data["objectives"] == listed.study.space.data["objectives"]


def test_a_missing_argument_is_pythons_error():
    with pytest.raises(TypeError, match="gpus"):
        checked(dse.plan)("llama3_8b", system="h100")
