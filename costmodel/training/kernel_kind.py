"""The kind of a kernel, as a record: every question that the model asks of the kernels of one kind.

A kind, such as a linear layer or a norm, answers with functions of a rank's sizes: its products, its passes without
reuse, the bytes that it keeps, its weight, its exchanges. No formula compares kinds: a new kind is a new record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from costmodel.columns import FloatArray
from costmodel.training.dimensions import ModelDimensions, Sizes

#: Passes over a layer. `activation_gradient` and `weight_gradient` make up the backward pass.
PASSES: Final = ("forward", "activation_gradient", "weight_gradient")

#: Layouts of an activation of (tokens, features): whole on every rank, split by tokens, split by features,
#: or as summands of the whole.
TensorLayout = Literal["replicated", "sequence", "column", "partial"]

#: (m, n, k) of a product C[m, n] += A[m, k] B[k, n]. [elements]
Dimensions = tuple[FloatArray | float, FloatArray | float, FloatArray | float]

#: Sizes of a micro-batch on a rank, which functions of kinds read; a `RankRun` has them.
RankSizes: TypeAlias = Any

#: Model fields that say whether products have biases, as rows name them.
BIASES: Final = ("qkv_bias", "out_bias", "mlp_bias")


@dataclass(frozen=True, slots=True)
class OperatorSharding:
    """Layouts around a kernel with one sharding: of the forward pass, and of the gradients."""

    needs: TensorLayout  #: of its input
    gives: TensorLayout  #: of its output
    gradient_needs: TensorLayout  #: of its output's gradient
    gradient_gives: TensorLayout  #: of its input's gradient


@dataclass(frozen=True, slots=True)
class Matrix:
    """The weight that a kernel multiplies by."""

    split: bool  #: over a tensor-parallel group, by columns or by rows; else every rank holds it whole
    of_experts: bool  #: each expert has one, on the ranks of its expert-parallel group
    biased: bool  #: whether it has a bias, in models with biases
    narrow: bool  #: whether it multiplies in the format of a design; else in 16 bits
    model_flops: bool  #: whether model FLOPs count it: those of routers are left out, as in Megatron-LM
    grouped: bool = False  #: whether each of `o_groups` groups of inputs makes outputs of a group


@dataclass(frozen=True, slots=True)
class Core:
    """An attention core: each head for itself, its scores on chip where it is fused."""

    windowed: bool  #: whether queries see the keys of a window alone
    indexed: bool = False  #: whether queries see only the keys that an indexer picks
    compressed: bool = False  #: whether queries also see keys that are made from several tokens each
    head_multiple: float = 0.0  #: fused kernels pad a rank's heads to a multiple of it; 0: they do not
    #: Dimensions with which kernels run it, where these differ from the model's.
    sizes: Callable[[ModelDimensions], Sizes] | None = None


class MatrixProduct(NamedTuple):
    """Matrix products of a kernel on one rank, all alike."""

    name: str
    size: Dimensions
    batch: FloatArray | float  #: products of one launch [-]
    launches: FloatArray | float
    trained_columns: FloatArray | float | None = None  #: with gradients; None: all, 0: none


class PointwisePass(NamedTuple):
    """A pass of a kernel without reuse over its elements on one rank."""

    name: str
    of_pass: str
    elements: FloatArray
    tensors: float  #: read and written, in elements of operands
    more: FloatArray | float  #: further bytes for each element [B]
    flops: float  #: for each element [FLOP]
    launches: FloatArray | float
    in_core: bool = False  #: of an attention core, which selective recomputation repeats
    sorts: bool = False  #: whether rows come in another order


class KeptBytes(NamedTuple):
    """Bytes that a kernel keeps for its backward pass, on all ranks of a tensor-parallel group. [B]"""

    input: Callable[[RankSizes, Kernel], FloatArray]  #: of the activation that it reads
    #: of tensors that it computes inside, without attention scores
    inside: Callable[[RankSizes, Kernel], FloatArray] | None


class Exchanged(NamedTuple):
    """Exchanges between ranks for a kernel, changes of layout in tensor parallelism aside."""

    #: Features of a token's keys and values, which all ranks of a shared sequence need. [elements]
    keys_values: Callable[[ModelDimensions], float] | None
    #: Bytes of a sequence's state over all heads, which a rank passes to the next; given bytes of an element.
    state: Callable[[ModelDimensions, float], float] | None
    #: Whether tokens go to the ranks of their experts, and results come back.
    tokens: bool
    whole: bool = False  #: whether each tensor-parallel rank needs keys and values of all heads


@dataclass(frozen=True, kw_only=True)
class KernelKind:
    """All that the model asks of the kernels of one kind; kinds differ by their names.

    Functions take the dimensions of a model, or the sizes that a rank has of a micro-batch, and the kernel.
    """

    name: str
    about: str = field(compare=False)  #: description in one line
    layer_word: str = field(compare=False)  #: name of layers with the kernel; "" where all layers have it
    shardings: Mapping[str, OperatorSharding] = field(compare=False)  #: places are the codes of a design's columns
    #: The dimension that Megatron-LM splits: "tokens", "features", or its "weight"; "" where there is no choice.
    usual_split: Literal["tokens", "features", "weight", ""] = field(compare=False)
    matrix: Matrix | None = field(compare=False)  #: the weight that it multiplies by
    product_names: tuple[str, ...] = field(compare=False)  #: of its products; "" stands for its own name
    products: Callable[[RankSizes, Kernel], Iterator[MatrixProduct]] = field(compare=False)
    pointwise: PointwiseWork = field(compare=False)
    #: Parameters beyond matrix and bias. [-]
    parameters: Callable[[ModelDimensions, Kernel], float] = field(compare=False)
    #: Multiply-adds of one token beyond the matrix: with the keys that it sees if causal, or with all. [-]
    multiply_adds: Callable[[ModelDimensions, Kernel, bool], float] = field(compare=False)
    core: Core | None = field(compare=False)  #: core of fused kernels
    kept: KeptBytes = field(compare=False)
    exchanged: Exchanged = field(compare=False)
    #: Modules of Megatron-LM's `recompute_modules` that contain it, with any input and output.
    recompute_modules: tuple[str, ...] = field(compare=False)
    software: tuple[str, ...] = field(compare=False)  #: frameworks and reference models with kernels of the kind


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of a block."""

    name: str
    kind: KernelKind
    reads: str  #: features of its input
    makes: str  #: features of its output
    megatron: str  #: how Megatron-LM splits its weight, "column" or "row"; "" where it has none
    inputs: tuple[str, ...]  #: kernels whose outputs it reads
    bias: str = ""  #: one of `BIASES`: the field of a model that says whether it has one
    sizes: Sizes = ()  #: dimensions of its layers that differ from the model's

    @property
    def products(self) -> tuple[str, ...]:
        """Names of the matrix products that it consists of."""
        return tuple(name or self.name for name in self.kind.product_names)

    @property
    def is_core(self) -> bool:
        """True of attention cores."""
        return self.kind.core is not None

    @property
    def is_windowed(self) -> bool:
        """True of attention cores whose queries see only the keys of a window."""
        return self.kind.core is not None and self.kind.core.windowed

    @property
    def splits_weight(self) -> bool:
        """True if tensor parallelism splits a weight of the kernel, by columns or by rows."""
        return self.kind.matrix is not None and self.kind.matrix.split

    @property
    def of_experts(self) -> bool:
        """True if the weights are those of experts."""
        return self.kind.matrix is not None and self.kind.matrix.of_experts

    @property
    def is_whole(self) -> bool:
        """True if each rank of a group may have all parameters of the kernel."""
        return "replicated" in self.kind.shardings


#: Passes of a kernel without reuse, forward and backward.
PointwiseWork = Callable[[RankSizes, Kernel], Iterator[PointwisePass]]
