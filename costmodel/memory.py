"""Bytes that a rank holds at the fullest moment of a step, by part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column
from costmodel.design import RECOMPUTE_FULL, RECOMPUTE_NONE, DesignPoints
from costmodel.model import ModelShape
from costmodel.pipeline import layers_in_flight, stage_layers
from costmodel.precision import Precision
from costmodel.system import System


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


def layer_parameters(model: ModelShape, tp: FloatArray) -> FloatArray:
    """Parameters of one layer on one rank. [-]

    Matrices, and biases of column-split products, are split; norms and biases that are added after a
    reduction are on every rank.
    """
    everywhere = 2 * model.norm_parameters + (2 * model.hidden_size if model.biases else 0.0)
    split = model.parameters_per_layer - everywhere
    return split / tp + everywhere


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
    instead.
    """
    kept = kept_activations(model, design, precision, design.recompute)
    whole = design.micro_batch_size * model.seq_len * model.hidden_size * precision.element_bytes
    shared = np.where(design.sequence_parallel > 0, design.tp, 1.0)
    return np.where(design.recompute == RECOMPUTE_FULL, whole / shared, kept)


def kept_activations(
    model: ModelShape, design: DesignPoints, precision: Precision, recompute: FloatArray
) -> FloatArray:
    """Bytes kept of a layer's forward pass without full recomputation. [B]"""
    w, mask = precision.element_bytes, 1.0 if model.dropout else 0.0
    tokens = design.micro_batch_size * model.seq_len
    shared = np.where(design.sequence_parallel > 0, design.tp, 1.0)
    # Inputs of both norms, of QKV and of the MLP, and the masks of both dropouts.
    between = tokens * model.hidden_size * (4 * w + 2 * mask) / shared
    # Queries, keys, values and the context; inputs of the activation function and of the second matrix.
    attention = w * tokens * (2 * model.attention_size + 2 * model.key_value_size)
    mlp = w * tokens * model.ffn_hidden_size * (3 if model.gated_mlp else 2)
    # Softmax, its dropout's mask and result.
    scores = tokens * model.seq_len * model.num_attention_heads * (2 * w + mask if mask else w)
    row_statistics = 4.0 * tokens * model.num_attention_heads
    keeps_scores = (design.attention == 0) & (recompute == RECOMPUTE_NONE)
    core = np.where(keeps_scores, scores, np.where(design.attention > 0, row_statistics, 0.0))
    return between + (attention + mlp + core) / design.tp


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
    shared = np.where(design.sequence_parallel > 0, design.tp, 1.0)
    embedding = tokens * model.hidden_size / shared * (1.0 if model.dropout else 0.0)
    logits = 4.0 * tokens * np.ceil(model.vocab_size / design.tp)
    head = 2 * precision.element_bytes * tokens * model.hidden_size / shared + logits
    return embedding, head


def stage_memories(
    model: ModelShape, design: DesignPoints, precision: Precision
) -> tuple[StageMemory, StageMemory]:
    """Memory of the first and of the last stage, one of which is the fullest.

    Parameters
    ----------
    model, design, precision
        What is run, laid out how, in which number format.

    Returns
    -------
    first, last : StageMemory
        (points,) columns; the same where there is one stage. [B]

    Notes
    -----
    The first stage has most micro-batches in flight, and an inner second stage, when fuller in layers,
    has one fewer; layers are counted by the fuller of the two. The last has one micro-batch and the head.
    """
    outer, inner = stage_layers(model.num_layers, design.pp, design.vpp)
    single = design.pp == 1
    per_layer = layer_parameters(model, design.tp)
    embedding = model.embedding_parameters / design.tp
    output = model.vocab_size * model.hidden_size / design.tp
    own_output = np.where(single & model.tied_embeddings, 0.0, output) + model.norm_parameters
    first_parameters = np.maximum(outer, inner) * per_layer + embedding + np.where(single, own_output, 0.0)
    last_parameters = outer * per_layer + own_output + np.where(single, embedding, 0.0)

    schedule = {"pp": design.pp, "vpp": design.vpp}
    steps = design.gradient_accumulation_steps
    kept = layer_activation_bytes(model, design, precision)
    of_embedding, of_head = outer_activation_bytes(model, design, precision)
    in_flight = layers_in_flight(np.maximum(outer, inner), gradient_accumulation_steps=steps, **schedule)
    first_activations = in_flight * kept + np.minimum(design.pp, steps) * of_embedding
    last_in_flight = outer * np.where(design.vpp > 1, np.minimum(steps, 1 + (design.pp - 1) / design.pp), 1.0)
    last_activations = last_in_flight * kept + of_head
    logits = 2 * precision.element_bytes * design.micro_batch_size * model.seq_len
    loss = logits * np.ceil(model.vocab_size / design.tp)  # 16-bit logits, and their gradient
    buffers = working_buffers(model, design, precision)

    def stage(parameters: FloatArray, activations: FloatArray, has_head: BoolArray) -> StageMemory:
        owners = np.where(design.distributed_optimizer > 0, design.dp, 1.0)
        return StageMemory(
            weights=parameters * precision.element_bytes,
            gradients=parameters * precision.gradient_bytes,
            optimizer=parameters * precision.state_bytes / owners,
            activations=activations,
            buffers=buffers + np.where(has_head, loss, 0.0),
        )

    first_activations = first_activations + np.where(single, of_head, 0.0)
    return (
        stage(first_parameters, first_activations, single),
        stage(
            np.where(single, first_parameters, last_parameters),
            np.where(single, first_activations, last_activations),
            np.ones_like(single),
        ),
    )


def working_buffers(model: ModelShape, design: DesignPoints, precision: Precision) -> FloatArray:
    """Bytes that one layer needs while it runs, beyond what is kept.

    The layer being recomputed holds what it would keep without recomputation; gradients of the widest
    activation live beside it; sequence parallelism gathers the whole input of a product, and a
    pipeline receives and sends an activation each way.
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
    wide = w * tokens * (2 if model.gated_mlp else 1) * model.ffn_hidden_size / design.tp
    whole = w * tokens * model.hidden_size
    gathered = np.where(design.sequence_parallel > 0, whole, 0.0)
    messages = np.where(design.pp > 1, 4 * whole, 0.0)
    return recomputed + 2 * wide + gathered + messages


def fullest_stage(first: StageMemory, last: StageMemory, system: System) -> tuple[StageMemory, FloatArray]:
    """The fuller of two stages for each design, and what the system reserves beside it. [B]"""
    fuller = first.total >= last.total
    mine, others = first.columns(), last.columns()
    stage = StageMemory(**{name: np.where(fuller, mine[name], others[name]) for name in mine})
    return stage, np.broadcast_to(system.chip.reserved_memory, fuller.shape)
