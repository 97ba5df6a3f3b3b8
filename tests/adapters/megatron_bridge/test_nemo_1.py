"""Configurations of NeMo 1, whose keys had other names and places."""

import pytest
import yaml

from costmodel import DseError, load_model
from dse.launches.launch import read_launch
from dse.registry import recognized

#: As Llama 3.1 70B of AI-Hypercomputer/gpu-recipes (2e1fd5ef), src/frameworks/a3mega/nemo-configs.
MODEL = {
    "mcore_gpt": True, "micro_batch_size": 1, "global_batch_size": 2048, "tensor_model_parallel_size": 4,
    "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 4, "context_parallel_size": 2,
    "encoder_seq_length": 8192, "max_position_embeddings": 8192, "num_layers": 80, "hidden_size": 8192,
    "ffn_hidden_size": 28672, "num_attention_heads": 64, "num_query_groups": 8, "hidden_dropout": 0.0,
    "attention_dropout": 0.0, "normalization": "rmsnorm", "bias": False, "activation": "fast-swiglu",
    "position_embedding_type": "rope", "share_embeddings_and_output_weights": False, "sequence_parallel": True,
    "activations_checkpoint_granularity": "full", "activations_checkpoint_method": "uniform",
    "activations_checkpoint_num_layers": 1, "fp8": True, "fp8_hybrid": True, "vocab_size": 128256,
    "optim": {"name": "mcore_distributed_optim", "overlap_grad_sync": True, "grad_sync_dtype": "bf16"},
}  # fmt: skip


def read(tmp_path, **changes):
    (tmp_path / "old.yaml").write_text(yaml.dump({"trainer": {"precision": "bf16"}, "model": MODEL | changes}))
    return read_launch(tmp_path / "old.yaml", recognized(tmp_path / "old.yaml").name, 256)


def test_a_recipe_is_the_model_and_the_layout_that_it_states(tmp_path):
    launch, notes = read(tmp_path)
    assert launch.model.num_parameters == load_model("llama3_70b").num_parameters
    assert (launch.model.seq_len, launch.global_batch_size, launch["dp"], launch["zero"]) == (8192, 2048, 8, 1)
    assert (launch["recompute"], launch["precision"], launch["gradient_reduction"]) == (
        "full",
        "fp8_tensorwise",
        "bf16",
    )
    assert notes == ["fp8_recipe delayed is read as tensorwise"]


def test_products_of_keys_and_unknown_values(tmp_path):
    launch, notes = read(tmp_path, ffn_hidden_size="${multiply:4, ${.hidden_size}}", vocab_size=None, new_key=3)
    assert launch.model.ffn_hidden_size == 4 * 8192
    assert "no vocabulary is stated" in notes[-2]
    assert notes[-1] == "not read: model.new_key"
    with pytest.raises(DseError, match="activation: reglu: expected gelu"):
        read(tmp_path, activation="reglu")
