"""Runs: a model, machines, designs and a number format; and the sizes that one rank sees.

A `Run` is the input of the cost model: arrays in, arrays out. Most formulas need few columns of a design. `RankShape`
has those that decide on the work of one rank in one micro-batch, such as `tp` and `micro_batch_size`, but not `dp` or
`pp`. So a stage that reads a `RankRun` evaluates each different rank once (`once_each`), and its columns are the key:
a formula cannot depend on a column that is missing from the key. For example, tokens of a micro-batch on a rank are
`micro_batch_size * seq_len / cp`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, Generic, Self, TypeVar

import numpy as np

from costmodel.columns import (
    AnyRecord,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    UniqueRows,
    column,
    column_family,
    in_line,
    layout_of,
)
from costmodel.errors import DseError, suggestion
from costmodel.machine import System
from costmodel.training.blocks import MODULES, OFFLOAD_MODULES, Assignments, LayerModule, assignments_of
from costmodel.training.design import (
    EXPERT_COLUMNS,
    EXPLICIT_TILES,
    MEGATRON_SP,
    RECOMPUTE_SELECTIVE,
    SAMPLE,
    DesignPoints,
    kernel_of_tile,
    sharding_column,
    tile_columns,
    tiled_kernels,
)
from costmodel.training.kernel_kind import Kernel
from costmodel.training.model import ModelShape, resized
from costmodel.training.precision import COMPILED_LOSS, MIXED_PRECISION, Precision, of_formats, reduced_bytes

#: Columns of a rank's shape that no kernel depends on: those of exchanges and of recomputation.
BESIDE_KERNELS: Final = (
    "recompute",
    "recomputed_modules",
    "offloaded_modules",
    "reference_model",
    "cuda_graphs",
    "cp_a2a",
    "dispatcher",
    "expert_spread",
    "overlap_shared_expert",
)


AnyShape = TypeVar("AnyShape", covariant=True)
AnyTable = TypeVar("AnyTable", bound=Columns, covariant=True)
OtherTable = TypeVar("OtherTable", bound=Columns)
AnyResult = TypeVar("AnyResult")


@dataclass(frozen=True, slots=True, eq=False)
class Run(Generic[AnyShape, AnyTable]):
    """Training steps of a model on machines, one for each design; (points,) columns."""

    model: AnyShape
    system: System
    design: AnyTable
    precision: Precision = MIXED_PRECISION
    itemized: bool = False  #: whether costs have their items: `KernelCost.items`

    def take(self, rows: Any) -> Self:
        """The run of some of its points."""
        return replace(self, system=self.system.take(rows), design=self.design.take(rows))

    def of(self, design: OtherTable) -> Run[AnyShape, OtherTable]:
        """The run with another table of designs, or with the part of it that some stage reads."""
        return Run(self.model, self.system, design, self.precision, self.itemized)

    def reading(self, names: frozenset[str] | tuple[str, ...]) -> Self:
        """The run for a stage that reads some quantities of a system alone: they are part of its key."""
        return replace(self, system=self.system.only(names))

    def columns(self) -> list[FloatArray]:
        """Columns that decide the costs of points: rows that agree in them cost the same."""
        return self._columns() if not self.system.is_one() else self.design.arrays()

    def _columns(self) -> list[FloatArray]:
        """Columns of designs and machines."""
        tables: list[Columns] = [self.design, *self.system.parts().values()]
        return [values for table in tables for values in table.arrays()]

    def key(self) -> tuple[Any, ...]:
        """All that the run is, as a key: equal keys cost the same to the bit."""
        parts, columns = self.system.parts(), self._columns()
        values = b"".join(values.tobytes() for values in columns)
        shapes = tuple(values.shape for values in columns)
        return self.model, self.precision, self.itemized, (*parts,), (*self.design.columns(),), shapes, values

    @property
    def num_points(self) -> int:
        """Length of the longest column. [-]"""
        return max(values.shape[-1] if values.ndim else 1 for values in self.columns())

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes that some columns have before that of points; mostly none. [-]"""
        return np.broadcast_shapes(*{values.shape[:-1] for values in self.columns()})

    def on_one_axis(self) -> tuple[Self, IntArray]:
        """A point for each combination along all axes, and the place of each; (*axes, points)."""
        shape = (*self.axes, self.num_points)
        system = self.system.map(partial(in_line, shape=shape))
        design = self.design.map(lambda values: np.broadcast_to(values, shape).ravel())
        return replace(self, system=system, design=design), np.arange(math.prod(shape)).reshape(shape)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankShape(Columns):
    """The part of a design that decides on the work of a rank in one micro-batch.

    Stages that evaluate this read nothing else of a design, so that its columns are the key by which equal
    rows are evaluated once; (points,) each. [-]
    """

    assignments: Assignments  #: of the model's kernels
    tp: FloatArray = column("-")
    micro_batch_size: FloatArray = column("-")
    attention: FloatArray = column("-")
    recompute: FloatArray = column("-")
    recomputed_modules: FloatArray = column("-", 0)
    offloaded_modules: FloatArray = column("-", 0)
    tp_overlap: FloatArray = column("-", 1)
    cp: FloatArray = column("-")
    cp_communication: FloatArray = column("-")
    cp_a2a: FloatArray = column("-")
    ep: FloatArray = column("-", 1)
    etp: FloatArray = column("-", 1)
    precision: FloatArray = column("-", 0)
    gradient_reduction: FloatArray = column("-", 0)
    gradient_accumulation_fusion: FloatArray = column("-", 1)
    cross_entropy: FloatArray = column("-", 0)
    dispatcher: FloatArray = column("-", 0)
    imbalance: FloatArray = column("-", 1)
    capacity_factor: FloatArray = column("-", 0)
    overlap_shared_expert: FloatArray = column("-", 0)
    lora_rank: FloatArray = column("-", 0)
    lora_targets: FloatArray = column("-", 0)
    lora_fused: FloatArray = column("-", 1)
    quantized_base: FloatArray = column("-", 0)
    reference_model: FloatArray = column("-", 0)
    cuda_graphs: FloatArray = column("-", 0)
    expert_spread: FloatArray = column("-", 1)
    spans_nodes: FloatArray = column("-", 0)  #: 1 where a pipeline does, and software has more work for it
    assignment: FloatArray = column("-")  #: number of the assignment of shardings to kernels
    #: Edges of explicit output tiles; 0 where they are free. [elements]
    tiles: Mapping[str, FloatArray] = column_family()

    @cached_property
    def of_kernels(self) -> RankShape:
        """The run without differences in columns that no kernel depends on."""
        return self.with_columns({**self.tiles, **dict.fromkeys(BESIDE_KERNELS, np.zeros(1))})

    @property
    def stream(self) -> Kernel:
        """The kernel that makes the residual stream as layers leave it."""
        return self.assignments.stream

    def is_on(self, module: LayerModule) -> BoolArray:
        """Where the switch of a module is on, and layers are not recomputed as a whole; (points,)."""
        offloads = module in OFFLOAD_MODULES
        bits, modules = (self.offloaded_modules, OFFLOAD_MODULES) if offloads else (self.recomputed_modules, MODULES)
        return np.asarray((bits.astype(np.int64) & 2 ** modules.index(module)) > 0)

    def recomputes(self, modules: Iterable[LayerModule]) -> BoolArray:
        """Where one of some modules is recomputed for itself, by its switch or as "selective"; (points,)."""
        repeated = np.zeros(np.shape(self.recompute), dtype=bool)
        switched = self.recomputed_modules.any()
        for module in modules:
            if switched:
                repeated = repeated | self.is_on(module)
            if module.selective:
                repeated = repeated | (self.recompute == RECOMPUTE_SELECTIVE)
        return repeated

    def place(self, kernel: Kernel) -> IntArray:
        """Option of its kind by which a kernel is split, as a place among the options; (points,). [-]"""
        if kernel.name in self.assignments.options:
            return self.assignments.place(self.assignment, kernel.name)
        if kernel.is_whole and "sequence" in kernel.kind.shardings:
            return np.where(self.is_split(self.stream, "sequence"), 1, 0)
        return np.zeros(np.shape(self.tp), dtype=np.intp)

    def is_split(self, kernel: Kernel, option: str) -> BoolArray:
        """Where a kernel is split by one of its shardings; (points,)."""
        options = [*kernel.kind.shardings]
        return np.asarray(self.place(kernel) == (options.index(option) if option in options else -1))

    def shards(self, kernel: Kernel) -> FloatArray:
        """Ranks that share out the work of a kernel: tp unless it is replicated. [-]"""
        if not kernel.is_whole:
            return self.tp
        return np.where(self.is_split(kernel, "replicated"), 1.0, self.tp)


#: Design columns by which ranks differ, first those that kernels depend on.
OF_RANKS: Final = (
    *(name for name in layout_of(RankShape).units if name not in BESIDE_KERNELS),
    "sharding",
    *BESIDE_KERNELS,
)


def grouping_columns(design: DesignPoints) -> list[FloatArray]:
    """Columns that designs of a chunk should agree in: first the number of ranks that are timed one by one.

    Arrays of all ranks are as wide as the longest pipeline that some design has.
    """
    columns, ranks = design.columns(), np.where(design.is_1f1b, 0.0, design.pp)
    return [ranks, *(columns[name] for name in OF_RANKS if name in columns)]


#: A whole run of a transformer, and of an LSTM language model.
TransformerRun = Run[ModelShape, DesignPoints]


@dataclass(frozen=True, eq=False)
class RankRun(Run[ModelShape, RankShape]):
    """A run as stages of one micro-batch read it: sizes on a rank, (points,) each. [-], [B]"""

    def with_shape(self, shape: RankShape) -> RankRun:
        """The run with other shapes of ranks."""
        return replace(self, design=shape)

    def of_kernel(self, kernel: Kernel) -> RankRun:
        """The run with the dimensions of the layers of a kernel."""
        return replace(self, model=self.model.of_kernel(kernel)) if kernel.sizes else self

    def of_core(self, kernel: Kernel) -> RankRun:
        """The run with the dimensions with which kernels run an attention core."""
        run, core = self.of_kernel(kernel), kernel.kind.core
        sizes = core.sizes(run.model) if core and core.sizes else ()
        return replace(run, model=resized(run.model, sizes)) if sizes else run

    def width(self, kernel: Kernel, features: str) -> float:
        """Features of a token that a kernel reads or makes, by their word. [elements]"""
        return self.model.of_kernel(kernel).features[features]

    @cached_property
    def tokens(self) -> FloatArray:
        """Tokens of one micro-batch on a rank, before tensor parallelism shares them out. [-]"""
        return self.design.micro_batch_size * self.model.seq_len / self.design.cp

    @cached_property
    def key_tokens(self) -> FloatArray:
        """Tokens of one micro-batch on a rank that have keys. [-]"""
        return self.design.micro_batch_size * self.model.key_len / self.design.cp

    @cached_property
    def routed_tokens(self) -> FloatArray:
        """Tokens of one micro-batch that a rank sends to experts. [-]"""
        return self.tokens / self.design.tp

    @cached_property
    def imbalance(self) -> FloatArray:
        """Tokens of the fullest rank of experts over the mean: at most all tokens, or a copy of each per expert. [-]"""
        most = np.minimum(self.design.ep, self.model.num_experts / self.model.moe_topk)
        return np.minimum(self.design.imbalance, most)

    @cached_property
    def expert_rows(self) -> FloatArray:
        """Rows of the products of one expert, on the fullest rank: copies that it receives, or its capacity.

        Each expert has a mean share of the copies that the ranks around it send. A capacity factor makes room for a
        multiple of that share, in whole rows: copies beyond are dropped, missing ones are padding [Fedus2022]_. [-]
        """
        model, shape = self.model, self.design
        rows = model.moe_topk * self.imbalance * shape.etp * self.routed_tokens * shape.ep / model.num_experts
        mean = model.moe_topk * shape.etp * self.routed_tokens * shape.ep / model.num_experts
        return np.where(shape.capacity_factor > 0, np.ceil(shape.capacity_factor * mean), rows)

    @cached_property
    def padded_expert_rows(self) -> FloatArray:
        """Rows of the products of an expert, padded to the multiple that their format needs. [elements]"""
        rows, multiple = self.expert_rows, of_formats(self.design.precision, "multiple")
        return np.where(multiple > 1, np.ceil(rows / multiple) * multiple, rows)

    @cached_property
    def expert_tokens(self) -> FloatArray:
        """Copies of tokens that the experts of a rank work on, of the fullest one. [-]"""
        model, shape = self.model, self.design
        received = model.moe_topk * self.imbalance * shape.etp * self.routed_tokens
        return np.where(shape.capacity_factor > 0, self.expert_rows * model.num_experts / shape.ep, received)

    @property
    def fuses_loss(self) -> BoolArray:
        """Where the loss is one compiled kernel in each direction; (points,)."""
        return np.asarray(self.design.cross_entropy == COMPILED_LOSS)

    @property
    def expert_passes(self) -> tuple[FloatArray, FloatArray]:
        """Passes that add biases of experts, and that clamp their activations, over those of Megatron Core. [-]"""
        has_biases = float(self.model.biases if self.model.mlp_bias is None else self.model.mlp_bias)
        software = self.system.software
        return software.expert_bias_passes * has_biases, software.expert_clamp_passes * has_biases

    @property
    def key_repeats(self) -> FloatArray:
        """Copies of keys and values that context-parallel ranks exchange: one, or one for each query head. [-]"""
        heads, groups = self.model.num_attention_heads, self.model.num_query_groups
        return 1.0 + self.system.software.repeated_keys * (heads / groups - 1)

    @cached_property
    def vocabulary_share(self) -> FloatArray:
        """A rank's share of the vocabulary, padded to whole entries. [-]"""
        return np.ceil(padded_vocabulary(self.model, self.design.tp) / self.design.tp)

    @cached_property
    def unfused(self) -> FloatArray:
        """1 where attention keeps its scores in memory, else 0. [-]"""
        return np.where(self.design.attention == 0, 1.0, 0.0)

    @cached_property
    def gradient_bytes(self) -> FloatArray | float:
        """Bytes of a gradient, where it is accumulated and where it is reduced. [B]"""
        return gradient_bytes(self)

    def activation_bytes(self, features: str = "stream") -> FloatArray:
        """Size of a whole activation that goes from kernel to kernel, or from stage to stage. [B]"""
        return self.bytes_of(self.model.features[features])

    def bytes_of(self, width: float) -> FloatArray:
        """Size of a whole activation of some features. [B]"""
        return self.tokens * width * self.precision.element_bytes


def padded_vocabulary(model: ModelShape, tp: FloatArray) -> FloatArray | float:
    """Entries of the word table as ranks hold it: a multiple of `vocab_multiple` on each. [-]"""
    if not model.vocab_multiple:
        return model.vocab_size
    return np.ceil(model.vocab_size / (model.vocab_multiple * tp)) * (model.vocab_multiple * tp)


def rank_run(run: TransformerRun) -> RankRun:
    """The part of a run that a rank sees of a micro-batch. Shardings to be solved for count as Megatron's."""
    model, design = run.model, run.design
    assignments = assignments_of(tuple(model.kinds), model.last_layer)
    other = {"assignment", "spans_nodes", *(() if model.num_experts else ("expert_spread", *EXPERT_COLUMNS))}
    spans = (design.pp > 1) & (design.world_size > run.system.network[0].size)
    slower = (run.system.software.pipelined_launches > 0).any()
    shape = RankShape(
        assignments=assignments,
        **{name: getattr(design, name) for name in layout_of(RankShape).units if name not in other},
        assignment=assignment_numbers(assignments, design),
        tiles=explicit_tiles(model, design),
        spans_nodes=spans.astype(np.float64) if slower else np.zeros(()),
    )
    return RankRun(model, run.system, shape, run.precision, run.itemized)


def once_each(run: Run[AnyShape, AnyTable], stage: Callable[[Any], Sequence[AnyRecord]]) -> Sequence[AnyRecord]:
    """Tables of a stage, evaluated once for points that agree in all columns of a run.

    The stage reads the run and nothing else: its columns are the key. Tables of a single point are remembered by stage.
    """
    unique = run.design.unique_rows if run.system.is_one() else UniqueRows.of(*run.columns())
    rows = unique.take(run)
    if unique.rows.size > 1 or run.itemized:
        return [unique.spread(table) for table in stage(rows)]
    tables = remembered(_REMEMBERED, (stage, *rows.key()), MOST_REMEMBERED, lambda: tuple(stage(rows)))
    return [unique.spread(table) for table in tables]


def remembered(known: dict[Any, AnyResult], key: Any, most: int, make: Callable[[], AnyResult]) -> AnyResult:
    """The result of a key, computed if unknown; the latest `most` results are kept. [-]"""
    if (result := known.get(key)) is None:
        result = known[key] = make()
        for oldest in list(known)[:-most]:  # dicts keep the order of insertion
            known.pop(oldest, None)
    return result


#: Most single points whose tables of a stage are remembered, 13 to 17 KB each. [-]
MOST_REMEMBERED: Final = 1024
_REMEMBERED: Final[dict[tuple[Any, ...], tuple[Any, ...]]] = {}


def gradient_bytes(run: TransformerRun | RankRun) -> FloatArray | float:
    """Bytes of a gradient, where it is accumulated and where it is reduced. [B]"""
    return reduced_bytes(run.design.gradient_reduction, run.precision)


def some_adapters(run: RankRun | TransformerRun) -> bool:
    """True if some design of a run trains adapters alone."""
    return bool((run.design.lora_rank > 0).any())


def trained_share(run: RankRun | TransformerRun) -> FloatArray:
    """Share of the model's parameters that is trained: 0 with adapters, else 1; (points,). [-]"""
    return np.where(run.design.lora_rank > 0, 0.0, 1.0)


def is_packed(run: RankRun | TransformerRun) -> BoolArray:
    """Where frozen weights of linear layers are kept in NF4; (points,)."""
    return np.asarray((run.design.quantized_base > 0) & (run.design.lora_rank > 0))


def assignment_numbers(assignments: Assignments, design: DesignPoints) -> FloatArray:
    """Numbers of the assignments that designs name, or give kernel by kernel; (points,). [-]

    Raises `DseError` if a design splits a kernel that the model does not have.
    """
    columns = {kernel: sharding_column(kernel) for kernel in assignments.options}
    for name in design.kernel_shardings:
        if name not in columns.values():
            raise DseError(f"design: {name}: the model has no such kernel{suggestion(name, columns.values())}")
    named = assignments.named
    numbers = np.where(design.sharding == MEGATRON_SP, named["megatron_sp"], named["megatron"])
    explicit = design.sharding == SAMPLE
    if not explicit.any():
        return numbers
    usual = np.array(named["megatron"])
    places = {
        kernel: design.kernel_shardings.get(name, assignments.place(usual, kernel)) for kernel, name in columns.items()
    }
    return np.where(explicit, assignments.numbers(places), numbers)


def explicit_tiles(model: ModelShape, design: DesignPoints) -> dict[str, FloatArray]:
    """Edges of explicit output tiles, 0 where free; none where all are. [elements]"""
    explicit = design.tiling == EXPLICIT_TILES
    if not explicit.any():
        return {}
    adapters = (kernel_of_tile(name) for name in design.tile_edges if name.endswith("_tile_m"))
    return {
        name: np.where(explicit, edge, 0.0)
        for kernel in dict.fromkeys([*tiled_kernels(model.blocks), *adapters])
        for name, edge in zip(tile_columns(kernel), design.tile_edge(kernel), strict=True)
    }


def with_assignments(
    design: DesignPoints, assignments: Assignments, numbers: FloatArray, rows: BoolArray | bool = True
) -> DesignPoints:
    """Designs with numbered assignments made explicit where `rows` says; (points,) arrays."""
    return replace(
        design,
        sharding=np.where(rows, SAMPLE, design.sharding),
        kernel_shardings={
            sharding_column(kernel): assignments.place(numbers, kernel).astype(np.float64)
            for kernel in assignments.options
        },
    )
