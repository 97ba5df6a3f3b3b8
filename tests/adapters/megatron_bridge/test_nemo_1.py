"""Configurations of NeMo 1, whose keys had other names and places."""

import pytest
import yaml

from costmodel import DseError, load_model
from dse.launches.launch import read_launch
from dse.registry import recognized
from tests.support.cases import cases

MODEL = cases(__file__, "MODEL")


def read(tmp_path, **changes):
    (tmp_path / "old.yaml").write_text(yaml.dump({"trainer": {"precision": "bf16"}, "model": MODEL | changes}))
    return read_launch(tmp_path / "old.yaml", recognized(tmp_path / "old.yaml").name, 256)


def test_a_recipe_is_the_model_and_the_layout_that_it_states(tmp_path):
    launch, notes = read(tmp_path)
    assert launch.model.num_parameters == load_model("llama3_70b").num_parameters
    assert (launch.model.seq_len, launch.global_batch_size, launch["dp"], launch["zero"]) == (8192, 2048, 8, 1)
    columns = [launch[name] for name in ("recompute", "precision", "gradient_reduction")]
    assert (columns, notes) == (["full", "fp8_tensorwise", "bf16"], ["fp8_recipe delayed is read as tensorwise"])


def test_products_of_keys_and_unknown_values(tmp_path):
    launch, notes = read(tmp_path, ffn_hidden_size="${multiply:4, ${.hidden_size}}", vocab_size=None, new_key=3)
    assert launch.model.ffn_hidden_size == 4 * 8192
    assert "no vocabulary is stated" in notes[-2]
    assert notes[-1] == "not read: model.new_key"
    with pytest.raises(DseError, match=r"activation: .reglu.: expected one of gelu"):
        read(tmp_path, activation="reglu")
