"""What a layer computes, written down once: kernels as rows of blocks, and models as sequences of layers.

A row is a kernel: its name, its kind, the features of a token that it reads (`>` those that it makes), how
Megatron-LM splits its weight where it has one, and (after `<`) the kernels whose outputs it reads. Features
are words of `ModelShape.features`. `stream` is the residual stream, the output of the last kernel before the
block. Kernel tables, parameters, activations, shardings, collectives, and the graphs and rows that other
simulators read all follow from these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

STREAM: Final = "stream"

#: Matrix products of an attention core: of queries with keys, and of their softmax with values.
ATTENTION_PRODUCTS: Final = ("scores", "context")


#: Kind of kernel -> what it is.
KINDS: Final = {
    "norm": "layer norm or RMS norm, over all features of a token",
    "product": "matrix product with a weight, and a bias in models with biases",
    "latent": "matrix product with a weight that every rank holds whole, since it is small",
    "attention": "the attention core: rotation, scores, softmax, context; each head for itself",
    "window": "an attention core in which a query sees the keys of a window alone",
    "delta_net": "the core of a gated delta net: convolution, recurrence over chunks, norm and gate of heads",
    "activation": "activation function, element by element; of gated MLPs the gate too",
    "residual": "dropout, and the addition to the residual stream",
    "router": "scores of the experts for each token in fp32, and the choice among them",
    "dispatch": "tokens sorted by expert, and sent to the ranks that hold theirs",
    "experts": "matrix products of each expert with the tokens that chose it, in one launch",
    "expert_activation": "activation function of the experts",
    "combine": "results sent back, and added up for each token",
    "lookup": "look-up of the word table, split by the vocabulary, and dropout",
    "loss": "cross entropy over the vocabulary",
}
#: Kinds that are attention cores; and those whose kernels work on the copies of tokens that experts receive.
CORES: Final = ("attention", "window")
OF_EXPERTS: Final = ("experts", "expert_activation")
#: Kinds that multiply by weights.
WEIGHTED: Final = ("product", "latent", "router", "experts")
#: Model fields that say whether products have biases, as rows name them.
BIASES: Final = ("qkv_bias", "out_bias", "mlp_bias")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of a block."""

    name: str
    kind: str  #: a key of `KINDS`
    reads: str  #: features of its input
    makes: str  #: features of its output
    megatron: str  #: how Megatron-LM splits its weight, "column" or "row"; "" where it has none
    inputs: tuple[str, ...]  #: kernels whose outputs it reads
    bias: str = ""  #: one of `BIASES`: the field of a model that says whether it has one

    @property
    def is_core(self) -> bool:
        """Whether it is an attention core."""
        return self.kind in CORES

    @property
    def products(self) -> tuple[str, ...]:
        """Names of the matrix products that it consists of."""
        if self.is_core:
            return ATTENTION_PRODUCTS
        return (self.name,) if self.kind in (*WEIGHTED, "delta_net") else ()


@dataclass(frozen=True, slots=True)
class Edge:
    """An activation on its way from a kernel to one that reads it."""

    start: Kernel
    end: Kernel
    #: Edges before it that share its collectives: products that read one activation gather it once, and those
    #: whose results one kernel adds up are added up before.
    twins: tuple[Edge, ...] = field(default=(), compare=False)

    def is_twin(self, other: Edge) -> bool:
        """Whether another edge may share its collectives."""
        products = (
            self.end.kind == other.end.kind == "product",
            self.start.kind == other.start.kind == "product",
        )
        return (self.start == other.start and products[0]) or (self.end == other.end and products[1])


@dataclass(frozen=True)
class Block:
    """Kernels that belong together, in the order of the forward pass."""

    name: str
    rows: str  #: a line a kernel, as this module's text says

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The rows, read."""
        return tuple(_kernel(line) for line in self.rows.strip().splitlines())

    def edges(self, stream: Kernel) -> Iterator[Edge]:
        """What its kernels read, the residual stream first, which is what a kernel before it makes."""
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
    return Kernel(name, kind, words[0], words[-1], megatron, tuple(inputs.split()), bias)


@dataclass(frozen=True)
class Layer:
    """A kind of layer: blocks one after the other."""

    blocks: tuple[Block, ...]

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernels of all blocks."""
        return tuple(kernel for block in self.blocks for kernel in block.kernels)

    @property
    def stream(self) -> Kernel:
        """The kernel that makes the residual stream as the layer leaves it."""
        return self.kernels[-1]

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Edges of all blocks. A layer follows one like it, so that its first edges start at its own end."""
        ends = [block.kernels[-1] for block in self.blocks]
        found: list[Edge] = []
        for block, stream in zip(self.blocks, [ends[-1], *ends[:-1]], strict=True):
            for edge in block.edges(stream):
                found.append(replace(edge, twins=tuple(other for other in found if edge.is_twin(other))))
        return tuple(found)

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
    return [kind for kind in dict.fromkeys(every) if kind not in known]
