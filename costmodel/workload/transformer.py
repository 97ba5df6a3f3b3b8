"""The kernel tables of a transformer: design columns in, one column per kernel out.

Everything is of one rank and one micro-batch. Kernels of the part "layer" and "core" (the attention
core, which selective recomputation repeats) happen once per layer, the others once per model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from costmodel.columns import FloatArray
from costmodel.training.design import TILES_TOLD, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import Precision
from costmodel.workload.kernels import Gemms, Label, Pointwise, PointwiseRow, total

Row = tuple[Label, tuple[FloatArray | float, ...]]

#: Kernels of one element for each token and feature of the hidden size.
BETWEEN: Final = ("attention_norm", "attention_residual", "mlp_norm", "mlp_residual", "final_norm")

#: Of the kernel that reduces the gradients of biases, for each output: tensors moved, further bytes, FLOP.
BIAS_GRADIENT: Final = (1.0, 0.0, 1.0)

#: Product with a bias -> the kernel in whose layout the bias is added where the product gives summands.
BIASED: Final = {
    "qkv": "core",
    "projection": "attention_residual",
    "mlp_up": "activation",
    "mlp_down": "mlp_residual",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankSizes:
    """Sizes that kernels are made of, on one rank; every column has shape (points,). [elements]"""

    tokens: FloatArray  #: of one micro-batch
    hidden: Mapping[str, FloatArray]  #: kernel between products -> its share of tokens times hidden size
    scores: FloatArray  #: attention scores of the rank's heads, 0 when attention is fused
    attention: FloatArray  #: tokens times the rank's query heads
    key_value: FloatArray  #: tokens times the rank's key heads
    ffn: FloatArray  #: the activation function's share of tokens times the width of the MLP
    biased: FloatArray  #: outputs of all products of a layer, as biases are added to them
    vocabulary: FloatArray  #: the rank's share of the vocabulary, padded to whole entries

    @classmethod
    def of(cls, model: ModelShape, design: DesignPoints) -> Self:
        """Sizes for every design point at once."""
        tokens = design.micro_batch_size * model.seq_len
        unfused = np.where(design.attention == 0, 1.0, 0.0)
        whole = tokens * model.hidden_size
        return cls(
            tokens=tokens,
            hidden={name: whole / design.shards(name) for name in BETWEEN},
            scores=unfused * tokens * model.seq_len * model.num_attention_heads / design.tp,
            attention=tokens * model.attention_size / design.tp,
            key_value=tokens * model.key_value_size / design.tp,
            ffn=tokens * model.ffn_hidden_size / design.shards("activation"),
            biased=tokens * total(np.stack([biases(model, design, name)[1] for name in BIASED], axis=-1)),
            vocabulary=np.ceil(model.vocab_size / design.tp),
        )


def widths(model: ModelShape) -> dict[str, float]:
    """Features of the activations between kernels, as edges name them. [elements]"""
    return {
        "hidden": model.hidden_size,
        "qkv": model.attention_size + 2 * model.key_value_size,
        "attention": model.attention_size,
        "up": (2 if model.gated_mlp else 1) * model.ffn_hidden_size,
        "ffn": model.ffn_hidden_size,
    }


#: Product -> features that go into it and come out of it.
PRODUCTS: Final = {
    "qkv": ("hidden", "qkv"),
    "projection": ("attention", "hidden"),
    "mlp_up": ("hidden", "up"),
    "mlp_down": ("ffn", "hidden"),
}


def biases(model: ModelShape, design: DesignPoints, product: str) -> tuple[FloatArray, FloatArray]:
    """A product's biases on one rank, and for each token the outputs that they are added to. [elements]

    The biases of a column-split product are split with it; those of a row-split one are added once its
    summands are, by the kernel that comes next, and are split if that one is by columns.
    """
    width, following = widths(model)[PRODUCTS[product][1]], BIASED[product]
    split = design.is_split(product, "column") | design.is_split(following, "column")
    shared = np.where(design.is_split(product, "column"), design.tp, design.shards(following))
    return width / np.where(split, design.tp, 1.0), width / shared


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
    heads = design.micro_batch_size * model.num_attention_heads / tp
    unfused = np.where(design.attention == 0, 1.0, 0.0)
    sequence, head_size = model.seq_len, model.head_size
    accumulated = 2 * precision.gradient_bytes
    forward: list[tuple[str, str, tuple[FloatArray | float, ...], FloatArray | float, FloatArray | float]] = [
        # name, part, (m, n, k), batch, count
        ("qkv", "layer", split_product(model, design, "qkv"), 1.0, 1.0),
        ("scores", "core", (sequence, sequence, head_size), heads, unfused),
        ("context", "core", (sequence, head_size, sequence), heads, unfused),
        *(
            (name, "layer", split_product(model, design, name), 1.0, 1.0)
            for name in ("projection", "mlp_up", "mlp_down")
        ),
        ("head", "head", (tokens, np.ceil(model.vocab_size / tp), model.hidden_size), 1.0, 1.0),
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


def split_product(
    model: ModelShape, design: DesignPoints, product: str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A product's (m, n, k) on one rank, its weight split by columns or by rows. [elements]"""
    k, n = (widths(model)[name] for name in PRODUCTS[product])
    by_columns = design.is_split(product, "column")
    tokens = design.micro_batch_size * model.seq_len
    return tokens, n / np.where(by_columns, design.tp, 1.0), k / np.where(by_columns, 1.0, design.tp)


def told_tiles(design: DesignPoints, labels: Sequence[Label]) -> tuple[FloatArray, FloatArray] | None:
    """Edges of the output tiles that designs tell, as shares of the largest; None where none tells any.

    Returns
    -------
    share_m, share_n : (points, kernels) array
        Of rows and columns of each product of each pass; 0 where the tile is to be solved for. [-]
    """
    told = design.tiling == TILES_TOLD
    if not told.any():
        return None
    shares = [
        [np.where(told, 0.5 ** getattr(design, f"{label.name}_tile_{axis}"), 0.0) for label in labels]
        for axis in "mn"
    ]
    return np.stack(shares[0], axis=-1), np.stack(shares[1], axis=-1)


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
    turned = size.attention + size.key_value
    hidden, fwd, bwd = size.hidden, "forward", "activation_gradient"
    return [
        ("attention_norm", fwd, "layer", hidden["attention_norm"], 2, 0, 8, 1.0),
        ("mlp_norm", fwd, "layer", hidden["mlp_norm"], 2, 0, 8, 1.0),
        ("rotary", fwd, "layer", turned, 2, 0, 6, rotary),
        ("softmax", fwd, "core", size.scores, 2, 0, 8, unfused),
        ("attention_dropout", fwd, "core", size.scores, 2, mask, 2, unfused * dropped),
        ("projection_dropout_residual", fwd, "layer", hidden["attention_residual"], 3, mask, 4, 1.0),
        ("activation", fwd, "layer", size.ffn, 2 + gate, 0, 12, 1.0),
        ("mlp_dropout_residual", fwd, "layer", hidden["mlp_residual"], 3, mask, 4, 1.0),
        ("attention_norm", bwd, "layer", hidden["attention_norm"], 5, 0, 12, 1.0),
        ("mlp_norm", bwd, "layer", hidden["mlp_norm"], 5, 0, 12, 1.0),
        ("rotary", bwd, "layer", turned, 2, 0, 6, rotary),
        ("softmax", bwd, "core", size.scores, 3, 0, 6, unfused),
        ("attention_dropout", bwd, "core", size.scores, 2, mask, 2, unfused * dropped),
        ("projection_dropout_residual", bwd, "layer", hidden["attention_residual"], 5, mask, 2, 1.0),
        ("activation", bwd, "layer", size.ffn, 3 + 2 * gate, 0, 16, 1.0),
        ("mlp_dropout_residual", bwd, "layer", hidden["mlp_residual"], 5, mask, 2, 1.0),
        ("bias_gradient", "weight_gradient", "layer", size.biased, *BIAS_GRADIENT, biased),
    ]


def outer_rows(model: ModelShape, size: RankSizes, precision: Precision) -> list[PointwiseRow]:
    """Pointwise kernels of the embedding, of the last norm, and of the loss, forward and backward."""
    mask = 1.0 if model.dropout else 0.0
    logits = size.tokens * size.vocabulary
    residual, norm = size.hidden["mlp_residual"], size.hidden["final_norm"]
    fwd, bwd = "forward", "activation_gradient"
    return [
        ("embedding", fwd, "embedding", residual, 2, mask, 2, 1.0),
        (
            "embedding",
            "weight_gradient",
            "embedding",
            residual,
            1,
            mask + 2 * precision.gradient_bytes,
            2,
            1.0,
        ),
        ("final_norm", fwd, "head", norm, 2, 0, 8, 1.0),
        ("final_norm", bwd, "head", norm, 5, 0, 12, 1.0),
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
