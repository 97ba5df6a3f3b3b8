"""Configurations of Primus: YAML files of a checkout that extend others."""

import pytest

from costmodel import DseError
from dse.launches.launch import read_launch
from dse.registry import recognized
from tests.support.cases import cases

CHECKOUT = cases(__file__, "CHECKOUT")


@pytest.fixture
def experiment(tmp_path):
    for name, text in CHECKOUT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "examples/llama.yaml"


def test_an_experiment_overrides_its_model_which_extends_another(experiment):
    assert recognized(experiment).name == "megatron"
    launch, notes = read_launch(type(experiment)(f"PRIMUS_TP=2 {experiment}"), "megatron", 16)
    assert (launch.model.num_layers, launch.model.num_query_groups, launch.model.vocab_size) == (80, 8, 128_256)
    assert [launch[name] for name in ("tp", "dp", "zero", "micro_batch_size")] == [2, 8, 3, 3]
    assert launch["gradient_reduction"] == "bf16"  # of FSDP2
    assert notes[-1] == "not read: use_turbo_attention"


@pytest.mark.parametrize(("text", "message"), cases(__file__, "refused"))
def test_experiments_of_other_models_and_frameworks_are_refused(experiment, text, message):
    before, after = text.split(" -> ")
    experiment.write_text(experiment.read_text().replace(before, after))
    with pytest.raises(DseError, match=message):
        read_launch(experiment, "megatron", 16)
