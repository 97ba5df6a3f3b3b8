"""Collectives between the kernels of a tensor-parallel group, and the part of them that no kernel hides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import Final

import numpy as np

from costmodel.columns import EACH_ITS_OWN, BoolArray, FloatArray, IntArray, UniqueRows
from costmodel.kernels.collectives import RING, CollectiveCost, all_to_all, collective, exposed_time, input_bytes
from costmodel.kernels.items import Item, Items, labelled, quantities_of
from costmodel.kernels.kernel_cost import KernelCost, traffic_energy
from costmodel.machine.system import System
from costmodel.steps.micro_batch.expert_parallel import expert_parallel
from costmodel.training.blocks import Edge
from costmodel.training.design import CHUNKED, NO_OVERLAP
from costmodel.training.kernel_kind import KernelKind
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun
from costmodel.training.sharding import LAYOUTS, TRANSITIONS

#: Collectives by the codes of `_CHANGES`; 0 is none.
COLLECTIVES: Final = (None, "all_gather", "all_reduce", "reduce_scatter", "all_to_all")

#: Code of the collective from one layout to another, by their places in `LAYOUTS`.
_CHANGES: Final = np.array(
    [[COLLECTIVES.index(TRANSITIONS.get((held, needed))) for needed in LAYOUTS] for held in LAYOUTS]
)

#: Rows of blocks, and one pass over them.
KernelsOfPass = tuple[tuple[str, ...], str]
NOTHING: Final[KernelsOfPass] = ((), "")

#: Collective -> pieces that a product beside it is cut into, where not one for each rank.
PIECES: Final = {"reduce_scatter": 4.0}

#: Share of a collective that pieces of a product hide, over the share that they could: copies and pieces slow
#: each other down. Seconds that asynchronous tensor parallelism saved in Llama 3 8B with tp=8 on 64 H100s,
#: over those that it could (torchtitan, benchmarks/asyncTP_llama3_h100_2025-06): 0.69 in bf16, 0.61 in fp8.
HIDDEN_BY_PIECES: Final = 0.65

#: Collectives that products beside them may run in pieces for.
IN_PIECES: Final = ("all_gather", "reduce_scatter")

#: Kernels and pass -> their time, (points,). [s]
KernelsTime = Callable[[tuple[str, ...], str], FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class LayoutChange:
    """A collective of an edge, of the designs that need it."""

    name: str
    features: str  #: width of the tensor, a word of `ModelShape.features`
    message_bytes: FloatArray  #: the whole of it [B]
    happens: BoolArray
    hidden_by: KernelsOfPass = NOTHING  #: what runs meanwhile
    cut_by: KernelsOfPass = NOTHING  #: the product that may run in pieces meanwhile


def layout_changes(run: RankRun, edge: Edge) -> tuple[list[LayoutChange], list[LayoutChange]]:
    """Collectives of an edge in the forward and in the backward pass.

    Notes
    -----
    A collective that several edges share counts for the first of them. In the backward pass of a product, the
    collective of the input's gradient runs beside the weight gradient. A gathered input is kept in shards and
    gathered again beside the activation gradient [Korthikanti2022]_. A product can run in pieces beside the
    gather of its input or the scatter of its output [Wang2023]_.
    """
    start, end = edge.start, edge.end
    message = end.reads, run.activation_bytes(end.reads)
    forward, gradient = _collectives(run, edge)
    for other in edge.sharing:
        shared = _collectives(run, other)
        forward = np.where(forward == shared[0], 0, forward)
        gradient = np.where(gradient == shared[1], 0, gradient)
    made = ((start.name,), "forward") if start.splits_weight else NOTHING
    if not end.splits_weight:
        read = ((start.name,), "activation_gradient") if start.splits_weight else NOTHING
        return list(_present(forward, message, cut_by=made)), list(_present(gradient, message, cut_by=read))
    gathered = np.where(forward == COLLECTIVES.index("all_gather"), forward, 0)
    back = [
        *_present(gradient, message, ((end.name,), "weight_gradient")),
        *_present(gathered, message, ((end.name,), "activation_gradient")),
    ]
    return list(_present(forward, message, cut_by=((end.name,), "forward"))), back


def _collectives(run: RankRun, edge: Edge) -> tuple[IntArray, IntArray]:
    """Codes of the collectives of an edge, of its activation and of the gradient; (points,) each."""
    start, end = edge.start, edge.end
    starts, ends = run.design.place(start), run.design.place(end)
    forward = _CHANGES[_layouts(start.kind, "gives")[starts], _layouts(end.kind, "needs")[ends]]
    gradient = _CHANGES[_layouts(end.kind, "gradient_gives")[ends], _layouts(start.kind, "gradient_needs")[starts]]
    return forward, gradient


@cache
def _layouts(kind: KernelKind, side: str) -> IntArray:
    """Places in `LAYOUTS` of one side of a kind of kernel, by its options. [-]"""
    return np.array([LAYOUTS.index(getattr(option, side)) for option in kind.shardings.values()])


def _present(
    codes: IntArray,
    message: tuple[str, FloatArray],
    hidden_by: KernelsOfPass = NOTHING,
    cut_by: KernelsOfPass = NOTHING,
) -> Iterator[LayoutChange]:
    """The collectives among some codes."""
    if codes.any():
        for code, name in enumerate(COLLECTIVES):
            if name is not None and (codes == code).any():
                yield LayoutChange(name, *message, codes == code, hidden_by, cut_by)


class Exchanges:
    """Collectives of the tensor-parallel groups of some designs, and of experts, each evaluated once.

    The shardings of `run` do not matter.
    """

    def __init__(self, run: RankRun) -> None:
        self.run = run
        self._known: dict[tuple[str, float], KernelCost] = {}

    @cached_property
    def of_experts(self) -> KernelCost:
        """What one layer of experts exchanges in either direction, nothing hidden; (points,) columns."""
        return expert_parallel(self.run)

    @cached_property
    def several(self) -> FloatArray:
        """1 where a group has more than one rank, else 0; (points,). [-]"""
        return np.where(self.run.design.tp > 1, 1.0, 0.0)

    def cost(self, name: str, features: str) -> KernelCost:
        """Time and energy of a collective, as if all designs had it; (points,) columns. [s], [J]"""
        key = name, self.run.model.features[features]
        if key not in self._known:
            message = self.run.activation_bytes(features)
            found = exchange(name, message, self.run.design.tp, self.run.system)
            energy = traffic_energy(found.bytes_sent, self.run.system.network)
            self._known[key] = KernelCost(tp_time=found.time, link_energy=energy)
        return self._known[key]


def tensor_parallel(
    run: RankRun, edges: Iterable[Edge], kernels_time: KernelsTime, exchanges: Exchanges
) -> tuple[KernelCost, KernelCost]:
    """Exposed collectives of the edges of one part of the model, forward and backward, (points,). [s], [J]

    `kernels_time` returns the time, (points,), of kernels of a pass that collectives may hide behind. [s]
    """
    if run.itemized:
        costs = [edge_cost(run, edge, kernels_time, exchanges) for edge in edges]
        forward, backward = (sum((cost[place] for cost in costs), start=KernelCost()) for place in (0, 1))
        return forward, backward
    unique, split = EACH_ITS_OWN, run
    if run.design.assignment.ndim == 1:  # how kernels are split depends on nothing else
        unique = UniqueRows.of(run.design.assignment)
        split = run.with_shape(unique.take(run.design))
    of_edges = [layout_changes(split, edge) for edge in edges]
    forward, backward = (
        exposed_collectives(run, chain(*(own[place] for own in of_edges)), unique, kernels_time, exchanges)
        for place in (0, 1)
    )
    return forward, backward


def edge_cost(
    run: RankRun, edge: Edge, kernels_time: KernelsTime, exchanges: Exchanges
) -> tuple[KernelCost, KernelCost]:
    """Exposed collectives of one edge; parameters and result are those of `tensor_parallel`."""
    costs = (
        exposed_collectives(run, changes, EACH_ITS_OWN, kernels_time, exchanges)
        for changes in layout_changes(run, edge)
    )
    name = f"{edge.start.name} to {edge.end.name}"
    forward, backward = (replace(cost, items=labelled(cost.items, name=name)) for cost in costs)
    return forward, backward


def exposed_collectives(
    run: RankRun, changes: Iterable[LayoutChange], unique: UniqueRows, kernels_time: KernelsTime, exchanges: Exchanges
) -> KernelCost:
    """Time of collectives that no kernels hide, with the cores that hidden ones take; (points,). [s], [J]

    `changes` are collectives of one pass of the `unique` rows among the points; other arguments are those of
    `tensor_parallel`.

    Notes
    -----
    Collectives with the same message beside the same kernels are evaluated once and counted. Where products
    run in pieces, they are counted by the product that hides them; elsewhere all count together. The order
    of the sum does not depend on other designs.
    """
    in_pieces, total = np.asarray(run.design.tp_overlap == CHUNKED), KernelCost()
    for (name, features, hidden_by), counts in sorted(counted_changes(changes).items()):
        own = {cut_by: exchanges.several * unique.of_points(count) for cut_by, count in counts.items()}
        number, single = sum(own.values(), start=np.zeros(())), exchanges.cost(name, features)
        cost = KernelCost(
            link_energy=number * single.link_energy, launches=number * run.system.software.collective_launches
        )
        for cut_by in sorted({NOTHING, *own}) if in_pieces.any() else [NOTHING]:
            together = number if cut_by == NOTHING else 0.0
            count = np.where(in_pieces, own.get(cut_by, 0.0), together)
            hidden = hidden_time(run, name, single.tp_time, kernels_time, hidden_by, cut_by)
            exposed = exposed_time(single.tp_time, hidden, run.system.chip, "tp")
            items: Items = {}
            if run.itemized:
                label = Item(column="tp_communication_time", group="tp", collective=name)
                each = {"time": exposed, "hidden": hidden, "message": exchanged_bytes(run, name, features)}
                items = quantities_of(label, {key: count * value for key, value in each.items()})
            cost += KernelCost(tp_time=count * exposed, items=items)
        total += cost
    return total


def counted_changes(
    changes: Iterable[LayoutChange],
) -> dict[tuple[str, str, KernelsOfPass], dict[KernelsOfPass, FloatArray]]:
    """Name, features and kernels beside -> product that may run in pieces -> number of collectives. [-]"""
    counted: dict[tuple[str, str, KernelsOfPass], dict[KernelsOfPass, FloatArray]] = {}
    for change in changes:
        counts = counted.setdefault((change.name, change.features, change.hidden_by), {})
        cut_by = change.cut_by if change.name in IN_PIECES else NOTHING
        counts[cut_by] = counts.get(cut_by, np.zeros(())) + change.happens
    return counted


def hidden_time(
    run: RankRun,
    name: str,
    time: FloatArray,
    kernels_time: KernelsTime,
    hidden_by: KernelsOfPass,
    cut_by: KernelsOfPass,
) -> FloatArray:
    """Part of a collective's time that runs beside kernels: a product in pieces, or else other kernels. [s]

    Notes
    -----
    A gather hides behind a product that computes one tile for each rank, all but the first tile's transfer;
    a scatter behind one in four pieces, all but the last's [Wang2023]_; `HIDDEN_BY_PIECES` of that.
    """
    if cut_by != NOTHING:
        share = HIDDEN_BY_PIECES * (1 - 1 / PIECES.get(name, run.design.tp))
        return np.minimum(time, kernels_time(*cut_by)) * share
    if hidden_by == NOTHING:
        return np.zeros(())
    return np.where(run.design.tp_overlap > NO_OVERLAP, np.minimum(time, kernels_time(*hidden_by)), 0.0)


def exchanged_bytes(run: RankRun, name: str, features: str) -> FloatArray:
    """What each rank of a tensor-parallel group puts into a collective. [B]"""
    message, tp = run.activation_bytes(features), run.design.tp
    return message / tp if name == "all_to_all" else input_bytes(name, message, tp)


def exchange(name: str, message_bytes: FloatArray, tp: FloatArray, system: System) -> CollectiveCost:
    """A collective of a tensor-parallel group of neighbours; the message is the whole tensor."""
    group = Group.of_neighbours(tp)
    if name == "all_to_all":
        return all_to_all(message_bytes / tp, group, system.network)
    return collective(name, message_bytes, group, system.network)


def sent_bytes(run: RankRun, edge: Edge) -> tuple[FloatArray, FloatArray]:
    """Bytes that a rank sends because of an edge, in the forward and in the backward pass. [B]"""
    passes, tp = [], run.design.tp
    shares = {name: sent_of(tp)[1] for name, sent_of in RING.items()}
    shares["all_to_all"] = (tp - 1) / tp**2  # each keeps what is its own
    for changes in layout_changes(run, edge):
        sent = np.zeros(np.shape(tp))
        for change in changes:
            sent = sent + np.where(change.happens, shares[change.name] * change.message_bytes, 0.0)
        passes.append(sent)
    return passes[0], passes[1]
