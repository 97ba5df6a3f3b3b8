"""The kernels of a layer, written down once as rows of blocks; and models as sequences of layers.

A row is a kernel: its name, its kind, the features of a token that it reads (`>` those that it makes), how
Megatron-LM splits its weight where it has one, and (after `<`) the kernels whose outputs it reads. Features
are words of `ModelShape.features`. `stream` is the residual stream, the output of the last kernel before the
block. Kernel tables, parameters, activations, shardings, collectives, and the graphs and rows that other
simulators read all follow from these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from typing import Final, Literal, NamedTuple

from costmodel.errors import DseError, suggestion
from costmodel.training.kernel_kind import BIASES, Kernel
from costmodel.training.kinds import KINDS, LINEAR_MIXERS

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
