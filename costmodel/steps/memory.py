"""Bytes that a rank holds at the fullest moment of a step, by part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column
from costmodel.machine.system import System
from costmodel.steps.pipeline import last_layers_in_flight, layers_in_flight, stage_layers
from costmodel.training.design import RECOMPUTE_FULL, RECOMPUTE_NONE, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import Precision
from costmodel.workload.transformer import BIASED, PRODUCTS, activation_bytes, biases, widths

#: Kernels and the products that gather what they give, where it is split.
GATHERED = (
    ("attention_norm", "qkv"),
    ("core", "projection"),
    ("mlp_norm", "mlp_up"),
    ("activation", "mlp_down"),
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


def layer_parameters(model: ModelShape, design: DesignPoints) -> FloatArray:
    """Parameters of one layer on one rank. [-]

    Matrices are split, and biases where they are added to a split output; norms are on every rank.
    """
    own = model.matrix_parameters_per_layer / design.tp + 2 * model.norm_parameters
    if not model.biases:
        return own
    return own + sum(biases(model, design, product)[0] for product in BIASED)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankMemory(Columns):
    """What one layer, the embedding and the head need on one rank, whatever the pipeline; (points,) each."""

    layer_parameters: FloatArray = column("-")
    kept: FloatArray = column("B")  #: of a layer and micro-batch, for its backward pass
    kept_embedding: FloatArray = column("B")
    kept_head: FloatArray = column("B")
    working: FloatArray = column("B")  #: while a layer runs, beyond what is kept


def rank_memory(model: ModelShape, design: DesignPoints, precision: Precision) -> RankMemory:
    """Memory that depends on the columns of a micro-batch and on recomputation alone."""
    embedding, head = outer_activation_bytes(model, design, precision)
    return RankMemory(
        layer_parameters=layer_parameters(model, design),
        kept=layer_activation_bytes(model, design, precision),
        kept_embedding=embedding,
        kept_head=head,
        working=working_buffers(model, design, precision),
    )


def updated_parameters(
    model: ModelShape, design: DesignPoints, layers: FloatArray, per_layer: FloatArray
) -> FloatArray:
    """Parameters of a rank with the embedding and so many layers, whose gradients a step reduces. [-]"""
    return layers * per_layer + model.embedding_parameters / design.tp


def layer_activation_bytes(model: ModelShape, design: DesignPoints, precision: Precision) -> FloatArray:
    """Bytes that the backward pass of one layer needs from the forward pass of one micro-batch.

    Parameters
    ----------
    model : ModelShape
        Dimensions.
    design : DesignPoints
        Layouts, (points,).
    precision : Precision
        Bytes per element.

    Returns
    -------
    activations : (points,) array
        On one rank. [B]

    Notes
    -----
    For GPT the table of [Korthikanti2022]_: s b h (10 + 24/t + 5 a s / (h t)), the 10 split by t in
    sequence parallelism, the term in a s dropped by selective recomputation, and 2 s b h (the input
    of the layer) when recomputation is full. Fused attention keeps one fp32 number per row of scores
    instead. An input that a product gathers is kept as it was before.
    """
    kept = kept_activations(model, design, precision, design.recompute)
    input_share = activation_bytes(model, design, precision) / design.shards("mlp_residual")
    return np.where(design.recompute == RECOMPUTE_FULL, input_share, kept)


def kept_activations(
    model: ModelShape, design: DesignPoints, precision: Precision, recompute: FloatArray
) -> FloatArray:
    """Bytes kept of a layer's forward pass without full recomputation. [B]"""
    w, mask = precision.element_bytes, 1.0 if model.dropout else 0.0
    tokens = design.micro_batch_size * model.seq_len
    # Inputs of both norms, of QKV and of the MLP, and the masks of both dropouts.
    inputs = sum(1 / design.shards(norm) + 1 / input_shards(design, product, norm)
                 for norm, product in (("attention_norm", "qkv"), ("mlp_norm", "mlp_up")))  # fmt: skip
    masks = sum(1 / design.shards(kernel) for kernel in ("attention_residual", "mlp_residual"))
    between = tokens * model.hidden_size * (inputs * w + masks * mask)
    # Queries, keys, values and the context; inputs of the activation function and of the second matrix.
    attention = w * tokens * (2 * model.attention_size + 2 * model.key_value_size)
    mlp = (
        w
        * tokens
        * model.ffn_hidden_size
        * (
            (2 if model.gated_mlp else 1) / design.shards("activation")
            + 1 / input_shards(design, "mlp_down", "activation")
        )
    )
    # Softmax, its dropout's mask and result.
    scores = tokens * model.seq_len * model.num_attention_heads * (2 * w + mask if mask else w)
    row_statistics = 4.0 * tokens * model.num_attention_heads
    keeps_scores = (design.attention == 0) & (recompute == RECOMPUTE_NONE)
    core = np.where(keeps_scores, scores, np.where(design.attention > 0, row_statistics, 0.0))
    return between + mlp + (attention + core) / design.tp


def input_shards(design: DesignPoints, product: str, before: str) -> FloatArray:
    """Ranks that share out what is kept of a product's input, which another kernel gives. [-]"""
    return np.where(design.is_split(product, "row"), design.tp, design.shards(before))


def outer_activation_bytes(
    model: ModelShape, design: DesignPoints, precision: Precision
) -> tuple[FloatArray, FloatArray]:
    """Bytes kept beside the layers: by the embedding's dropout, and by the last norm, head and loss.

    Returns
    -------
    embedding, head : (points,) array
        Of one micro-batch on one rank: s b h / t and 4 s b h / t (1 + v / h) of [Korthikanti2022]_, the
        first two of the three without sequence parallelism on every rank. [B]
    """
    tokens = design.micro_batch_size * model.seq_len
    mask = 1.0 if model.dropout else 0.0
    embedding = tokens * model.hidden_size / design.shards("mlp_residual") * mask
    logits = 4.0 * tokens * np.ceil(model.vocab_size / design.tp)
    head = 2 * precision.element_bytes * tokens * model.hidden_size / design.shards("final_norm") + logits
    return embedding, head


def stage_parameters(
    model: ModelShape, design: DesignPoints, per_layer: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Parameters of a rank of the first and of the last stage; the same where there is one stage. [-]

    The embedding is on the first stage, the last norm and the head on the last. A tied head is the word
    table once more, unless both are on one stage.
    """
    outer, inner = stage_layers(model.num_layers, design.pp, design.vpp)
    single = design.pp == 1
    embedding = model.embedding_parameters / design.tp
    output = model.vocab_size * model.hidden_size / design.tp
    head = np.where(single & model.tied_embeddings, 0.0, output) + model.norm_parameters
    first = np.maximum(outer, inner) * per_layer + embedding + np.where(single, head, 0.0)
    return first, np.where(single, first, outer * per_layer + head)


def stage_activations(
    model: ModelShape, design: DesignPoints, rank: RankMemory
) -> tuple[FloatArray, FloatArray]:
    """Activations that a rank of the first and of the last stage keeps at its fullest moment. [B]

    The first stage has most micro-batches in flight; an inner second stage, when fuller in layers, has
    one fewer, so layers are counted by the fuller of the two.
    """
    outer, inner = stage_layers(model.num_layers, design.pp, design.vpp)
    single, steps = design.pp == 1, design.gradient_accumulation_steps
    schedule = {"pp": design.pp, "vpp": design.vpp, "gradient_accumulation_steps": steps}
    first = layers_in_flight(np.maximum(outer, inner), **schedule) * rank.kept
    first = first + np.minimum(design.pp, steps) * rank.kept_embedding + np.where(single, rank.kept_head, 0.0)
    last = last_layers_in_flight(outer, **schedule) * rank.kept + rank.kept_head
    return first, np.where(single, first, last)


def stage_memories(
    model: ModelShape, design: DesignPoints, rank: RankMemory, precision: Precision
) -> tuple[StageMemory, StageMemory]:
    """Memory of the first and of the last stage, one of which is the fullest.

    Parameters
    ----------
    model, design, precision
        What is run, laid out how, in which number format.
    rank : RankMemory
        The same designs' `rank_memory`. [-], [B]

    Returns
    -------
    first, last : StageMemory
        (points,) columns; the same where there is one stage. [B]
    """
    owners = np.where(design.distributed_optimizer > 0, design.dp, 1.0)
    logits = design.micro_batch_size * model.seq_len * np.ceil(model.vocab_size / design.tp)
    loss = 2 * precision.element_bytes * logits  # 16-bit logits, and their gradient
    buffers = rank.working + message_buffers(model, design, precision)

    def stage(parameters: FloatArray, activations: FloatArray, has_head: BoolArray | bool) -> StageMemory:
        return StageMemory(
            weights=parameters * precision.element_bytes,
            gradients=parameters * precision.gradient_bytes,
            optimizer=parameters * precision.state_bytes / owners,
            activations=activations,
            buffers=buffers + np.where(has_head, loss, 0.0),
        )

    first_parameters, last_parameters = stage_parameters(model, design, rank.layer_parameters)
    first_activations, last_activations = stage_activations(model, design, rank)
    return (
        stage(first_parameters, first_activations, design.pp == 1),
        stage(last_parameters, last_activations, True),
    )


def working_buffers(model: ModelShape, design: DesignPoints, precision: Precision) -> FloatArray:
    """Bytes that one layer needs while it runs, beyond what is kept.

    The layer being recomputed holds what it would keep without recomputation; the widest output and its
    gradient live beside it, and the widest input that a product gathers.
    """
    w, tokens = precision.element_bytes, design.micro_batch_size * model.seq_len
    no_recompute = np.zeros_like(design.recompute)
    recomputed = np.where(
        design.recompute > RECOMPUTE_NONE,
        kept_activations(model, design, precision, no_recompute)
        - np.where(
            design.recompute == RECOMPUTE_FULL,
            0.0,
            kept_activations(model, design, precision, design.recompute),
        ),
        0.0,
    )
    wide, gathered = widest_output(model, design), widest_gathered(model, design)
    return recomputed + w * tokens * (2 * wide + gathered)


def message_buffers(model: ModelShape, design: DesignPoints, precision: Precision) -> FloatArray:
    """Bytes of what a pipeline sends and receives: the rank's share of an activation each way.

    What is received is gathered, unless layers start with shares.
    """
    whole = activation_bytes(model, design, precision)
    received = np.where(design.is_split("mlp_residual", "replicated") & (design.tp > 1), whole, 0.0)
    return np.where(design.pp > 1, 2 * (2 * whole / design.tp + received), 0.0)


def widest_output(model: ModelShape, design: DesignPoints) -> FloatArray:
    """Features for each token of the output of the MLP's first matrix, or of a row-split QKV. [-]"""
    size = widths(model)
    up = size["up"] / np.where(design.is_split("mlp_up", "column"), design.tp, 1.0)
    return np.maximum(up, np.where(design.is_split("qkv", "row"), size["qkv"], 0.0))


def widest_gathered(model: ModelShape, design: DesignPoints) -> FloatArray:
    """Features for each token of the widest input that a product gathers; 0 where none does. [-]"""
    widest = np.zeros(np.shape(design.tp))
    for before, product in GATHERED:
        gathers = design.is_split(product, "column") & (design.shards(before) > 1)
        width = widths(model)[PRODUCTS[product][0]]
        widest = np.maximum(widest, np.where(gathers, width, 0.0))
    return widest


def fullest_stage(first: StageMemory, last: StageMemory, system: System) -> tuple[StageMemory, FloatArray]:
    """The fuller of two stages for each design, and what the system reserves beside it. [B]"""
    fuller = first.total >= last.total
    mine, others = first.columns(), last.columns()
    stage = StageMemory(**{name: np.where(fuller, mine[name], others[name]) for name in mine})
    return stage, np.broadcast_to(system.chip.reserved_memory, fuller.shape)
