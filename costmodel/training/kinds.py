"""Kinds of kernels: one record for each kind states all that the cost model needs of its kernels.

A record has the shardings of a kind, its products and passes over memory, its parameters, the activations that it keeps
for the backward pass, its exchanges between ranks that share a sequence, its recomputation, and its names in frameworks
and reference models. For example, a norm moves 2 tensors forward and 5 backward, with 8 and 12 FLOP an element,
keeps its input, and may be split by tokens. A record that lacks a field does not load, so that no formula
skips a kind in silence. A new kind is added only here; its mixer is rows of `blocks.py`, its dimensions are
fields of `ModelDimensions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import yaml

from costmodel.columns import BoolArray, FloatArray
from costmodel.training.dimensions import ModelDimensions, Sizes
from costmodel.training.kernel_kind import (
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
)

#: Tokens of a chunk of a Mamba-2 scan in Megatron-LM [Dao2024]_.
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


def nothing(*_: Any) -> Iterator[Any]:
    """Answer of kinds without products, or without passes over elements."""
    return iter(())


def none(*_: Any) -> float:
    """Answer of kinds without parameters, multiply-adds, keys or state. [-]"""
    return 0.0


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


def split_product(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """A product whose weight is split by columns or by rows."""
    sizes, by_columns = rank.model.features, rank.design.is_split(kernel, "column")
    n = sizes[kernel.makes] / np.where(by_columns, rank.design.tp, 1.0)
    if kernel.makes == "vocabulary":
        n = rank.vocabulary_share
    size = rank.tokens, n, sizes[kernel.reads] / np.where(by_columns, 1.0, rank.design.tp)
    yield MatrixProduct(kernel.name, size, 1.0, 1.0)


def whole_product(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """A product with a weight that every rank has whole: tokens may be split."""
    sizes = rank.model.features
    size = rank.tokens / rank.design.shards(kernel), sizes[kernel.makes], sizes[kernel.reads]
    yield MatrixProduct(kernel.name, size, 1.0, 1.0)


def expert_products(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """A product of each expert of a rank with the rows that chose it, in one launch."""
    features, etp = rank.model.features, rank.design.etp
    n, k = (features[word] / (1.0 if word == "expert_in" else etp) for word in (kernel.makes, kernel.reads))
    yield MatrixProduct(kernel.name, (rank.padded_expert_rows, n, k), rank.model.num_experts / rank.design.ep, 1.0)


def expert_passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
    """Passes over outputs of products of experts with biases, those of GPT OSS, where the products do not fuse them.

    Megatron Core (`TEGroupedMLP._apply_bias`) adds biases of the last product in fp32, scaled by weights of the router:
    expert by expert, it writes a scaled bias for each row, adds it to outputs in 16 bits, joins and casts: 28 bytes of
    an output. Backward it casts the gradient, and writes and sums the products for the gradients of biases and of
    router weights: 6, 12 and 12 bytes. Before the activation it clamps both halves and joins them: 8 bytes, and 10 of
    their gradients (``weighted_bias_quick_geglu_impl``).
    """
    last = kernel.makes == "expert_in"
    passes, moved = rank.expert_passes[0 if last else 1], (28.0, 18.0, 12.0) if last else (8.0, 10.0)
    outputs = rank.padded_expert_rows * rank.model.features[kernel.makes] / (1.0 if last else rank.design.etp)
    experts = rank.model.num_experts / rank.design.ep
    for of_pass, size in zip(("forward", "activation_gradient", "weight_gradient"), moved, strict=False):
        if np.any(passes):
            elements, count = (outputs, experts * passes) if last else (outputs * experts, passes)
            yield PointwisePass(f"{kernel.name}_bias", of_pass, elements, 0.0, size, 2.0, count)


def attention_products(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """Scores and context of the heads of a rank, where attention is not fused."""
    model = rank.model
    keys, queries = model.key_len, model.seq_len / rank.design.cp
    heads = rank.design.micro_batch_size * model.num_attention_heads / rank.design.tp
    shapes = (queries, keys, model.score_size), (queries, model.value_size, keys)
    for name, size in zip(kernel.products, shapes, strict=True):
        yield MatrixProduct(name, size, heads, rank.unfused)


def attention_passes(rank: RankSizes, _: Kernel) -> Iterator[PointwisePass]:
    """Rotation and norms of queries and keys; softmax and dropout of scores, where attention is not fused."""
    model, unfused = rank.model, rank.unfused
    rotated = rank.tokens * model.query_size / rank.design.tp + rank.tokens * model.key_value_size / rank.design.tp
    scores = unfused * rank.tokens * model.key_len * model.num_attention_heads / rank.design.tp
    rotary = 1.0 if model.position_embedding == "rotary" else 0.0
    dropout = unfused if model.dropout else 0.0
    yield from both_passes(rank, "rotary", _ROTARY, rotated, rotary)
    yield from both_passes(rank, "head_norm", _HEAD_NORM, rotated, 1.0 if model.qk_norm else 0.0)
    yield from both_passes(rank, "softmax", _SOFTMAX, scores, unfused, in_core=True)
    yield from both_passes(rank, "attention_dropout", _DROPOUT, scores, dropout, in_core=True)


def delta_net_products(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """The recurrence of the heads of a rank as products of tokens with states."""
    model, heads = rank.model, rank.model.linear_value_heads / rank.design.tp
    yield MatrixProduct(kernel.name, (rank.tokens, model.linear_head_dim, 4 * model.features["delta_key"]), heads, 1.0)


def lookup_passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
    """Rows of the word table gathered with a dropout, and their gradients added to those of the table."""
    mask = 1.0 if rank.model.dropout else 0.0
    gathered = rank.tokens * rank.model.features[kernel.makes] / rank.design.shards(rank.design.stream)
    streams = rank.model.features["streams"]
    yield PointwisePass(kernel.name, "forward", gathered, 1 + streams, mask, 2, 1.0)
    yield PointwisePass(kernel.name, "weight_gradient", gathered, streams, mask + 2 * rank.gradient_bytes, 2, 1.0)


def loss_passes(logits: FloatArray, fused: BoolArray | bool = False) -> Iterator[PointwisePass]:
    """Cross entropy of a number of fp32 logits: cast, maximum, exponential, sum and division each read them, and
    all but the reductions write them. Fused, logits in 16 bits are read forward, and read and replaced by their
    gradients backward: 1.37 and 1.54 ms for 8,192 tokens and 128,256 words on H100. [elements]"""
    more, more_back = np.where(fused, 0.0, 32.0), np.where(fused, 2.0, 12.0)
    yield PointwisePass("loss", "forward", logits, 1, more, 6, 1.0)
    yield PointwisePass("loss", "activation_gradient", logits, 1, more_back, 3, 1.0)


def attention_parameters(model: ModelDimensions, _: Kernel) -> float:
    """Norms of queries and keys, and sinks. [-]"""
    width = model.query_size + model.key_value_size if model.wide_qk_norm else 2 * model.score_size
    width -= model.score_size if model.reuses_keys else 0.0
    return width * (model.qk_norm and model.norm_weights) + model.num_attention_heads * model.sinks


def linear_state(model: ModelDimensions, element_bytes: float, *, of_mamba: bool = False) -> float:
    """State of a sequence: a matrix of each head in fp32, and the last tokens of a convolution. [B]"""
    width = model.linear_state_size if of_mamba else model.features["delta_key"]
    channels = model.features["mamba_channels" if of_mamba else "delta_channels"]
    states = 4.0 * model.linear_value_heads * model.linear_head_dim * width
    return states + element_bytes * max(model.linear_conv_kernel - 1, 0) * channels


def mamba_products(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """Chunks of a scan: scores of a group, and of each head their outputs, its states, and theirs.

    The masked half of a chunk's scores is computed too, as by the published kernels [Dao2024]_. States of lightning
    attention are as wide as its heads [MiniMax2025]_.
    """
    model, chunk, chunks = rank.model, MAMBA_CHUNK, rank.tokens / MAMBA_CHUNK
    size, width = model.linear_head_dim, model.linear_state_size or model.linear_head_dim
    heads, groups = (chunks * n / rank.design.tp for n in (model.linear_value_heads, model.linear_key_heads))
    sizes = (chunk, chunk, width), (chunk, size, chunk), (width, size, chunk), (chunk, size, width)
    for name, size_of_product, batch in zip(kernel.products, sizes, (groups, heads, heads, heads), strict=True):
        yield MatrixProduct(name, size_of_product, batch, 1.0)


def scan_passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
    """Convolution, selective scan and gate of Mamba-1: 9 FLOP for each entry of the states of a token [Gu2023]_."""
    elements, scan = rank.tokens * rank.model.features[kernel.makes] / rank.design.tp, 9 * rank.model.linear_state_size
    costs = ElementCost(7, 20 + scan), ElementCost(12, 40 + 2 * scan)
    yield from both_passes(rank, kernel.name, costs, elements)


def stream_passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
    """Input of a branch from n streams, or streams mixed with its output, by fused kernels [Xie2025]_.

    Forward passes move n + 1 or 2 n + 1 widths of a token. Backward passes read streams too, and add up gradients.
    """
    n = rank.model.features["streams"]
    read = ElementCost(n + 1, 2 * n), ElementCost(3 * n + 1, 4 * n)
    write = ElementCost(2 * n + 1, 2 * n * (n + 1)), ElementCost(3 * n + 2, 4 * n * (n + 1))
    elements = rank.tokens * rank.model.hidden_size / rank.design.shards(kernel)
    return both_passes(rank, kernel.name, read if kernel.makes == "hidden" else write, elements)


def stream_weight_passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
    """Weights of streams in fp32, mixtures scaled in 20 rounds, and the gradient of the norm of all streams."""
    sizes, tokens = rank.model.features, rank.tokens / rank.design.shards(kernel)
    costs = ElementCost(4, 80), ElementCost(6, 160)
    yield from both_passes(rank, kernel.name, costs, tokens * sizes[kernel.makes])
    yield PointwisePass(f"{kernel.name}_norm", "activation_gradient", tokens * sizes["stream"], 4, 0, 8, 1.0)


def each_stream_product(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """A product of each residual stream with one weight that every rank has whole."""
    for product in whole_product(rank, kernel):
        yield product._replace(size=(product.size[0] * rank.model.features["streams"], *product.size[1:]))


def attention_multiply_adds(model: ModelDimensions, kernel: Kernel, causal: bool) -> float:
    """Scores and context of one token with the keys that it sees. [-]"""
    return model.num_attention_heads * (model.score_size + model.value_size) * keys_met(model, kernel, causal=causal)


def keys_met(model: ModelDimensions, kernel: Kernel, *, causal: bool = True) -> float:
    """Keys that a query of an attention core meets on average. [-]"""
    core = kernel.kind.core
    if core and core.indexed:
        return model.keys_among(model.index_topk, causal=causal)
    entries = model.entries_seen(causal=causal) if core and core.compressed else 0.0
    return model.keys_seen(windowed=kernel.is_windowed, causal=causal) + entries


def compressed_passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
    """Norm of queries, and rotation in place of a part of them, and back of that of outputs [DeepSeek2026]_."""
    model, tokens = rank.model, rank.tokens / rank.design.tp
    yield from both_passes(rank, "head_norm", _HEAD_NORM, tokens * model.query_size)
    yield from both_passes(rank, "rotary", _ROTARY, tokens * 2 * model.num_attention_heads * model.qk_rope_head_dim)
    yield from (one for one in attention_passes(rank, kernel) if one.in_core)


def pool_passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
    """Weights of tokens by a softmax of their gates, the weighted sum of each entry, its norm and rotation."""
    read, made = (rank.model.features[word] for word in (kernel.reads, kernel.makes))
    costs = ElementCost(1 + made / read, 8), ElementCost(2 + made / read, 12)
    return both_passes(rank, kernel.name, costs, rank.tokens * read)


def grouped_product(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """A product of each group of heads with a matrix, by groups of a rank in one launch."""
    model = rank.model
    size = rank.tokens, model.o_lora_rank, model.features[kernel.reads] / model.o_groups
    yield MatrixProduct(kernel.name, size, model.o_groups / rank.design.tp, 1.0)


def absorbed(model: ModelDimensions) -> Sizes:
    """Latent attention as kernels of sparse attention run it: latents are keys and values of all heads [DeepSeek2025]_.

    Products with the weights that expand latents take as many FLOPs on queries and outputs as on keys and values.
    """
    if model.attention != "mla":
        return ()
    width = model.kv_lora_rank + model.qk_rope_head_dim
    latent = (("attention", "gqa"), ("num_query_groups", 1.0), ("head_size", width))
    return (*latent, ("v_head_dim", model.kv_lora_rank))


def kept_sparse_input(rank: RankSizes, kernel: Kernel) -> FloatArray:
    """Queries, keys and values; of latent attention queries and outputs in the width of latents, and latents. [B]"""
    model = rank.model
    kept: FloatArray = rank.activation_bytes(kernel.reads)
    if model.attention == "mla":
        width = model.num_attention_heads * (2 * model.kv_lora_rank + model.qk_rope_head_dim)
        kept = rank.precision.element_bytes * rank.tokens * (width + model.features["key_latent"])
    return kept


def scored_keys(model: ModelDimensions, *, causal: bool = True) -> float:
    """Keys that an indexer scores for a query on average, each of `compress_ratio` tokens. [-]"""
    return model.keys_seen(windowed=False, causal=causal) / max(model.compress_ratio, 1.0)


def compared_keys(model: ModelDimensions) -> float:
    """Keys whose scores an indexer's loss compares with those of attention heads, for a query on average. [-]"""
    return scored_keys(model) if model.compress_ratio else model.keys_among(model.index_topk)


def indexer_products(rank: RankSizes, kernel: Kernel) -> Iterator[MatrixProduct]:
    """Scores of the indexer's heads with all keys before a query, and the target of its loss.

    The loss compares these scores with those of a rank's attention heads, for the keys that the indexer picked: only
    they have gradients (Megatron-Bridge 067f987d, flop_utils.py: `num_floating_point_operations`).
    """
    model, queries, sequences = rank.model, rank.model.seq_len / rank.design.cp, rank.design.micro_batch_size
    compared, features = compared_keys(model), model.features["index_queries"]
    yield MatrixProduct(kernel.name, (queries, scored_keys(model), features), sequences, 1.0, compared)
    if "index_target" in kernel.products:
        width = model.kv_lora_rank + model.qk_rope_head_dim if model.attention == "mla" else model.score_size
        target = queries, compared, model.num_attention_heads / rank.design.tp * width
        yield MatrixProduct("index_target", target, sequences, 1.0, 0.0)


def indexer_passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
    """Activation and sum of the heads' scores on chip, and the choice of keys from fp32 scores."""
    costs, scores = 2 * (ElementCost(2, 3 * rank.model.index_heads),), rank.tokens * scored_keys(rank.model)
    forward, backward = both_passes(rank, kernel.name, costs, scores)
    yield from (forward, backward._replace(elements=rank.tokens * compared_keys(rank.model)))


def kept_index(rank: RankSizes, _: Kernel) -> FloatArray:
    """Queries and keys of an indexer with its weights, and the numbers of the keys picked in 32 bits. [B]"""
    model = rank.model
    words = ("index_queries", *(("index_entries", "index_weights") if model.compress_ratio else ("index_keys",)))
    picks = min(model.index_topk, model.key_len / max(model.compress_ratio, 1.0))
    return np.asarray(sum(rank.activation_bytes(word) for word in words) + 4.0 * rank.tokens * picks)


def kept_mask(rank: RankSizes, kernel: Kernel) -> FloatArray:
    """The mask of a dropout, a byte for each element. [B]"""
    return np.asarray(rank.tokens * rank.model.features[kernel.makes] * (1.0 if rank.model.dropout else 0.0))


#: Answers of single kinds that are one expression; `kinds.yaml` describes them.
_SHORT: Final[Mapping[str, Callable[..., Any]]] = {
    "state_of_mamba": partial(linear_state, of_mamba=True),
    "mamba_multiply_adds": lambda model, kernel, _: 3.5 * model.features[kernel.makes] * model.linear_state_size,
    "scan_parameters": lambda model, kernel: (
        (model.linear_conv_kernel + 3 + model.linear_state_size) * model.features[kernel.makes]
    ),
    "scan_multiply_adds": lambda model, kernel, _: (
        (model.linear_conv_kernel + 3 * model.linear_state_size) * model.features[kernel.makes]
    ),
    "convolution_taps": lambda model, *_: model.linear_conv_kernel * model.hidden_size,
    "convolution_state": lambda model, element: element * (model.linear_conv_kernel - 1) * model.hidden_size,
    "attention_keys": lambda model: 2 * model.key_value_size,
    "kept_decays": lambda rank, _: 8.0 * rank.tokens * rank.model.linear_value_heads,
    "kept_scores_of_experts": lambda rank, _: 8.0 * rank.tokens * rank.model.num_experts,
    "norm_parameters": lambda model, kernel: (
        (2 if model.normalization == "layer_norm" else 1) * model.features[kernel.reads] * model.norm_weights
    ),
    "sparse_keys": lambda model: model.features["key_latent"] if model.attention == "mla" else 2 * model.key_value_size,
    "kept_input": lambda rank, kernel: rank.activation_bytes(kernel.reads),
    "kept_attention_input": lambda rank, kernel: (
        rank.precision.element_bytes * rank.tokens * (rank.model.query_size + 2 * rank.model.key_value_size)
        if rank.model.attention == "mla"
        else rank.activation_bytes(kernel.reads)
    ),
    "kept_copies": lambda rank, kernel: (
        rank.precision.element_bytes
        * rank.design.tp
        * rank.expert_tokens
        * (rank.model.features[kernel.reads] * (1.0 if kernel.reads == "expert_in" else 1 / rank.design.etp))
    ),
    "kept_compressed_input": lambda rank, kernel: (
        rank.activation_bytes(kernel.reads)
        + rank.design.tp * (rank.activation_bytes("shared_key") + rank.activation_bytes("entries"))
    ),
    "kept_with_gate": lambda rank, kernel: rank.activation_bytes(kernel.reads) + rank.activation_bytes(kernel.makes),
    "kept_with_gate_and_decay": lambda rank, kernel: (
        rank.activation_bytes(kernel.reads) + 2 * rank.activation_bytes(kernel.makes)
    ),
    "router_parameters": lambda model, _: (
        (model.hidden_size + model.num_experts if model.expert_norms else 0.0)
        + (model.num_experts if model.router_bias else 0.0)
    ),
    "delta_net_parameters": lambda model, _: (
        model.linear_conv_kernel * model.features["delta_channels"]
        + 2 * model.linear_value_heads
        + model.linear_head_dim
    ),
    "delta_net_multiply_adds": lambda model, *_: (
        model.linear_conv_kernel * model.features["delta_channels"]
        + 4 * model.linear_value_heads * model.linear_head_dim * model.features["delta_key"]
    ),
    "mamba_parameters": lambda model, kernel: (
        (model.linear_conv_kernel + 1) * model.features["mamba_channels"]
        + 3 * model.linear_value_heads
        + (model.features[kernel.makes] if model.linear_norm else 0.0)
    ),
    "kda_parameters": lambda model, kernel: (
        model.linear_conv_kernel * model.features["delta_channels"]
        + model.linear_value_heads
        + model.features[kernel.makes]
        + model.linear_head_dim
    ),
    "scan_state": lambda model, element: (
        (4.0 * model.linear_state_size + element * (model.linear_conv_kernel - 1)) * model.features["mamba_out"]
    ),
    "stream_weight_parameters": lambda model, kernel: (
        model.features[kernel.makes] + (2 + model.mixed_streams if "w" in kernel.makes else 1)
    ),
    "kept_stream_weights": lambda rank, kernel: 8.0 * rank.tokens * rank.model.features[kernel.makes],
    "kept_streams": lambda rank, _: rank.activation_bytes("stream"),
    "other_streams": lambda model, *_: (model.features["streams"] - 1) * model.hidden_size**2,
    "indexer_multiply_adds": lambda model, _, causal: (
        model.features["index_queries"] * scored_keys(model, causal=causal)
    ),
    "pool_parameters": lambda model, kernel: (
        model.compress_ratio * (model.features[kernel.reads] / 2 + model.features[kernel.makes])
    ),
    "compressed_keys": lambda model: (
        model.head_size * min(model.window / model.seq_len, 1.0) + model.features["entries"]
    ),
    "index_entries": lambda model: model.features["index_entries"],
    "no_bytes": lambda rank, _: 0.0 * rank.tokens,
    "index_norms": lambda model, _: 2 * model.index_head_dim,
    "index_keys": lambda model: model.index_head_dim,
    "output_norm": lambda model, kernel: model.features[kernel.makes],
    "lightning_multiply_adds": lambda model, kernel, _: 2 * model.features[kernel.makes] * model.linear_head_dim,
    "vocabulary_passes": lambda rank, _: loss_passes(rank.tokens * rank.vocabulary_share, rank.fuses_loss),
}


def _function(word: str | None) -> Any:
    """The function that a word of `kinds.yaml` names."""
    return None if word is None else _SHORT[word] if word in _SHORT else globals()[word]


def _pointwise(answer: str | Mapping[str, Any]) -> PointwiseWork:
    """Passes over elements by a function, or by the costs of an element of an output, or of copies for experts."""
    if isinstance(answer, str):
        return cast(PointwiseWork, _function(answer))
    of_output, sorts = "output" in answer, answer.get("sorts", False)
    forward, backward = (ElementCost(*cost) for cost in answer["output" if of_output else "copies"])

    def passes(rank: RankSizes, kernel: Kernel) -> Iterator[PointwisePass]:
        tokens, ranks = (
            (rank.tokens, rank.design.shards(kernel)) if of_output else (rank.expert_tokens, rank.design.etp)
        )
        elements = tokens * rank.model.features[kernel.makes] / ranks
        return both_passes(rank, kernel.name, (forward, backward), elements, sorts=sorts)

    return passes


def _kind(name: str, row: dict[str, Any]) -> KernelKind:
    """A kind from its row."""
    shardings = {option: OperatorSharding(*layouts) for option, layouts in row["shardings"].items()}
    answers = {**row, "name": name, "shardings": shardings, "matrix": row["matrix"] and Matrix(**row["matrix"])}
    answers |= {part: _function(row[part]) for part in ("products", "parameters", "multiply_adds")}
    core, kept, sent = row["core"], row["kept"], row["exchanged"]
    answers["core"] = core and Core(**{**core, "sizes": _function(core.get("sizes"))})
    answers["kept"] = KeptBytes(*(_function(kept[part]) for part in KeptBytes._fields))
    exchanges = {part: _function(sent[part]) for part in ("keys_values", "state")}
    answers["exchanged"] = Exchanged(**{**sent, **exchanges})
    answers |= {part: tuple(row[part]) for part in ("product_names", "recompute_modules", "software")}
    return KernelKind(**{**answers, "pointwise": _pointwise(row["pointwise"])})


#: Rows of `kinds.yaml`.
ROWS: Final[Mapping[str, dict[str, Any]]] = yaml.load(
    Path(__file__).with_suffix(".yaml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
#: Name -> kind, of all kernels that layers are made of.
KINDS: Final = {name: _kind(name, row) for name, row in ROWS.items()}
