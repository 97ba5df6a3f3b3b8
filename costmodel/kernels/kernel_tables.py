"""Kernel tables: the work of a chip, one row per design and one column per kernel; of transformers and optimizers.

A table has the dimensions, bytes and counts of matrix products, or the bytes and FLOPs of kernels without reuse.
Everything is of one rank and one micro-batch. Kernels of a layer's part, and of its attention core (which
selective recomputation repeats), happen once per layer of that kind, the others once per model.

Where the precision is below 16 bits, it is that of linear layers and experts of transformer layers: their product and
both its gradients. Embedding, head, routers, norms, softmax, attention cores, residual additions, accumulation and the
optimizer keep 16 or 32 bits [DeepSeek2024]_, [NVIDIA2026]_.

The optimizer's kernels clip gradients, update the weights that a rank owns, and multiply matrices for Muon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Final, Literal, Self

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, grouped
from costmodel.machine import Chip, System
from costmodel.training.blocks import EMBEDDING, HEAD, Edge, Layer
from costmodel.training.design import tile_columns, tiled_kernel
from costmodel.training.kernel_kind import PASSES, Kernel, PointwisePass
from costmodel.training.kinds import ElementCost
from costmodel.training.model import ModelShape
from costmodel.training.precision import FORMATS, is_narrow, of_formats
from costmodel.training.run import RankRun, TransformerRun, some_adapters, trained_share

#: Kernels that take longer than their work asks for: products of experts, passes that sort tokens, casts.
Runs = Literal["", "grouped", "sorting", "casting"]


@dataclass(frozen=True, slots=True)
class Label:
    """Label of a kernel: its name, the pass it belongs to, and the part of the model that repeats it."""

    name: str
    of_pass: str
    part: str
    kernel: str = ""  #: row of a block that it is a piece of
    runs: Runs = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelTable:
    """Kernels of one rank and one micro-batch; every array has shape (points, kernels).

    `labels` and the columns are shared by all designs: a kernel that a design lacks has count 0.
    """

    labels: tuple[Label, ...]
    count: FloatArray

    def _with(self, labels: tuple[Label, ...], function: Callable[..., FloatArray], *others: Self) -> Self:
        """The table with `function` applied to each array, and the same array of other tables."""
        names = [f.name for f in fields(self) if f.name != "labels"]
        arrays = {name: function(*(getattr(table, name) for table in (self, *others))) for name in names}
        return replace(self, labels=labels, **arrays)

    def rows(self, points: IntArray) -> Self:
        """The table of points picked by row, repeats allowed; those of a kernel stand together in memory."""
        return self._with(self.labels, lambda values: np.take(values.T, points, axis=1).T)

    def take_kernels(self, places: IntArray | slice) -> Self:
        """The table of some of its kernels."""
        labels = np.arange(len(self.labels))[places]
        return self._with(tuple(self.labels[number] for number in labels), lambda values: values[:, places])

    def repeated(self, points: int) -> Self:
        """A table of one row, with the row repeated for each point."""
        return self._with(self.labels, lambda values: np.repeat(values, points, axis=0))

    def present(self) -> Self:
        """The table without the kernels that no design has."""
        return self.take_kernels(np.flatnonzero((self.count > 0).any(axis=0)))

    def beside(self, other: Self) -> Self:
        """The table with the kernels of another behind its own."""
        return self._with((*self.labels, *other.labels), lambda *both: np.concatenate(both, axis=1), other)

    def select(
        self, of_pass: str | None = None, part: str | None = None, among: Callable[[Label], bool] | None = None
    ) -> IntArray:
        """Places of the kernels of one pass, or one part, or both, and perhaps of some rows alone."""
        return np.array(
            [
                i
                for i, label in enumerate(self.labels)
                if of_pass in (None, label.of_pass) and part in (None, label.part) and (among is None or among(label))
            ],
            dtype=np.intp,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Gemms(KernelTable):
    """Matrix products, `count` times `batch` of C[m, n] += A[m, k] B[k, n]. [elements]"""

    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray
    output_bytes: FloatArray  #: moved per element of C: written once, or read and written in fp32 [B]

    @classmethod
    def stack(cls, rows: Sequence[tuple[Label, Sequence[FloatArray | float]]]) -> Self:
        """From (label, (m, n, k, batch, output_bytes, count)) per kernel; entries are (points,) or scalar."""
        m, n, k, batch, output_bytes, count = stacked([values for _, values in rows])
        labels = tuple(label for label, _ in rows)
        return cls(labels=labels, m=m, n=n, k=k, batch=batch, output_bytes=output_bytes, count=count)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pointwise(KernelTable):
    """Kernels without reuse: `count` times `bytes_moved` [B] and `flops` [FLOP]."""

    bytes_moved: FloatArray
    flops: FloatArray

    @classmethod
    def stack(cls, rows: Sequence[tuple[Label, Sequence[FloatArray | float]]]) -> Self:
        """From (label, (bytes_moved, flops, count)) per kernel; entries are (points,) or scalar."""
        bytes_moved, flops, count = stacked([values for _, values in rows])
        return cls(labels=tuple(label for label, _ in rows), bytes_moved=bytes_moved, flops=flops, count=count)

    @classmethod
    def of_rows(cls, rows: Sequence[PointwiseRow], *, element_bytes: float) -> Self:
        """From the operations of kernels on each of their elements."""
        return cls.stack(
            [
                (label, (n * (element_bytes * tensors + more), n * flops, count))
                for label, n, tensors, more, flops, count in rows
            ]
        )


#: Label, elements, tensors of operand elements moved, further bytes per element, FLOP per element, count.
PointwiseRow = tuple[Label, FloatArray, float, FloatArray | float, float, FloatArray | float]


def pointwise_rows(passes: Iterable[PointwisePass], kernel: str, part: str, core: str = "") -> Iterator[PointwiseRow]:
    """Passes of a kernel over its elements, as rows of the table of a part of the model and of its core."""
    for work in passes:
        runs: Runs = "sorting" if work.sorts else ""
        label = Label(work.name, work.of_pass, core if work.in_core else part, kernel, runs)
        yield label, work.elements, work.tensors, work.more, work.flops, work.launches


def stacked(rows: Sequence[Sequence[FloatArray | float]]) -> list[FloatArray]:
    """One (points, kernels) array per entry of a row, from rows of scalars and (points,) arrays.

    The points of a kernel are contiguous in memory, and values of one per design, as (points, 1), broadcast along them.
    """
    points = max(getattr(value, "size", 1) for row in rows for value in row)
    columns = []
    for entry in zip(*rows, strict=True):
        array = np.empty((len(rows), points), dtype=np.float64)
        for line, value in zip(array, entry, strict=True):
            line[:] = value
        columns.append(array.T)
    return columns


def total(*factors: FloatArray, places: Iterable[int] | None = None) -> FloatArray:
    """Sum over kernels, or over those at `places`, of a product of (points, kernels) tables; (points,). [any]"""
    counted = range(factors[0].shape[-1]) if places is None else places
    products = (reduce(np.multiply, (factor[..., kernel] for factor in factors)) for kernel in counted)
    return _in_order(products, factors[0].shape[:-1])


def _in_order(terms: Iterable[FloatArray], shape: tuple[int, ...]) -> FloatArray:
    """Sum of arrays, strictly from left to right.

    `np.sum` adds in an order that depends on the layout in memory; this does not, so that a batch of n designs gives
    the same bits as n batches of one.
    """
    added = np.zeros(shape)
    for term in terms:
        added += term
    return added


class KernelSums:
    """Sums over some kernels of several quantities, all at once; each adds up as `total` does.

    `quantities` has, by name, the factors of each, (..., points, kernels), multiplied from left to right. [any]
    """

    def __init__(self, quantities: Mapping[str, Sequence[FloatArray]]) -> None:
        of_shape = grouped(
            (np.broadcast_shapes(*(factor.shape for factor in factors)), name) for name, factors in quantities.items()
        )
        self._tables: list[tuple[list[str], FloatArray]] = []
        for (*points, kernels), names in of_shape.items():
            table = np.empty((len(names), kernels, *points))
            for values, name in zip(table, names, strict=True):
                values[...] = 1.0
                for factor in quantities[name]:
                    values *= factor.T if factor.ndim == 2 else np.moveaxis(factor, -1, 0)
            self._tables.append((names, table))

    def over(self, places: IntArray) -> dict[str, FloatArray]:
        """Name -> sum over the kernels at `places`; (..., points)."""
        sums: dict[str, FloatArray] = {}
        for names, table in self._tables:
            sums.update(zip(names, _in_order((table[:, row] for row in places), table[:, 0].shape), strict=True))
        return sums


#: Operands and results of orthogonal updates: 16 bits. [B]
ORTHOGONAL_BYTES: Final = 2.0


@dataclass(frozen=True, slots=True)
class WeightKernel:
    """Work and traffic of an optimizer kernel, per weight."""

    flops: float  #: [FLOP]
    accesses: float  #: reads and writes of a full-precision number


#: The optimizer kernels of [DeepFlow]_ (rule OP1), which are those of Adam on fp32 as well: clipping reads
#: the gradients for the norm, then reads and writes them to scale; the update reads gradient, weight and
#: two moments, and writes the latter three.
OPTIMIZER_KERNELS: Mapping[str, WeightKernel] = {
    "gradclip": WeightKernel(flops=4, accesses=3),
    "apply_grad": WeightKernel(flops=3, accesses=7),
}


def optimizer_work(
    kernel: str, weights: FloatArray, *, element_bytes: FloatArray | float, accesses: FloatArray | float | None = None
) -> tuple[FloatArray, FloatArray]:
    """Work [FLOP] and traffic [B] of an optimizer kernel (`OPTIMIZER_KERNELS`) on parameters of a rank. [-]

    `element_bytes` is the size of a full-precision number [B]; `accesses` are reads and writes of one parameter, where
    they differ from the table's. [-]
    """
    work = OPTIMIZER_KERNELS[kernel]
    often = work.accesses if accesses is None else accesses
    return work.flops * weights, often * weights * element_bytes


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """A matrix of a model's layers, as rows of blocks have it: one of a layer, or of each of its experts."""

    name: str
    part: int  #: place of its layer among a stage's counts
    rows: float  #: the shorter edge [elements]
    columns: float  #: [elements]
    repeats: float  #: of its layer, for each that a stage counts [-]
    of_experts: bool
    whole: bool  #: on every rank of a tensor-parallel group

    @property
    def size(self) -> float:
        """Entries of a tensor that the optimizer updates. [-]"""
        return self.rows * self.columns


def weight_matrices(model: ModelShape) -> list[WeightMatrix]:
    """Matrices of all kinds of layers, the largest first; tables and the head are none of them."""
    kinds = [(layer, number, 1.0) for number, layer in enumerate(model.kinds)]
    kinds += [(model.mtp_layer, len(kinds) + 2, model.mtp_layers)] if model.mtp_layers else []  # after embedding, head
    matrices = []
    for layer, part, repeats in kinds:
        for kernel in layer.kernels:
            entries = model.weights(kernel) / (model.num_experts if kernel.of_experts else 1.0)
            made = model.of_kernel(kernel).features[kernel.makes]
            short, long = sorted((entries / made, made)) if entries else (0.0, 0.0)
            if short > 1:
                kind = kernel.of_experts, kernel.is_whole
                matrices.append(WeightMatrix(kernel.name, part, short, long, repeats, *kind))
    return sorted(matrices, key=lambda matrix: -matrix.size)


def orthogonal_products(matrices: Sequence[WeightMatrix]) -> Gemms:
    """Products of one step of the Newton-Schulz iteration, three of each matrix; one row.

    Of X, with n rows and q columns, n the fewer: A = X X^T, A A, and their sum times X, in 4 n^2 q + 2 n^3
    multiply-adds, each counted as two [Jordan2024]_.
    """
    rows = []
    for number, matrix in enumerate(matrices):
        n, q = matrix.rows, matrix.columns
        for name, size in (("gram", (n, n, q)), ("square", (n, n, n)), ("update", (n, q, n))):
            rows.append((Label(name, "update", str(number)), (*size, 1.0, ORTHOGONAL_BYTES, 1.0)))
    return Gemms.stack(rows)


@dataclass(frozen=True, slots=True)
class Part:
    """Kernels that are run equally often, and the edges that lead to them."""

    name: str
    kernels: tuple[Kernel, ...]
    edges: tuple[Edge, ...]
    layer: Layer | None = None  #: None for the embedding and the head

    @property
    def core(self) -> str:
        """Name of the part's attention core, a separate part in kernel tables."""
        return f"{self.name} core"


def parts_of(model: ModelShape) -> list[Part]:
    """The kinds of layers of a model, its embedding and its head."""
    layers = [Part(f"layer {n}", layer.kernels, layer.edges, layer) for n, layer in enumerate(model.kinds)]
    stream = model.last_layer.stream
    embedding = Part(EMBEDDING.name, EMBEDDING.kernels, (Edge(EMBEDDING.kernels[0], stream),))
    return [*layers, embedding, Part(HEAD.name, model.head.kernels, tuple(model.head.edges(stream)))]


def every_part(model: ModelShape) -> list[Part]:
    """`parts_of` a model, and the layer of multi-token prediction where it has some: its head is the model's."""
    layer = model.mtp_layer
    return [*parts_of(model), *([Part("mtp", layer.kernels, layer.edges, layer)] if model.mtp_layers else [])]


def transformer_gemms(run: RankRun) -> Gemms:
    """Matrix products of the forward pass and of both gradients, (points, kernels).

    C = A B has the gradients dA = dC B^T and dB = A^T dC; gradients of weights are added to accumulators, of fp32
    unless gradients are reduced in bf16, which are read and written; or written once in 16 bits, for
    `accumulation_rows` to add.
    """
    operand, fused = run.precision.element_bytes, run.design.gradient_accumulation_fusion > 0
    accumulated = np.where(fused, 2 * run.gradient_bytes, operand)
    trained, adapted = trained_share(run), some_adapters(run)
    rows: list[tuple[Label, Sequence[FloatArray | float]]] = []
    for part in every_part(run.model):
        for kernel in part.kernels:
            weight, of_part = accumulated if kernel.kind.matrix else operand, part.core if kernel.is_core else part.name
            for product in kernel.kind.products(run.of_kernel(kernel), kernel):
                m, n, k = product.size
                t = n if product.trained_columns is None else product.trained_columns
                sizes = ((m, n, k), operand), ((m, k, t), operand), ((k, t, m), weight)
                for of_pass, (size, output_bytes) in zip(PASSES, sizes if np.any(t) else sizes[:1], strict=False):
                    runs: Runs = "grouped" if kernel.of_experts else ""
                    label = Label(product.name, of_pass, of_part, kernel.name, runs)
                    made = trained if of_pass == "weight_gradient" and kernel.kind.matrix else 1.0
                    rows.append((label, (*size, product.batch, output_bytes, product.launches * made)))
            rows += adapter_rows(run, part, kernel, accumulated) if adapted else ()
    return Gemms.stack(rows)


def adapter_rows(
    run: RankRun, part: Part, kernel: Kernel, accumulated: FloatArray
) -> Iterator[tuple[Label, Sequence[FloatArray | float]]]:
    """Products of a kernel's adapters in all passes; `accumulated` are bytes moved for each gradient. [B]"""
    from costmodel.kernels.adapters import adapter_products, may_adapt

    operand = run.precision.element_bytes
    for name, (m, n, k), launches in adapter_products(run, kernel) if may_adapt(kernel) else ():
        sizes = [m, n, k, 1.0, operand], [m, k, n, 1.0, operand], [k, n, m, 1.0, accumulated]
        for of_pass, size in zip(PASSES, sizes, strict=True):
            yield Label(name, of_pass, part.name, kernel.name), [*size, launches]


def biases(run: RankRun, layer: Layer, product: Kernel) -> tuple[FloatArray, FloatArray]:
    """A product's biases on one rank, and for each token the outputs that they are added to. [elements]

    The biases of a column-split product are split with it; those of a row-split one are added once its
    summands are, by the kernel that comes next, and are split if that one is by columns.
    """
    shape, width, following = run.design, run.width(product, product.makes), layer.reader_of(product)
    by_columns = shape.is_split(product, "column")
    split = by_columns | shape.is_split(following, "column")
    shared = np.where(by_columns, shape.tp, shape.shards(following))
    return width / np.where(split, shape.tp, 1.0), width / shared


def weights_of(layer: Layer) -> list[Kernel]:
    """The kernels of a layer that multiply by weights which tensor parallelism splits."""
    return [kernel for kernel in layer.kernels if kernel.splits_weight]


def biased(run: RankRun, layer: Layer) -> list[Kernel]:
    """Products that have biases."""
    return [kernel for kernel in weights_of(layer) if run.model.has_bias(kernel)]


def explicit_edges(run: RankRun, labels: Sequence[Label]) -> tuple[FloatArray, FloatArray] | None:
    """Edges of explicit output tiles along m and n, (points, kernels); None where all tiles are free. [elements]

    0 where the tile of a product is to be solved for.
    """
    tiles = run.design.tiles
    if not tiles:
        return None
    columns = [tile_columns(tiled_kernel(label.name, label.of_pass)) for label in labels]
    free = np.zeros_like(next(iter(tiles.values())))  # tiles of adapters
    tile_m, tile_n = (np.stack([tiles.get(pair[axis], free) for pair in columns], axis=-1) for axis in (0, 1))
    return tile_m, tile_n


#: The kernel that reduces the gradients of all biases of a layer, and its cost for each output.
BIAS_GRADIENTS: Final = "bias_gradient"
BIAS_GRADIENT: Final = ElementCost(tensors=1, flops=1)


def transformer_pointwise(run: RankRun) -> Pointwise:
    """Kernels without reuse of layers, the embedding and the loss, (points, kernels); bytes read plus written. [B]

    The norms of a layer come first: times are added up in the order of the table, which their last bits show.
    """
    rows: list[PointwiseRow] = []
    for part in every_part(run.model):
        for kernel in sorted(part.kernels, key=lambda kernel: kernel.kind.name != "norm"):
            rows += pointwise_rows(
                kernel.kind.pointwise(run.of_kernel(kernel), kernel), kernel.name, part.name, part.core
            )
        if part.layer is not None and biased(run, part.layer):
            rows.append(bias_gradient_row(run, part.layer, biased(run, part.layer), part.name))
        rows += accumulation_rows(run, part)
    return Pointwise.of_rows(with_adapters(run, rows), element_bytes=run.precision.element_bytes)


def trained_rows(run: RankRun, rows: list[PointwiseRow]) -> list[PointwiseRow]:
    """Passes less those for gradients of frozen weights."""
    return [(*row[:-1], row[-1] * trained_share(run)) if row[0].of_pass == PASSES[2] else row for row in rows]


def with_adapters(run: RankRun, rows: list[PointwiseRow]) -> list[PointwiseRow]:
    """Passes of a model without those for gradients of frozen weights, and with those of its adapters."""
    if not some_adapters(run):
        return rows
    from costmodel.kernels.adapters import adapter_passes, may_adapt

    kept = trained_rows(run, rows)
    for part in every_part(run.model):
        for kernel in part.kernels:
            for name, of_pass, elements, tensors, more in adapter_passes(run, kernel) if may_adapt(kernel) else ():
                label, happens = Label(name, of_pass, part.name, kernel.name), np.where(elements > 0, 1.0, 0.0)
                kept.append((label, elements, tensors, more, ADDED_FLOPS, happens))
    return kept


def bias_gradient_row(run: RankRun, layer: Layer, of_products: Sequence[Kernel], part: str) -> PointwiseRow:
    """The kernel that reduces the gradients of biases of some products; none where they are frozen."""
    outputs = run.tokens * total(np.stack([biases(run, layer, p)[1] for p in of_products], axis=-1))
    label = Label(BIAS_GRADIENTS, "weight_gradient", part, BIAS_GRADIENTS)
    return label, outputs, BIAS_GRADIENT.tensors, 0.0, BIAS_GRADIENT.flops, trained_share(run)


def accumulation_rows(run: RankRun, part: Part) -> Iterator[PointwiseRow]:
    """Kernels that add gradients of weights to accumulators, where the products that make them do not."""
    separate = np.where(run.design.gradient_accumulation_fusion > 0, 0.0, 1.0)
    if not separate.any():
        return
    for kernel in (kernel for kernel in part.kernels if kernel.kind.matrix):
        for product in kernel.kind.products(run.of_kernel(kernel), kernel):
            label, (_, n, k) = Label(product.name, "weight_gradient", part.name, kernel.name), product.size
            weights = np.asarray(n * k * product.batch)
            yield label, weights, 1, 2 * run.gradient_bytes, 1, separate * product.launches


#: FLOP per element of a pass that adds an adapter's output: a product and a sum.
ADDED_FLOPS: Final = 2.0
#: FLOP per element of a cast: a maximum of its block, a scale, a rounding. It waits for the memory anyhow.
CAST_FLOPS: Final = 4.0


def is_quantised(kernel: Kernel) -> bool:
    """True if a kernel of a layer multiplies in the format of a design; a gate of one feature is too thin."""
    return kernel.kind.matrix is not None and kernel.kind.matrix.narrow and kernel.makes != "unit"


def quantised_kernels(model: ModelShape) -> list[tuple[Part, Kernel]]:
    """Kernels of layers that multiply in the format of a design, with their part of the model."""
    layers = [part for part in every_part(model) if part.layer is not None]
    return [(part, kernel) for part in layers for kernel in part.kernels if is_quantised(kernel)]


def some_narrow(run: RankRun | TransformerRun) -> bool:
    """True if some design of a run multiplies in fewer than 16 bits."""
    return bool(run.design.precision.any()) and bool(is_narrow(run.design.precision).any())


def narrow_places(model: ModelShape, labels: Sequence[Label]) -> IntArray:
    """Places of the products that formats apply to, among labelled ones; those of adapters keep 16 bits."""
    narrow = {(part.name, kernel.name) for part, kernel in quantised_kernels(model)}
    numbers = [n for n, label in enumerate(labels) if label.kernel == label.name and (label.part, label.name) in narrow]
    return np.array(numbers, dtype=np.intp)


def operand_bytes(run: RankRun) -> FloatArray:
    """Bytes of an operand of a layer's products, with its scales; (points,). [B]"""
    codes = run.design.precision
    return np.where(is_narrow(codes), of_formats(codes, "element_bytes"), run.precision.element_bytes)


def product_rate(
    codes: FloatArray, system: System, rate_of: Callable[[Chip, str], FloatArray] = Chip.format_rate
) -> FloatArray:
    """Rate of a layer's products over that of 16 bits, by codes of `FORMATS`; 0: no units. [-]"""
    rate: FloatArray = np.ones(codes.shape)
    for code, number_format in enumerate(FORMATS.values()):
        if number_format.units and (codes == code).any():
            rate = np.where(codes == code, rate_of(system.chip, number_format.units), rate)
    return rate


def has_units(run: RankRun | TransformerRun) -> BoolArray:
    """Where chips have units for the format of a design; (points,)."""
    return product_rate(run.design.precision, run.system) > 0


def needs_transposed(codes: FloatArray, system: System) -> BoolArray:
    """Where narrow operands are kept transposed too: by codes of `FORMATS`.

    Scales that run along one axis have to be found again along the other. One scale for all needs no copy
    where units read operands of either layout: those of chips with MX formats do, older 8-bit ones do not.
    """
    either_layout = system.chip.mx_speedup > 0
    return is_narrow(codes) & ((of_formats(codes, "transposed_scales") > 0) | ~either_layout)


def dispatched_bytes(run: RankRun) -> FloatArray | float:
    """Bytes of an element on its way to its expert; one number where all have those of the run. [B]

    In the backward pass, and for tensors that tensor-parallel ranks gather, it has 16 bits [DeepSeek2024]_.
    """
    if not some_narrow(run):
        return run.precision.element_bytes
    narrow = of_formats(run.design.precision, "dispatched") > 0
    return np.where(narrow, operand_bytes(run), run.precision.element_bytes)


def casts(run: RankRun) -> Pointwise:
    """Kernels that cast operands of products, (points, kernels): activations forward, gradients backward.

    Each reads a tensor in 16 bits and writes it in the format; current scaling reads it once before for its maximum; a
    transposed copy is another read and write. Nothing is fused with the kernel before.

    Weights are cast once a step and kept (`steps.stage_memory.stage_quantised`), as Megatron-LM does.
    """
    rows = [row for part, kernel in quantised_kernels(run.model) for row in _cast_rows(run, part, kernel)]
    return Pointwise.of_rows(trained_rows(run, rows), element_bytes=run.precision.element_bytes)


def _cast_rows(run: RankRun, part: Part, kernel: Kernel) -> Iterator[PointwiseRow]:
    """Casts of one kernel's input forward, and of its output's gradient backward, with transposed copies.

    Tokens for experts in a narrow format are cast before they are sent, each token once.
    """
    codes, written = run.design.precision, operand_bytes(run)
    narrow = np.where(is_narrow(codes), 1.0, 0.0)
    maxima = narrow * of_formats(codes, "maxima")
    copied = np.where(needs_transposed(codes, run.system), 1.0, 0.0)
    [product] = kernel.kind.products(run.of_kernel(kernel), kernel)
    (m, n, k), batch = product.size, product.batch
    sent = run.routed_tokens * run.model.features["expert_in"]
    before = (of_formats(codes, "dispatched") > 0) & kernel.of_experts
    for of_pass, features, elements in (
        ("forward", kernel.reads, np.asarray(m * k * batch)),
        ("activation_gradient", kernel.makes, np.asarray(m * n * batch)),
    ):
        cast = np.where(before & (features == "expert_in"), sent, elements)
        yield _label(part, kernel, "maximum", of_pass), cast, 1, 0.0, CAST_FLOPS / 2, maxima
        yield _label(part, kernel, "cast", of_pass), cast, 1, written, CAST_FLOPS, narrow
        copy = _label(part, kernel, "transpose", "weight_gradient")
        yield copy, elements, 0, 2 * written, 0.0, copied


def _label(part: Part, kernel: Kernel, name: str, of_pass: str) -> Label:
    return Label(f"{kernel.name}_{name}", of_pass, part.name, kernel.name, "casting")
