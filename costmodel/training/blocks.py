"""The kernels of a layer, written down once as rows of blocks; their shardings; modules that may be recomputed.

A row is a kernel: its name, its kind, the features of a token that it reads (`>` those that it makes), how
Megatron-LM splits its weight where it has one, and (after `<`) the kernels whose outputs it reads. Features
are words of `ModelShape.features`. `stream` is the residual stream, the output of the last kernel before the
block. Kernel tables, parameters, activations, shardings, collectives, and the graphs and rows that other
simulators read all follow from these rows.

A tensor-parallel group splits each kernel by one of its shardings, which fixes the layout of its activations: whole,
split by tokens or by features, or summands. Modules that the backward pass may compute again are rows of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import yaml

from costmodel.columns import FloatArray, IntArray, grouped
from costmodel.errors import DseError, suggestion
from costmodel.training.dimensions import Sizes
from costmodel.training.kernel_kind import BIASES, Kernel, TensorLayout
from costmodel.training.kinds import KINDS, kept_mask

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
    sizes: Sizes = ()  #: dimensions of its layers that differ from the model's

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernels of the block, read from its text."""
        return tuple(replace(_kernel(line), sizes=self.sizes) for line in self.rows.strip().splitlines())

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


def kinds_beyond(layers: Iterable[Layer]) -> list[str]:
    """Kinds of kernels that layers of GPT and Llama do not have, in the order in which they come."""
    known = {kernel.kind for kernel in DECODER.kernels}
    every = (kernel.kind for layer in layers for kernel in layer.kernels)
    return [kind.name for kind in dict.fromkeys(every) if kind not in known]


def kinds_unknown_to(software: str, layers: Iterable[Layer]) -> list[str]:
    """Kinds of kernels of layers that a framework or reference model does not have, in their order."""
    every = (kernel.kind for layer in layers for kernel in layer.kernels)
    return [kind.name for kind in dict.fromkeys(every) if software not in kind.software]


#: Rows of blocks and branches, by the parts of `blocks.yaml`.
ROWS: Final[Mapping[str, Any]] = yaml.load(
    Path(__file__).with_suffix(".yaml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
#: Fields of a model that rows of its layers depend on.
SWITCHES: Final = frozenset(ROWS["switches"])
#: Before the first layer, after the last, before layers of multi-token prediction, and behind an MLP.
EMBEDDING, HEAD, MTP_JOIN, PER_LAYER = (
    Block(name, ROWS["blocks"][name]) for name in ("embedding", "head", "mtp", "per_layer")
)
#: Head and join of models with several residual streams.
STREAMS_HEAD, STREAMS_JOIN = Block("head", ROWS["blocks"]["streams_head"]), Block("mtp", ROWS["blocks"]["streams_mtp"])
#: Words for mixers without attention.
LINEAR_MIXERS: Final = tuple(name for name in ROWS["mixers"] if name not in ("attention", "latent", "compressed"))


def head_of(blocks: Iterable[Block]) -> Block:
    """The head behind layers of some blocks."""
    return STREAMS_HEAD if any(block.kernels[-1].makes == "stream" for block in blocks) else HEAD


class LayerKind(NamedTuple):
    """Kernels of a kind of layer: a mixer of tokens, then an MLP; either may be missing."""

    #: "full", "window", "latent", "sparse" or "compressed" attention, one of `LINEAR_MIXERS`, two by "+", or "".
    mixer: str = "full"
    mlp: str = "dense"  #: "dense", "experts" or ""
    post_norms: bool = False  #: a norm behind each branch, in addition to the one before it
    parallel: bool = False  #: both branches side by side behind one norm
    parallel_norms: bool = False  #: ... or each behind its own
    latent_keys: bool = False  #: keys are latents in sparse attention too
    indexer: bool = False  #: of sparse attention; else earlier layers' picks are used, or all compressed keys
    output_gate: bool = False
    per_layer: bool = False  #: a part of a second embedding is added behind the MLP
    streams: bool = False  #: branches read a weighted sum of several residual streams, and write to all
    switches: frozenset[str] = frozenset()  #: those of `SWITCHES` that are not 0
    sizes: Sizes = ()  #: dimensions that differ from the model's


class Branch(NamedTuple):
    """Rows of a branch, and the kernels that it ends with."""

    rows: list[str]
    ends: list[str]


def present(kind: LayerKind, lines: Iterable[str], **words: str) -> list[str]:
    """Lines without flags, and those with flags or switches that a kind of layer has; words put in."""

    def has(flag: str) -> bool:
        return flag in kind.switches if flag in SWITCHES else getattr(kind, flag)

    chosen = []
    for line in lines:
        flags, _, row = line[1:].partition("] ") if line.startswith("[") else ("", "", line)
        if all(has(flag.lstrip("!")) != flag.startswith("!") for flag in flags.split()):
            chosen.append(row.format(**words))
    return chosen


def mixer_branch(kind: LayerKind, norm: str) -> Branch:
    """Attention or a linear mixer behind a norm, or both in parallel."""
    if "+" in kind.mixer:
        first, second = kind.mixer.split("+")
        one, other = (mixer_branch(kind._replace(mixer=mixer), norm) for mixer in (first, second))
        rows = [row.replace("projection ", f"{second}_out ") for row in other.rows]
        return Branch([*one.rows, *rows], [*one.ends, f"{second}_out"])
    latent = kind.latent_keys or kind.mixer == "latent"
    word = kind.mixer if kind.mixer in ROWS["mixers"] else "latent" if latent else "attention"
    core = "attention" if kind.mixer in ("full", "latent") else kind.mixer
    return Branch(present(kind, ROWS["mixers"][word].splitlines(), norm=norm, core=core), ROWS["ends"]["mixers"])


def mlp_branch(kind: LayerKind, norm: str) -> Branch:
    """An MLP behind a norm, or a mixture of experts."""
    inner = "expert_norm" if "expert_norms" in kind.switches else norm
    rows = present(kind, ROWS["mlps"][kind.mlp].splitlines(), norm=norm, inner=inner)
    return Branch(rows, present(kind, ROWS["ends"][kind.mlp]))


@cache
def layer_of(kind: LayerKind) -> Layer:
    """The blocks of a kind of layer."""
    if kind.parallel:
        rows = ["mlp_norm  norm  hidden  < stream"] if kind.parallel_norms else []
        attention, mlp = mixer_branch(kind, "norm"), mlp_branch(kind, "mlp_norm" if rows else "norm")
        both = Branch([*attention.rows, *rows, *mlp.rows], [*attention.ends, *mlp.ends])
        return Layer((_block("parallel", "norm", both, "residual", kind),))
    branches = (("attention", mixer_branch, kind.mixer), ("mlp", mlp_branch, kind.mlp))
    blocks = [
        _block(name, f"{name}_norm", branch(kind, f"{name}_norm"), f"{name}_residual", kind)
        for name, branch, present in branches
        if present
    ]
    return Layer((*blocks, *([replace(PER_LAYER, sizes=kind.sizes)] if kind.per_layer else [])))


def _block(name: str, norm: str, branch: Branch, residual: str, kind: LayerKind) -> Block:
    """A branch between its norm and its residual addition."""
    post_norm = [f"{name}_post_norm  norm  hidden  < {' '.join(branch.ends)}"] if kind.post_norms else []
    ends = [f"{name}_post_norm"] if kind.post_norms else branch.ends
    read, last = "stream", f"{residual}  residual  hidden  < {' '.join(ends)} stream"
    weights: list[str] = []
    if kind.streams:
        read = f"{name}_stream"
        last = f"{residual}  stream_write  hidden > stream  < {' '.join(ends)} stream {name}_weights"
        weights = [f"{name}_weights  stream_weights  stream > stream_weights  < stream"]
        weights += [f"{read}  stream_read  stream > hidden  < {name}_weights stream"]
    rows = [*weights, f"{norm}  norm  hidden  < {read}", *branch.rows, *post_norm, last]
    return Block(name, "\n".join(rows), kind.sizes)


#: Layer of GPT and Llama, and its blocks.
DECODER: Final = layer_of(LayerKind())
BLOCKS: Final = DECODER.blocks


@cache
def mtp_layer(*layers: Layer) -> Layer:
    """The layer of a multi-token prediction module: a join, then the blocks of some layers."""
    join = STREAMS_JOIN if head_of(layers[-1].blocks) == STREAMS_HEAD else MTP_JOIN
    return Layer((join, *(block for layer in layers for block in layer.blocks)))


#: Layouts of an activation of (tokens, features): whole on every rank, split by tokens, split by features,
#: or as summands of the whole.
LAYOUTS: Final[tuple[TensorLayout, ...]] = ("replicated", "sequence", "column", "partial")

#: (layout held, layout needed) -> collective; absent pairs need none: the tensor is there, or is a slice.
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


#: Tensors that a module keeps. A checkpoint keeps its input and runs the whole module again. A discarded output is
#: computed again for its readers, from inputs that are kept anyway. Inputs of an offloaded module are kept by hosts.
Keeping = Literal["checkpoint", "output discarded", "offload"]


@dataclass(frozen=True, slots=True)
class LayerModule:
    """A part of a layer with a switch, one of Megatron-LM's `recompute_modules` or `offload_modules`."""

    name: str
    has: Callable[[Kernel], bool]  #: whether a row of a block is of it
    kind: Keeping = "offload"
    needs: Callable[[Kernel], bool] | None = None  #: whether a model needs a row for the switch; default: `has`
    pieces: tuple[str, ...] = ()  #: pieces of other rows' work that are of it too
    selective: bool = False  #: whether "selective" recomputation is of it

    @property
    def column(self) -> str:
        """The switch of a design that asks for it."""
        return f"{'offload' if self.kind == 'offload' else 'recompute'}_{self.name}"

    def frees(self, start: Kernel, end: Kernel) -> bool:
        """True if the input that a row keeps of the row before it is dropped; masks of dropouts are kept."""
        if end.kind.kept.input is kept_mask or not self.has(start):
            return False
        return self.kind == "output discarded" or self.has(end)


def _by_kind(name: str) -> Callable[[Kernel], bool]:
    return lambda kernel: name in kernel.kind.recompute_modules


def _by_features(*features: str) -> Callable[[Kernel], bool]:
    return lambda kernel: kernel.reads in features or kernel.makes in features


def is_layer_norm(kernel: Kernel) -> bool:
    """True of a norm of the residual stream."""
    return _by_kind("layernorm")(kernel) and kernel.inputs[0].endswith(STREAM) and kernel.reads == "hidden"


#: In the order of a design's columns. Collectives that run again follow from the rows: products gather their inputs
#: and reduce their outputs, cores exchange keys and values, dispatch and combine exchange tokens.
MODULES: Final = (
    LayerModule("core_attn", _by_kind("core_attn"), "checkpoint", selective=True),
    LayerModule("layernorm", is_layer_norm, "output discarded"),
    LayerModule(
        "mla_up_proj", lambda kernel: kernel.makes in ("queries", "keys_values"), "output discarded", pieces=("rotary",)
    ),
    LayerModule("moe_act", _by_kind("moe_act"), "output discarded"),
    LayerModule("mlp", _by_features("up", "ffn"), "checkpoint"),
    LayerModule("shared_experts", _by_features("shared_up", "shared_ffn", "unit"), "checkpoint"),
    LayerModule("moe", lambda kernel: _by_kind("moe")(kernel) or _by_features("expert_in")(kernel), "checkpoint"),
)
#: Features that rows of `qkv_linear` make: queries, keys and values, or the latents that they come from.
KEPT_OF_QKV: Final = ("qkv", "query_rank", "queries", "key_latent", "keys_values")
#: In the order of a design's columns. An attention core moves its output too, which its backward pass reads
#: (megatron/core/transformer/attention.py).
OFFLOAD_MODULES: Final = (
    LayerModule("attn_norm", lambda kernel: kernel.name == "attention_norm", needs=_by_features("key_latent")),
    LayerModule("qkv_linear", lambda kernel: kernel.makes in KEPT_OF_QKV),
    LayerModule("core_attn", lambda kernel: kernel.is_core),
    LayerModule("attn_proj", lambda kernel: kernel.reads == "attention" and kernel.megatron == "row"),
    LayerModule("mlp_norm", lambda kernel: kernel.name == "mlp_norm", needs=lambda kernel: kernel.of_experts),
    LayerModule("expert_fc1", lambda kernel: kernel.of_experts and kernel.reads == "expert_in"),
    LayerModule("moe_act", _by_kind("moe_act")),
    LayerModule("fused_group_mlp", lambda kernel: kernel.of_experts or _by_kind("moe_act")(kernel)),
)


def recompute_groups(kernels: Iterable[Kernel]) -> dict[tuple[LayerModule, ...], list[Kernel]]:
    """Modules -> rows that are of all of them and of no other: they run again once, if any of them does."""
    modules_of = ((tuple(module for module in MODULES if module.has(kernel)), kernel) for kernel in kernels)
    return grouped((modules, kernel) for modules, kernel in modules_of if modules)
