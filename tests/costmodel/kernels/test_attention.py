"""Fused attention: what it saves, and that it does the same work."""

import pytest

from costmodel import DesignPoints
from costmodel.kernels.products import fused_attention, visited_share
from costmodel.training.blocks import DECODER
from tests.support.runs import ranks_of

CORE = next(kernel for kernel in DECODER.kernels if kernel.is_core)


def test_the_forward_pass_does_half_of_four_s_squared_h(gpt, toy_system):
    """QK^T and the context are 2 s^2 h each; a causal kernel visits half of the tiles, and the diagonal."""
    run = ranks_of(gpt, DesignPoints.of(), toy_system)
    cost = fused_attention(run, CORE, "forward")
    assert cost.flops == pytest.approx((4 * gpt.seq_len**2 * gpt.attention_size) * visited_share(gpt.seq_len))
    backward = fused_attention(run, CORE, "backward")
    assert backward.flops == pytest.approx(2.5 * cost.flops)  # recomputed scores and four gradients
