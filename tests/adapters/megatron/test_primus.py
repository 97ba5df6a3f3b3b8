"""Configurations of Primus: YAML files of a checkout that extend others."""

import pytest

from costmodel import DseError
from dse.launches.launch import read_launch
from tests.support.cases import cases


@pytest.fixture
def experiment(tmp_path):
    for name, text in cases(__file__, "CHECKOUT").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "examples/llama.yaml"


def test_an_experiment_overrides_its_model_which_extends_another(experiment):
    launch, notes = read_launch(type(experiment)(f"PRIMUS_TP=2 {experiment}"), "megatron", 16)
    assert (launch.model.num_layers, launch.model.num_query_groups, launch.model.vocab_size) == (80, 8, 128_256)
    columns = ("tp", "dp", "zero", "micro_batch_size", "gradient_reduction")
    assert ([launch[name] for name in columns], notes[-1]) == ([2, 8, 3, 3, "bf16"], "not read: use_turbo_attention")


@pytest.mark.parametrize(("before", "after", "message"), cases(__file__, "refused"))
def test_experiments_of_other_models_and_frameworks_are_refused(experiment, before, after, message):
    experiment.write_text(experiment.read_text().replace(before, after))
    with pytest.raises(DseError, match=message):
        read_launch(experiment, "megatron", 16)
