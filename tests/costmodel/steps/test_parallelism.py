"""Context, expert and sharded data parallelism: what is sent is counted, what is kept adds up, laws hold."""

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, ModelShape, load_model, load_system, step
from costmodel.steps.micro_batch.exchanges import context_parallel
from costmodel.steps.stage_memory import WORKSPACE_BYTES
from costmodel.training.kinds import loss_passes
from costmodel.training.precision import CROSS_ENTROPY
from tests.support.cases import cases
from tests.support.runs import ranks_of

W = 2  # bytes of an element


@pytest.fixture
def gqa() -> ModelShape:
    """Four query heads share a key head."""
    return replace(load_model("llama3_8b"), num_layers=8.0)


def test_a_ring_hides_behind_the_core(gqa):
    run = ranks_of(gqa, DesignPoints.of(cp=4), load_system("h100_80g_dgx"))
    open_ring, hidden = (
        context_parallel(run, 2 * run.model.key_value_size, np.array([t]), "forward").cp_time.item() for t in (0.0, 1.0)
    )
    assert 0 < hidden < 0.5 * open_ring  # what is left is taken from the core's multiprocessors


def test_one_expert_for_every_token_costs_what_the_dense_layer_does(gqa):
    """But for the router and the permutation of tokens."""
    system = load_system("h100_80g_dgx")
    single = replace(gqa, num_experts=1.0, moe_topk=1.0, moe_ffn_hidden_size=gqa.ffn_hidden_size)
    dense, routed = (
        step(model, system, DesignPoints.of(blocks=model.blocks, micro_batch_size=2)) for model in (gqa, single)
    )
    assert routed.model_flops == dense.model_flops
    assert dense.step_time < routed.step_time < 1.1 * dense.step_time
    assert routed.weights_memory - dense.weights_memory == pytest.approx(W * gqa.num_layers * gqa.hidden_size)


def test_experts_have_data_parallel_groups_of_their_own(experts):
    """18 B for each parameter of an expert whose only replica it is."""
    system = load_system("h100_80g_dgx")
    expert_parameters = experts.num_layers * 3 * experts.hidden_size * experts.moe_ffn_hidden_size * experts.num_experts
    whole, shared = (
        step(experts, system, DesignPoints.of(blocks=experts.blocks, dp=8, ep=ep, zero=1)) for ep in (8, 2)
    )
    states = [b.weights_memory + b.gradients_memory + b.optimizer_memory for b in (whole, shared)]
    assert states[1] - states[0] == pytest.approx(expert_parameters * ((6 + 12 / 4) / 2 - 18 / 8))


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_no_rank_of_experts_has_more_than_all_tokens(ep, experts):
    design = DesignPoints.of(blocks=experts.blocks, dp=8, ep=ep, imbalance=[ep, 50])
    for column in step(experts, load_system("h100_80g_dgx"), design).columns().values():
        assert column[0] == pytest.approx(column[1])


def test_the_fullest_rank_sets_the_time_and_keeps_and_buffers_what_it_receives(experts):
    """Of each copy of a token: 2 h of its input, 6 f of a gated MLP, in proportion."""
    columns = {"blocks": experts.blocks, "dp": 8, "ep": 8, "micro_batch_size": 8, "imbalance": [1, 1.5, 2]}
    experts = replace(experts, vocab_size=128.0)  # the loss needs less than a layer
    actual = step(experts, load_system("h100_80g_dgx"), DesignPoints.of(**columns))
    copies = 8 * experts.seq_len * experts.moe_topk * experts.num_layers
    kept = copies * (2 * experts.hidden_size + 6 * experts.moe_ffn_hidden_size)
    np.testing.assert_allclose(np.diff(actual.activations_memory), kept / 2, rtol=1e-12)
    first, second = np.diff(actual.buffers_memory)
    assert 0 < first == pytest.approx(second)
    assert (np.diff([actual.forward_time, actual.ep_communication_time]) > 0).all()


def test_exchanges_hide_only_between_the_first_backward_and_the_last_forward_pass(experts):
    """Of 16 and 64 passes the last of 4 ranks runs 3 groups of 4 and one more before its first backward pass."""
    columns = {"blocks": experts.blocks, "dp": 8, "ep": 8, "pp": 4, "vpp": 4, "gradient_accumulation_steps": [4, 16]}
    system = load_system("h100_80g_dgx")
    plain, beside = (step(experts, system, DesignPoints.of(**columns, overlap_ep=on)) for on in (0, 1))
    few, many = plain.ep_communication_time - beside.ep_communication_time
    assert 0 < few < many
    assert few / many == pytest.approx((16 - 13) / (16 + 3) * 4 / ((64 - 13) / (64 + 3) * 16))


def test_activations_on_their_way_to_a_host_take_no_longer_where_exchanges_overlap(experts):
    slow = load_system("h100_80g_dgx").with_quantities({"host_link_bandwidth": 1e8, "host_dispatch": 0.0})
    columns = {"blocks": experts.blocks, "dp": 32, "ep": 8, "gradient_accumulation_steps": 16, "offload_activations": 1}
    plain, beside = (step(experts, slow, DesignPoints.of(**columns, overlap_ep=on)) for on in (0, 1))
    assert plain.offload_time > plain.ep_communication_time > 0
    assert beside.step_time <= plain.step_time * (1 + 1e-12)


#: Columns of a design, and peak less resident memory that Megatron-LM logs in functional tests (d98e8a64dd,
#: golden_values_dev_dgx_h100.json, with full recomputation dgx_a100: mem-max-allocated-bytes, mem-allocated-bytes). [B]
LOGGED_PEAKS = cases(__file__, "LOGGED_PEAKS")


@pytest.mark.parametrize(("columns", "logged"), LOGGED_PEAKS)
def test_peaks_that_megatron_lm_logs_are_met(columns, logged):
    """Activations, logits and the loss of 12 layers with 512 features and dropout, 4 sequences of 1,024 tokens."""
    model = ModelShape(num_layers=12, hidden_size=512, num_attention_heads=8, seq_len=1024, vocab_size=50304)
    design = DesignPoints.of(micro_batch_size=4, dp=8 / columns["tp"], **columns)
    actual = step(model, load_system("h100_80g_dgx"), design)
    beside = (actual.activations_memory + actual.buffers_memory).item() - WORKSPACE_BYTES
    assert math.isclose(beside, logged, rel_tol=0.03)


@pytest.mark.parametrize(("word", "size"), CROSS_ENTROPY.items())
def test_logits_take_the_bytes_of_the_kernels_of_the_loss(word, size, gqa):
    """A million entries more cost each token a million logits."""
    actual = [
        step(replace(gqa, vocab_size=entries), load_system("h100_80g_dgx"), DesignPoints.of(cross_entropy=word))
        for entries in (2e6, 3e6)
    ]
    assert np.diff([one.buffers_memory.item() for one in actual]) == pytest.approx(size * gqa.seq_len * 1e6)


def test_the_compiled_loss_reads_logits_once_in_each_direction():
    """Logits are read, and read and replaced by gradients: 6 bytes each, where separate kernels move 48."""
    one, other = ([*loss_passes(np.array([1e9]), fused)] for fused in (True, False))  # passes of 16-bit operands
    assert [sum(2 * work.tensors + float(work.more) for work in works) for works in (one, other)] == [6, 48]


def test_products_in_pieces_hide_what_is_gathered_and_scattered():
    """0.65 of all but one tile of a gather and of three quarters of a scatter; both take cores."""
    model, system = load_model("llama3_70b"), load_system("h100_80g_dgx")
    columns = {"tp": 8, "sequence_parallel": 1, "micro_batch_size": [1, 2]}
    exposed, hidden = (
        step(model, system, DesignPoints.of(**columns, overlap_tp=on)).tp_communication_time for on in (0, 1)
    )
    assert (hidden < 0.75 * exposed).all()
    assert (hidden > (1 - 0.65 * 7 / 8) * exposed).all()
