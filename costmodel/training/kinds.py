"""Kinds of kernels: one record for each kind states all that the cost model needs of its kernels.

A record has the shardings of a kind, its products and passes over memory, its parameters, the activations that it keeps
for the backward pass, its exchanges between ranks that share a sequence, its recomputation, and its names in frameworks
and reference models. For example, a norm moves 2 tensors forward and 5 backward, with 8 and 12 FLOP an element,
keeps its input, and may be split by tokens. A record that lacks a field does not load, so that no formula
skips a kind in silence. A new kind and the mixer that uses it are added only here; dimensions that only they read are
fields of `ModelDimensions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from costmodel.columns import FloatArray
from costmodel.training.dimensions import ModelDimensions
from costmodel.training.kernel_kind import (
    FRAMEWORKS,
    Core,
    Exchanged,
    KeptBytes,
    Kernel,
    KernelKind,
    Matrix,
    MatrixProduct,
    OperatorSharding,
    PointwisePass,
    PointwiseWork,
    RankSizes,
    Shardings,
)

#: Shardings of a kernel that treats each element, or each token, for itself ...
_EACH: Final[Shardings] = {
    layout: OperatorSharding(layout, layout, layout, layout) for layout in ("replicated", "sequence", "column")
}
#: ... that needs all features of a token, that is split by heads, or by tokens.
_TOKENS: Final = {layout: _EACH[layout] for layout in ("replicated", "sequence")}
_HEADS: Final = {"column": _EACH["column"]}
_SEQUENCE: Final = {"sequence": _EACH["sequence"]}
#: Shardings of a product's weight of (k, n): the gradients are products with its transpose [Shoeybi2019]_.
_WEIGHT: Final = {
    "column": OperatorSharding("replicated", "column", "column", "partial"),
    "row": OperatorSharding("column", "partial", "replicated", "column"),
}
_ROWS: Final = {"row": OperatorSharding("replicated", "partial", "replicated", "replicated")}

#: Matrix products of an attention core: of queries with keys, and of their softmax with values.
ATTENTION_PRODUCTS: Final = ("scores", "context")
#: Matrix products of a Mamba-2 scan, and tokens of the chunks that it goes by in Megatron-LM [Dao2024]_.
MAMBA_PRODUCTS: Final = ("chunk_scores", "chunk_outputs", "chunk_states", "state_outputs")
MAMBA_CHUNK: Final = 128.0


class ElementCost(NamedTuple):
    """Cost of each element that a kernel without reuse passes over."""

    tensors: float  #: read and written, in elements of operands
    flops: float  #: [FLOP]
    masks: float = 0.0  #: of dropout, read or written [B]
    gates: float = 0.0  #: more tensors in a gated MLP


#: Forward pass, and gradient of the input, of pieces that several kinds have. A bias, a dropout and the
#: residual addition that follow a product are one kernel, as in Megatron-LM.
_HEAD_NORM: Final = (ElementCost(2, 8), ElementCost(5, 12))
_ROTARY: Final = (ElementCost(2, 6), ElementCost(2, 6))
_SOFTMAX: Final = (ElementCost(2, 8), ElementCost(3, 6))
_DROPOUT: Final = (ElementCost(2, 2, masks=1), ElementCost(2, 2, masks=1))
_ACTIVATION: Final = (ElementCost(2, 12, gates=1), ElementCost(3, 16, gates=2))


def nothing(*_: Any) -> Iterator[Any]:
    """Answer of kinds without products, or without passes over elements."""
    return iter(())


def none(*_: Any) -> float:
    """Answer of kinds without parameters, multiply-adds, keys or state. [-]"""
    return 0.0


def no_bytes(rank: RankSizes, _: Kernel) -> FloatArray:
    """Answer of kinds that keep nothing for the backward pass; (points,). [B]"""
    return 0.0 * rank.tokens


def both_passes(
    rank: RankSizes,
    name: str,
    costs: tuple[ElementCost, ElementCost],
    elements: FloatArray,
    count: FloatArray | float = 1.0,
    *,
    in_core: bool = False,
    sorts: bool = False,
) -> Iterator[PointwisePass]:
    """A kernel's forward pass and the gradient of its input, over a number of elements on a rank. [elements]"""
    dropout, gate = (1.0 if has else 0.0 for has in (rank.model.dropout, rank.model.gated_mlp))
    for of_pass, cost in zip(("forward", "activation_gradient"), costs, strict=True):
        tensors, masks = cost.tensors + gate * cost.gates, dropout * cost.masks
        yield PointwisePass(name, of_pass, elements, tensors, masks, cost.flops, count, in_core, sorts)


def passes_over_output(
    rank: RankSizes, kernel: Kernel, *, costs: tuple[ElementCost, ElementCost]
) -> Iterator[PointwisePass]:
    """Passes over a rank's share of a kernel's output."""
    whole = rank.tokens * rank.model.features[kernel.makes]
    yield from both_passes(rank, kernel.name, costs, whole / rank.shards(kernel))


def passes_over_copies(
    rank: RankSizes, kernel: Kernel, *, costs: tuple[ElementCost, ElementCost], sorts: bool = False
) -> Iterator[PointwisePass]:
    """Passes over the copies of tokens that the experts of a rank receive."""
    copies = rank.expert_tokens * rank.model.features[kernel.makes] / rank.etp
    yield from both_passes(rank, kernel.name, costs, copies, sorts=sorts)


def split_product(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """A product whose weight is split by columns or by rows."""
    sizes, by_columns = rank.model.features, rank.is_split(kernel, "column")
    n = sizes[kernel.makes] / np.where(by_columns, rank.tp, 1.0)
    if kernel.makes == "vocabulary":
        n = rank.vocabulary_share
    size = rank.tokens, n, sizes[kernel.reads] / np.where(by_columns, 1.0, rank.tp)
    yield MatrixProduct(kernel.name, size, 1.0, 1.0)


def whole_product(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """A product with a weight that every rank has whole: tokens may be split."""
    sizes = rank.model.features
    size = rank.tokens / rank.shards(kernel), sizes[kernel.makes], sizes[kernel.reads]
    yield MatrixProduct(kernel.name, size, 1.0, 1.0)


def expert_products(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """A product of each expert of a rank with the rows that chose it, in one launch."""
    n, k = (
        rank.model.features[word] / (rank.etp if word != "expert_in" else 1.0) for word in (kernel.makes, kernel.reads)
    )
    yield MatrixProduct(kernel.name, (rank.padded_expert_rows, n, k), rank.model.num_experts / rank.ep, 1.0)


def attention_products(rank: RankSizes, _: Kernel) -> Iterator[MatrixProduct]:
    """Scores and context of the heads of a rank, where attention is not fused."""
    model = rank.model
    keys, queries = model.key_len, model.seq_len / rank.cp
    heads = rank.sequences * model.num_attention_heads / rank.tp
    shapes = (queries, keys, model.score_size), (queries, model.value_size, keys)
    for name, size in zip(ATTENTION_PRODUCTS, shapes, strict=True):
        yield MatrixProduct(name, size, heads, rank.unfused)


def attention_passes(rank: RankSizes, _: Kernel) -> Iterator[PointwisePass]:
    """Rotation and norms of queries and keys; softmax and dropout of scores, where attention is not fused."""
    model, unfused = rank.model, rank.unfused
    rotated = rank.tokens * model.query_size / rank.tp + rank.tokens * model.key_value_size / rank.tp
    scores = unfused * rank.tokens * model.key_len * model.num_attention_heads / rank.tp
    rotary = 1.0 if model.position_embedding == "rotary" else 0.0
    dropout = unfused if model.dropout else 0.0
    yield from both_passes(rank, "rotary", _ROTARY, rotated, rotary)
    yield from both_passes(rank, "head_norm", _HEAD_NORM, rotated, 1.0 if model.qk_norm else 0.0)
    yield from both_passes(rank, "softmax", _SOFTMAX, scores, unfused, in_core=True)
    yield from both_passes(rank, "attention_dropout", _DROPOUT, scores, dropout, in_core=True)


def delta_net_products(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """The recurrence of the heads of a rank as products of tokens with states."""
    size = rank.model.linear_head_dim
    heads = rank.model.linear_value_heads / rank.tp
    yield MatrixProduct(kernel.name, (rank.tokens, size, 4 * size), heads, 1.0)


def lookup_passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
    """Rows of the word table gathered with a dropout, and their gradients added to those of the table."""
    mask = 1.0 if rank.model.dropout else 0.0
    gathered = rank.tokens * rank.model.features[kernel.makes] / rank.stream_shards
    yield PointwisePass(kernel.name, "forward", gathered, 2, mask, 2, 1.0)
    yield PointwisePass(kernel.name, "weight_gradient", gathered, 1, mask + 2 * rank.gradient_bytes, 2, 1.0)


def loss_passes(logits: FloatArray) -> Iterator[PointwisePass]:
    """Cross entropy of a number of fp32 logits: cast, maximum, exponential, sum and division each read them, and
    all but the reductions write them. [elements]"""
    yield PointwisePass("loss", "forward", logits, 1, 32, 6, 1.0)
    yield PointwisePass("loss", "activation_gradient", logits, 1, 12, 3, 1.0)


def vocabulary_passes(rank: RankSizes, _: Kernel) -> Iterator[PointwisePass]:
    """Cross entropy over a rank's share of the vocabulary."""
    return loss_passes(rank.tokens * rank.vocabulary_share)


def norm_parameters(model: ModelDimensions, kernel: Kernel) -> float:
    """A gain for each feature, and in layer norm a bias. [-]"""
    return (2 if model.normalization == "layer_norm" else 1) * model.features[kernel.reads]


def attention_parameters(model: ModelDimensions, _: Kernel) -> float:
    """Norms of queries and keys, and sinks. [-]"""
    width = model.query_size + model.key_value_size if model.wide_qk_norm else 2 * model.head_size
    return (width if model.qk_norm else 0.0) + (model.num_attention_heads if model.sinks else 0.0)


def router_parameters(model: ModelDimensions, _: Kernel) -> float:
    """A bias for each expert. [-]"""
    return model.num_experts if model.router_bias else 0.0


def delta_net_channels(model: ModelDimensions) -> float:
    """Features that the convolution of a gated delta net slides over: queries, keys and values. [elements]"""
    return (2 * model.linear_key_heads + model.linear_value_heads) * model.linear_head_dim


def delta_net_parameters(model: ModelDimensions, _: Kernel) -> float:
    """The convolution, decay and step of each head, and the norm of a head's output. [-]"""
    convolved = model.linear_conv_kernel * delta_net_channels(model)
    return convolved + 2 * model.linear_value_heads + model.linear_head_dim


def delta_net_multiply_adds(model: ModelDimensions, _: Kernel, causal: bool) -> float:
    """Convolution and recurrence of one token. [-]"""
    convolved = model.linear_conv_kernel * delta_net_channels(model)
    return convolved + 4 * model.linear_value_heads * model.linear_head_dim**2


def delta_net_state(model: ModelDimensions, element_bytes: float) -> float:
    """A matrix of keys by values in fp32 for each head, and the last tokens that the convolution sees. [B]"""
    states = 4.0 * model.linear_value_heads * model.linear_head_dim**2
    return states + element_bytes * (model.linear_conv_kernel - 1) * delta_net_channels(model)


def mamba_products(rank: RankSizes, _: Kernel) -> Iterator[MatrixProduct]:
    """Chunks of a Mamba-2 scan: scores of a group, and of each head their outputs, its states, and theirs.

    The masked half of a chunk's scores is computed too, as by the published kernels [Dao2024]_.
    """
    model, chunk, chunks = rank.model, MAMBA_CHUNK, rank.tokens / MAMBA_CHUNK
    size, width = model.linear_head_dim, model.linear_state_size
    heads, groups = (
        chunks * size_of_product / rank.tp for size_of_product in (model.linear_value_heads, model.linear_key_heads)
    )
    sizes = (chunk, chunk, width), (chunk, size, chunk), (width, size, chunk), (chunk, size, width)
    for name, size_of_product, batch in zip(MAMBA_PRODUCTS, sizes, (groups, heads, heads, heads), strict=True):
        yield MatrixProduct(name, size_of_product, batch, 1.0)


def mamba_channels(model: ModelDimensions) -> float:
    """Features that the convolution of a Mamba-2 mixer slides over: inputs, and the B and C of its states."""
    written = 2 * model.linear_key_heads * model.linear_state_size
    return model.linear_value_heads * model.linear_head_dim + written


def mamba_parameters(model: ModelDimensions, kernel: Kernel) -> float:
    """The convolution with its biases; decay, step and skip of each head; the norm of the output. [-]"""
    convolved = (model.linear_conv_kernel + 1) * mamba_channels(model)
    return convolved + 3 * model.linear_value_heads + model.features[kernel.makes]


def mamba_multiply_adds(model: ModelDimensions, kernel: Kernel, causal: bool) -> float:
    """The scan of one token: 3.5 for each entry of its states, as Megatron-LM counts. [-]"""
    return 3.5 * model.features[kernel.makes] * model.linear_state_size


def mamba_state(model: ModelDimensions, element_bytes: float) -> float:
    """State of a sequence: a matrix of each head in fp32, and the last tokens of the convolution. [B]"""
    states = 4.0 * model.linear_value_heads * model.linear_head_dim * model.linear_state_size
    return states + element_bytes * (model.linear_conv_kernel - 1) * mamba_channels(model)


def kept_decays(rank: RankSizes, _: Kernel) -> FloatArray:
    """Steps of each head and their sums over a chunk in fp32. [B]"""
    return 8.0 * rank.tokens * rank.model.linear_value_heads


def attention_multiply_adds(model: ModelDimensions, kernel: Kernel, causal: bool) -> float:
    """Scores and context of one token with the keys that it sees. [-]"""
    return (
        model.num_attention_heads
        * (model.score_size + model.value_size)
        * model.keys_seen(windowed=kernel.is_windowed, causal=causal)
    )


def attention_keys(model: ModelDimensions) -> float:
    """Keys and values of one token. [elements]"""
    return 2 * model.key_value_size


def kept_input(rank: RankSizes, kernel: Kernel) -> FloatArray:
    """The activation that a kernel reads. [B]"""
    return rank.activation_bytes(kernel.reads)


def kept_attention_input(rank: RankSizes, kernel: Kernel) -> FloatArray:
    """Queries, keys and values: of latent attention the expanded ones. [B]"""
    if rank.model.attention == "mla":
        return rank.element_bytes * rank.tokens * (rank.model.query_size + 2 * rank.model.key_value_size)
    return rank.activation_bytes(kernel.reads)


def kept_mask(rank: RankSizes, kernel: Kernel) -> FloatArray:
    """The mask of a dropout, a byte for each element. [B]"""
    return rank.tokens * rank.model.features[kernel.makes] * (1.0 if rank.model.dropout else 0.0)


def kept_copies(rank: RankSizes, kernel: Kernel) -> FloatArray:
    """Copies of tokens that experts received, as the kernel reads them. [B]"""
    width = rank.model.features[kernel.reads] * (1.0 if kernel.reads == "expert_in" else 1 / rank.etp)
    return rank.element_bytes * rank.tp * rank.expert_tokens * width


def kept_scores_of_experts(rank: RankSizes, _: Kernel) -> FloatArray:
    """Scores and probabilities of all experts in fp32. [B]"""
    return 8.0 * rank.tokens * rank.model.num_experts


def over_output(forward: ElementCost, backward: ElementCost) -> PointwiseWork:
    """Passes over a rank's share of a kernel's output, by the cost of each element."""
    return partial(passes_over_output, costs=(forward, backward))


def over_copies(forward: ElementCost, backward: ElementCost, *, sorts: bool = False) -> PointwiseWork:
    """Passes over copies of tokens, by the cost of each element; `sorts` if they sort the copies."""
    return partial(passes_over_copies, costs=(forward, backward), sorts=sorts)


def words(megatron: str, torchtitan: str, maxtext: str, *, aicb: str = "", dfmodel: str = "") -> dict[str, str]:
    """A kind's words in each of `FRAMEWORKS`; "" where it has none."""
    return dict(zip(FRAMEWORKS, (megatron, torchtitan, maxtext, aicb, dfmodel), strict=True))


#: What ranks exchange: nothing; keys and values of a shared sequence; tokens of experts.
_NOTHING: Final = Exchanged(None, None, tokens=False)
_KEYS_VALUES: Final = Exchanged(attention_keys, None, tokens=False)
_TOKENS_SENT: Final = Exchanged(None, None, tokens=True)
#: Weights of layers: split, whole in the format of a design or in fp32, one for each expert.
_SPLIT: Final = Matrix(split=True, of_experts=False, biased=True, narrow=True, model_flops=True)
_WHOLE: Final = Matrix(split=False, of_experts=False, biased=False, narrow=True, model_flops=True)
_SCORES: Final = Matrix(split=False, of_experts=False, biased=False, narrow=False, model_flops=False)
_EXPERTS: Final = Matrix(split=False, of_experts=True, biased=True, narrow=True, model_flops=True)

#: Name -> kind, of all kernels that layers are made of.
KINDS: Final[dict[str, KernelKind]] = {kind.name: kind for kind in (
    KernelKind(
        name="norm", about="layer norm or RMS norm, over all features of a token", layer_word="",
        shardings=_TOKENS, usual_split="tokens", matrix=None, product_names=(), products=nothing,
        pointwise=over_output(ElementCost(2, 8), ElementCost(5, 12)),
        parameters=norm_parameters, multiply_adds=none, core=None, kept=KeptBytes(kept_input, None),
        exchanged=_NOTHING, recompute_modules=("layernorm",),
        words=words("TENorm", "RMSNorm", "RMSNorm", aicb="layernorm", dfmodel="LayerNorm"),
    ),
    KernelKind(
        name="product", about="matrix product with a weight, and a bias in models with biases", layer_word="",
        shardings=_WEIGHT, usual_split="weight", matrix=_SPLIT, product_names=("",), products=split_product,
        pointwise=nothing, parameters=none, multiply_adds=none, core=None, kept=KeptBytes(kept_input, None),
        exchanged=_NOTHING, recompute_modules=(),
        words=words("TEColumnParallelLinear", "Linear", "DenseGeneral", aicb="linear", dfmodel="GEMM"),
    ),
    KernelKind(
        name="latent", about="matrix product with a weight that every rank holds whole, since it is small",
        layer_word="", shardings=_TOKENS, usual_split="tokens", matrix=_WHOLE, product_names=("",),
        products=whole_product, pointwise=nothing, parameters=none, multiply_adds=none, core=None,
        kept=KeptBytes(kept_input, None), exchanged=_NOTHING, recompute_modules=(),
        words=words("TELinear", "Linear", "DenseGeneral", aicb="latent"),
    ),
    KernelKind(
        name="attention", layer_word="",
        about="the attention core: rotation, scores, softmax, context; each head for itself",
        shardings=_HEADS, usual_split="", matrix=None, product_names=ATTENTION_PRODUCTS,
        products=attention_products, pointwise=attention_passes, parameters=attention_parameters,
        multiply_adds=attention_multiply_adds, core=Core(windowed=False),
        kept=KeptBytes(kept_attention_input, None), exchanged=_KEYS_VALUES, recompute_modules=("core_attn",),
        words=words("TEDotProductAttention", "ScaledDotProductAttention", "AttentionOp",
                    aicb="attention", dfmodel="MHA"),
    ),
    KernelKind(
        name="window", about="an attention core in which a query sees the keys of a window alone",
        layer_word="window", shardings=_HEADS, usual_split="", matrix=None, product_names=ATTENTION_PRODUCTS,
        products=attention_products, pointwise=attention_passes, parameters=attention_parameters,
        multiply_adds=attention_multiply_adds, core=Core(windowed=True),
        kept=KeptBytes(kept_attention_input, None), exchanged=_KEYS_VALUES, recompute_modules=("core_attn",),
        words=words("window_size", "sliding_window", "sliding_window_size"),
    ),
    KernelKind(
        name="delta_net", layer_word="delta-net",
        about="the core of a gated delta net: convolution, recurrence over chunks, norm and gate of heads",
        shardings=_HEADS, usual_split="", matrix=None, product_names=("",), products=delta_net_products,
        pointwise=over_output(ElementCost(6, 32), ElementCost(10, 64)), parameters=delta_net_parameters,
        multiply_adds=delta_net_multiply_adds, core=None, kept=KeptBytes(kept_input, None),
        exchanged=Exchanged(None, delta_net_state, tokens=False), recompute_modules=(),
        words=words("gated_delta_net", "", "Qwen3NextGatedDeltaNet"),
    ),
    KernelKind(
        name="mamba2", about="the core of a Mamba-2 mixer: convolution, scan over chunks, gate and norm",
        layer_word="Mamba-2", shardings=_HEADS, usual_split="", matrix=None, product_names=MAMBA_PRODUCTS,
        products=mamba_products, pointwise=over_output(ElementCost(8, 40), ElementCost(13, 80)),
        parameters=mamba_parameters, multiply_adds=mamba_multiply_adds, core=None,
        kept=KeptBytes(kept_input, kept_decays), exchanged=Exchanged(None, mamba_state, tokens=False),
        recompute_modules=(), words=words("", "", ""),
    ),
    KernelKind(
        name="activation", about="activation function, element by element; of gated MLPs the gate too",
        layer_word="", shardings=_EACH, usual_split="features", matrix=None, product_names=(),
        products=nothing, pointwise=over_output(*_ACTIVATION), parameters=none, multiply_adds=none, core=None,
        kept=KeptBytes(kept_input, None), exchanged=_NOTHING, recompute_modules=(),
        words=words("activation_func", "silu", "mlp_activations", aicb="activation", dfmodel="activation"),
    ),
    KernelKind(
        name="residual", about="dropout, and the addition to the residual stream", layer_word="",
        shardings=_EACH, usual_split="tokens", matrix=None, product_names=(), products=nothing,
        pointwise=over_output(ElementCost(3, 4, masks=1), ElementCost(5, 2, masks=1)),
        parameters=none, multiply_adds=none, core=None, kept=KeptBytes(kept_mask, None),
        exchanged=_NOTHING, recompute_modules=(),
        words=words("bias_dropout_add", "add", "add", aicb="dropout", dfmodel="Add"),
    ),
    KernelKind(
        name="router", about="scores of the experts for each token in fp32, and the choice among them",
        layer_word="", shardings=_TOKENS, usual_split="tokens", matrix=_SCORES, product_names=("",),
        products=whole_product, pointwise=over_output(ElementCost(4, 16), ElementCost(4, 16)),
        parameters=router_parameters, multiply_adds=none, core=None,
        kept=KeptBytes(kept_input, kept_scores_of_experts), exchanged=_NOTHING, recompute_modules=("moe",),
        words=words("TopKRouter", "TokenChoiceTopKRouter", "GateLogit", aicb="router"),
    ),
    KernelKind(
        name="dispatch", about="tokens sorted by expert, and sent to the ranks that hold theirs",
        layer_word="", shardings=_SEQUENCE, usual_split="", matrix=None, product_names=(), products=nothing,
        pointwise=over_copies(ElementCost(2, 0), ElementCost(2, 1), sorts=True), parameters=none,
        multiply_adds=none, core=None, kept=KeptBytes(no_bytes, None), exchanged=_TOKENS_SENT,
        recompute_modules=(), words=words("MoETokenDispatcher", "ExpertParallel", "permute", aicb="dispatch"),
    ),
    KernelKind(
        name="experts", about="matrix products of each expert with the tokens that chose it, in one launch",
        layer_word="expert", shardings=_SEQUENCE, usual_split="", matrix=_EXPERTS, product_names=("",),
        products=expert_products, pointwise=nothing, parameters=none, multiply_adds=none, core=None,
        kept=KeptBytes(kept_copies, None), exchanged=_NOTHING, recompute_modules=(),
        words=words("TEGroupedMLP", "GroupedExperts", "RoutedMoE", aicb="experts"),
    ),
    KernelKind(
        name="expert_activation", about="activation function of the experts", layer_word="",
        shardings=_SEQUENCE, usual_split="", matrix=None, product_names=(), products=nothing,
        pointwise=over_copies(*_ACTIVATION), parameters=none, multiply_adds=none, core=None,
        kept=KeptBytes(kept_copies, None), exchanged=_NOTHING, recompute_modules=("moe_act", "moe"),
        words=words("activation_func", "silu", "mlp_activations", aicb="activation"),
    ),
    KernelKind(
        name="combine", about="results sent back, and added up for each token", layer_word="",
        shardings=_SEQUENCE, usual_split="", matrix=None, product_names=(), products=nothing,
        pointwise=over_copies(ElementCost(2, 1), ElementCost(2, 0), sorts=True), parameters=none,
        multiply_adds=none, core=None, kept=KeptBytes(no_bytes, None), exchanged=_NOTHING,
        recompute_modules=(),
        words=words("MoETokenDispatcher", "ExpertParallel", "unpermute", aicb="combine"),
    ),
    KernelKind(
        name="lookup", about="look-up of the word table, split by the vocabulary, and dropout", layer_word="",
        shardings=_ROWS, usual_split="", matrix=None, product_names=(), products=nothing,
        pointwise=lookup_passes, parameters=none, multiply_adds=none, core=None,
        kept=KeptBytes(no_bytes, None), exchanged=_NOTHING, recompute_modules=(),
        words=words("VocabParallelEmbedding", "Embedding", "Embed", aicb="embedding"),
    ),
    KernelKind(
        name="loss", about="cross entropy over the vocabulary", layer_word="",
        shardings=_HEADS, usual_split="", matrix=None, product_names=(), products=nothing,
        pointwise=vocabulary_passes, parameters=none, multiply_adds=none, core=None,
        kept=KeptBytes(no_bytes, None), exchanged=_NOTHING, recompute_modules=(),
        words=words("vocab_parallel_cross_entropy", "cross_entropy_loss", "cross_entropy", aicb="loss"),
    ),
)}  # fmt: skip

#: Word of a model's `linear_attention` -> rows of the mixer between a norm, here {norm}, and the residual
#: addition; the last row is what that reads.
LINEAR_MIXERS: Final[Mapping[str, tuple[str, ...]]] = {
    "gated_delta_net": (
        "delta_in    product    hidden > delta_in    column  < {norm}",
        "delta       delta_net  delta_in > delta_out          < delta_in",
        "projection  product    delta_out > hidden   row     < delta",
    ),
    "mamba2": (
        "mamba_in    product    hidden > mamba_in     column  < {norm}",
        "mamba       mamba2     mamba_in > mamba_out          < mamba_in",
        "projection  product    mamba_out > hidden    row     < mamba",
    ),
}
