"""Layers of every kind as graphs of DFModel: their work, their weights, and the shardings that move least."""

import itertools
from typing import Any

import numpy as np
import pytest

from costmodel import ModelShape, load_model, load_system
from costmodel.errors import DseError
from costmodel.training.blocks import DECODER
from costmodel.training.run import Run
from dse.adapters.dfmodel.design import DataflowDesign, design_setup
from dse.adapters.dfmodel.files import load_setup, setup_file, setup_message, setup_text
from dse.adapters.dfmodel.graph import DfmodelGraph, least_moving, moved_bytes, options, sharding_words
from dse.adapters.dfmodel.layer import layer_graph, model_graph
from tests.support.cases import cases
from tests.support.commands import json_of

# 12 heads of 16, whatever the hidden size of 96; sequence 64; elements of 2 bytes.
HIDDEN, HEADS, SEQ, HEAD, GROUPS, FFN = 96, 12, 64, 16, 4, 160
A = HIDDEN * SEQ * 2  # the activation between kernels
V = GROUPS * HEAD * SEQ * 2  # the values
GROUPED = {"num_query_groups": GROUPS, "head_size": HEAD, "ffn_hidden_size": FFN}
KINDS = {
    "gpt": {}, "grouped queries": GROUPED, "gated": {**GROUPED, "gated_mlp": True},
    "without dropout": {**GROUPED, "gated_mlp": True, "dropout": False},
    "one group": {**GROUPED, "num_query_groups": 1},
}  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS)


def layer(kind: str, **changes: Any) -> DfmodelGraph:
    return layer_graph(HIDDEN, HEADS, SEQ, **{**KINDS[kind], **changes})


def product_flops(graph: DfmodelGraph, *, backward: bool = False) -> float:
    """Two for each multiply-add of the matrix products of a pass."""
    chosen = graph.systolic & (graph.backward == backward)
    return float(np.sum(2 * (graph.outer * graph.m * graph.k * graph.n)[chosen]))


def words(graph: DfmodelGraph) -> dict[str, str]:
    """Kernel -> the dimension that the sharding of least communication splits it by."""
    return dict(zip(graph.names, sharding_words(least_moving(graph).choices), strict=True))


# Work and weights


@pytest.mark.parametrize("name", ["gpt2_xl", "gpt3_175b", "llama2_7b", "llama3_8b", "llama3_405b"])
def test_products_and_weights_are_those_of_the_model(name):
    model = load_model(name)
    graph = model_graph(model, element_bytes=2)
    head = 2 * model.seq_len * model.hidden_size * model.vocab_size
    assert model.num_layers * product_flops(graph) == model.seq_len * model.forward_flops(causal=False) - head
    assert graph.second_bytes[graph.weighted & ~graph.backward].sum() == 2 * sum(map(model.weights, DECODER.kernels))


@kinds
def test_the_backward_pass_has_twice_the_products_of_the_forward_pass(kind):
    graph = layer(kind)
    assert product_flops(graph, backward=True) == 2 * product_flops(graph)


@kinds
def test_each_weight_has_its_gradient(kind):
    """As large as the weight."""
    graph = layer(kind)
    weights = graph.second_bytes[graph.weighted & ~graph.backward]
    assert sorted(graph.output_bytes[[name.endswith("_weight_update") for name in graph.names]]) == sorted(weights)


# Files


@kinds
def test_a_layer_is_written_read_and_priced(kind, tmp_path):
    graph = layer(kind)
    model = ModelShape(num_layers=4, hidden_size=HIDDEN, num_attention_heads=HEADS, seq_len=SEQ)
    design = DataflowDesign.of(tp=4, pp=2, dp=2, gradient_accumulation_steps=8)
    setup = design_setup(Run(model, load_system("a100_80g_dgx"), design))
    path = tmp_path / "setup.txt"
    path.write_text(setup_text(setup_message(graph, setup, least_moving(graph).choices)))
    read = setup_file(load_setup(path), str(path)).graph
    assert read.names == graph.names
    for name in ("outer", "m", "k", "n", "first_bytes", "output_bytes", "start", "end", "weighted"):
        assert np.array_equal(getattr(read, name), getattr(graph, name)), name
    assert json_of("cost", str(path))["final_s"] > 0


# Shardings


def test_megatrons_sharding_comes_out_for_gated_and_grouped_layers():
    """Shoeybi et al. 2019: by columns of the weight (m), then by rows (k); heads apart (outer)."""
    actual = words(layer("gated"))
    split = {"Q": "outer", "K": "outer", "V": "outer", "MHA_GEMM_1": "outer", "MHA_GEMM_2": "outer",
             "PROJ_GEMM": "k", "FFN0": "m", "SwiGLU": "m", "FFN1": "k", "LayerNorm_2": "none"}  # fmt: skip
    assert split.items() <= actual.items()
    assert {"FFN1_bwd": "m", "SwiGLU_bwd": "m", "FFN0_bwd": "k", "PROJ_GEMM_bwd": "m"}.items() <= actual.items()


# What the best sharding moves, and why no other moves less: an activation where attention ends, one where the
# MLP does, one of its gradients, and the gradient of V as an activation or as values, whichever is less.
LEAST = {
    "gpt": 4 * A, "grouped queries": 3 * A + V, "gated": 3 * A + V, "without dropout": 3 * A + V,
}  # fmt: skip


@pytest.mark.parametrize("kind", LEAST)
def test_least_communication_of_a_layer(kind):
    graph = layer(kind)
    actual = least_moving(graph)
    assert actual.moved_bytes == LEAST[kind] == moved_bytes(graph, actual.choices)
    assert least_moving(layer(kind, backward=False)).moved_bytes == 2 * A


@pytest.mark.parametrize("kind", LEAST)
@pytest.mark.parametrize("backward", [False, True])
def test_no_sharding_moves_less(kind, backward):
    """Every legal choice of one pass, the other as the optimum has it; without dropouts there are fewer."""
    graph = layer(kind, dropout=False)
    actual = least_moving(graph)
    legal = [
        options(graph, index)
        if graph.backward[index] == backward and not name.endswith("_weight_update")
        else [int(actual.choices[index])]
        for index, name in enumerate(graph.names)
    ]
    moved = [moved_bytes(graph, choices) for choices in itertools.product(*legal)]
    assert len(moved) > 100
    assert min(moved) == actual.moved_bytes


WRONG = cases(__file__, "WRONG")


@pytest.mark.parametrize("said", WRONG)
def test_what_does_not_divide_is_refused(said):
    given = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "seq_len": SEQ, **WRONG[said]}
    with pytest.raises(DseError, match=said):
        layer_graph(**given)
