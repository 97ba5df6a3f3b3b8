"""Arguments of public functions of wrong types: one line that names the argument, and the value."""

import pytest

import dse
from costmodel.errors import ParameterError
from dse.api import checked

WRONG = [
    ({"gpus": "8"}, "gpus: expected a whole number of at least 1, not '8'"),
    ({"gpus": [8, 16]}, "gpus: expected a whole number of at least 1, not [8, 16]"),
    ({"gpus": 0}, "gpus: expected a whole number of at least 1, not 0"),
    ({"gpus": True}, "gpus: expected a whole number of at least 1, not True"),
    ({"seq_len": "8k"}, "seq_len: expected a whole number of at least 1, not '8k'"),
    ({"system": ["h100", "b200"]}, "system: expected text or a path, not ['h100', 'b200']"),
    ({"set": "tp=8"}, "set: expected a mapping, such as {'tp': 8}, not 'tp=8'"),
    ({"tokens": -1}, "tokens: expected a number above 0 or text, not -1"),
    ({"precision": 8}, "precision: expected names, such as ['bf16', 'fp8'], not 8"),
    ({"model": None}, "model: expected text or a path, not None"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG)
def test_a_wrong_argument_is_named_with_its_value(changed, message):
    with pytest.raises(ParameterError) as error:
        dse.plan(**{"model": "llama3_8b", "gpus": 8, "system": "h100"} | changed)
    assert str(error.value) == message


def test_one_word_stands_for_a_sequence_and_whole_floats_for_integers():
    word = dse.plan("llama3_8b", gpus=8, system="h100", precision="fp8", objective="step_time")
    listed = dse.plan("llama3_8b", gpus=8.0, system="h100", precision=["fp8"], objective=["step_time"])
    assert word.study.pareto_front().equals(listed.study.pareto_front())
    assert word.study.space.data["objectives"] == listed.study.space.data["objectives"]


def test_a_missing_argument_is_pythons_error():
    with pytest.raises(TypeError, match="gpus"):
        checked(dse.plan)("llama3_8b", system="h100")
