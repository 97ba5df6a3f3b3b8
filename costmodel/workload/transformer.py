"""The kernel tables of a transformer: rows of blocks in, one column per kernel and pass out.

Everything is of one rank and one micro-batch. Kernels of a layer's part, and of its attention core (which
selective recomputation repeats), happen once per layer of that kind, the others once per model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.training.blocks import ATTENTION_PRODUCTS, EMBEDDING, HEAD, Edge, Kernel, Layer
from costmodel.training.design import tile_columns
from costmodel.training.model import ModelShape
from costmodel.training.precision import of_formats
from costmodel.training.run import RankRun, gradient_bytes
from costmodel.workload.kernels import PASSES, Gemms, Label, Pointwise, PointwiseRow, total

#: (m, n, k) of a product C[m, n] += A[m, k] B[k, n]. [elements]
Dimensions = tuple[FloatArray | float, FloatArray | float, FloatArray | float]


@dataclass(frozen=True, slots=True)
class Part:
    """Kernels that are run equally often, and the edges that lead to them."""

    name: str
    kernels: tuple[Kernel, ...]
    edges: tuple[Edge, ...]
    layer: Layer | None = None  #: None for the embedding and the head

    @property
    def core(self) -> str:
        """Name of the part's attention core, which is a part of its own in kernel tables."""
        return f"{self.name} core"


def parts_of(model: ModelShape) -> list[Part]:
    """The kinds of layers of a model, its embedding and its head."""
    layers = [Part(f"layer {n}", layer.kernels, layer.edges, layer) for n, layer in enumerate(model.kinds)]
    stream = model.last_layer.stream
    embedding = Part(EMBEDDING.name, EMBEDDING.kernels, (Edge(EMBEDDING.kernels[0], stream),))
    return [*layers, embedding, Part(HEAD.name, HEAD.kernels, tuple(HEAD.edges(stream)))]


def mtp_part(model: ModelShape) -> Part:
    """The layer of a multi-token prediction module; its head is the model's once more."""
    layer = model.mtp_layer
    return Part("mtp", layer.kernels, layer.edges, layer)


def every_part(model: ModelShape) -> list[Part]:
    """`parts_of` a model, and multi-token prediction where it has some."""
    return [*parts_of(model), *([mtp_part(model)] if model.mtp_layers else [])]


def tokens(run: RankRun) -> FloatArray:
    """Tokens of one micro-batch on a rank, before tensor parallelism shares them out. [-]"""
    return run.design.micro_batch_size * run.model.seq_len / run.design.cp


def routed_tokens(run: RankRun) -> FloatArray:
    """Tokens of one micro-batch that a rank sends to experts. [-]"""
    return tokens(run) / run.design.tp


def expert_rows(run: RankRun) -> FloatArray:
    """Rows of the products of one expert, on the fullest rank: copies that it receives, or its capacity. [-]

    Of the copies that the ranks around an expert send, each expert has a mean share. A capacity factor makes
    room for so many times that share, in whole rows: what is beyond is dropped, what is missing is padding
    [Fedus2022]_. Formats whose kernels take rows by the dozen pad them here.
    """
    model, shape = run.model, run.design
    received = model.moe_topk * shape.imbalance * shape.etp * routed_tokens(run) * shape.ep
    rows = received / model.num_experts
    if has_capacity(run):
        mean = model.moe_topk * shape.etp * routed_tokens(run) * shape.ep / model.num_experts
        rows = np.where(shape.capacity_factor > 0, np.ceil(shape.capacity_factor * mean), rows)
    return rows


def has_capacity(run: RankRun) -> bool:
    """Whether experts of some designs have a capacity."""
    return bool((run.design.capacity_factor > 0).any())


def expert_tokens(run: RankRun) -> FloatArray:
    """Copies of tokens that the experts of a rank work on, of the fullest one. [-]"""
    model, shape = run.model, run.design
    received = model.moe_topk * shape.imbalance * shape.etp * routed_tokens(run)
    if not has_capacity(run):
        return received
    return np.where(shape.capacity_factor > 0, expert_rows(run) * model.num_experts / shape.ep, received)


def activation_bytes(run: RankRun, features: str = "hidden") -> FloatArray:
    """Size of a whole activation that goes from kernel to kernel, or from stage to stage. [B]"""
    return tokens(run) * run.model.features[features] * run.precision.element_bytes


def padded_vocabulary(model: ModelShape, tp: FloatArray) -> FloatArray | float:
    """Entries of the word table as ranks hold it: a multiple of `vocab_multiple` on each. [-]"""
    if not model.vocab_multiple:
        return model.vocab_size
    return np.ceil(model.vocab_size / (model.vocab_multiple * tp)) * (model.vocab_multiple * tp)


def vocabulary_share(run: RankRun) -> FloatArray:
    """A rank's share of the vocabulary, padded to whole entries. [-]"""
    return np.ceil(padded_vocabulary(run.model, run.design.tp) / run.design.tp)


def transformer_gemms(run: RankRun) -> Gemms:
    """Matrix products of the forward pass and of both gradients.

    Returns
    -------
    gemms : Gemms
        (points, kernels). C = A B has the gradients dA = dC B^T and dB = A^T dC; gradients of weights
        are added to accumulators, of fp32 unless gradients are reduced in bf16, which are read and written;
        or written once in 16 bits, for `accumulation_rows` to add.
    """
    operand, fused = run.precision.element_bytes, run.design.gradient_accumulation_fusion > 0
    accumulated = np.where(fused, 2 * gradient_bytes(run), operand)
    rows = []
    for part in every_part(run.model):
        for kernel in part.kernels:
            weight, of_part = (operand, part.core) if kernel.is_core else (accumulated, part.name)
            for name, (m, n, k), batch, count in products(run, kernel):
                sizes = ((m, n, k), operand), ((m, k, n), operand), ((k, n, m), weight)
                for of_pass, (size, output_bytes) in zip(PASSES, sizes, strict=True):
                    label = Label(name, of_pass, of_part, kernel.name)
                    rows.append((label, (*size, batch, output_bytes, count)))
    return Gemms.stack(rows)


def products(
    run: RankRun, kernel: Kernel
) -> Iterator[tuple[str, Dimensions, FloatArray | float, FloatArray | float]]:
    """Name, (m, n, k), batch and count of a kernel's matrix products on one rank. [elements], [-]"""
    model, shape = run.model, run.design
    if kernel.kind in ("product", "latent", "router"):
        yield kernel.name, weight_product(run, kernel), 1.0, 1.0
    elif kernel.kind == "experts":
        sizes = model.features
        n, k = (
            sizes[word] / (shape.etp if word != "expert_in" else 1.0) for word in (kernel.makes, kernel.reads)
        )
        yield kernel.name, (padded_rows(run, expert_rows(run)), n, k), model.num_experts / shape.ep, 1.0
    elif kernel.kind == "delta_net":
        size = model.linear_head_dim
        yield kernel.name, (tokens(run), size, 4 * size), model.linear_value_heads / shape.tp, 1.0
    elif kernel.is_core:
        keys, queries = model.seq_len, model.seq_len / shape.cp
        heads = shape.micro_batch_size * model.num_attention_heads / shape.tp
        unfused = np.where(shape.attention == 0, 1.0, 0.0)
        shapes = (queries, keys, model.score_size), (queries, model.value_size, keys)
        yield from ((name, own, heads, unfused) for name, own in zip(ATTENTION_PRODUCTS, shapes, strict=True))


def padded_rows(run: RankRun, rows: FloatArray) -> FloatArray:
    """Rows of an expert's product, padded to the multiple that their format needs. [elements]"""
    codes = run.design.precision
    if not codes.any():
        return rows
    multiple = of_formats(codes, "multiple")
    return np.where(multiple > 1, np.ceil(rows / multiple) * multiple, rows)


def weight_product(run: RankRun, kernel: Kernel) -> Dimensions:
    """(m, n, k) of a product on one rank: its weight is split by columns or rows, or tokens. [elements]"""
    sizes, tp = run.model.features, run.design.tp
    if kernel.kind != "product":
        return tokens(run) / run.design.shards(kernel), sizes[kernel.makes], sizes[kernel.reads]
    by_columns = run.design.is_split(kernel, "column")
    n = sizes[kernel.makes] / np.where(by_columns, tp, 1.0)
    if kernel.makes == "vocabulary":
        n = vocabulary_share(run)
    return tokens(run), n, sizes[kernel.reads] / np.where(by_columns, 1.0, tp)


def biases(run: RankRun, layer: Layer, product: Kernel) -> tuple[FloatArray, FloatArray]:
    """A product's biases on one rank, and for each token the outputs that they are added to. [elements]

    The biases of a column-split product are split with it; those of a row-split one are added once its
    summands are, by the kernel that comes next, and are split if that one is by columns.
    """
    shape, width, following = run.design, run.model.features[product.makes], layer.reader_of(product)
    by_columns = shape.is_split(product, "column")
    split = by_columns | shape.is_split(following, "column")
    shared = np.where(by_columns, shape.tp, shape.shards(following))
    return width / np.where(split, shape.tp, 1.0), width / shared


def weights_of(layer: Layer) -> list[Kernel]:
    """The kernels of a layer that multiply by weights which tensor parallelism splits."""
    return [kernel for kernel in layer.kernels if kernel.kind == "product"]


def biased(run: RankRun, layer: Layer) -> list[Kernel]:
    """Those of them that have biases."""
    return [kernel for kernel in weights_of(layer) if run.model.has_bias(kernel)]


def tile_shares(run: RankRun, labels: Sequence[Label]) -> tuple[FloatArray, FloatArray] | None:
    """Edges of explicit output tiles as shares of the largest; None where all tiles are free.

    Returns
    -------
    share_m, share_n : (points, kernels) array
        Of rows and columns of each product of each pass; 0 where the tile is to be solved for. [-]
    """
    tiles = run.design.tiles
    if not tiles:
        return None
    columns = [tile_columns(label.name) for label in labels]
    share_m, share_n = (np.stack([tiles[pair[axis]] for pair in columns], axis=-1) for axis in (0, 1))
    return share_m, share_n


@dataclass(frozen=True, slots=True)
class ElementCost:
    """What a pass over a kernel without reuse does to each of its elements."""

    tensors: float  #: read and written, in elements of operands
    flops: float  #: [FLOP]
    masks: float = 0.0  #: of dropout, read or written [B]
    gates: float = 0.0  #: more tensors in a gated MLP


#: Kernel without reuse -> costs of its forward pass, and of the gradient of its input. A bias, a dropout and
#: the residual addition that follow a product are one kernel, as in Megatron-LM.
ELEMENT_COSTS: Final[Mapping[str, tuple[ElementCost, ElementCost]]] = {
    "norm": (ElementCost(2, 8), ElementCost(5, 12)),
    "rotary": (ElementCost(2, 6), ElementCost(2, 6)),
    "head_norm": (ElementCost(2, 8), ElementCost(5, 12)),
    "softmax": (ElementCost(2, 8), ElementCost(3, 6)),
    "attention_dropout": (ElementCost(2, 2, masks=1), ElementCost(2, 2, masks=1)),
    "activation": (ElementCost(2, 12, gates=1), ElementCost(3, 16, gates=2)),
    "residual": (ElementCost(3, 4, masks=1), ElementCost(5, 2, masks=1)),
    "router": (ElementCost(4, 16), ElementCost(4, 16)),
    "dispatch": (ElementCost(2, 0), ElementCost(2, 1)),
    "expert_activation": (ElementCost(2, 12, gates=1), ElementCost(3, 16, gates=2)),
    "combine": (ElementCost(2, 1), ElementCost(2, 0)),
    "delta_net": (ElementCost(6, 32), ElementCost(10, 64)),
}
#: The kernel that reduces the gradients of all biases of a layer, and its cost for each output.
BIAS_GRADIENTS: Final = "bias_gradient"
BIAS_GRADIENT: Final = ElementCost(1, 1)


def transformer_pointwise(run: RankRun) -> Pointwise:
    """Kernels without reuse of each kind of layer, of the embedding and of the loss.

    Returns
    -------
    kernels : Pointwise
        (points, kernels). Bytes are tensors read plus tensors written.

    Notes
    -----
    The norms of a layer come first: times are added up in the order of the table, which their last bits show.
    """
    rows: list[PointwiseRow] = []
    for part in every_part(run.model):
        for kernel in sorted(part.kernels, key=lambda kernel: kernel.kind != "norm"):
            rows += _pointwise_rows(run, part, kernel)
        if part.layer is not None and biased(run, part.layer):
            rows.append(bias_gradient_row(run, part.layer, biased(run, part.layer), part.name))
        rows += accumulation_rows(run, part)
    return Pointwise.of_rows(rows, element_bytes=run.precision.element_bytes)


def _pointwise_rows(run: RankRun, part: Part, kernel: Kernel) -> Iterator[PointwiseRow]:
    """Kernels without reuse that a row of a block consists of, forward and backward."""
    model, shape = run.model, run.design
    whole = tokens(run) * model.features[kernel.makes]
    label = Label(kernel.name, "", part.name, kernel.name)
    if kernel.kind in ("norm", "activation", "residual", "router", "delta_net"):
        yield from _both_passes(run, label, kernel.kind, whole / shape.shards(kernel), 1.0)
    elif kernel.kind in ("dispatch", "combine", "expert_activation"):
        copies = expert_tokens(run) * model.features[kernel.makes] / shape.etp
        yield from _both_passes(run, label, kernel.kind, copies, 1.0)
    elif kernel.is_core:
        unfused = np.where(shape.attention == 0, 1.0, 0.0)
        rotated = tokens(run) * model.query_size / shape.tp + tokens(run) * model.key_value_size / shape.tp
        scores = unfused * tokens(run) * model.seq_len * model.num_attention_heads / shape.tp
        rotary = 1.0 if model.position_embedding == "rotary" else 0.0
        dropout = unfused if model.dropout else 0.0
        for name, of_part, elements, count in (
            ("rotary", part.name, rotated, rotary),
            ("head_norm", part.name, rotated, 1.0 if model.qk_norm else 0.0),
            ("softmax", part.core, scores, unfused),
            ("attention_dropout", part.core, scores, dropout),
        ):
            yield from _both_passes(run, Label(name, "", of_part, kernel.name), name, elements, count)
    elif kernel.kind == "lookup":
        mask, gathered = 1.0 if model.dropout else 0.0, whole / shape.shards(shape.stream)
        sums = 2 * gradient_bytes(run)
        yield Label(kernel.name, "forward", part.name, kernel.name), gathered, 2, mask, 2, 1.0
        yield Label(kernel.name, "weight_gradient", part.name, kernel.name), gathered, 1, mask + sums, 2, 1.0
    elif kernel.kind == "loss":
        yield from loss_rows(tokens(run) * vocabulary_share(run), part.name)


def _both_passes(
    run: RankRun, label: Label, kind: str, elements: FloatArray, count: FloatArray | float
) -> Iterator[PointwiseRow]:
    """A kernel's forward pass and the gradient of its input."""
    dropout, gate = (1.0 if there else 0.0 for there in (run.model.dropout, run.model.gated_mlp))
    for of_pass, cost in zip(("forward", "activation_gradient"), ELEMENT_COSTS[kind], strict=True):
        tensors, masks = cost.tensors + gate * cost.gates, dropout * cost.masks
        own = Label(label.name, of_pass, label.part, label.kernel)
        yield own, elements, tensors, masks, cost.flops, count


def bias_gradient_row(run: RankRun, layer: Layer, of_products: Sequence[Kernel], part: str) -> PointwiseRow:
    """The kernel that reduces the gradients of some products' biases."""
    outputs = tokens(run) * total(np.stack([biases(run, layer, p)[1] for p in of_products], axis=-1))
    label = Label(BIAS_GRADIENTS, "weight_gradient", part, BIAS_GRADIENTS)
    return label, outputs, BIAS_GRADIENT.tensors, 0.0, BIAS_GRADIENT.flops, 1.0


def accumulation_rows(run: RankRun, part: Part) -> Iterator[PointwiseRow]:
    """Kernels that add gradients of weights to accumulators, where the products that make them do not."""
    separate = np.where(run.design.gradient_accumulation_fusion > 0, 0.0, 1.0)
    if not separate.any():
        return
    for kernel in part.kernels:
        if kernel.is_core:
            continue
        for name, (_, n, k), batch, count in products(run, kernel):
            label = Label(name, "weight_gradient", part.name, kernel.name)
            weights = np.asarray(n * k * batch)
            yield label, weights, 1, 2 * gradient_bytes(run), 1, separate * count


def loss_rows(logits: FloatArray, part: str) -> list[PointwiseRow]:
    """Pointwise kernels of the loss, forward and backward.

    It works on fp32 logits: cast, maximum, exponential, sum and division each read them, and all but the
    reductions write them.
    """
    return [
        (Label("loss", "forward", part, "loss"), logits, 1, 32, 6, 1.0),
        (Label("loss", "activation_gradient", part, "loss"), logits, 1, 12, 3, 1.0),
    ]
