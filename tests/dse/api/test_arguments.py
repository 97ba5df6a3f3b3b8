"""Arguments of public functions of wrong types: one line that names the argument, and the value."""

import pytest

import dse
from costmodel.errors import ParameterError
from dse.api import checked
from tests.support.cases import cases


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
