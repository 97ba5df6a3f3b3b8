"""Fused attention: what it saves, and that it does the same work."""

from dataclasses import replace

import pytest

from costmodel import DesignPoints, load_model, load_system, step
from costmodel.kernels.products import fused_attention, visited_share
from costmodel.training.blocks import DECODER
from tests.support.runs import ranks_of

CORE = next(kernel for kernel in DECODER.kernels if kernel.is_core)


def test_the_forward_pass_does_half_of_four_s_squared_h(gpt, toy_system):
    """QK^T and the context are 2 s^2 h each; a causal kernel visits half of the tiles, and the diagonal."""
    run = ranks_of(gpt, DesignPoints.of(), toy_system)
    cost = fused_attention(run, CORE, "forward")
    whole = 4 * gpt.seq_len**2 * gpt.attention_size
    assert cost.flops == pytest.approx(whole * visited_share(gpt.seq_len))
    backward = fused_attention(run, CORE, "backward")
    assert backward.flops == pytest.approx(2.5 * cost.flops)  # recomputed scores and four gradients


def test_unfused_designs_have_no_fused_kernel(gpt, toy_system):
    cost = fused_attention(ranks_of(gpt, DesignPoints.of(attention="unfused"), toy_system), CORE, "forward")
    assert cost.time == cost.flops == 0
    assert all(moved == 0 for moved in cost.traffic)


@pytest.mark.parametrize("seq_len", [1024, 2048, 4096, 8192])
def test_fusion_saves_time_and_memory_and_more_so_for_long_sequences(seq_len):
    model, system = replace(load_model("gpt_22b"), seq_len=seq_len), load_system("a100_80g_dgx")
    unfused, fused = (
        step(model, system, DesignPoints.of(tp=8, attention=attention)) for attention in ("unfused", "fused")
    )
    assert fused.step_time < unfused.step_time
    scores = unfused.activations_memory - fused.activations_memory
    # Korthikanti et al. 2022: 5 a s^2 b bytes per layer, against one fp32 number per row.
    heads = model.num_attention_heads / 8
    assert scores == pytest.approx(model.num_layers * heads * seq_len * (5 * seq_len - 4))


def test_grouped_queries_move_fewer_keys(llama, toy_system):
    every_head = replace(llama, num_query_groups=llama.num_attention_heads)
    grouped, whole = (
        fused_attention(ranks_of(m, DesignPoints.of(), toy_system), CORE, "forward").traffic[-1]
        for m in (llama, every_head)
    )
    assert whole - grouped == 2 * llama.seq_len * 2 * (llama.attention_size - llama.key_value_size)
