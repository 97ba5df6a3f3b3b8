"""The kernels of a layer, written down once as rows of blocks; their shardings; modules that may be recomputed.

A row is a kernel: its name, its kind, the features of a token that it reads (`>` those that it makes), how
Megatron-LM splits its weight where it has one, and (after `<`) the kernels whose outputs it reads. Features
are words of `ModelShape.features`. `stream` is the residual stream, the output of the last kernel before the
block. Kernel tables, parameters, activations, shardings, collectives, and the graphs and rows that other
simulators read all follow from these rows.

A tensor-parallel group splits each kernel by one of its shardings, which fixes the layout of its activations: whole,
split by tokens or by features, or summands. The modules of a layer that the backward pass may compute again are rows of
one table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.errors import DseError, suggestion
from costmodel.training.kernel_kind import BIASES, Kernel, TensorLayout
from costmodel.training.kinds import KINDS, LINEAR_MIXERS, kept_mask

STREAM: Final = "stream"


@dataclass(frozen=True, slots=True)
class Edge:
    """An activation on its way from a kernel to one that reads it."""

    start: Kernel
    end: Kernel
    #: Edges before it that share its collectives: products that read one activation gather it once, and those
    #: whose results one kernel adds up are added up before.
    sharing: tuple[Edge, ...] = field(default=(), compare=False)

    def shares_collectives(self, other: Edge) -> bool:
        """True if another edge may share the collectives of this one."""
        products = (
            self.end.splits_weight and other.end.splits_weight,
            self.start.splits_weight and other.start.splits_weight,
        )
        return (self.start == other.start and products[0]) or (self.end == other.end and products[1])


@dataclass(frozen=True)
class Block:
    """Kernels that belong together, in the order of the forward pass."""

    name: str
    rows: str  #: a line a kernel, as this module's text says

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernels of the block, read from its text."""
        return tuple(_kernel(line) for line in self.rows.strip().splitlines())

    def edges(self, stream: Kernel) -> Iterator[Edge]:
        """Activations that the kernels read, the residual stream first: the output of a kernel before."""
        known = {STREAM: stream, **{kernel.name: kernel for kernel in self.kernels}}
        pairs = [(start, kernel) for kernel in self.kernels for start in kernel.inputs]
        for start, kernel in sorted(pairs, key=lambda pair: pair[0] != STREAM):
            yield Edge(known[start], kernel)


def _kernel(line: str) -> Kernel:
    """A row from its line."""
    left, _, inputs = line.partition("<")
    name, kind, *words = left.replace(">", " ").split()
    bias = words.pop() if words[-1] in BIASES else ""
    megatron = words.pop() if words[-1] in ("column", "row") else ""
    if kind not in KINDS:
        raise DseError(f"kernel {name}: {kind}: unknown kind{suggestion(kind, KINDS)}")
    return Kernel(name, KINDS[kind], words[0], words[-1], megatron, tuple(inputs.split()), bias)


@dataclass(frozen=True)
class Layer:
    """A kind of layer: blocks one after the other."""

    blocks: tuple[Block, ...]

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernels of all blocks of the layer."""
        return tuple(kernel for block in self.blocks for kernel in block.kernels)

    @property
    def stream(self) -> Kernel:
        """The kernel that makes the residual stream as the layer leaves it."""
        return self.kernels[-1]

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Edges of all blocks. A layer follows one like it, so that its first edges start at its own end."""
        ends = [block.kernels[-1] for block in self.blocks]
        edges: list[Edge] = []
        for block, stream in zip(self.blocks, [ends[-1], *ends[:-1]], strict=True):
            for edge in block.edges(stream):
                edges.append(replace(edge, sharing=tuple(other for other in edges if edge.shares_collectives(other))))
        return tuple(edges)

    def input_of(self, kernel: Kernel) -> Kernel:
        """The kernel whose output another reads, the first of several."""
        return next(edge.start for edge in self.edges if edge.end == kernel)

    def reader_of(self, kernel: Kernel) -> Kernel:
        """The kernel that reads the output of another, the first of several."""
        return next(edge.end for edge in self.edges if edge.start == kernel)


#: Before the first layer, and after the last.
EMBEDDING: Final = Block("embedding", "embedding  lookup  hidden")
HEAD: Final = Block(
    "head",
    """
    final_norm  norm     hidden                       < stream
    head        product  hidden > vocabulary  column  < final_norm
    loss        loss     vocabulary                   < head
    """,
)

#: Blocks of GPT and Llama, and the layer of both.
ATTENTION: Final = Block(
    "attention",
    """
    attention_norm      norm       hidden                               < stream
    qkv                 product    hidden > qkv        column qkv_bias  < attention_norm
    core                attention  qkv > attention                      < qkv
    projection          product    attention > hidden  row    out_bias  < core
    attention_residual  residual   hidden                               < projection stream
    """,
)
MLP: Final = Block(
    "mlp",
    """
    mlp_norm      norm        hidden                         < stream
    mlp_up        product     hidden > up  column  mlp_bias  < mlp_norm
    activation    activation  up > ffn                       < mlp_up
    mlp_down      product     ffn > hidden  row    mlp_bias  < activation
    mlp_residual  residual    hidden                         < mlp_down stream
    """,
)
BLOCKS: Final = (ATTENTION, MLP)
DECODER: Final = Layer(BLOCKS)


def kinds_beyond(layers: Iterable[Layer]) -> list[str]:
    """Kinds of kernels that the layer of GPT and Llama has not, in the order in which they come."""
    known = {kernel.kind for kernel in DECODER.kernels}
    every = (kernel.kind for layer in layers for kernel in layer.kernels)
    return [kind.name for kind in dict.fromkeys(every) if kind not in known]


def kinds_without_word(layers: Iterable[Layer], framework: str) -> list[str]:
    """Kinds of kernels of some layers for which one of `FRAMEWORKS` has no word, in their order."""
    every = (kernel.kind for layer in layers for kernel in layer.kernels)
    return [kind.name for kind in dict.fromkeys(every) if not kind.words[framework]]


class LayerKind(NamedTuple):
    """Kernels of a kind of layer: a mixer of tokens, then an MLP; either may be missing."""

    mixer: str = "full"  #: "full", "window" or "latent" attention, one of `LINEAR_MIXERS`, or ""
    mlp: Literal["dense", "experts", ""] = "dense"
    post_norms: bool = False  #: a norm behind each branch, beside the one before it
    parallel: bool = False  #: both branches side by side behind one norm
    parallel_norms: bool = False  #: ... or each behind its own
    query_latent: bool = False
    output_gate: bool = False
    shared_expert: bool = False
    shared_expert_gate: bool = False
    expert_latent: bool = False  #: routed experts act on a narrower latent of each token


class Branch(NamedTuple):
    """Rows of a branch, and the kernels that it ends with."""

    rows: list[str]
    ends: list[str]


def mixer_branch(kind: LayerKind, norm: str) -> Branch:
    """Attention or a linear mixer behind a norm."""
    if kind.mixer in LINEAR_MIXERS:
        rows = [row.format(norm=norm) for row in LINEAR_MIXERS[kind.mixer]]
        return Branch(rows, [rows[-1].split()[0]])
    gate = ["output_gate  activation  attention  < core"] if kind.output_gate else []
    gated = "output_gate" if kind.output_gate else "core"
    if kind.mixer == "latent":
        query = [
            f"q_down  latent   hidden > query_rank            < {norm}",
            "q_norm  norm     query_rank                      < q_down",
            "q_up    product  query_rank > queries    column  < q_norm",
        ]
        rows = [
            *(query if kind.query_latent else [f"q_up  product  hidden > queries  column  < {norm}"]),
            f"kv_down     latent     hidden > key_latent              < {norm}",
            "kv_norm     norm       key_rank > key_latent             < kv_down",
            "kv_up       product    key_rank > keys_values    column  < kv_norm",
            "core        attention  queries > attention               < q_up kv_up",
            "projection  product    attention > hidden        row     < core",
        ]
    else:
        core = "attention" if kind.mixer == "full" else "window"
        rows = [
            f"qkv         product  hidden > qkv        column qkv_bias  < {norm}",
            f"core        {core}   qkv > attention                      < qkv",
            *gate,
            f"projection  product  attention > hidden  row    out_bias  < {gated}",
        ]
    return Branch(rows, ["projection"])


def mlp_branch(kind: LayerKind, norm: str) -> Branch:
    """An MLP behind a norm, or a mixture of experts."""
    if kind.mlp == "dense":
        rows = [
            f"mlp_up      product     hidden > up  column  mlp_bias  < {norm}",
            "activation  activation  up > ffn                       < mlp_up",
            "mlp_down    product     ffn > hidden  row    mlp_bias  < activation",
        ]
        return Branch(rows, ["mlp_down"])
    sent, ends = ("latent_down", ["latent_up"]) if kind.expert_latent else (norm, ["combine"])
    rows = [
        f"router             router             hidden > experts                   < {norm}",
        *([f"latent_down  latent  hidden > expert_in  < {norm}"] if kind.expert_latent else []),
        f"dispatch           dispatch           expert_in                          < {sent} router",
        "expert_up          experts            expert_in > expert_up    mlp_bias  < dispatch",
        "expert_activation  expert_activation  expert_up > expert_ffn             < expert_up",
        "expert_down        experts            expert_ffn > expert_in   mlp_bias  < expert_activation",
        "combine            combine            expert_in                          < expert_down",
        *(["latent_up  latent  expert_in > hidden  < combine"] if kind.expert_latent else []),
    ]
    if kind.shared_expert:
        ends = [*ends, "shared_down"]
        rows += [
            f"shared_up          product     hidden > shared_up   column  mlp_bias  < {norm}",
            "shared_activation  activation  shared_up > shared_ffn                 < shared_up",
            "shared_down        product     shared_ffn > hidden  row     mlp_bias  < shared_activation",
        ]
    if kind.shared_expert_gate:
        ends = [*ends, "shared_gate"]
        rows.append(f"shared_gate  latent  hidden > unit  < {norm}")
    return Branch(rows, ends)


@cache
def layer_of(kind: LayerKind) -> Layer:
    """The blocks of a kind of layer."""
    if kind == LayerKind():
        return DECODER
    if kind.parallel:
        rows = ["mlp_norm  norm  hidden  < stream"] if kind.parallel_norms else []
        attention, mlp = mixer_branch(kind, "norm"), mlp_branch(kind, "mlp_norm" if rows else "norm")
        both = Branch([*attention.rows, *rows, *mlp.rows], [*attention.ends, *mlp.ends])
        return Layer((_block("parallel", "norm", both, "residual", kind),))
    branches = (("attention", mixer_branch, kind.mixer), ("mlp", mlp_branch, kind.mlp))
    return Layer(
        tuple(
            _block(name, f"{name}_norm", branch(kind, f"{name}_norm"), f"{name}_residual", kind)
            for name, branch, present in branches
            if present
        )
    )


def _block(name: str, norm: str, branch: Branch, residual: str, kind: LayerKind) -> Block:
    """A branch between its norm and its residual addition."""
    post_norm = [f"{name}_post_norm  norm  hidden  < {' '.join(branch.ends)}"] if kind.post_norms else []
    ends = [f"{name}_post_norm"] if kind.post_norms else branch.ends
    last = f"{residual}  residual  hidden  < {' '.join(ends)} stream"
    return Block(name, "\n".join([f"{norm}  norm  hidden  < stream", *branch.rows, *post_norm, last]))


#: What joins a hidden state and the embedding of the next token, before a layer that looks one token further.
MTP_JOIN: Final = Block(
    "mtp",
    """
    mtp_norm  norm     joined                    < stream
    mtp_join  latent   joined > hidden           < mtp_norm
    """,
)


@cache
def mtp_layer(last: Layer) -> Layer:
    """The layer of a multi-token prediction module: a join, then a layer like the model's last."""
    return Layer((MTP_JOIN, *last.blocks))


def sequence_of(kinds: Iterable[LayerKind]) -> tuple[tuple[Layer, float], ...]:
    """Kinds of layers, and how many of each follow one another."""
    return tuple((layer_of(kind), float(len([*same]))) for kind, same in groupby(kinds))


#: Layouts of an activation of (tokens, features): whole on every rank, split by tokens, split by features,
#: or as summands of the whole.
LAYOUTS: Final[tuple[TensorLayout, ...]] = ("replicated", "sequence", "column", "partial")

#: (layout held, layout needed) -> collective; what is not here is there already, or a slice of what is.
TRANSITIONS: Final[Mapping[tuple[TensorLayout, TensorLayout], str]] = {
    ("sequence", "replicated"): "all_gather",
    ("column", "replicated"): "all_gather",
    ("sequence", "column"): "all_to_all",
    ("column", "sequence"): "all_to_all",
    ("partial", "replicated"): "all_reduce",
    ("partial", "sequence"): "reduce_scatter",
    ("partial", "column"): "reduce_scatter",
}


#: Named assignments [Shoeybi2019]_, [Korthikanti2022]_: layout of activations that may be split by tokens.
#: Those within an MLP are split by features, and products as the rows of blocks say.
ASSIGNMENTS: Final[Mapping[str, TensorLayout]] = {"megatron": "replicated", "megatron_sp": "sequence"}

#: How shardings are chosen: a named assignment, the best in time or in bytes sent, or explicitly per kernel.
SHARDINGS: Final = (*ASSIGNMENTS, "solve", "solve_bytes", "sample")


def usual_sharding(kernel: Kernel, tokens: str) -> str:
    """Option of a kernel that Megatron-LM takes, with the layout of the kernels that it may split by tokens."""
    return {"tokens": tokens, "features": "column", "weight": kernel.megatron}[kernel.kind.usual_split]


@dataclass(frozen=True)
class Assignments:
    """All combinations of shardings of a model's kernels, numbered in mixed radix, the last kernel fastest.

    Kernels of one name are split alike. The embedding and the head are split by the vocabulary, and a norm
    outside of the layers as the residual stream is, as far as a norm can be.
    """

    layers: tuple[Layer, ...]  #: the kinds of a model
    last: Layer  #: the kind of its last layer

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """Name -> kernel, of all kinds of layers; those without a choice last."""
        kernels = {kernel.name: kernel for layer in self.layers for kernel in layer.kernels}
        return dict(sorted(kernels.items(), key=lambda item: len(item[1].kind.shardings) == 1))

    @cached_property
    def options(self) -> dict[str, tuple[str, ...]]:
        """Kernel with a choice -> its shardings."""
        options = {name: tuple(kernel.kind.shardings) for name, kernel in self.kernels.items()}
        return {name: words for name, words in options.items() if len(words) > 1}

    @cached_property
    def _weights(self) -> dict[str, int]:
        """Kernel -> how far one of its options is from the next in the numbers of assignments. [-]"""
        sizes = [len(options) for options in self.options.values()]
        return {name: math.prod(sizes[number + 1 :]) for number, name in enumerate(self.options)}

    @cached_property
    def share_collectives(self) -> bool:
        """True if some edges share collectives, so that costs of edges depend on more than their ends."""
        return any(edge.sharing for layer in self.layers for edge in layer.edges)

    @property
    def count(self) -> int:
        """Number of assignments of the set. [-]"""
        return math.prod(len(options) for options in self.options.values())

    @property
    def stream(self) -> Kernel:
        """The kernel that makes the residual stream as layers leave it."""
        return self.last.stream

    @cached_property
    def named(self) -> dict[str, float]:
        """Name of an assignment -> its number. [-]"""
        kernels = [self.kernels[name] for name in self.options]
        return {
            name: self.number({kernel.name: usual_sharding(kernel, tokens) for kernel in kernels})
            for name, tokens in ASSIGNMENTS.items()
        }

    def number(self, words: Mapping[str, str]) -> float:
        """Number of the assignment that splits each kernel by the option named. [-]"""
        return sum(self._weights[name] * self.options[name].index(word) for name, word in words.items())

    def numbers(self, places: Mapping[str, Any]) -> FloatArray:
        """Numbers of assignments from the place of each kernel's option, (points,). [-]"""
        return np.asarray(sum(self._weights[name] * option for name, option in places.items()), dtype=np.float64)

    def place(self, numbers: FloatArray, kernel: str) -> IntArray:
        """A kernel's option in numbered assignments: (points,) places among its `options`. [-]"""
        return numbers.astype(np.intp) // self._weights[kernel] % len(self.options[kernel])

    def words(self, number: float) -> dict[str, str]:
        """Kernel -> how a numbered assignment splits it."""
        at = np.array([number])
        return {kernel: options[self.place(at, kernel)[0]] for kernel, options in self.options.items()}


@cache
def assignments_of(layers: tuple[Layer, ...], last: Layer | None = None) -> Assignments:
    """Assignments of kinds of layers; the last of them is that of the last layer unless another is given."""
    return Assignments(layers, last or layers[-1])


#: What a module that is recomputed keeps. A checkpoint keeps its input, and all of it runs again. An output
#: that is discarded is made again for those that read it, from inputs that are kept anyway.
Recomputation = Literal["checkpoint", "output discarded"]


@dataclass(frozen=True, slots=True)
class RecomputeModule:
    """A part of a layer that is recomputed for itself, one of Megatron-LM's `recompute_modules`."""

    name: str
    has: Callable[[Kernel], bool]  #: whether a row of a block is of it
    kind: Recomputation
    pieces: tuple[str, ...] = ()  #: pieces of other rows' work that are of it too
    selective: bool = False  #: whether "selective" recomputation is of it

    @property
    def column(self) -> str:
        """The switch of a design that asks for it."""
        return f"recompute_{self.name}"

    def frees(self, start: Kernel, end: Kernel) -> bool:
        """True if the input that a row keeps of the row before it is dropped; masks of dropouts are kept."""
        if end.kind.kept.input is kept_mask or not self.has(start):
            return False
        return self.kind == "output discarded" or self.has(end)

    def frees_inside(self, kernel: Kernel) -> bool:
        """True if intermediate results of a row are dropped: scores of attention, of experts."""
        return self.kind == "checkpoint" and self.has(kernel)


def _by_kind(name: str) -> Callable[[Kernel], bool]:
    return lambda kernel: name in kernel.kind.recompute_modules


def _by_features(*features: str) -> Callable[[Kernel], bool]:
    return lambda kernel: kernel.reads in features or kernel.makes in features


def _is_layer_norm(kernel: Kernel) -> bool:
    return _by_kind("layernorm")(kernel) and kernel.inputs == (STREAM,) and kernel.reads == "hidden"


def _is_of_experts(kernel: Kernel) -> bool:
    return _by_kind("moe")(kernel) or _by_features("expert_in")(kernel)


#: In the order of a design's columns. What collectives run again follows from the rows: products gather what
#: they read and reduce what they make, cores exchange keys and values, dispatch and combine exchange tokens.
MODULES: Final = (
    RecomputeModule("core_attn", _by_kind("core_attn"), "checkpoint", selective=True),
    RecomputeModule("layernorm", _is_layer_norm, "output discarded"),
    RecomputeModule(
        "mla_up_proj", lambda kernel: kernel.makes in ("queries", "keys_values"), "output discarded", pieces=("rotary",)
    ),
    RecomputeModule("moe_act", _by_kind("moe_act"), "output discarded"),
    RecomputeModule("mlp", _by_features("up", "ffn"), "checkpoint"),
    RecomputeModule("shared_experts", _by_features("shared_up", "shared_ffn", "unit"), "checkpoint"),
    RecomputeModule("moe", _is_of_experts, "checkpoint"),
)


def recompute_groups(kernels: Iterable[Kernel]) -> dict[tuple[RecomputeModule, ...], list[Kernel]]:
    """Modules -> rows that are of all of them and of no other: they run again once, if any of them does."""
    groups: dict[tuple[RecomputeModule, ...], list[Kernel]] = {}
    for kernel in kernels:
        modules = tuple(module for module in MODULES if module.has(kernel))
        if modules:
            groups.setdefault(modules, []).append(kernel)
    return groups
