"""Built-in models: parameters, active parameters and FLOPs as they are published."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from costmodel import DesignPoints, DseError, ModelShape, load_model, load_system, step
from costmodel.formats import shipped
from costmodel.formats.model_file import model_names
from costmodel.training.kinds import KINDS
from costmodel.training.run import Run
from dse.adapters.dfmodel.layer import model_graph
from dse.adapters.simai.design_rows import simai_step
from tests.support.cases import cases
from tests.support.commands import json_of, stdout_of
from tests.support.paths import TEST_DATA

#: Published figures, each with its source.
FIGURES = pd.read_csv(TEST_DATA / "models.csv")
#: Title -> model that ships.
MODELS = {
    model.title: model
    for model in (load_model(name) for name in model_names())
    if isinstance(model, ModelShape) and model.title
}


def figures(column):
    """(title, row) of the models of which a figure is published."""
    rows = FIGURES[FIGURES[column].notna()]
    return [pytest.param(row, id=row.model) for row in rows.itertuples()]


def test_every_model_with_figures_ships():
    assert {*FIGURES.model} == {*MODELS}


@pytest.mark.parametrize("row", figures("total_published_1e9"))
def test_parameters_are_those_published(row):
    published = row.total_published_1e9 * 1e9
    assert MODELS[row.model].num_parameters == pytest.approx(published, rel=row.total_tolerance_pct / 100 or 1e-12)


@pytest.mark.parametrize("row", figures("total_exact"))
def test_parameters_are_those_of_the_weights_to_the_last_one(row):
    assert MODELS[row.model].num_parameters == row.total_exact


@pytest.mark.parametrize("row", figures("active_published_1e9"))
def test_active_parameters_are_those_published(row):
    model = MODELS[row.model]
    counted, tables = model.active_parameters, model.vocab_size * model.hidden_size
    counted -= {"all": 0, "without input table": 1}.get(row.active_counts, 2) * tables  # else of the body
    assert counted == pytest.approx(row.active_published_1e9 * 1e9, rel=row.active_tolerance_pct / 100)


@pytest.mark.parametrize("row", figures("gflop_per_token_published"))
def test_flops_of_a_token_are_those_published(row):
    model = MODELS[row.model]
    assert model.seq_len == row.flop_seq_len
    flops = 3 * model.forward_flops(causal=True)
    assert flops == pytest.approx(row.gflop_per_token_published * 1e9, rel=row.flop_tolerance_pct / 100)


# Theta of rotary positions and epsilon of norms: config.json of the repository named, but where a file is.
NUMERICS = cases(__file__, "NUMERICS")


@pytest.mark.parametrize("name", NUMERICS)
def test_numerics_are_those_published(name):
    numerics = load_model(name).numerics
    assert [numerics.rotary_base, numerics.norm_epsilon] == NUMERICS[name]


def test_models_with_rotary_positions_say_their_base_and_where_it_is_from():
    """But PaLM's, which arXiv 2204.02311 does not give."""
    for name in (name for name in model_names() if not name.startswith("palm")):
        data = shipped.opened(name, "models")[2].data
        if data.get("position_embedding") == "rotary":
            assert "rotary_base" in data["numerics"], name
            assert "numerics: " in data["source"], name


def test_without_multi_token_prediction_deepseek_v3_takes_fewer_flops():
    """arXiv 2505.09343, table 4: 385 and 432 TFLOP/s at 1541.7 tokens/s, so 249.8 and 280.5 GFLOP."""
    model = replace(load_model("deepseek_v3"), mtp_layers=0)
    assert 3 * model.forward_flops(causal=True) / 1e9 == pytest.approx(249.8, abs=0.05)
    assert 3 * model.forward_flops(causal=False) / 1e9 == pytest.approx(280.5, abs=0.5)


def test_multi_token_prediction_of_deepseek_v3_has_parameters_of_its_own():
    """README_WEIGHTS.md: 11.5 billion unique parameters."""
    assert load_model("deepseek_v3").mtp_parameters / 1e9 == pytest.approx(11.5, abs=0.15)


SHAPE = cases(__file__, "SHAPE")
EXPERTS = {"num_experts": 8, "moe_topk": 2, "moe_ffn_hidden_size": 48}


def attention_of(layer):
    """Kind of a layer's core."""
    return next(k.kind.name for k in layer.kernels if k.is_core or k.kind.exchanged.state)


def has_experts(layer):
    """True if a layer is a mixture of experts."""
    return any(kernel.of_experts for kernel in layer.kernels)


def pattern(of_layer, **fields):
    """Something of each layer, in order."""
    model = ModelShape(**SHAPE, **fields)
    return [of_layer(layer) for layer, count in model.sequence for _ in range(int(count))]


def test_every_nth_layer_has_full_attention():
    kinds = pattern(attention_of, window=8, full_attention_every=3)
    assert kinds == ["window", "window", "attention"] * 2
    assert pattern(attention_of, window=8, full_attention_every=0) == ["window"] * 6
    linear = {"linear_key_heads": 2, "linear_value_heads": 4, "linear_head_dim": 16, "linear_conv_kernel": 4}
    kinds = pattern(attention_of, linear_attention="gated_delta_net", full_attention_every=2, **linear)
    assert kinds == ["delta_net", "attention"] * 3


def test_experts_come_after_the_first_dense_layers_and_every_so_often():
    assert pattern(has_experts, **EXPERTS) == [True] * 6
    assert pattern(has_experts, first_dense_layers=2, **EXPERTS) == [False] * 2 + [True] * 4
    assert pattern(has_experts, moe_layer_freq=2, **EXPERTS) == [False, True] * 3


def test_a_token_meets_its_experts_and_all_else():
    model = ModelShape(**SHAPE, **EXPERTS)
    one = 3 * model.hidden_size * model.moe_ffn_hidden_size
    assert model.num_parameters - model.active_parameters == 6 * (8 - 2) * one
    everything = replace(model, moe_topk=8)
    assert everything.active_parameters == everything.num_parameters


def test_a_window_that_shows_everything_is_full_attention_but_for_the_diagonal():
    model = ModelShape(**SHAPE)
    wide = replace(model, window=model.seq_len, full_attention_every=0)
    difference = wide.forward_flops(causal=True) - model.forward_flops(causal=True)
    assert difference == 6 * 2 * 2 * 64 / 2  # layers, multiply-adds, scores and values, half a key
    narrow = [replace(wide, window=window).forward_flops(causal=True) for window in (16.0, 64.0, 256.0)]
    assert narrow == sorted(narrow)


def megatron_flops(model, tokens):
    """`num_floating_point_operations` of Megatron-LM d98e8a64 for a dense model with grouped queries.

    In windowed layers a query meets the keys that `flop_utils` of Megatron-Bridge 067f987d counts.
    """
    queries, keys = (heads * model.head_size for heads in (model.num_attention_heads, model.num_query_groups))
    window, windowed = model.window, 0
    if window:
        windowed = model.num_layers - model.num_layers // model.full_attention_every
    seen = window - window * (window - 1) / (2 * model.seq_len)
    attended = (model.num_layers - windowed) * model.seq_len / 2 + windowed * seen
    projections = model.hidden_size * (queries + 2 * keys) + queries * model.hidden_size
    mlp = 3 * model.hidden_size * model.ffn_hidden_size
    logits = model.hidden_size * model.vocab_size
    return 3 * 2 * tokens * (model.num_layers * (projections + mlp) + attended * queries * 2 + logits)


@pytest.mark.parametrize("name", ["llama3_405b", "gemma_3_27b"])
@pytest.mark.parametrize("seq_len", [8192.0, 131072.0])
def test_model_flops_and_mfu_are_those_of_megatron(name, seq_len):
    """Causal attention counts half, and a window the keys in it."""
    model, system = replace(load_model(name), seq_len=seq_len), load_system("h100_80g_dgx")
    actual = step(model, system, DesignPoints.of(tp=8, cp=4, pp=[1, 2], micro_batch_size=1))
    flops = megatron_flops(model, seq_len)
    np.testing.assert_allclose(actual.model_flops, flops, rtol=1e-12)
    peak = actual.world_size * 989.4e12  # NVIDIA H100 SXM, dense
    np.testing.assert_allclose(actual.mfu, flops / actual.step_time / peak, rtol=1e-3)


def test_norms_are_counted_where_they_stand():
    dense = ModelShape(**SHAPE)
    for changed, norms in (
        ({"norms_per_layer": 4}, 4),
        ({"parallel_block": True}, 1),
        ({"parallel_block": True, "parallel_norms": True}, 2),
    ):
        assert replace(dense, **changed).num_parameters - dense.num_parameters == 6 * (norms - 2) * 64


def test_rows_of_every_layer_that_ships_are_of_known_kinds_and_features():
    for model in MODELS.values():
        layers = [*model.kinds, *([model.mtp_layer] if model.mtp_layers else [])]
        for kernel in (kernel for layer in layers for kernel in layer.kernels):
            assert kernel.kind in KINDS.values()
            features = model.of_kernel(kernel).features
            assert features[kernel.reads] > 0
            assert features[kernel.makes] > 0


@pytest.mark.parametrize(("fields", "message"), cases(__file__, "CONTRADICTIONS"))
def test_fields_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(DseError, match=message):
        ModelShape(**SHAPE | fields)


def test_a_model_is_printed_with_what_follows_from_it():
    printed = stdout_of("models", "deepseek_v3")
    assert "# parameters: 671,026,419,200\n" in printed
    assert "# active parameters: 37,552,297,472, without the input table 36,625,618,432" in printed
    assert "2.5999e+11 (causal half)" in printed
    assert "18 B per parameter" in printed
    listed = {entry["title"]: entry for entry in json_of("models")["models"]}
    for title, model in MODELS.items():
        assert listed[title]["parameters"] == model.num_parameters
        assert listed[title]["active_parameters"] == model.active_parameters


@pytest.mark.parametrize("name", ["mixtral_8x7b", "deepseek_v3", "mistral_7b"])
def test_profiles_without_rows_for_a_model_say_so(name):
    model, system = load_model(name), load_system("h100_80g_dgx")
    with pytest.raises(DseError, match="AICB's rows are of layers of attention and an MLP, all alike"):
        simai_step(Run(model, system, DesignPoints.of(blocks=model.blocks)))
    with pytest.raises(DseError, match="DFModel's graph"):
        model_graph(model)


def test_simai_has_no_context_parallelism():
    run = Run(load_model("llama3_8b"), load_system("h100_80g_dgx"), DesignPoints.of(cp=2))
    with pytest.raises(DseError, match="take cp: 1"):
        simai_step(run)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_priced(name):
    """Designs that do not fit have a price too."""
    model = MODELS[name]
    design = DesignPoints.of(blocks=model.blocks, pp=4, dp=2, gradient_accumulation_steps=64)
    cost = step(model, load_system("h100_80g_dgx"), design)
    assert all(np.isfinite(values).all() for values in cost.columns().values())
    assert 0.05 < cost.mfu.item() < 0.8
