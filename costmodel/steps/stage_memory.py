"""Memory of a rank at the fullest moment of a step, by part, on the fullest stage; and its items.

A rank holds weights, gradients and optimizer states of its stage, divided by the replicas that share them; activations
of the micro-batches whose backward pass is still to come; and buffers of the layer that runs. Under 1F1B the first of
p stages holds p micro-batches, and the last holds one, with its logits: `fullest_stage` compares the few candidates.

Tensors cannot use all memory of a chip. The driver and its context take a fixed part, `reserved_memory` of the system.
An allocator that cannot move memory holds more than tensors take. NCCL adds buffers for each communicator, in
proportion to its channels: a receiver has 10 MiB for each connection and channel, a sender 2 MiB. Libraries that
dispatch tokens to experts allocate further buffers, once for all layers. Communicators of chips without channels
(`collective_cores` 0) take nothing beyond the fixed part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from costmodel.columns import Columns, FloatArray, IntArray, chosen, column, largest
from costmodel.kernels.collectives import subgroups_per_tier
from costmodel.kernels.kernel_cost import Item, Items, weighted_sum
from costmodel.kernels.kernel_tables import every_part, some_narrow
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.parameter_states import (
    gathered_bytes,
    is_orthogonal,
    is_sharded,
    owned_parameters,
    owned_quantised,
    resharded,
    shard_ranks,
    state_bytes,
    state_shards,
    weight_copies,
)
from costmodel.steps.pipeline.pipeline_step import stage_parts
from costmodel.steps.pipeline.schedules import passes_run_beside
from costmodel.steps.pipeline.stages import Stage, chosen_stage
from costmodel.steps.pipeline.timed_pipelines import design_pipelines, rank_counts
from costmodel.training.design import CP_A2A, CP_A2A_P2P, CP_P2P, DISPATCH_ALL_TO_ALL, DISPATCH_TWO_HOP, DesignPoints
from costmodel.training.precision import ADAM, CROSS_ENTROPY, MUON, STATES
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun, TransformerRun, gradient_bytes, padded_vocabulary, trained_share

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

#: DeepEP: peers of its NVLink kernels, multiprocessors (two for each channel), bytes of a token in addition to its
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
    expert_group = Group.of_stage(design.ep, design.etp, design.tp * design.cp, design.expert_spread)
    experts = np.minimum(_peers(run, expert_group), MOST_PEERS)
    return peers + np.where(direct, experts, 0.0)


def _peers(run: TransformerRun, group: Group) -> FloatArray:
    """Other ranks of a group in the node of one of its ranks. [-]"""
    return group.size / subgroups_per_tier(group, run.system.network)[1] - 1


def dispatch_buffers(run: TransformerRun, ranks: RankRun) -> FloatArray:
    """Buffers of DeepEP, or of HybridEP in nodes of more than 8 chips, where tokens take two hops. [B]

    DeepEP has buffers for a number of tokens from each peer of a node and twice from each node
    (``get_nvl_buffer_size_hint``, ``get_rdma_buffer_size_hint``) [DeepEP2025]_. HybridEP has room for the tokens
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


#: Workspaces of libraries and the tensors of a batch (measured; functional tests of Megatron-LM d98e8a64dd). [B]
WORKSPACE_BYTES: Final = 0.1e9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StageMemory(Columns):
    """Memory of one rank of one stage; (points,) each."""

    weights: FloatArray = column("B")
    gradients: FloatArray = column("B")
    optimizer: FloatArray = column("B")
    activations: FloatArray = column("B")
    buffers: FloatArray = column("B")

    @property
    def total(self) -> FloatArray:
        """Memory of all parts of a stage together. [B]"""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


def sum_over_stage(stage: Stage, parts: Sequence[PartMemory], name: str) -> FloatArray:
    """A column of `PartMemory` over the layers and the embedding of a rank of a stage, in its unit."""
    return weighted_sum([getattr(part, name) for part in parts], stage.counts)


def trained_parameters(run: TransformerRun, stage: Stage, parts: Sequence[PartMemory]) -> tuple[FloatArray, FloatArray]:
    """Parameters of a rank of a stage that have gradients and states: of all but routed experts, and of these. [-]"""
    head = trained_share(run) * stage.has_head * head_parameters(run, stage)
    return sum_over_stage(stage, parts, "trained") + head, sum_over_stage(stage, parts, "trained_experts")


def head_parameters(run: TransformerRun, stage: Stage) -> FloatArray:
    """Parameters of the last norm and the output matrix on a rank of the last stage. [-]

    A tied head is the word table once more, unless both are on one stage.
    """
    model = run.model
    tied_here = model.tied_embeddings & (stage.has_embedding > 0)
    entries = padded_vocabulary(model, run.design.tp)
    output: FloatArray = np.where(tied_here, 0.0, entries * model.hidden_size / run.design.tp)
    return output + model.norm_parameters


def stage_activations(
    run: TransformerRun, stage: Stage, parts: Sequence[PartMemory], held: FloatArray
) -> dict[str, FloatArray]:
    """Activations that a rank of a stage keeps at its fullest moment, by the part that they are of, (points,) each. [B]

    Arguments are those of `fullest_stage`, for one stage of each pipeline that holds the activations of `held`
    micro-batches at once, (points,). [-]

    Of activations that hosts hold in between, the shares of two layers are on their way. Where the forward pass of one
    micro-batch overlaps with the backward pass of another (`overlap_ep`), each layer adds its activations before the
    other pass frees those of a layer: Megatron-LM, combined_1f1b.py and model_chunk_schedule_plan.py.
    """
    steps, layers = run.design.gradient_accumulation_steps, parts[: len(stage.layers)]
    batches = [*[held] * len(layers), np.minimum(run.design.pp, steps), np.ones(()), np.ones(())]
    counts = [count * number for count, number in zip(stage.counts, batches, strict=True)]
    names = [part.name for part in every_part(run.model)]
    kept = {name: part.kept * count for name, part, count in zip(names, parts, counts, strict=False)}
    if (beside := passes_run_beside(run.design) & (held < steps)).any():
        of_layers = np.maximum.reduce(np.broadcast_arrays(*(layer.kept for layer in layers)))
        kept["layer of the other pass"] = np.where(beside, of_layers, 0.0)
    if run.design.offloads_activations.any():
        share = run.design.offload_activations  # of activations outside of offloaded modules
        hosted = [share * (layer.kept - layer.hosted) + layer.hosted for layer in layers]
        offloading = [run.design.activation_offload_fraction * count for count in counts]
        away = {name: one * count for name, one, count in zip(names, hosted, offloading, strict=False)}
        moving = np.minimum(sum(away.values()), 2 * np.maximum.reduce(np.broadcast_arrays(*hosted)))
        kept |= {name: kept[name] - values for name, values in away.items()} | {"on the way to hosts": moving}
    return kept


def held_micro_batches(design: DesignPoints, stages: Sequence[Stage]) -> list[FloatArray]:
    """Micro-batches whose activations each of some stages holds at once; (points,) each. [-]

    1F1B runs p - r passes forward on rank r before the first backward pass ends; interleaved in groups of n
    micro-batches 2 (p - 1 - r) + (v - 1) n + 1, each through a v-th of the stage [Korthikanti2022]_. Other schedules
    hold the number that follows from their orders, until the gradient of the weights is computed.
    """
    p, v, m = design.pp, design.vpp, design.gradient_accumulation_steps
    group = np.where(design.group_size > 0, design.group_size, p)
    held = []
    for stage in stages:
        interleaved = 2 * (p - 1 - stage.rank) + (v - 1) * group + 1
        held.append(np.minimum(np.where(v > 1, interleaved, p - stage.rank), m * v) / v)
    others = np.flatnonzero(~design.is_1f1b)
    if others.size:
        counts = rank_counts(design_pipelines(design.take(others))).until_w
        for number, stage in enumerate(stages):
            ranks = stage.rank[others].astype(np.intp)
            on_ranks = counts[np.arange(others.size), np.minimum(ranks, counts.shape[1] - 1)]
            held[number] = held[number].copy()
            held[number][others] = on_ranks / np.broadcast_to(v, m.shape)[others]
    return held


@dataclass(frozen=True, eq=False)
class FullestStage:
    """The stages that may need most memory, and which of them does in each design."""

    stages: list[Stage]
    held: list[FloatArray]  #: micro-batches whose activations each holds at once; (points,) each [-]
    memories: list[StageMemory]
    index: IntArray  #: of the fullest among them; (points,) [-]

    @cached_property
    def memory(self) -> StageMemory:
        """Memory of the fullest stage, without the memory that the system reserves; (points,) columns. [B]"""
        columns = [memory.columns() for memory in self.memories]
        return StageMemory(**{name: chosen([table[name] for table in columns], self.index) for name in columns[0]})

    @property
    def stage(self) -> Stage:
        """The fullest stage of each design."""
        return chosen_stage(self.stages, self.index)

    @property
    def micro_batches(self) -> FloatArray:
        """Micro-batches whose activations the fullest stage holds at once; (points,). [-]"""
        return chosen(self.held, self.index)


def fullest_stage(
    run: TransformerRun, ranks: RankRun, parts: Sequence[PartMemory], stages: Sequence[Stage]
) -> FullestStage:
    """The stage that needs most memory, and its memory.

    `parts` are their `rank_memory`, (points,) [-], [B]; one of `stages` is the fullest: `PipelineStages.foremost`.
    """
    design, tables = run.design, []
    layers = parts[: len(run.model.kinds)]
    loss = loss_buffers(run, parts)
    messages, units = message_buffers(run, ranks), unit_buffers(run, layers)
    sizes, routed = state_sizes(run), run.model.num_experts > 0
    shards = [state_shards(design, state) for state in STATES]
    expert_shards = [state_shards(design, state, of_experts=True) for state in STATES if routed]
    narrow = quantised_bytes(run) if some_narrow(run) else []
    every_held, copies = held_micro_batches(design, stages), weight_sets(design)
    for stage, held in zip(stages, every_held, strict=True):
        parameters, trained_experts = trained_parameters(run, stage, parts)
        experts = trained_experts if routed else None
        whole = sum_over_stage(stage, parts, "parameters") + stage.has_head * head_parameters(run, stage)
        numbers = copies * whole, parameters, parameters
        kept = held_states(numbers, stage, sizes, shards)
        if experts is not None:
            numbers = copies * sum_over_stage(stage, parts, "expert_parameters"), experts, experts
            of_experts = held_states(numbers, stage, sizes, expert_shards)
            kept = [others + more for others, more in zip(kept, of_experts, strict=True)]
        quantised = stage_quantised(run, stage, parts)
        kept[0] = sum((number * size for number, size in zip(quantised, narrow, strict=False)), start=kept[0])
        updating = update_copies(run, quantised, kept[-1])
        kept[-1] = optimizer_memory(run, stage, parameters, experts, usual=kept[-1])
        of_stage = stage_parts(run, stage, parts)
        working = working_buffers(of_stage[: len(layers)])
        running = np.where(stage.has_head > 0, np.maximum(working, loss), working) + messages + units
        activations = sum(stage_activations(run, stage, of_stage, held).values(), start=np.zeros(()))
        buffers = np.maximum(running, updating - activations) + WORKSPACE_BYTES
        states = dict(zip(STATES, kept, strict=True))
        tables.append(StageMemory(**states, activations=activations, buffers=buffers))
    return FullestStage([*stages], every_held, tables, largest([memory.total for memory in tables]))


def state_sizes(run: TransformerRun) -> list[FloatArray | float]:
    """Bytes of each of the `STATES` of one parameter on a chip, by Adam; states of hosts are counted. [B]"""
    copied = run.precision.element_bytes * np.where(run.design.gradient_copy > 0, 1.0, 0.0)
    here = np.where(run.system.software.offloaded_shards > 0, 1 - run.design.offload_optimizer, 1.0)
    return [run.precision.element_bytes * here, (gradient_bytes(run) + copied) * here, state_bytes(run, ADAM)]


def weight_sets(design: DesignPoints) -> FloatArray:
    """Sets of weights that ranks hold: a reference model is a second one, except for adapters. [-]"""
    return np.where(design.lora_rank == 0, 1 + design.reference_model, 1.0)


def held_states(
    numbers: Sequence[FloatArray], stage: Stage, sizes: Sequence[FloatArray | float], shards: Sequence[FloatArray]
) -> list[FloatArray]:
    """Bytes of each of the `STATES` of a stage, `numbers` of them, divided among `shards` replicas. [B]

    A state that is not divided has a copy wherever the model has one.
    """
    held = [number * size / over for number, size, over in zip(numbers, sizes, shards, strict=True)]
    if not stage.copies.ndim:
        return held
    return [state * np.where(over > 1, 1.0, stage.copies) for state, over in zip(held, shards, strict=True)]


def quantised_bytes(run: TransformerRun) -> list[FloatArray]:
    """Bytes of a quantised weight on a rank, beyond 16 bits: its share and copies; experts apart. [B]"""
    copies = weight_copies(run)
    return [  # copies that live as long as the layer runs are in `unit_buffers`
        copies.primary / state_shards(run.design, "weights", of_experts=of_experts)
        + np.where(resharded(run.design, of_experts=of_experts), 0.0, copies.cast)
        for of_experts in (False, True)
    ]


def stage_quantised(run: TransformerRun, stage: Stage, parts: Sequence[PartMemory]) -> list[FloatArray]:
    """Weights of a rank of a stage that products read in fewer bits: of all but experts, and of these. [-]"""
    if not some_narrow(run):
        return [np.zeros(()), np.zeros(())]
    return [sum_over_stage(stage, parts, name) for name in ("quantised", "quantised_experts")]


def working_buffers(layers: Sequence[PartMemory]) -> FloatArray:
    """Bytes that the running layer needs in addition to kept tensors, of the kind that needs most. [B]"""
    return np.asarray(np.maximum.reduce(np.broadcast_arrays(*(layer.working for layer in layers))))


def loss_buffers(run: TransformerRun, parts: Sequence[PartMemory]) -> FloatArray:
    """Bytes for the loss of a micro-batch, or for a layer of multi-token prediction if it needs more. [B]"""
    head, *ahead = parts[len(run.model.kinds) + 1 :]
    size = np.array([*CROSS_ENTROPY.values()])[run.design.cross_entropy.astype(np.intp)]
    others = (part.working for part in ahead)
    return np.asarray(np.maximum.reduce(np.broadcast_arrays(head.working + size * head.logits, *others)))


def optimizer_memory(
    run: TransformerRun, stage: Stage, parameters: FloatArray, experts: FloatArray | None, *, usual: FloatArray
) -> FloatArray:
    """States of a rank of a stage on its own chip, of the fullest owner where matrices are owned whole, (points,). [B]

    States held by hosts are left out. `usual` are the states by Adam, all of them on the chip, (points,). [B] Other
    arguments are those of `owned_parameters`.
    """
    orthogonal = is_orthogonal(run.design)
    if orthogonal.any():
        plain, matrices = owned_parameters(run, stage, parameters, experts)
        by_optimizer = plain * state_bytes(run, ADAM) + matrices * state_bytes(run, MUON)
        usual = np.where(orthogonal, by_optimizer, usual)
    on_host, left = run.design.offload_optimizer, run.system.software.offloaded_weights / state_bytes(run, ADAM)
    return (1 - on_host * (1 - left)) * usual if (on_host > 0).any() else usual


def update_copies(run: TransformerRun, quantised: Sequence[FloatArray], states: FloatArray) -> FloatArray:
    """Copies that a rank makes of its share for the update, when it keeps no activations; (points,). [B]

    Gradients of 16 bits are copied to fp32, unless the optimizer reads them (Megatron-LM, distrib_optimizer.py). All
    weights are copied to 16 bits before they are cast to 8 (Transformer Engine, quantize_master_weights). `quantised`
    are weights of `stage_quantised`, `states` the share's states by Adam, (points,). [-], [B]
    """
    design, software, w = run.design, run.system.software, run.precision.element_bytes
    by_host = (design.offload_optimizer > 0) & (software.offloaded_weights == 0)
    read = by_host | (design.moments > 0) | (design.store_param_remainders > 0) | is_orthogonal(design)
    wide = np.where((gradient_bytes(run) > w) | read, 0.0, run.precision.gradient_bytes)
    cast = np.where(gathered_bytes(run, of_shards=False) > 0, w, 0.0)
    copies = wide * states / state_bytes(run, ADAM) + cast * sum(owned_quantised(run, quantised))
    return np.where(design.shards_layers, 0.0, software.update_copies * copies)


def unit_buffers(run: TransformerRun, layers: Sequence[PartMemory]) -> FloatArray:
    """Bytes of sharded weights and gradients of `whole_layers`, if they are not whole anyway. [B]"""
    design, precision = run.design, run.precision
    of_pass = is_sharded(design, "weights") & (design.reshard_after_forward > 0)
    if not (of_pass | is_sharded(design, "gradients")).any():
        return np.zeros(())
    hosted = design.offload_optimizer * run.system.software.offloaded_shards > 0
    plain, routed = (np.where((shard_ranks(design, of_experts=one) > 1) | hosted, 1.0, 0.0) for one in (False, True))
    shared = [plain * layer.parameters + routed * layer.expert_parameters for layer in layers]
    weights = np.where(of_pass, precision.element_bytes, 0.0)
    gradients = np.where(is_sharded(design, "gradients"), gradient_bytes(run), 0.0)
    buffers: FloatArray = (weights + gradients) * np.maximum.reduce(np.broadcast_arrays(*shared))
    if (design.lora_rank > 0).any():
        trained = [plain * layer.trained + routed * layer.trained_experts for layer in layers]
        both = [weights * a + gradients * b for a, b in zip(shared, trained, strict=True)]
        buffers = np.where(trained_share(run) > 0, buffers, np.maximum.reduce(np.broadcast_arrays(*both)))
    if some_narrow(run):
        most = np.maximum.reduce([plain * one.quantised + routed * one.quantised_experts for one in layers])
        copies = weight_copies(run)
        buffers = buffers + np.where(of_pass, most * (copies.primary + copies.cast), 0.0)
    return run.system.software.whole_layers * buffers


def message_buffers(run: TransformerRun, ranks: RankRun) -> FloatArray:
    """Bytes that a pipeline sends and receives: the rank's share of an activation each way.

    Received tensors are gathered, unless layers start with shares.
    """
    whole, design, shape = ranks.activation_bytes(), run.design, ranks.design
    received = np.where(shape.is_split(shape.stream, "replicated") & (design.tp > 1), whole, 0.0)
    return np.where(design.pp > 1, 2 * (2 * whole / design.tp + received), 0.0)


def memory_items(run: TransformerRun, ranks: RankRun, parts: Sequence[PartMemory], fullest: FullestStage) -> Items:
    """Items of the peak memory, with the rank of the fullest stage and the micro-batches that it holds.

    Parameters are those of `fullest_stage`, and its result; (points,) values. [B], [-]

    Optimizer states that hosts hold, or that owners have of whole matrices, are shared out by parameters.
    """
    stage, memory, held = fullest.stage, fullest.memory, fullest.micro_batches
    buffers = _buffers(run, ranks, stage, parts)
    activations = stage_activations(run, stage, stage_parts(run, stage, parts), held)
    items = {
        **_states(run, stage, parts, memory),
        **{Item("bytes", "activations_memory", part): values for part, values in activations.items()},
        **buffers,
        **{
            Item("bytes", "reserved_memory", name=name): values
            for name, values in reserved_parts(run, ranks, memory.total).items()
        },
    }
    name = "fullest stage"
    items[Item("bytes", "buffers_memory", name="copies for the update")] = memory.buffers - sum(buffers.values())
    return {
        **{item: values + np.zeros(1) for item, values in items.items()},
        Item("rank", name=name): stage.rank,
        Item("micro-batches held", name=name): held,
    }


def _states(
    run: TransformerRun, stage: Stage, parts: Sequence[PartMemory], memory: StageMemory
) -> dict[Item, FloatArray]:
    """Weights, gradients and optimizer states of each part on a stage."""
    sizes = state_sizes(run)
    shards = [state_shards(run.design, state) for state in STATES]
    of_experts = [state_shards(run.design, state, of_experts=True) for state in STATES]
    output = stage.has_head * head_parameters(run, stage)
    trained, copies = trained_share(run) * output, weight_sets(run.design)
    owned = {("output", ""): held_states((copies * output, trained, trained), stage, sizes, shards)}
    for part, of_part, count in zip(every_part(run.model), parts, stage.counts, strict=False):
        numbers = [count * number for number in (copies * of_part.parameters, of_part.trained, of_part.trained)]
        owned[part.name, ""] = held_states(numbers, stage, sizes, shards)
        if of_part.expert_parameters.ndim:
            numbers = [count * copies * of_part.expert_parameters, *[count * of_part.trained_experts] * 2]
            owned[part.name, "experts"] = held_states(numbers, stage, sizes, of_experts)
    items: dict[Item, FloatArray] = {}
    for number, state in enumerate(STATES):
        of_state = {name: values[number] for name, values in owned.items()}
        whole: FloatArray = sum(of_state.values(), start=np.zeros(()))
        if state == "weights":
            items[Item("bytes", "weights_memory", name="copies in fewer bits")] = memory.weights - whole
        here = memory.optimizer / np.where(whole > 0, whole, 1.0) if state == "optimizer" else 1.0
        items |= {
            Item("bytes", f"{state}_memory", part, name=name): memory_of_part * here
            for (part, name), memory_of_part in of_state.items()
        }
    return items


def _buffers(run: TransformerRun, ranks: RankRun, stage: Stage, parts: Sequence[PartMemory]) -> Items:
    """Items of buffers that are allocated for a part of the step."""
    layers = parts[: len(run.model.kinds)]
    working = working_buffers(stage_parts(run, stage, parts)[: len(layers)])
    loss = np.where(stage.has_head > 0, loss_buffers(run, parts), 0.0)
    buffers = {
        "layer that runs": np.where(loss > working, 0.0, working),
        "workspaces": np.full(1, WORKSPACE_BYTES),
        "messages of the pipeline": message_buffers(run, ranks),
        "whole weights and gradients": unit_buffers(run, layers),
        "logits and loss": np.where(loss > working, loss, 0.0),
    }
    return {Item("bytes", "buffers_memory", name=name): values for name, values in buffers.items()}
