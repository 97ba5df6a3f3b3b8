"""Memory beyond that of tensors: the driver's, NCCL's, the allocator's, and buffers that dispatch tokens."""

import pytest

from costmodel.steps.stage_memory import communicator_buffers, dispatch_buffers
from costmodel.training.run import rank_run
from tests.support.runs import named_run

MIB = 2**20


def buffers(system, **columns):
    return communicator_buffers(named_run("llama3_8b", system, **columns)).item()


def test_communicators_on_a100s_take_what_was_measured():
    """NVIDIA/nccl, issue 964: 544 MB of two ranks, 688 MB of four; all ranks and replicas are one each."""
    assert buffers("a100_80g_dgx", dp=2) == pytest.approx(2 * 544 * MIB)
    assert buffers("a100_80g_dgx", dp=4) == pytest.approx(2 * 688 * MIB)
    assert buffers("a100_80g_dgx", dp=64) == buffers("a100_80g_dgx", dp=4)
    assert buffers("a100_80g_dgx", tp=2, dp=2) == pytest.approx((688 + 2 * 544) * MIB)


def test_an_all_to_all_of_eight_h100s_takes_what_was_measured():
    """NVIDIA/nccl, issue 1685: 4.34 GB after the first one and 1.06 GB before."""
    columns = {"dp": 8, "ep": 8}
    direct = communicator_buffers(named_run("qwen3_30b_a3b", "h100_80g_dgx", **columns))
    gathered = communicator_buffers(named_run("qwen3_30b_a3b", "h100_80g_dgx", dispatcher="all_gather", **columns))
    assert (direct - gathered).item() == pytest.approx((4.34 - 1.06) * 1e9)


def test_one_rank_and_chips_without_channels_take_the_fixed_part_alone():
    assert buffers("h100_80g_dgx") == 0
    assert buffers("tpu_v5p_pod", tp=8, dp=64) == 0


def test_stages_of_one_node_have_buffers_for_their_neighbours():
    """Stages of another node share the buffers of the network."""
    apart = buffers("h100_80g_dgx", tp=8, pp=4) - buffers("h100_80g_dgx", tp=8, dp=4)
    side_by_side = buffers("h100_80g_dgx", pp=4) - buffers("h100_80g_dgx", dp=4)
    assert apart == pytest.approx(-688 * MIB)
    assert side_by_side == pytest.approx(2 * 32 * 3.28e9 / (32 * 7) - 688 * MIB)


# deepseek-ai/DeepEP dd758ca, deep_ep/buffers/legacy.py, `get_dispatch_config` and `get_combine_config`:
# tokens that a rank has room for from each peer of its node, and from each node.
DEEP_EP = [(2, 256, 128), (8, 256, 128), (16, 288, 128), (64, 288, 128), (128, 560, 128), (144, 720, 128)]


@pytest.mark.parametrize(("ep", "near", "far"), DEEP_EP)
def test_buffers_of_deep_ep_are_those_of_its_hints(ep, near, far):
    """`get_nvl_buffer_size_hint` and `get_rdma_buffer_size_hint`, written as they are, less counters."""
    run = named_run("deepseek_v3", "h100_80g_dgx", dp=ep, ep=ep, dispatcher="two_hop")
    channels, hidden_bytes, peers, nodes = 20 // 2, 7168 * 2, min(ep, 8), ep // 8
    token = hidden_bytes + 8 + 128 * 8 + 128 * 4 + 128 * 4
    nvlink = channels * peers * near * token
    rdma = channels * nodes * far * token * 2 if ep > 8 else 0
    assert dispatch_buffers(run, rank_run(run)).item() == pytest.approx(nvlink + rdma, rel=1e-12)


def test_buffers_of_hybrid_ep_hold_the_tokens_of_all_ranks_twice():
    """hybrid-ep, `HybridEPBuffer`: values and weights for all experts, on the way there and back."""
    run = named_run("qwen3_235b_a22b", "gb200_186g_nvl72", dp=32, ep=32, dispatcher="two_hop", micro_batch_size=2)
    tokens = 2 * run.model.seq_len * 32
    values, weights = tokens * 4096 * 2, tokens * 128 * 4
    assert dispatch_buffers(run, rank_run(run)).item() == 2 * (values + weights)
