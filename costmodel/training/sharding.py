"""How kernels of a layer are split over a tensor-parallel group: layouts of activations, and their changes.

A weight is always split, by columns or by rows, so that an assignment decides on time and activations
but not on the memory of parameters. The attention core is split by heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Layout = Literal["replicated", "sequence", "column", "partial"]

#: Layouts of an activation of (tokens, features): whole on every rank, split by tokens, split by features,
#: or as summands of the whole.
LAYOUTS: Final[tuple[Layout, ...]] = ("replicated", "sequence", "column", "partial")

#: (layout held, layout needed) -> collective; what is not here is there already, or a slice of what is.
TRANSITIONS: Final[Mapping[tuple[Layout, Layout], str]] = {
    ("sequence", "replicated"): "all_gather",
    ("column", "replicated"): "all_gather",
    ("sequence", "column"): "all_to_all",
    ("column", "sequence"): "all_to_all",
    ("partial", "replicated"): "all_reduce",
    ("partial", "sequence"): "reduce_scatter",
    ("partial", "column"): "reduce_scatter",
}


@dataclass(frozen=True, slots=True)
class Sharded:
    """Layouts around a kernel that is split in one way: of the forward pass, and of the gradients."""

    needs: Layout  #: of its input
    gives: Layout  #: of its output
    gradient_needs: Layout  #: of its output's gradient
    gradient_gives: Layout  #: of its input's gradient


#: Ways to split a kernel that treats each element, or each token, for itself.
_POINTWISE: Final[Mapping[str, Sharded]] = {
    layout: Sharded(layout, layout, layout, layout) for layout in ("replicated", "sequence", "column")
}
#: A norm needs all features of a token.
_NORM: Final = {name: _POINTWISE[name] for name in ("replicated", "sequence")}
#: Ways to split a product's weight of (k, n): the gradients are products with its transpose [Shoeybi2019]_.
_PRODUCT: Final[Mapping[str, Sharded]] = {
    "column": Sharded("replicated", "column", "column", "partial"),
    "row": Sharded("column", "partial", "replicated", "column"),
}

#: Kernel of a layer -> ways to split it. The order is that of the forward pass, and of the choice among
#: equally good assignments.
KERNELS: Final[Mapping[str, Mapping[str, Sharded]]] = {
    "attention_norm": _NORM,
    "qkv": _PRODUCT,
    "projection": _PRODUCT,
    "attention_residual": _POINTWISE,
    "mlp_norm": _NORM,
    "mlp_up": _PRODUCT,
    "activation": _POINTWISE,
    "mlp_down": _PRODUCT,
    "mlp_residual": _POINTWISE,
}
#: Kernels without a choice: the core is split by heads, the word table and the head by the vocabulary, and
#: the last norm as the activation that it gets, where a norm can be.
FIXED: Final[Mapping[str, Mapping[str, Sharded]]] = {
    "core": {"column": _POINTWISE["column"]},
    "embedding": {"row": Sharded("replicated", "partial", "replicated", "replicated")},
    "final_norm": _NORM,
    "head": {"column": _PRODUCT["column"]},
}


def ways_of(kernel: str) -> Mapping[str, Sharded]:
    """Ways to split a kernel; their places are the codes of a design's columns."""
    return KERNELS[kernel] if kernel in KERNELS else FIXED[kernel]


@dataclass(frozen=True, slots=True)
class Edge:
    """An activation on its way from a kernel to one that needs it."""

    start: str
    end: str
    width: str  #: features of the activation, as `widths` of the workload names them
    part: str = "layer"  #: of the model


#: Where an activation may change its layout. A layer follows another, so that its first edges start at the
#: end of the one before.
EDGES: Final = (
    Edge("mlp_residual", "attention_norm", "hidden"),
    Edge("mlp_residual", "attention_residual", "hidden"),
    Edge("attention_norm", "qkv", "hidden"),
    Edge("qkv", "core", "qkv"),
    Edge("core", "projection", "attention"),
    Edge("projection", "attention_residual", "hidden"),
    Edge("attention_residual", "mlp_norm", "hidden"),
    Edge("attention_residual", "mlp_residual", "hidden"),
    Edge("mlp_norm", "mlp_up", "hidden"),
    Edge("mlp_up", "activation", "up"),
    Edge("activation", "mlp_down", "ffn"),
    Edge("mlp_down", "mlp_residual", "hidden"),
    Edge("embedding", "mlp_residual", "hidden", "embedding"),
    Edge("mlp_residual", "final_norm", "hidden", "head"),
    Edge("final_norm", "head", "hidden", "head"),
)

_MEGATRON: Final = {
    "attention_norm": "replicated",
    "qkv": "column",
    "projection": "row",
    "attention_residual": "replicated",
    "mlp_norm": "replicated",
    "mlp_up": "column",
    "activation": "column",
    "mlp_down": "row",
    "mlp_residual": "replicated",
}
#: Named assignments: kernel -> its split [Shoeybi2019]_, [Korthikanti2022]_.
ASSIGNMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "megatron": _MEGATRON,
    "megatron_sp": {k: "sequence" if way == "replicated" else way for k, way in _MEGATRON.items()},
}

#: Ways to come by an assignment: one that has a name, the best in time or in bytes sent, or one that is told.
SHARDINGS: Final = (*ASSIGNMENTS, "solve", "solve_bytes", "sample")
