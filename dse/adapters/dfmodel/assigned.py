"""The sharding of a graph as a design has it, and what of a design its file cannot say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, IntArray
from costmodel.training.blocks import Layer
from costmodel.training.design import EXPLICIT_TILES, RECOMPUTE_NONE, DesignPoints
from costmodel.training.kernel_kind import Kernel
from dse.adapters.dfmodel import graph as codes
from dse.adapters.dfmodel.graph import DfmodelGraph, options
from dse.adapters.dfmodel.layer import BEFORE, LOSS, fragment

#: Where the name of a gradient's kernel begins to differ from that of its kernel.
GRADIENT: Final = "_bwd"

#: Word of a vector kernel -> dimension of its tensors, which are features (m) by tokens (n).
_VECTOR_CODES: Final = {"replicated": codes.NONE, "sequence": codes.N, "column": codes.M}
#: Ending of a product's name -> word -> dimension: a weight's columns make features, its rows are summed
#: over; the gradient of the input turns both round, and that of the weight is inputs (m) by outputs (n).
_PRODUCT_CODES: Final[Mapping[str, Mapping[str, int]]] = {
    "": {"column": codes.M, "row": codes.K},
    "_bwd": {"column": codes.K, "row": codes.M},
    "_bwd_weight_update": {"column": codes.N, "row": codes.M},
}

#: What a design column says that a file cannot, and the rows of which that is true.
_UNSUPPORTED: Final[tuple[tuple[Callable[[DesignPoints], BoolArray], str], ...]] = (
    (lambda d: d.recompute != RECOMPUTE_NONE, "recompute (the graph has each kernel once)"),
    (lambda d: d.recomputed_modules > 0, "recompute_<module> (the graph has each kernel once)"),
    (lambda d: d.cp > 1, "cp (a sequence is whole on every rank)"),
    (lambda d: d.vpp > 1, "vpp (the format has a rule of its own for chunks of a stage)"),
    (lambda d: d.zero > 0, "distributed_optimizer (gradients are summed whole)"),
    (lambda d: d.overlap_grad_reduce > 0, "overlap_grad_reduce (gradients are summed with each micro-batch)"),
    (lambda d: d.tiling == EXPLICIT_TILES, "tiling (tiles are of tokens, alike for all kernels)"),
    (lambda d: d.attention > 0, "attention=fused (scores are kernels of their own)"),
)


def rows_of(graph: DfmodelGraph, layer: Layer) -> list[Kernel]:
    """For each kernel of a graph the row of the layer whose work it does."""
    rows = {line.split()[0]: layer.stream for line in (BEFORE, LOSS.replace(GRADIENT, ""))}
    for kernel in layer.kernels:
        rows[kernel.name] = kernel
        lines = fragment(kernel).forward.kernels.strip().splitlines()
        rows |= {line.split()[0]: kernel for line in lines}
    own = (name.split(GRADIENT)[0].replace("SwiGLU", "GeLU") for name in graph.names)
    return [rows[name] for name in own]


def design_sharding(graph: DfmodelGraph, layer: Layer, shardings: Mapping[str, str]) -> IntArray:
    """The dimension that each kernel is split by as in the native model, or the nearest legal one, (kernels,). [code]

    `shardings` maps rows of the layer to "replicated", "sequence" or "column", and to "column" or "row" for products.

    Attention is split by heads. What streams in tiles cannot be split: a kernel that shares out tokens is written
    whole, and its collective as one all-reduce, which moves as much as the two halves that a sharing of tokens has.
    """
    asked = _asked(graph, layer, shardings)
    return np.array([_legal(graph, place, asked.get(place)) for place in range(len(graph))])


def unsupported_shardings(graph: DfmodelGraph, layer: Layer, shardings: Mapping[str, str]) -> Iterator[str]:
    """Rows whose split the graph cannot have, and what it has."""
    asked, written = _asked(graph, layer, shardings), design_sharding(graph, layer, shardings)
    rows = [row.name for row in rows_of(graph, layer)]
    wrong: dict[tuple[str, str], list[str]] = {}
    for name, word in shardings.items():
        place = rows.index(name)
        found = int(written[place])
        by_heads = asked[place] == codes.M and found == codes.OUTER  # heads are columns
        if found != asked[place] and not by_heads:
            wrong.setdefault((word, codes.SHARDINGS[found]), []).append(name)
    for (word, split), names in wrong.items():
        yield f"{', '.join(names)}: {word} cannot be said; split by {split}"


def unsupported_columns(design: DesignPoints, point: int) -> Iterator[str]:
    """Columns of one design that a file leaves out, of whatever generation."""
    left_out = [words for there, words in _UNSUPPORTED if np.ravel(there(design))[point]]
    if left_out:
        yield f"left out: {', '.join(left_out)}"


def _asked(graph: DfmodelGraph, layer: Layer, shardings: Mapping[str, str]) -> dict[int, int]:
    """Place of a kernel -> the code that a split asks for."""
    asked = {}
    for place, (name, row) in enumerate(zip(graph.names, rows_of(graph, layer), strict=True)):
        if row.name in shardings:
            _, gradient, ending = name.partition(GRADIENT)
            codes = _PRODUCT_CODES[gradient + ending] if row.splits_weight else _VECTOR_CODES
            asked[place] = codes[shardings[row.name]]
    return asked


def _legal(graph: DfmodelGraph, place: int, asked: int | None) -> int:
    """The requested option where it is legal; otherwise unsharded, or the option that splits the work."""
    legal = options(graph, place)
    if asked in legal:
        return int(asked)
    whole = asked is not None and codes.NONE in legal
    return codes.NONE if whole else min(legal, key=codes.SPLIT_FIRST.index)
