"""The sharding of a graph as a design has it, and what of a design its file cannot say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, IntArray
from costmodel.profiles.dfmodel.graph import NONE, OUTER, SHARDINGS, Graph, K, M, N
from costmodel.profiles.dfmodel.sharding import SPLIT_FIRST, options
from costmodel.training.design import RECOMPUTE_NONE, TILES_TOLD, DesignPoints

#: Kernel of the native model -> kernels of the graph that do its work.
VECTORS: Final[Mapping[str, tuple[str, ...]]] = {
    "attention_norm": ("LayerNorm_1",),
    "attention_residual": ("DropOut_2", "Add_1", "DropOut_2_bwd"),
    "mlp_norm": ("LayerNorm_2", "LayerNorm_2_bwd"),
    "mlp_residual": ("Add_Prev_Layer", "DropOut_3", "Add_2", "Loss_bwd", "DropOut_3_bwd"),
    "activation": ("GeLU", "GeLU_bwd", "SwiGLU", "SwiGLU_bwd"),
}
#: The same for products with a weight; their gradients have the same names with an ending.
PRODUCTS: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv": ("Q", "K", "V"),
    "projection": ("PROJ_GEMM",),
    "mlp_up": ("FFN0",),
    "mlp_down": ("FFN1",),
}
#: Word of a vector kernel -> dimension of its tensors, which are features (m) by tokens (n).
_VECTOR_CODES: Final = {"replicated": NONE, "sequence": N, "column": M}
#: Ending of a product's name -> word -> dimension: a weight's columns make features, its rows are summed
#: over; the gradient of the input turns both round, and that of the weight is inputs (m) by outputs (n).
_PRODUCT_CODES: Final[Mapping[str, Mapping[str, int]]] = {
    "": {"column": M, "row": K},
    "_bwd": {"column": K, "row": M},
    "_bwd_weight_update": {"column": N, "row": M},
}

#: What a design column says that a file cannot, and the rows of which that is true.
_UNSAID: Final[tuple[tuple[Callable[[DesignPoints], BoolArray], str], ...]] = (
    (lambda d: d.recompute != RECOMPUTE_NONE, "recompute (the graph has each kernel once)"),
    (lambda d: d.vpp > 1, "vpp (the format has a rule of its own for chunks of a stage)"),
    (lambda d: d.distributed_optimizer > 0, "distributed_optimizer (gradients are summed whole)"),
    (lambda d: d.overlap_grad_reduce > 0, "overlap_grad_reduce (gradients are summed with each micro-batch)"),
    (lambda d: d.tiling == TILES_TOLD, "tiling (tiles are of tokens, alike for all kernels)"),
    (lambda d: d.attention > 0, "attention=fused (scores are kernels of their own)"),
)


def design_sharding(graph: Graph, splits: Mapping[str, str]) -> IntArray:
    """The sharding that says how the native model's kernels are split, or the nearest that is legal.

    Parameters
    ----------
    graph : Graph
        A layer.
    splits : mapping
        Native kernel -> "replicated", "sequence" or "column" for those of `VECTORS`, "column" or "row" for
        those of `PRODUCTS`, as `DesignPoints.ways` tells.

    Returns
    -------
    sharding : (kernels,) array of int
        Dimension that each kernel is split by. [code]

    Notes
    -----
    Attention is split by heads. What streams in tiles cannot be split: a kernel that shares out tokens is
    written whole, and its collective as one all-reduce, which moves as much as the two halves that a
    sharing of tokens has.
    """
    asked = _asked(graph, splits)
    return np.array([_legal(graph, place, asked.get(place)) for place in range(len(graph))])


def unsaid_splits(graph: Graph, splits: Mapping[str, str]) -> Iterator[str]:
    """Kernels whose split the graph cannot have, and what it has."""
    asked, written = _asked(graph, splits), design_sharding(graph, splits)
    wrong: dict[tuple[str, str], list[str]] = {}
    for native, word in splits.items():
        place = next(iter(_places(graph, native).values()))
        found = int(written[place])
        if found != asked[place] and not (asked[place] == M and found == OUTER):  # heads are columns
            wrong.setdefault((word, SHARDINGS[found]), []).append(native)
    for (word, split), names in wrong.items():
        yield f"{', '.join(names)}: {word} cannot be said; split by {split}"


def unsaid_columns(design: DesignPoints, point: int) -> Iterator[str]:
    """Columns of one design that a file leaves out, of whatever generation."""
    left_out = [words for told, words in _UNSAID if np.ravel(told(design))[point]]
    if left_out:
        yield f"left out: {', '.join(left_out)}"


def _asked(graph: Graph, splits: Mapping[str, str]) -> dict[int, int]:
    """Place of a kernel -> the code that a split asks for."""
    asked = {}
    for native, word in splits.items():
        for name, place in _places(graph, native).items():
            ending = name[name.find("_bwd") :] if "_bwd" in name else ""
            codes = _VECTOR_CODES if native in VECTORS else _PRODUCT_CODES[ending]
            asked[place] = codes[word]
    return asked


def _places(graph: Graph, native: str) -> dict[str, int]:
    """Kernels of a graph that do the work of a native kernel, and their places."""
    names = VECTORS.get(native) or [
        name + ending for name in PRODUCTS[native] for ending in ("", "_bwd", "_bwd_weight_update")
    ]
    return {name: graph.names.index(name) for name in names if name in graph.names}


def _legal(graph: Graph, place: int, asked: int | None) -> int:
    """What is asked for where it is legal; else whole, or what splits the work."""
    legal = options(graph, place)
    if asked in legal:
        return int(asked)
    return NONE if asked is not None and NONE in legal else min(legal, key=SPLIT_FIRST.index)
