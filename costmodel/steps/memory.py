"""Bytes that a rank holds at the fullest moment of a step, by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, chosen, column, largest
from costmodel.kernels.cost import weighted_sum
from costmodel.steps.pipeline import Stage, full_stages, micro_batches_in_flight
from costmodel.training.blocks import HEAD, OF_EXPERTS, Kernel, Layer
from costmodel.training.design import CP_A2A, CP_ALL_GATHER, RECOMPUTE_FULL, RECOMPUTE_NONE, DesignPoints
from costmodel.training.run import RankRun, TransformerRun
from costmodel.training.sharding import OPTIONS
from costmodel.training.zero import STATES, ZERO, State
from costmodel.workload.transformer import (
    activation_bytes,
    biased,
    biases,
    expert_tokens,
    tokens,
    vocabulary_share,
    weights_of,
)


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
        """All parts together. [B]"""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartMemory(Columns):
    """What one part of the model needs on one rank, whatever the pipeline; (points,) each."""

    parameters: FloatArray = column("-", 0)  #: that replicas have in common, those of experts aside
    expert_parameters: FloatArray = column("-", 0)
    kept: FloatArray = column("B", 0)  #: of a micro-batch, for its backward pass
    working: FloatArray = column("B", 0)  #: while the part runs, beyond what is kept


def rank_memory(run: RankRun) -> list[PartMemory]:
    """Memory that depends on what a rank sees of a design alone: of each kind of layer, embedding and head.

    The embedding keeps the mask of its dropout; the head the inputs of the last norm and of the product, and
    fp32 logits: s b h / t and 4 s b h / t (1 + v / h) of [Korthikanti2022]_, all but the logits on every rank
    without sequence parallelism. Beside them live 16-bit logits, and their gradient. Which parameters the
    head has depends on its stage.
    """
    model, shape, mask = run.model, run.design, 1.0 if run.model.dropout else 0.0
    logits = tokens(run) * vocabulary_share(run)
    embedding = PartMemory(
        parameters=model.embedding_parameters / shape.tp,
        kept=tokens(run) * model.hidden_size / shape.shards(shape.stream) * mask,
    )
    head = PartMemory(
        kept=2 * activation_bytes(run) / shape.shards(HEAD.kernels[0]) + 4.0 * logits,
        working=2 * run.precision.element_bytes * logits,
    )
    if count := model.mtp_layers:
        ahead = layer_memory(run, model.mtp_layer)
        head = PartMemory(
            parameters=count * (ahead.parameters + model.norm_parameters),
            expert_parameters=count * ahead.expert_parameters,
            kept=(1 + count) * head.kept + count * ahead.kept,
            working=np.maximum(head.working, ahead.working),
        )
    return [*(layer_memory(run, layer) for layer in model.kinds), embedding, head]


def layer_parameters(run: RankRun, layer: Layer) -> FloatArray:
    """Parameters of one layer on one rank, those of routed experts aside. [-]

    Matrices of products are split, and biases where they are added to a split output; norms, routers and
    latents are on every rank, and what attention cores have is split by heads.
    """
    model, split, whole = run.model, 0.0, 0.0
    for kernel in layer.kernels:
        if kernel.kind != "experts":
            own = model.kernel_parameters(kernel) - model.bias_size(kernel)
            if "replicated" in OPTIONS[kernel.kind]:
                whole += own
            else:
                split += own
    return split / run.design.tp + whole + sum(biases(run, layer, k)[0] for k in biased(run, layer))


def expert_parameters(run: RankRun, layer: Layer) -> FloatArray:
    """Parameters of the routed experts of one layer on one rank. [-]"""
    experts = sum(run.model.kernel_parameters(k) for k in layer.kernels if k.kind == "experts")
    return experts / (run.design.ep * run.design.etp)


def layer_memory(run: RankRun, layer: Layer) -> PartMemory:
    """Parameters and activations of one layer and micro-batch on one rank.

    Parameters
    ----------
    run : RankRun
        Model, machines and what a rank sees of the designs, (points,).
    layer : Layer
        The kind of layer.

    Returns
    -------
    memory : PartMemory
        (points,) columns. [-], [B]

    Notes
    -----
    For GPT the activations are the table of [Korthikanti2022]_: s b h (10 + 24/t + 5 a s / (h t)), the 10
    split by t in sequence parallelism, the term in a s dropped by selective recomputation, and 2 s b h (the
    input of the layer) when recomputation is full. Fused attention keeps one fp32 number per row of scores
    instead. The layer that is recomputed holds what it would keep without recomputation; the widest output
    and its gradient live beside it, and the widest input that a product gathers.
    """
    shape, recompute = run.design, run.design.recompute
    whole, shared = kept_activations(run, layer)
    cores = sum(kernel.is_core for kernel in layer.kernels)
    routed = router_bytes(run, layer)
    everything, selected = (
        whole + (shared + cores * core_activation_bytes(run, keeps_scores) + routed) / shape.tp
        for keeps_scores in (shape.attention == 0, (shape.attention == 0) & (recompute == RECOMPUTE_NONE))
    )
    full = recompute == RECOMPUTE_FULL
    again = np.where(recompute > RECOMPUTE_NONE, everything - np.where(full, 0.0, selected), 0.0)
    wide = tokens(run) * (2 * widest_output(run, layer) + widest_gathered(run, layer))
    if any(kernel.kind == "experts" for kernel in layer.kernels):
        sizes = run.model.features
        wide = np.maximum(
            wide, expert_tokens(run) * (2 * sizes["expert_up"] / shape.etp + sizes["expert_in"])
        )
    return PartMemory(
        parameters=layer_parameters(run, layer),
        expert_parameters=expert_parameters(run, layer),
        kept=np.where(full, activation_bytes(run) / shape.shards(layer.stream), selected),
        working=again + run.precision.element_bytes * (wide + sequence_buffers(run)),
    )


def sequence_buffers(run: RankRun) -> FloatArray:
    """Keys and values of other ranks of a sequence: of one, or of all where they are gathered. [elements]"""
    shape = run.design
    gathered = np.where(shape.cp_communication == CP_ALL_GATHER, shape.cp - 1, np.minimum(shape.cp - 1, 1.0))
    held = np.where(shape.cp_communication == CP_A2A, 0.0, gathered)
    return held * tokens(run) * 2 * run.model.key_value_size / shape.tp


def kept_activations(run: RankRun, layer: Layer) -> tuple[FloatArray, FloatArray]:
    """Bytes kept of a layer's forward pass, but for what is inside its attention core.

    A gradient needs the input of its kernel, and that of a dropout its mask. What a product gathers is kept
    as the kernel before it gave it.

    Returns
    -------
    whole, shared : (points,) array
        On each rank of a group, and on all of them together. [B]
    """
    shape = run.design
    whole, shared = np.zeros(np.shape(shape.tp)), np.zeros(np.shape(shape.tp))
    kept_inputs: dict[Kernel, list[BoolArray]] = {}
    for kernel in layer.kernels:
        is_shared = shape.shards(kernel) == shape.tp
        kept = kept_input(run, kernel)
        if kernel.kind in ("product", "latent", "router"):
            before = layer.input_of(kernel)
            is_shared = shape.is_split(kernel, "row") | (shape.shards(before) == shape.tp)
            for others in kept_inputs.get(before, ()):  # what one product keeps, others need not
                kept = np.where(is_shared == others, 0.0, kept)
            kept_inputs.setdefault(before, []).append(is_shared)
        whole = whole + np.where(is_shared, 0.0, kept)
        shared = shared + np.where(is_shared, kept, 0.0)
    return whole, shared


def kept_input(run: RankRun, kernel: Kernel) -> FloatArray:
    """Bytes that the gradients of a kernel need of its forward pass, on all ranks of a group together. [B]"""
    model, w = run.model, run.precision.element_bytes
    if kernel.kind == "residual":
        return tokens(run) * model.features[kernel.makes] * (1.0 if model.dropout else 0.0)
    if kernel.kind in ("dispatch", "combine"):
        return 0.0 * tokens(run)
    if kernel.kind in OF_EXPERTS:
        width = model.features[kernel.reads] * (1.0 if kernel.reads == "expert_in" else 1 / run.design.etp)
        return w * run.design.tp * expert_tokens(run) * width
    if kernel.is_core and model.attention == "mla":  # expanded keys and values beside the queries
        return w * tokens(run) * (model.query_size + 2 * model.key_value_size)
    return activation_bytes(run, kernel.reads)


def router_bytes(run: RankRun, layer: Layer) -> FloatArray:
    """Bytes of the fp32 scores and probabilities of experts. [B]"""
    routers = sum(kernel.kind == "router" for kernel in layer.kernels)
    return 8.0 * routers * tokens(run) * run.model.num_experts


def core_activation_bytes(run: RankRun, keeps_scores: BoolArray) -> FloatArray:
    """Bytes kept inside an attention core, of all heads: scores, or a number per row of them if fused. [B]"""
    w, mask = run.precision.element_bytes, 1.0 if run.model.dropout else 0.0
    rows = tokens(run) * run.model.num_attention_heads
    # Softmax, its dropout's mask and result.
    scores = rows * run.model.seq_len * (2 * w + mask if mask else w)
    return np.where(keeps_scores, scores, np.where(run.design.attention > 0, 4.0 * rows, 0.0))


def widest_output(run: RankRun, layer: Layer) -> FloatArray:
    """Features for each token of the widest output, among products that Megatron-LM splits by columns. [-]"""
    shape, widest = run.design, np.zeros(np.shape(run.design.tp))
    for product in weights_of(layer):
        if product.megatron == "column":
            shards = np.where(shape.is_split(product, "column"), shape.tp, 1.0)
            widest = np.maximum(widest, run.model.features[product.makes] / shards)
    return widest


def widest_gathered(run: RankRun, layer: Layer) -> FloatArray:
    """Features for each token of the widest input that a product gathers; 0 where none does. [-]"""
    shape, widest = run.design, np.zeros(np.shape(run.design.tp))
    for product in weights_of(layer):
        gathers = shape.is_split(product, "column") & (shape.shards(layer.input_of(product)) > 1)
        widest = np.maximum(widest, np.where(gathers, run.model.features[product.reads], 0.0))
    return widest


def updated_parameters(stage: Stage, parts: Sequence[PartMemory]) -> FloatArray:
    """Parameters of a rank of a stage whose gradients a step reduces: layers and embedding. [-]"""
    return weighted_sum([part.parameters for part in parts], stage.counts)


def stage_expert_parameters(stage: Stage, parts: Sequence[PartMemory]) -> FloatArray:
    """Parameters of the routed experts of a rank of a stage. [-]"""
    return weighted_sum([part.expert_parameters for part in parts], stage.counts)


def stage_parameters(run: TransformerRun, stage: Stage, parts: Sequence[PartMemory]) -> FloatArray:
    """Parameters of a rank of a stage, those of routed experts aside. [-]

    The embedding is on the first stage, the last norm and the head on the last. A tied head is the word
    table once more, unless both are on one stage.
    """
    model = run.model
    tied_here = model.tied_embeddings & (stage.has_embedding > 0)
    output = np.where(tied_here, 0.0, model.vocab_size * model.hidden_size / run.design.tp)
    return updated_parameters(stage, parts) + stage.has_head * (output + model.norm_parameters)


def stage_activations(run: TransformerRun, stage: Stage, parts: Sequence[PartMemory]) -> FloatArray:
    """Activations that a rank of a stage keeps at its fullest moment. [B]"""
    pp, vpp, steps = run.design.pp, run.design.vpp, run.design.gradient_accumulation_steps
    in_flight = micro_batches_in_flight(stage.rank, pp=pp, vpp=vpp, gradient_accumulation_steps=steps)
    flying = [*[in_flight] * len(stage.layers), np.minimum(pp, steps), np.ones(())]
    counts = [count * batches for count, batches in zip(stage.counts, flying, strict=True)]
    return weighted_sum([part.kept for part in parts], counts)


def fullest_stage(run: TransformerRun, ranks: RankRun, parts: Sequence[PartMemory]) -> StageMemory:
    """Memory of the stage that needs most, without what the system reserves.

    Parameters
    ----------
    run : TransformerRun
        Model, machines and designs, (points,).
    ranks : RankRun
        What a rank sees of them, (points,).
    parts : sequence of PartMemory
        Their `rank_memory`, (points,). [-], [B]

    Returns
    -------
    memory : StageMemory
        (points,) columns. [B]
    """
    tables = stage_memories(run, ranks, parts)
    fullest = largest([memory.total for memory in tables])
    columns = [memory.columns() for memory in tables]
    return StageMemory(**{name: chosen([table[name] for table in columns], fullest) for name in columns[0]})


def stage_memories(run: TransformerRun, ranks: RankRun, parts: Sequence[PartMemory]) -> list[StageMemory]:
    """Memory of each of the `full_stages`; else as `fullest_stage`."""
    design, precision, tables = run.design, run.precision, []
    *layers, _, head = parts
    working = np.maximum.reduce(np.broadcast_arrays(*(layer.working for layer in layers)))
    buffers = working + message_buffers(run, ranks) + unit_buffers(run, layers)
    sizes = [precision.element_bytes, precision.gradient_bytes, precision.state_bytes]
    routed = run.model.num_experts > 0
    shards = [state_shards(design, state) for state in STATES]
    expert_shards = [state_shards(design, state, of_experts=True) for state in STATES if routed]
    for stage in full_stages(run.model, design.pp, design.vpp):
        parameters = stage_parameters(run, stage, parts)
        kept = [parameters * size / over for size, over in zip(sizes, shards, strict=True)]
        if routed:
            experts = stage_expert_parameters(stage, parts)
            of_experts = [experts * size / over for size, over in zip(sizes, expert_shards, strict=True)]
            kept = [own + more for own, more in zip(kept, of_experts, strict=True)]
        memory = StageMemory(
            **dict(zip(STATES, kept, strict=True)),
            activations=stage_activations(run, stage, parts),
            buffers=buffers + np.where(stage.has_head > 0, head.working, 0.0),
        )
        tables.append(memory)
    return tables


def state_shards(design: DesignPoints, state: State, *, of_experts: bool = False) -> FloatArray:
    """Replicas that share out a state of the parameters of a rank, or of its experts. [-]

    Weights that are not resharded after the forward pass are whole on every rank while a step lasts.
    """
    replicas = design.edp if of_experts else design.replicas.size
    shards: FloatArray = np.where(is_sharded(design, state), replicas, 1.0)
    return np.where(design.reshard_after_forward > 0, shards, 1.0) if state == "weights" else shards


def is_sharded(design: DesignPoints, state: State) -> BoolArray:
    """Where replicas share out a state; (points,)."""
    stages = np.array([state in stage.sharded for stage in ZERO])
    there: BoolArray = stages[design.zero_stage.astype(np.intp)]
    return there


def unit_buffers(run: TransformerRun, layers: Sequence[PartMemory]) -> FloatArray:
    """Bytes of what is whole for a while of sharded weights and gradients: of two layers at once. [B]"""
    design, precision = run.design, run.precision
    if not is_sharded(design, "gradients").any():
        return np.zeros(())
    largest_layer = np.maximum.reduce(
        np.broadcast_arrays(*(layer.parameters + layer.expert_parameters for layer in layers))
    )
    weights = np.where(is_sharded(design, "weights"), precision.element_bytes, 0.0)
    gradients = np.where(is_sharded(design, "gradients"), precision.gradient_bytes, 0.0)
    buffers: FloatArray = 2 * (weights + gradients) * largest_layer
    return buffers


def message_buffers(run: TransformerRun, ranks: RankRun) -> FloatArray:
    """Bytes of what a pipeline sends and receives: the rank's share of an activation each way.

    What is received is gathered, unless layers start with shares.
    """
    whole, design, shape = activation_bytes(ranks), run.design, ranks.design
    received = np.where(shape.is_split(shape.stream, "replicated") & (design.tp > 1), whole, 0.0)
    return np.where(design.pp > 1, 2 * (2 * whole / design.tp + received), 0.0)
