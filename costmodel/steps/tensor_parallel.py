"""What changes of layout cost within a tensor-parallel group: the collectives between kernels of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.kernels.collectives import RING, CollectiveCost, all_to_all, collective
from costmodel.kernels.work import Work, link_energy
from costmodel.machine.system import System
from costmodel.training.design import DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import Precision
from costmodel.training.ranks import Group
from costmodel.training.sharding import EDGES, LAYOUTS, TRANSITIONS, Edge, ways_of
from costmodel.workload.transformer import PRODUCTS, widths

#: Collectives by the codes of `_CHANGES`; 0 is none.
COLLECTIVES: Final = (None, "all_gather", "all_reduce", "reduce_scatter", "all_to_all")

#: Code of the collective from one layout to another, by their places in `LAYOUTS`.
_CHANGES: Final = np.array(
    [[COLLECTIVES.index(TRANSITIONS.get((held, needed))) for needed in LAYOUTS] for held in LAYOUTS]
)

#: Product and pass -> time of its kernel, (points,). [s]
ProductTime = Callable[[str, str], FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A collective of an edge, of the designs that need it."""

    name: str
    message_bytes: FloatArray  #: the whole tensor [B]
    happens: BoolArray
    hidden_by: tuple[str, str] | None = None  #: product and pass that run meanwhile


def changes(
    edge: Edge, model: ModelShape, design: DesignPoints, precision: Precision
) -> tuple[list[Change], list[Change]]:
    """Collectives of an edge in the forward and in the backward pass.

    Notes
    -----
    Going back through a product, the collective of its input's gradient runs while the weight gradient
    is computed. An input that was gathered is kept in shards, and gathered once more while the
    activation gradient is computed [Korthikanti2022]_.
    """
    message = design.micro_batch_size * model.seq_len * widths(model)[edge.width] * precision.element_bytes
    starts, ends = design.split(edge.start), design.split(edge.end)
    forward = _CHANGES[_layouts(edge.start, "gives")[starts], _layouts(edge.end, "needs")[ends]]
    gradient = _CHANGES[
        _layouts(edge.end, "gradient_gives")[ends], _layouts(edge.start, "gradient_needs")[starts]
    ]
    into_product = edge.end in PRODUCTS or edge.end == "head"
    back = list(_present(gradient, message, (edge.end, "weight_gradient") if into_product else None))
    if into_product:
        gathered = np.where(forward == COLLECTIVES.index("all_gather"), forward, 0)
        back += _present(gathered, message, (edge.end, "activation_gradient"))
    return list(_present(forward, message, None)), back


@cache
def _layouts(kernel: str, side: str) -> IntArray:
    """Places in `LAYOUTS` of one side of a kernel, by its ways. [-]"""
    return np.array([LAYOUTS.index(getattr(way, side)) for way in ways_of(kernel).values()])


def _present(codes: IntArray, message: FloatArray, hidden_by: tuple[str, str] | None) -> Iterator[Change]:
    """The collectives among some codes."""
    if codes.any():
        for code, name in enumerate(COLLECTIVES):
            if name is not None and (codes == code).any():
                yield Change(name, message, codes == code, hidden_by)


def tensor_parallel(
    part: str,
    model: ModelShape,
    design: DesignPoints,
    system: System,
    precision: Precision,
    product_time: ProductTime,
) -> tuple[Work, Work]:
    """Exposed collectives of a part of the model, in the forward and in the backward pass.

    Parameters
    ----------
    part : str
        "layer", "embedding" or "head".
    model, design, system, precision
        What is run, laid out how, on what, in which number format.
    product_time : callable
        Product, pass -> time of its kernel, (points,), which collectives may hide behind. [s]

    Returns
    -------
    forward, backward : Work
        (points,) columns. [s], [J]
    """
    forward, backward = Work(), Work()
    for edge in EDGES:
        if edge.part == part:
            both = edge_work(edge, model, design, system, precision, product_time)
            forward, backward = forward + both[0], backward + both[1]
    return forward, backward


def edge_work(
    edge: Edge,
    model: ModelShape,
    design: DesignPoints,
    system: System,
    precision: Precision,
    product_time: ProductTime,
) -> tuple[Work, Work]:
    """Exposed collectives of one edge; parameters and result are those of `tensor_parallel`."""
    passes = []
    for found in changes(edge, model, design, precision):
        work = Work()
        for change in found:
            hidden = product_time(*change.hidden_by) if change.hidden_by else 0.0
            work += exposed(change, hidden, design, system)
        passes.append(work)
    return passes[0], passes[1]


def exposed(change: Change, hidden_time: FloatArray | float, design: DesignPoints, system: System) -> Work:
    """What of a collective is not hidden behind kernels, and what it takes from their cores."""
    cost = exchange(change.name, change.message_bytes, design.tp, system)
    share = np.where(change.happens & (design.tp > 1), 1.0, 0.0)
    overlapped = np.minimum(cost.time, hidden_time)
    taken = overlapped * system.chip.collective_cores / system.chip.cores
    return Work(
        tp_time=share * (cost.time - overlapped + taken),
        link_energy=share * link_energy(cost.bytes_sent, system),
        launches=share,
    )


def exchange(name: str, message_bytes: FloatArray, tp: FloatArray, system: System) -> CollectiveCost:
    """A collective of a tensor-parallel group of neighbours; the message is the whole tensor."""
    group = Group.of_neighbours(tp)
    if name == "all_to_all":
        return all_to_all(message_bytes / tp, group, system.network)
    return collective(name, message_bytes, group, system.network)


def sent_bytes(
    edge: Edge, model: ModelShape, design: DesignPoints, precision: Precision
) -> tuple[FloatArray, FloatArray]:
    """Bytes that a rank sends because of an edge, in the forward and in the backward pass. [B]"""
    passes = []
    for found in changes(edge, model, design, precision):
        sent = np.zeros(np.shape(design.tp))
        for change in found:
            share = (design.tp - 1) / design.tp**2  # of an exchange in which each keeps what is its own
            if change.name != "all_to_all":
                share = RING[change.name](design.tp)[1]
            sent = sent + np.where(change.happens, share * change.message_bytes, 0.0)
        passes.append(sent)
    return passes[0], passes[1]
