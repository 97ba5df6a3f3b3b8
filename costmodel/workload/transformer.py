"""The kernel tables of a transformer: design columns in, one column per kernel out.

Everything is of one rank and one micro-batch. Kernels of the part "layer" and "core" (the attention
core, which selective recomputation repeats) happen once per layer, the others once per model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from costmodel.columns import FloatArray
from costmodel.design import DesignPoints
from costmodel.model import ModelShape
from costmodel.precision import Precision
from costmodel.workload.kernels import Gemms, Label, Pointwise, PointwiseRow

Row = tuple[Label, tuple[FloatArray | float, ...]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankSizes:
    """Sizes that kernels are made of, on one rank; every column has shape (points,). [elements]"""

    tokens: FloatArray  #: of one micro-batch
    sequence_hidden: FloatArray  #: the same between split kernels: shared out in sequence parallelism
    scores: FloatArray  #: attention scores of the rank's heads, 0 when attention is fused
    attention: FloatArray  #: tokens times the rank's query heads
    key_value: FloatArray  #: tokens times the rank's key heads
    ffn: FloatArray  #: tokens times the rank's share of the MLP
    vocabulary: FloatArray  #: the rank's share of the vocabulary, padded to whole entries

    @classmethod
    def of(cls, model: ModelShape, design: DesignPoints) -> Self:
        """Sizes for every design point at once."""
        tokens = design.micro_batch_size * model.seq_len
        unfused = np.where(design.attention == 0, 1.0, 0.0)
        return cls(
            tokens=tokens,
            sequence_hidden=tokens * model.hidden_size / design.sequence_shards,
            scores=unfused * tokens * model.seq_len * model.num_attention_heads / design.tp,
            attention=tokens * model.attention_size / design.tp,
            key_value=tokens * model.key_value_size / design.tp,
            ffn=tokens * model.ffn_hidden_size / design.tp,
            vocabulary=np.ceil(model.vocab_size / design.tp),
        )


def activation_bytes(model: ModelShape, design: DesignPoints, precision: Precision) -> FloatArray:
    """Size of the whole activation that goes from kernel to kernel, and from stage to stage. [B]"""
    return design.micro_batch_size * model.seq_len * model.hidden_size * precision.element_bytes


def transformer_gemms(model: ModelShape, design: DesignPoints, precision: Precision) -> Gemms:
    """Matrix products of the forward pass and of both gradients.

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
    gemms : Gemms
        (points, kernels). C = A B has the gradients dA = dC B^T and dB = A^T dC; gradients of weights
        are added to fp32 accumulators, which are read and written.
    """
    tp, tokens = design.tp, design.micro_batch_size * model.seq_len
    hidden, qkv = model.hidden_size, model.attention_size + 2 * model.key_value_size
    up = (2 if model.gated_mlp else 1) * model.ffn_hidden_size
    heads = design.micro_batch_size * model.num_attention_heads / tp
    unfused = np.where(design.attention == 0, 1.0, 0.0)
    sequence, head_size = model.seq_len, model.head_size
    accumulated = 2 * precision.gradient_bytes
    forward: list[tuple[str, str, tuple[FloatArray | float, ...], FloatArray | float, FloatArray | float]] = [
        # name, part, (m, n, k), batch, count
        ("qkv", "layer", (tokens, qkv / tp, hidden), 1.0, 1.0),
        ("scores", "core", (sequence, sequence, head_size), heads, unfused),
        ("context", "core", (sequence, head_size, sequence), heads, unfused),
        ("projection", "layer", (tokens, hidden, model.attention_size / tp), 1.0, 1.0),
        ("mlp_up", "layer", (tokens, up / tp, hidden), 1.0, 1.0),
        ("mlp_down", "layer", (tokens, hidden, model.ffn_hidden_size / tp), 1.0, 1.0),
        ("head", "head", (tokens, np.ceil(model.vocab_size / tp), hidden), 1.0, 1.0),
    ]
    rows: list[Row] = []
    for name, part, (m, n, k), batch, count in forward:
        operand = precision.element_bytes
        weight = operand if part == "core" else accumulated
        rows += [
            (Label(name, "forward", part), (m, n, k, batch, operand, count)),
            (Label(name, "activation_gradient", part), (m, k, n, batch, operand, count)),
            (Label(name, "weight_gradient", part), (k, n, m, batch, weight, count)),
        ]
    return Gemms.stack(rows)


def transformer_pointwise(model: ModelShape, design: DesignPoints, precision: Precision) -> Pointwise:
    """Kernels without reuse of a layer, of the embedding and of the loss.

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
    kernels : Pointwise
        (points, kernels). Bytes are tensors read plus tensors written; a bias, a dropout and the
        residual addition that follow a product are one kernel, as in Megatron-LM.
    """
    size = RankSizes.of(model, design)
    rows = [*layer_rows(model, size), *outer_rows(model, size, precision)]
    return Pointwise.of_rows(rows, element_bytes=precision.element_bytes)


def layer_rows(model: ModelShape, size: RankSizes) -> list[PointwiseRow]:
    """Pointwise kernels of one layer, forward and backward."""
    mask = 1.0 if model.dropout else 0.0
    dropped = 1.0 if model.dropout else 0.0
    unfused = np.where(size.scores > 0, 1.0, 0.0)
    rotary = 1.0 if model.position_embedding == "rotary" else 0.0
    biased = 1.0 if model.biases else 0.0
    gate = 1.0 if model.gated_mlp else 0.0
    wide = size.attention + 2 * size.key_value + (1 + gate) * size.ffn
    turned = size.attention + size.key_value
    seq, fwd, bwd = size.sequence_hidden, "forward", "activation_gradient"
    return [
        ("attention_norm", fwd, "layer", seq, 2, 0, 8, 1.0),
        ("mlp_norm", fwd, "layer", seq, 2, 0, 8, 1.0),
        ("rotary", fwd, "layer", turned, 2, 0, 6, rotary),
        ("softmax", fwd, "core", size.scores, 2, 0, 8, unfused),
        ("attention_dropout", fwd, "core", size.scores, 2, mask, 2, unfused * dropped),
        ("projection_dropout_residual", fwd, "layer", seq, 3, mask, 4, 1.0),
        ("activation", fwd, "layer", size.ffn, 2 + gate, 0, 12, 1.0),
        ("mlp_dropout_residual", fwd, "layer", seq, 3, mask, 4, 1.0),
        ("attention_norm", bwd, "layer", seq, 5, 0, 12, 1.0),
        ("mlp_norm", bwd, "layer", seq, 5, 0, 12, 1.0),
        ("rotary", bwd, "layer", turned, 2, 0, 6, rotary),
        ("softmax", bwd, "core", size.scores, 3, 0, 6, unfused),
        ("attention_dropout", bwd, "core", size.scores, 2, mask, 2, unfused * dropped),
        ("projection_dropout_residual", bwd, "layer", seq, 5, mask, 2, 1.0),
        ("activation", bwd, "layer", size.ffn, 3 + 2 * gate, 0, 16, 1.0),
        ("mlp_dropout_residual", bwd, "layer", seq, 5, mask, 2, 1.0),
        ("bias_gradient", "weight_gradient", "layer", wide + 2 * seq, 1, 0, 1, biased),
    ]


def outer_rows(model: ModelShape, size: RankSizes, precision: Precision) -> list[PointwiseRow]:
    """Pointwise kernels of the embedding, of the last norm, and of the loss, forward and backward."""
    mask = 1.0 if model.dropout else 0.0
    logits = size.tokens * size.vocabulary
    seq, fwd, bwd = size.sequence_hidden, "forward", "activation_gradient"
    return [
        ("embedding", fwd, "embedding", seq, 2, mask, 2, 1.0),
        ("embedding", "weight_gradient", "embedding", seq, 1, mask + 2 * precision.gradient_bytes, 2, 1.0),
        ("final_norm", fwd, "head", seq, 2, 0, 8, 1.0),
        ("final_norm", bwd, "head", seq, 5, 0, 12, 1.0),
        *loss_rows(logits),
    ]


def loss_rows(logits: FloatArray) -> list[PointwiseRow]:
    """Pointwise kernels of the loss, forward and backward.

    It works on fp32 logits: cast, maximum, exponential, sum and division each read them, and all but the
    reductions write them.
    """
    return [
        ("loss", "forward", "head", logits, 1, 32, 6, 1.0),
        ("loss", "activation_gradient", "head", logits, 1, 12, 3, 1.0),
    ]
