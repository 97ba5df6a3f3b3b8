"""Memory that tensors cannot use: the driver's, the allocator's, and buffers of libraries that communicate.

The driver and its context take a fixed part of a chip, `reserved_memory` of the system. An allocator that
cannot move memory holds more than tensors take. NCCL adds buffers for each communicator, in proportion to its
channels: a receiver has 10 MiB for each connection and channel, a sender 2 MiB. Libraries that dispatch
tokens to experts allocate buffers of their own, once for all layers. Communicators of chips without channels
(`collective_cores` 0) take nothing beyond the fixed part.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.collectives import subgroups_per_tier
from costmodel.training.design import CP_A2A, CP_A2A_P2P, CP_P2P, DISPATCH_ALL_TO_ALL, DISPATCH_TWO_HOP, DesignPoints
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun, TransformerRun

MIB: Final = 2.0**20

#: Buffers of a communicator of two ranks, and of more, for each channel after its first all-reduce: 544 and
#: 688 MiB on A100s, with 24 channels (measured; NVIDIA/nccl, issue 964). [B]
PAIR_CHANNEL_BYTES: Final = 544 * MIB / 24
GROUP_CHANNEL_BYTES: Final = 688 * MIB / 24

#: Buffers for each channel to a peer in the same node that a rank sends to: an all-to-all of 8 H100s adds
#: 3.28 GB, 32 channels to each of 7 peers (measured; NVIDIA/nccl, issue 1685). Peers over the network share
#: one pool (NCCL_NET_SHARED_BUFFERS), which is left out. [B]
PEER_CHANNEL_BYTES: Final = 3.28e9 / (32 * 7)
#: Peers whose channels that run counts; of more, each is taken to get fewer channels (assumed). [-]
MOST_PEERS: Final = 7.0

#: DeepEP: peers of its NVLink kernels, multiprocessors (two for each channel), bytes of a token beside its
#: values: routing, 128 choices and 128 scales (documented; deepseek-ai/DeepEP dd758ca, csrc/legacy). [-], [B]
NVLINK_PEERS: Final = 8.0
DEEP_EP_CHANNELS: Final = 20 / 2
TOKEN_BYTES: Final = 8 + 128 * (8 + 4) + 128 * 4
#: Its tokens for each peer and channel, by the largest group that has them; and those for each node. [-]
NVLINK_TOKENS: Final = {8.0: 256.0, 64.0: 288.0, 96.0: 480.0, 128.0: 560.0, np.inf: 720.0}
NODE_TOKENS: Final = 128.0


def reserved_memory(run: TransformerRun, ranks: RankRun, allocated: FloatArray) -> FloatArray:
    """Memory of the driver, the allocator and communication libraries, beyond that of tensors, (points,). [B]

    `allocated` is the memory of tensors at the peak, (points,). [B]
    """
    return sum(reserved_parts(run, ranks, allocated).values(), np.zeros(1))


def reserved_parts(run: TransformerRun, ranks: RankRun, allocated: FloatArray) -> dict[str, FloatArray]:
    """Parts of the reserved memory by name; parameters are those of `reserved_memory`. [B]"""
    return {
        "driver and context": run.system.chip.reserved_memory,
        "fragmentation": run.system.software.fragmentation * allocated,
        "communicators": communicator_buffers(run),
        "dispatch of tokens": dispatch_buffers(run, ranks),
    }


def communicator_buffers(run: TransformerRun) -> FloatArray:
    """Buffers of NCCL: of each process group that reduces, and of each peer in a node that gets messages. [B]

    Every group reduces something: tensor-parallel ranks the loss over the vocabulary, replicas gradients,
    all ranks the norm of gradients.
    """
    channels = run.system.chip.collective_cores
    if not np.any(channels > 0):
        return np.zeros(1)
    design = run.design
    sizes = [design.world_size, design.tp, design.cp, design.replicas.size]
    if run.model.num_experts:
        sizes.append(np.where(design.ep > 1, design.edp, 1.0))
    per_channel = sum(
        np.where(size > 2, GROUP_CHANNEL_BYTES, np.where(size > 1, PAIR_CHANNEL_BYTES, 0.0)) for size in sizes
    )
    to_peers = np.where(channels > 0, 2.0 ** np.ceil(np.log2(np.maximum(channels, 1.0))), 0.0)
    return channels * per_channel + to_peers * PEER_CHANNEL_BYTES * message_peers(run)


def message_peers(run: TransformerRun) -> FloatArray:
    """Peers of a rank in its node that it exchanges messages with, summed over its process groups. [-]"""
    design = run.design
    in_ring = np.minimum(_peers(run, design.ranks.group("pp")), 2.0)
    among_cp = _peers(run, design.ranks.group("cp"))
    by_messages = (design.cp_communication == CP_P2P) | (design.cp_communication == CP_A2A_P2P)
    all_pairs = (design.cp_communication == CP_A2A) | (design.cp_communication == CP_A2A_P2P)
    heads = np.where(design.cp_communication == CP_A2A, design.cp, design.cp_a2a)
    peers = in_ring + np.where(by_messages, np.minimum(among_cp, 2.0), 0.0)
    peers = peers + np.where(all_pairs, np.clip(heads - 1, 0.0, among_cp), 0.0)
    if not run.model.num_experts:
        return peers
    direct = (design.dispatcher == DISPATCH_ALL_TO_ALL) & (design.ep > 1)
    experts = np.minimum(_peers(run, expert_group(design)), MOST_PEERS)
    return peers + np.where(direct, experts, 0.0)


def expert_group(design: DesignPoints) -> Group:
    """Ranks that hold different experts, (points,)."""
    return Group.of_stage(design.ep, design.etp, design.tp * design.cp, design.expert_spread)


def _peers(run: TransformerRun, group: Group) -> FloatArray:
    """Other ranks of a group in the node of one of its ranks. [-]"""
    return group.size / subgroups_per_tier(group, run.system.network)[1] - 1


def dispatch_buffers(run: TransformerRun, ranks: RankRun) -> FloatArray:
    """Buffers of DeepEP, or of HybridEP in nodes of more than 8 chips, where tokens take two hops. [B]

    DeepEP has buffers for a number of tokens from each peer of a node and twice from each node
    (`get_nvl_buffer_size_hint`, `get_rdma_buffer_size_hint`) [DeepEP2025]_. HybridEP has room for the tokens
    of all ranks with their weights for all experts, on the way to experts and back (branch hybrid-ep of
    DeepEP 94a9f8f, csrc/hybrid_ep/buffer/intranode.cu).
    """
    model, design = run.model, run.design
    if not model.num_experts or not (design.dispatcher == DISPATCH_TWO_HOP).any():
        return np.zeros(1)
    token = model.features["expert_in"] * run.precision.element_bytes
    near, tokens = np.minimum(design.ep, NVLINK_PEERS), np.asarray(NVLINK_TOKENS[np.inf])
    for most, size in sorted(NVLINK_TOKENS.items(), reverse=True):
        tokens = np.where(design.ep <= most, size, tokens)
    nodes = np.where(design.ep > near, design.ep / near, 0.0)
    deep = DEEP_EP_CHANNELS * (token + TOKEN_BYTES) * (near * tokens + 2 * nodes * NODE_TOKENS)
    hybrid = 2 * design.ep * ranks.routed_tokens * (token + 4.0 * model.num_experts)
    buffers = np.where(run.system.network[0].size > NVLINK_PEERS, hybrid, deep)
    return np.where((design.dispatcher == DISPATCH_TWO_HOP) & (design.ep > 1), buffers, 0.0)
