"""Layers in any order: letters of a model file, layers of one branch, and dimensions of one kind of layer."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, DseError, ModelShape, load_model, load_system, step
from costmodel.steps.micro_batch.rank_memory import layer_memory
from tests.support.cases import cases
from tests.support.runs import ranks_of

SYSTEM = load_system("h100_80g_dgx")
DESIGN = DesignPoints.of(lora_rank=[0, 16, 0, 0], tp=[1, 2, 4, 4],
                         dp=[4, 2, 1, 1], cp=[1, 1, 1, 2], sequence_parallel=[0, 1, 1, 1],
                         recompute=["none", "full", "selective", "none"], gradient_accumulation_steps=4)  # fmt: skip
BASE = ModelShape(
    num_layers=8, hidden_size=1024, num_attention_heads=16, num_query_groups=8, head_size=64, ffn_hidden_size=4096,
    seq_len=4096, vocab_size=32000, gated_mlp=True, normalization="rms_norm", position_embedding="rotary",
    biases=False, dropout=False, tied_embeddings=False,
)  # fmt: skip
COSTS = ("forward_time", "backward_time", "tp_communication_time", "cp_communication_time", "step_time", "peak_memory")


def same(one, other, names=COSTS, rtol=1e-12):
    for name in names:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol)


def test_nemotron_h_has_the_parameters_and_flops_of_its_layers():
    """arXiv 2504.03624: 54 Mamba-2, 54 MLP and 10 attention layers, each behind a norm; no gate, squared ReLU."""
    model, h, vocabulary = load_model("nemotron_h_56b"), 8192, 131072
    inner, states, heads, groups = 256 * 64, 256, 256, 8
    channels = inner + 2 * groups * states
    mamba = h * (inner + channels + heads) + (4 + 1) * channels + 3 * heads + inner + inner * h
    attention = h * (64 + 2 * 8) * 128 + 64 * 128 * h
    mlp = 2 * h * 32768
    assert model.num_parameters == (54 * (mamba + h) + 54 * (mlp + h) + 10 * (attention + h)) + 2 * vocabulary * h + h
    assert [model.layer_order.count(letter) for letter in "M-*"] == [54, 54, 10]
    of_token = 54 * (h * (inner + channels + heads) + inner * h + 3.5 * inner * states)
    of_token += 54 * mlp + 10 * (attention + 2 * 64 * 128 * model.seq_len / 2) + vocabulary * h
    assert model.forward_flops(causal=True) == 2 * of_token


def test_layers_with_dimensions_of_their_own_cost_what_a_model_of_these_layers_does():
    """Half of the layers with other heads, another window and MLP: the mean of two uniform models, in every layout."""
    sizes = {"num_attention_heads": 32, "num_query_groups": 4, "head_size": 128, "ffn_hidden_size": 2048,
             "v_head_dim": 64, "qk_norm": True}  # fmt: skip
    other = replace(BASE, **sizes)
    mixed = replace(
        BASE,
        layer_order="fgfgffgg",
        layer_kinds=(("f", ("full", "dense", ())), ("g", ("full", "dense", tuple(sizes.items())))),
    )
    assert mixed.num_parameters == (BASE.num_parameters + other.num_parameters) / 2
    assert mixed.forward_flops(causal=True) == (BASE.forward_flops(causal=True) + other.forward_flops(causal=True)) / 2
    costs, one, two = (step(model, SYSTEM, DESIGN) for model in (mixed, BASE, other))
    for name in (*COSTS[:4], "weights_memory"):
        mean = (getattr(one, name) + getattr(two, name)) / 2
        np.testing.assert_allclose(getattr(costs, name), mean, rtol=1e-9, err_msg=name)
    [plain, sized] = mixed.kinds
    for model, layer in ((BASE, plain), (other, sized)):
        for name in ("kept", "working", "parameters"):
            alone = getattr(layer_memory(ranks_of(model, DESIGN), next(iter(model.kinds))), name)
            np.testing.assert_array_equal(getattr(layer_memory(ranks_of(mixed, DESIGN), layer), name), alone)


@pytest.mark.parametrize("pp", [2, 4])
def test_stages_depend_on_their_layers_and_not_on_the_order_within(pp):
    """The slowest stage paces the step: attention alone behind, Mamba-2 before, and every order within stages."""
    nano = load_model("nemotron_3_nano_30b_a3b")
    design = DesignPoints.of(pp=pp, tp=2, gradient_accumulation_steps=[4, 64])
    costs = {}
    for order in ("MEMEM*E*", "EMEM*M*E", "M*E*EMEM", "********", "MEMEMEME"):
        cut = {"num_layers": 8, "num_experts": 8, "seq_len": 16384, "layer_order": order}
        costs[order] = step(replace(nano, **cut), SYSTEM, design)
    if pp == 2:
        same(costs["MEMEM*E*"], costs["EMEM*M*E"])
        assert np.all(costs["MEMEM*E*"].step_time != costs["M*E*EMEM"].step_time)  # the head is on the other stage
    assert np.all(costs["MEMEM*E*"].step_time <= np.maximum(costs["********"].step_time, costs["MEMEMEME"].step_time))


@pytest.mark.parametrize(("fields", "message"), cases(__file__, "orders_that_a_model_cannot_have_are_refused"))
def test_orders_that_a_model_cannot_have_are_refused(fields, message):
    with pytest.raises(DseError, match=message):
        replace(BASE, **fields)


MODEL_FILE = cases(__file__, "MODEL_FILE")


def test_a_model_file_has_letters_with_dimensions(tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text(MODEL_FILE)
    model = load_model(path)
    assert [dict(layer.kernels[0].sizes) for layer, _ in model.sequence] == [
        {}, {"window": 128, "num_query_groups": 2, "sinks": True}, {}]  # fmt: skip
    for wrong, message in (("w: {mixer: windw", "mixer: 'windw' is not a value"), ("w: {vocab_size: 9", "unknown key"),
                           ("ww: {mixer: window", "expected a name of one letter")):  # fmt: skip
        path.write_text(MODEL_FILE.replace("w: {mixer: window", wrong))
        with pytest.raises(DseError, match=message):
            load_model(path)
