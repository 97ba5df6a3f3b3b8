"""Candidate designs, as rows of a table: layouts of a model over chips, and options of its step.

`DesignPoints` declares every column that a design may have, with its default, its words and its range: sizes of
parallel groups as in Megatron-LM (`tp`, `pp`, `dp`, `cp`, `ep`), the pipeline's schedule, sharded states,
recomputation, overlaps and number formats. Shardings and tiles of single kernels are columns too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import ClassVar, Final, Self, SupportsIndex

import numpy as np

from costmodel.columns import BoolArray, FloatArray, column, column_family
from costmodel.errors import DseError
from costmodel.training.blocks import (
    BLOCKS,
    MODULES,
    MTP_JOIN,
    OFFLOAD_MODULES,
    SHARDINGS,
    STREAMS_JOIN,
    Block,
    LayerModule,
    head_of,
)
from costmodel.training.design_table import Alias, Design, Domain, count_or_none, ratio, share, switch, words
from costmodel.training.dimensions import MOST_LAYERS
from costmodel.training.kernel_kind import PASSES, Kernel
from costmodel.training.precision import CROSS_ENTROPY, FORMATS, MOMENTS, OPTIMIZERS, REDUCTIONS, ZERO
from costmodel.training.ranks import EXPERT_ORDER, ORDER, RANK_ORDERS, STAGES_INSIDE, Group, Ranks, Sharing

#: The layout that needs no text: as even as can be.
EVEN: Final = "even"
_REPEATED: Final = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))\*([0-9]+)")
#: Most chunks that a layout may have.
MOST_CHUNKS: Final = 1024


@dataclass(frozen=True, slots=True)
class PipelineLayout:
    """Layers of each chunk, in the order of the model. [-]"""

    layers: tuple[float, ...]
    mtp: int  #: the chunk of multi-token prediction

    @classmethod
    @cache
    def parse(cls, text: str) -> PipelineLayout:
        """A layout from its text; `|` ends a chunk: E embedding, t layer, m multi-token prediction, L loss.

        `t*3` is three layers, `(tt|)*29` twenty-nine chunks of two; commas say nothing.

        >>> PipelineLayout.parse("Et*3|(tt|)*2,m|L")
        PipelineLayout(layers=(3.0, 2.0, 2.0, 0.0, 0.0), mtp=3)

        Raises `DseError` if the text is not a layout.
        """
        written = re.sub(r"[,\s]", "", text)
        while (more := _REPEATED.sub(_repeated, written)) != written and len(more) < 100 * MOST_CHUNKS:
            written = more
        chunks = written.split("|")
        wrong = re.search(r"[^EtmL|]", written)
        if wrong or len(chunks) > MOST_CHUNKS:
            what = repr(wrong[0]) if wrong else f"{len(chunks)} chunks"
            raise DseError(f"pipeline_layout: {text!r}: {what}: expected a text such as Et*3|(tt|)*29,m|L")
        if not chunks[0].startswith("E") or written.count("E") != 1:
            raise DseError(f"pipeline_layout: {text!r}: expected E once, at the start")
        if not chunks[-1].endswith("L") or written.count("L") != 1:
            raise DseError(f"pipeline_layout: {text!r}: expected L once, at the end")
        ahead = [index for index, chunk in enumerate(chunks) if "m" in chunk]
        return cls(tuple(float(chunk.count("t")) for chunk in chunks), ahead[0] if ahead else len(chunks) - 1)


def _repeated(match: re.Match[str]) -> str:
    if len(match[3]) > 4:
        raise DseError(f"pipeline_layout: {match[3][:12]} times: expected at most 9999")
    return (match[1] or match[2] or "") * int(match[3])


class PipelineLayouts(list[str]):
    """Words of `pipeline_layout`: "even", and every layout that was read; a code is a place among them."""

    def __contains__(self, text: object) -> bool:
        if not isinstance(text, str):
            return False
        if not super().__contains__(text):
            try:
                PipelineLayout.parse(text)
            except DseError:
                return False
            self.append(text)
        return True

    def index(self, text: object, *among: SupportsIndex) -> int:
        """Code of a layout, which is read if it is new."""
        if text not in self:
            raise ValueError(f"{text!r}: no layout; expected a text such as Et*3|(tt|)*29,m|L")
        return super().index(str(text), *among)

    def layout(self, code: int) -> PipelineLayout:
        """The layout of a code other than that of "even"."""
        return PipelineLayout.parse(self[code])


LAYOUTS: Final = PipelineLayouts([EVEN])


#: Words of `recompute`, and their codes: activations of no kernel, of the attention core, or of whole layers
#: are computed again in the backward pass (activation checkpointing).
RECOMPUTE = ("none", "selective", "full")
RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = range(3)

#: Words of `recompute_method`, and their codes: every N layers are one checkpoint, or the first N layers of each
#: chunk are recomputed, one by one.
RECOMPUTE_METHODS = ("uniform", "block")
RECOMPUTE_UNIFORM, RECOMPUTE_BLOCK = range(2)

#: Codes of `sharding`, and of `tiling` where tiles are explicit.
MEGATRON, MEGATRON_SP, SOLVE, SOLVE_BYTES, SAMPLE = range(5)
FREE_TILES, EXPLICIT_TILES = range(2)

#: Words of `attention`, and their codes: scores in memory; on chip, by the fastest kernels that there are for
#: the chip; on chip, by FlashAttention-2, or by the one before; fused, with products of 8 bits.
ATTENTION = ("unfused", "fused", "flash_attention_2", "flash_attention_1", "fused_fp8")
UNFUSED, FUSED, FLASH_2, FLASH_1, FUSED_FP8 = range(5)

#: Words of `tp_overlap`, and their codes: collectives of tensor parallelism do not overlap, as in 2021; overlap
#: with products that compute weight gradients; or are also split into pieces that overlap with their product.
TP_OVERLAP = ("none", "gradients", "chunked")
NO_OVERLAP, GRADIENTS, CHUNKED = range(3)

#: Words of `cp_communication`, and their codes: keys and values go around a ring, or are gathered; or heads
#: are exchanged for tokens; or that in groups of `cp_a2a` ranks, and a ring between those.
CP_COMMUNICATION = ("p2p", "all_gather", "a2a", "a2a_p2p")
CP_P2P, CP_ALL_GATHER, CP_A2A, CP_A2A_P2P = range(4)

#: Words of `dispatcher`, and their codes: how tokens come to the ranks of their experts.
DISPATCHERS = ("all_to_all", "all_gather", "two_hop")
DISPATCH_ALL_TO_ALL, DISPATCH_ALL_GATHER, DISPATCH_TWO_HOP = range(3)

#: Words of `cuda_graphs`, and their codes: the host launches each kernel; or a graph for each layer and direction, and
#: kernels of routed experts; or one graph for all forward and backward passes of a step.
CUDA_GRAPHS = ("none", "layers", "full_iteration")
NO_GRAPHS, LAYER_GRAPHS, FULL_ITERATION = range(3)

#: Words of `outer_dp_sharding_strategy`: copies of sharded states have all of them, or divide the optimizer's too.
OUTER_DP_SHARDING = ("no_shard", "optim")

#: Words of `schedule`, and the code of the default: the order in which ranks of a pipeline run their passes.
SCHEDULE_WORDS = ("gpipe", "1f1b", "breadth_first", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipe_v")
ONE_FORWARD_ONE_BACKWARD: Final = SCHEDULE_WORDS.index("1f1b")

#: Words of `lora_targets`: linear layers that have adapters. Megatron-Bridge: linear_qkv and linear_proj are attention,
#: linear_fc1 and linear_fc2 the MLP, together all_but_mixers; PEFT: q_proj and v_proj are query_value.
LORA_TARGETS = ("all_linear", "attention", "mlp", "query_value", "qkv", "all_but_mixers")

#: Words of `quantized_base`: frozen weights of linear layers in 16 bits, or in NF4 with double quantization (QLoRA).
QUANTIZED_BASES = ("none", "nf4")

#: Subjects of columns; others are the modules of `EVERY_MODULE`, by column.
EXPERTS, SEQUENCE, STATES, PIPELINE = "experts", "sequence", "states", "pipeline"
TENSOR, PLACES, RECOMPUTED_LAYERS, PRECISION = "tensor", "places", "recomputed_layers", "precision"
ADAPTERS, GRAPHS = "adapters", "graphs"

#: Modules with a switch: those that hosts may hold inputs of, and those that may be recomputed.
EVERY_MODULE: Final = (*OFFLOAD_MODULES, *MODULES)

#: Subject of columns -> the kernels that a model needs for its designs to have these columns.
NEEDS: Final[Mapping[str, Callable[[Kernel], bool]]] = {
    EXPERTS: lambda kernel: kernel.of_experts,
    **{module.column: module.needs or module.has for module in EVERY_MODULE},
}

#: Highest stage of sharded data parallelism: the next row of `ZERO` is for it in a pipeline, the two behind for both
#: where copies divide the optimizer's states.
HIGHEST_ZERO: Final = len(ZERO) - 4

#: Edges that an explicit output tile may have, powers of two; 0, the default, stands for the best tile.
TILE_EDGES: Final = tuple(2**power for power in range(17))
TILE_EDGE: Final = Domain(low=0.0, high=float(TILE_EDGES[-1]))


def sharding_column(kernel: str) -> str:
    """The column that says how a kernel is split."""
    return f"{kernel}_sharding"


def tiled_kernel(product: str, of_pass: str) -> str:
    """The name that columns of tiles have for a product in one of its passes: forward, its own."""
    return product if of_pass == PASSES[0] else f"{product}_{of_pass}"


def tile_columns(kernel: str) -> tuple[str, str]:
    """The columns with the edges of the output tile of a `tiled_kernel`, along m and n."""
    return f"{kernel}_tile_m", f"{kernel}_tile_n"


def kernel_of_tile(column: str) -> str:
    """The `tiled_kernel` that one of `tile_columns` belongs to."""
    return column[: -len("_tile_m")]


def splits_kernels(column: str) -> bool:
    """True of columns of shardings or tiles of kernels."""
    return column in ("sharding", "tiling") or column.endswith(("_sharding", "_tile_m", "_tile_n"))


def tiled_kernels(blocks: Iterable[Block] = BLOCKS) -> list[str]:
    """Products of each pass, whose output tiles may be explicit, those of the head included."""
    blocks = tuple(blocks)
    every = [kernel for block in (*blocks, head_of(blocks)) for kernel in block.kernels]
    products = dict.fromkeys(product for kernel in every for product in kernel.products)
    return [tiled_kernel(product, of_pass) for product in products for of_pass in PASSES]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DesignPoints(Design):
    """Parallel configurations of a transformer, one row each; every column has shape (points,). [-]

    Switches are 0 or 1; columns with words hold their codes. Columns of single kernels count where
    `sharding` and `tiling` are "sample".
    """

    aliases: ClassVar[Mapping[str, Alias]] = {
        "sequence_parallel": Alias("sharding", MEGATRON_SP),
        "overlap_tp": Alias("tp_overlap", CHUNKED),
        "distributed_optimizer": Alias("zero", 1, least=True),
    }
    tp: FloatArray = column("-", 1)
    cp: FloatArray = column("-", 1, of=SEQUENCE)
    pp: FloatArray = column("-", 1)
    vpp: FloatArray = column("-", 1)
    dp: FloatArray = column("-", 1)
    ep: FloatArray = column("-", 1, of=EXPERTS)
    etp: FloatArray = column("-", 1, of=EXPERTS)
    rank_order: FloatArray = words(RANK_ORDERS, of=PLACES)
    micro_batch_size: FloatArray = column("-", 1)
    gradient_accumulation_steps: FloatArray = column("-", 1)
    schedule: FloatArray = words(SCHEDULE_WORDS, ONE_FORWARD_ONE_BACKWARD, of=PIPELINE)
    #: Micro-batches that go through a chunk before the next when interleaved; 0: pp.
    group_size: FloatArray = count_or_none(of=PIPELINE)
    #: Layers of the first and the last stage; 0: as even as can be.
    first_stage_layers: FloatArray = count_or_none(of=PIPELINE)
    last_stage_layers: FloatArray = count_or_none(of=PIPELINE)
    count_embedding: FloatArray = switch(of=PIPELINE)  #: as one of the layers that stages share out
    count_loss: FloatArray = switch(of=PIPELINE)
    #: Layers of every chunk, as a text of Megatron-LM's `pipeline_model_parallel_layout`.
    pipeline_layout: FloatArray = column("-", 0.0, domain=Domain(LAYOUTS, low=0.0), of=PIPELINE)
    overlap_p2p: FloatArray = switch(of=PIPELINE)  #: messages between stages keep no rank waiting to send
    tp_overlap: FloatArray = words(TP_OVERLAP, GRADIENTS, of=TENSOR)
    cp_communication: FloatArray = words(CP_COMMUNICATION, of=SEQUENCE)
    cp_a2a: FloatArray = column("-", 1, of=SEQUENCE)  #: ranks that exchange heads, where `cp_communication` is a2a_p2p
    recompute: FloatArray = words(RECOMPUTE)
    recompute_method: FloatArray = words(RECOMPUTE_METHODS, RECOMPUTE_BLOCK, of=RECOMPUTED_LAYERS)
    #: Of a chunk, or of a checkpoint, where `recompute` is full; 0: all, one by one.
    recompute_layers: FloatArray = column("-", 0, domain=Domain(low=0.0), of=RECOMPUTED_LAYERS)
    recompute_core_attn: FloatArray = switch(of="recompute_core_attn")
    recompute_layernorm: FloatArray = switch(of="recompute_layernorm")
    recompute_mla_up_proj: FloatArray = switch(of="recompute_mla_up_proj")
    recompute_moe_act: FloatArray = switch(of="recompute_moe_act")
    recompute_mlp: FloatArray = switch(of="recompute_mlp")
    recompute_shared_experts: FloatArray = switch(of="recompute_shared_experts")
    recompute_moe: FloatArray = switch(of="recompute_moe")
    zero: FloatArray = column("-", 0, domain=Domain(low=0.0, high=HIGHEST_ZERO), of=STATES)
    reshard_after_forward: FloatArray = switch(1.0, of=STATES)  #: in ZeRO 3, weights are gathered again to go back
    shard_replicas: FloatArray = column("-", 1, of=STATES)  #: copies of sharded states, a divisor of dp * cp (and edp)
    outer_dp_sharding_strategy: FloatArray = words(OUTER_DP_SHARDING, of=STATES)  #: states that copies divide
    optimizer: FloatArray = words(OPTIMIZERS, of=STATES)
    moments: FloatArray = words(MOMENTS, of=STATES)
    store_param_remainders: FloatArray = switch(of=STATES)  #: of master weights the 16 bits alone that weights lack
    offload_optimizer: FloatArray = share(of=STATES)  #: of the optimizer's states, held and updated by hosts
    offload_activations: FloatArray = share(of=STATES)  #: of activations, held by hosts until the backward pass
    offload_attn_norm: FloatArray = switch(of="offload_attn_norm")
    offload_qkv_linear: FloatArray = switch(of="offload_qkv_linear")
    offload_core_attn: FloatArray = switch(of="offload_core_attn")
    offload_attn_proj: FloatArray = switch(of="offload_attn_proj")
    offload_mlp_norm: FloatArray = switch(of="offload_mlp_norm")
    offload_expert_fc1: FloatArray = switch(of="offload_expert_fc1")
    offload_moe_act: FloatArray = switch(of="offload_moe_act")
    offload_fused_group_mlp: FloatArray = switch(of="offload_fused_group_mlp")
    activation_offload_fraction: FloatArray = share(1.0, of=STATES)  #: of layers, the first ones, that offload
    precision: FloatArray = words(FORMATS, of=PRECISION)  #: of the products of layers
    fp8_parameters: FloatArray = switch(of=PRECISION)  #: weights are kept and gathered in that format
    gradient_reduction: FloatArray = words(REDUCTIONS, of=PRECISION)
    #: Products add to the gradients of weights; else a kernel does.
    gradient_accumulation_fusion: FloatArray = switch(1.0, of=STATES)
    gradient_copy: FloatArray = switch(of=STATES)  #: 16-bit gradients are kept in addition to the accumulated ones
    lora_rank: FloatArray = count_or_none(of=ADAPTERS)  #: of adapters of frozen weights; 0: all weights train
    lora_targets: FloatArray = words(LORA_TARGETS, of=ADAPTERS)
    lora_fused: FloatArray = switch(1.0, of=ADAPTERS)  #: one adapter for a fused product, not one for each part
    quantized_base: FloatArray = words(QUANTIZED_BASES, of=ADAPTERS)
    reference_model: FloatArray = switch(of=ADAPTERS)  #: frozen weights run forward too, as in DPO
    attention: FloatArray = words(ATTENTION, FUSED)
    cross_entropy: FloatArray = words(CROSS_ENTROPY, of=PRECISION)  #: kernels of the loss, by the memory of logits
    overlap_grad_reduce: FloatArray = switch()
    #: Gathered weights hide too, where `overlap_grad_reduce` is on.
    overlap_param_gather: FloatArray = switch(1.0, of=STATES)
    dispatcher: FloatArray = words(DISPATCHERS, of=EXPERTS)
    imbalance: FloatArray = ratio(1.0, 1.0, of=EXPERTS)  #: tokens of the fullest rank over the mean
    #: Rows of an expert over its mean share of copies, all others dropped; 0: an expert takes all its tokens.
    capacity_factor: FloatArray = ratio(0.0, 0.0, of=EXPERTS)
    overlap_ep: FloatArray = switch(of=EXPERTS)  #: exchanges hide behind another micro-batch
    overlap_shared_expert: FloatArray = switch(of=EXPERTS)
    cuda_graphs: FloatArray = words(CUDA_GRAPHS, of=GRAPHS)
    sharding: FloatArray = words(SHARDINGS)
    tiling: FloatArray = words(("solve", "sample"))
    #: How kernels are split, by their options; and edges of products' output tiles [elements].
    kernel_shardings: Mapping[str, FloatArray] = column_family()
    tile_edges: Mapping[str, FloatArray] = column_family()

    @classmethod
    def domains(cls, blocks: Iterable[Block] = BLOCKS) -> dict[str, Domain]:
        """Column -> values that it may take, those of single kernels of some blocks included."""
        blocks = tuple(blocks)
        every = [kernel for block in blocks for kernel in block.kernels]
        split = [k for k in every if len(k.kind.shardings) > 1 and k not in (*MTP_JOIN.kernels, *STREAMS_JOIN.kernels)]
        kernels = {kernel.name: kernel for kernel in split}.values()
        missing = {of for of, needed in NEEDS.items() if not any(map(needed, every))}
        hidden = {f.name for f in fields(cls) if f.metadata.get("of") in missing}
        return {
            **{name: domain for name, domain in cls.declared().items() if name not in hidden},
            **{sharding_column(k.name): Domain.of_words(k.kind.shardings) for k in kernels},
            **{name: TILE_EDGE for kernel in tiled_kernels(blocks) for name in tile_columns(kernel)},
        }

    @classmethod
    def _of_columns(cls, columns: Mapping[str, FloatArray]) -> Self:
        names = {f.name for f in fields(cls)}
        others = {name: values for name, values in columns.items() if name not in names}
        return cls(
            **{name: values for name, values in columns.items() if name in names},
            kernel_shardings={n: v for n, v in others.items() if n.endswith("_sharding")},
            tile_edges={n: v for n, v in others.items() if not n.endswith("_sharding")},
        )

    def check(self) -> None:
        """Refuse more chunks than a model may have layers, and explicit tiles that no product may have."""
        if (chunks := self.pp * self.vpp).max(initial=0) > MOST_LAYERS:
            raise DseError(f"design: pp, vpp: {chunks.max():,.0f} chunks; expected at most {MOST_LAYERS:,}")
        explicit = self.tiling == EXPLICIT_TILES
        for name in self.tile_edges if explicit.any() else ():
            kernel = kernel_of_tile(name)
            m, n = self.tile_edge(kernel)
            known = np.isin(m, (0, *TILE_EDGES)) & np.isin(n, (0, *TILE_EDGES))
            wrong = np.flatnonzero(explicit & ~(known & (m <= 2 * n) & (n <= 2 * m)))
            if wrong.size:
                first = [float(np.broadcast_to(values, explicit.shape)[wrong[0]]) for values in (m, n)]
                raise DseError(
                    f"design: {kernel}_tile_m, {kernel}_tile_n: {first[0]:g} and {first[1]:g}; expected powers of "
                    f"two from {TILE_EDGES[0]} to {TILE_EDGES[-1]}, neither more than twice the other, or 0: the best"
                )

    def tile_edge(self, kernel: str) -> tuple[FloatArray, FloatArray]:
        """Edges of a `tiled_kernel`'s tile along m and n: square where one is 0, the best where both are."""
        m, n = (self.tile_edges.get(name, np.zeros(())) for name in tile_columns(kernel))
        return np.where(m == 0, n, m), np.where(n == 0, m, n)

    @cached_property
    def ranks(self) -> Ranks:
        """The grid of all ranks."""
        return self._grid(ORDER)

    def _grid(self, order: Iterable[str]) -> Ranks:
        sizes = {axis: getattr(self, axis) for axis in order}
        inside = self.rank_order == STAGES_INSIDE
        return Ranks(sizes, self.tp * self.cp, np.where(inside, self.pp, 1.0)) if inside.any() else Ranks(sizes)

    @cached_property
    def expert_spread(self) -> FloatArray:
        """Stages that take turns between the ranks of a group of experts; 1 where it stands together. [-]"""
        parted = (self.rank_order == STAGES_INSIDE) & (self.ep * self.etp > self.tp * self.cp)
        return np.where(parted, self.pp, 1.0)

    @cached_property
    def edp(self) -> FloatArray:
        """Replicas of each expert; one where a stage has fewer ranks than its experts ask for. [-]"""
        return np.maximum(self.tp * self.cp * self.dp / (self.ep * self.etp), 1.0)

    @cached_property
    def expert_ranks(self) -> Ranks:
        """The grid of ranks as experts divide it."""
        return self._grid(EXPERT_ORDER)

    @cached_property
    def replicas(self) -> Group:
        """Ranks with the same weights, those of experts aside: gradients are summed over them."""
        return self.ranks.group("cp", "dp")

    @cached_property
    def zero_row(self) -> FloatArray:
        """Row of `ZERO` that a design follows. [-]"""
        among = (self.pp > 1) + 2 * self.outer_dp_sharding_strategy
        return np.asarray(self.zero + np.where(self.zero == HIGHEST_ZERO, among, 0))

    @cached_property
    def sharing(self) -> Sharing:
        """The replicas, as sharded states see them."""
        return Sharing.of(self.replicas, self.shard_replicas)

    @cached_property
    def expert_sharing(self) -> Sharing:
        """Ranks with the same experts, as sharded states see them."""
        return Sharing.of(self.expert_ranks.group("edp"), self.shard_replicas)

    @cached_property
    def world_size(self) -> FloatArray:
        """Chips of the run. [-]"""
        return self.ranks.all.size

    @cached_property
    def is_1f1b(self) -> BoolArray:
        """Where forward and backward passes follow each other in turn, interleaved or not; (points,)."""
        return np.asarray(self.schedule == ONE_FORWARD_ONE_BACKWARD)

    @cached_property
    def shards_layers(self) -> BoolArray:
        """Where replicas exchange states of each layer: ZeRO 2 or 3 over several ranks; (points,)."""
        return np.asarray((self.zero > 1) & (self.sharing.shards.size > 1))

    @cached_property
    def recomputed_modules(self) -> FloatArray:
        """Modules whose switches are on, a bit each as `MODULES` are; 0 in full recomputation. [-]"""
        return self._bits(MODULES)

    @cached_property
    def offloaded_modules(self) -> FloatArray:
        """Modules whose inputs hosts hold, a bit each as `OFFLOAD_MODULES` are; 0 in full recomputation. [-]"""
        return self._bits(OFFLOAD_MODULES)

    def _bits(self, modules: Iterable[LayerModule]) -> FloatArray:
        switches = [getattr(self, module.column) for module in modules]
        bits = sum((2.0**bit * switch for bit, switch in enumerate(switches)), start=np.zeros(()))
        return np.where(self.recompute == RECOMPUTE_FULL, 0.0, bits)

    @property
    def offloads_activations(self) -> BoolArray:
        """Where hosts hold activations, a share of all or those of modules; (points,)."""
        return np.asarray((self.offload_activations > 0) | (self.offloaded_modules > 0))

    @property
    def global_batch_size(self) -> FloatArray:
        """Sequences of one optimizer step. [-]"""
        return self.dp * self.micro_batch_size * self.gradient_accumulation_steps


#: Columns that designs have only where a model has experts; and all that the reference models do not know.
EXPERT_COLUMNS: Final = tuple(f.name for f in fields(DesignPoints) if f.metadata.get("of") == EXPERTS)
MODERN: Final = (*(f.name for f in fields(DesignPoints) if "of" in f.metadata), "overlap_tp")


def recomputes_otherwise(design: DesignPoints) -> list[str]:
    """Columns by which some designs recompute otherwise than `recompute` alone can say."""
    full = design.recompute == RECOMPUTE_FULL
    asked = {module.column: ~full for module in MODULES} | {"recompute_layers": full}
    return [name for name, read in asked.items() if (read & (getattr(design, name) > 0)).any()]


#: Column -> where it changes nothing.
IDLE: Final[Mapping[str, Callable[[DesignPoints], BoolArray]]] = {
    **dict.fromkeys((m.column for m in EVERY_MODULE), lambda design: np.asarray(design.recompute == RECOMPUTE_FULL)),
    "reshard_after_forward": lambda design: design.zero < HIGHEST_ZERO,
    "outer_dp_sharding_strategy": lambda design: (design.zero < HIGHEST_ZERO) | (design.shard_replicas == 1),
    "overlap_param_gather": lambda design: (design.overlap_grad_reduce == 0) | (design.zero == 0),
    "overlap_p2p": lambda design: design.pp == 1,
    **dict.fromkeys(("lora_targets", "lora_fused", "quantized_base"), lambda design: design.lora_rank == 0),
}


def canonical(design: DesignPoints) -> DesignPoints:
    """Designs that cost the same, with columns at their defaults where they change nothing.

    >>> canonical(DesignPoints.of(zero=[2, 3], reshard_after_forward=0)).reshard_after_forward.tolist()
    [1.0, 0.0]
    """
    usual, given = DesignPoints().columns(), design.columns()
    return design.with_columns({name: np.where(idle(design), usual[name], given[name]) for name, idle in IDLE.items()})
