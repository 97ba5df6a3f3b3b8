"""Collectives that an edge between two kernels needs: changes from one layout of a tensor to another.

Each kernel is split over the ranks of a tensor-parallel group by one of its shardings. The sharding fixes the layout
of the activation that the kernel needs and of the one that it gives: whole on every rank, split by tokens or by
features, or as summands (`costmodel.training.sharding`). Where the layouts at the ends of an edge differ, a collective
changes one into the other: forward for the activation, backward for its gradient. For example, in Megatron-LM's
sequence parallelism [Korthikanti2022]_ a norm gives tokens that are split, and the product behind it needs all of
them. The edge needs an all-gather forward, a reduce-scatter of the gradient backward, and another all-gather, since
ranks keep their shards of the input. Each of the three sends (t - 1) / t of 2 s b h bytes on a group of t ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.kernels.collectives import RING
from costmodel.training.blocks import Edge
from costmodel.training.kernel_kind import KernelKind
from costmodel.training.run import RankRun
from costmodel.training.sharding import LAYOUTS, TRANSITIONS

#: Collectives by their codes; 0 is none.
COLLECTIVES: Final = (None, "all_gather", "all_reduce", "reduce_scatter", "all_to_all")
#: Code of the collective from one layout to another, by their places in `LAYOUTS`; (held, needed).
_CODES: Final = np.array([[COLLECTIVES.index(TRANSITIONS.get((a, b))) for b in LAYOUTS] for a in LAYOUTS])


#: Names of kernels of a block, and one pass over them.
KernelsOfPass = tuple[tuple[str, ...], str]
NOTHING: Final[KernelsOfPass] = ((), "")
#: Collective that a product can run in pieces beside -> number of pieces; 0: one for each rank [Wang2023]_.
PIECES: Final = {"all_gather": 0.0, "reduce_scatter": 4.0}


@dataclass(frozen=True, slots=True, eq=False)
class LayoutChange:
    """A collective of an edge, in the designs that need it."""

    name: str
    features: str  #: width of the tensor, a word of `ModelShape.features`
    happens: BoolArray
    hidden_by: KernelsOfPass  #: kernels that run meanwhile
    in_pieces: KernelsOfPass  #: the product that may run in pieces meanwhile


def layout_changes(run: RankRun, edge: Edge) -> tuple[list[LayoutChange], list[LayoutChange]]:
    """Collectives of an edge in the forward and in the backward pass.

    A collective that several edges share counts for the first of them. Products keep shards of a gathered input, and
    gather it again beside the activation gradient [Korthikanti2022]_.
    """
    activation, gradient = _codes(run, edge)
    for other in edge.sharing:
        shared = _codes(run, other)
        activation = np.where(activation == shared[0], 0, activation)
        gradient = np.where(gradient == shared[1], 0, gradient)
    start, end, features = (edge.start.name,), (edge.end.name,), edge.end.reads

    def present(codes: IntArray, hidden_by: KernelsOfPass, in_pieces: KernelsOfPass) -> Iterator[LayoutChange]:
        for code in np.flatnonzero(np.bincount(codes.ravel())).tolist():
            if (name := COLLECTIVES[code]) is not None:
                yield LayoutChange(name, features, codes == code, hidden_by, in_pieces if name in PIECES else NOTHING)

    if edge.end.splits_weight:
        again = np.where(activation == COLLECTIVES.index("all_gather"), activation, 0)
        backward = chain(
            present(gradient, (end, "weight_gradient"), NOTHING), present(again, (end, "activation_gradient"), NOTHING)
        )
        return [*present(activation, NOTHING, (end, "forward"))], [*backward]
    passes = ("forward", "activation_gradient")
    products = [(start, of_pass) if edge.start.splits_weight else NOTHING for of_pass in passes]
    return [*present(activation, NOTHING, products[0])], [*present(gradient, NOTHING, products[1])]


def _codes(run: RankRun, edge: Edge) -> tuple[IntArray, IntArray]:
    """Codes of the collectives of an edge, of its activation and of the gradient; (points,) each."""
    start, end = edge.start, edge.end
    starts, ends = run.design.place(start), run.design.place(end)
    activation = _CODES[_layouts(start.kind, "gives")[starts], _layouts(end.kind, "needs")[ends]]
    gradient = _CODES[_layouts(end.kind, "gradient_gives")[ends], _layouts(start.kind, "gradient_needs")[starts]]
    return activation, gradient


@cache
def _layouts(kind: KernelKind, side: str) -> IntArray:
    """Places in `LAYOUTS` of one side of a kind of kernel, by its options. [-]"""
    return np.array([LAYOUTS.index(getattr(option, side)) for option in kind.shardings.values()])


def sent_bytes(run: RankRun, edge: Edge) -> tuple[FloatArray, FloatArray]:
    """Bytes that a rank sends because of an edge, in the forward and in the backward pass. [B]"""
    tp, message = run.design.tp, run.activation_bytes(edge.end.reads)
    shares = {name: sent_of(tp)[1] for name, sent_of in RING.items()}
    shares["all_to_all"] = (tp - 1) / tp**2  # each rank keeps its own share of its share
    forward, backward = (
        sum((np.where(change.happens, shares[change.name] * message, 0.0) for change in changes), np.zeros(tp.shape))
        for changes in layout_changes(run, edge)
    )
    return forward, backward
