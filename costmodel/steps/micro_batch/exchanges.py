"""Exchanges of the ranks that share a micro-batch: tensor, expert and context parallelism.

Tensor parallelism splits each kernel over the ranks of a group by one of its shardings. The sharding fixes the layout
of the activation that the kernel needs and of the one that it gives: whole on every rank, split by tokens or by
features, or as summands (`costmodel.training.blocks`). Where the layouts at the ends of an edge differ, a collective
changes one into the other: forward for the activation, backward for its gradient. For example, in Megatron-LM's
sequence parallelism [Korthikanti2022]_ a norm gives tokens that are split, and the product behind it needs all of
them. The edge needs an all-gather forward, a reduce-scatter of the gradient backward, and another all-gather, since
ranks keep their shards of the input. Each of the three sends (t - 1) / t of 2 s b h bytes on a group of t ranks.

`layout_changes` lists the collectives that each edge of a block needs in a pass. In the backward pass of a product, one
of them overlaps with the gradient of the weight or of the input, which do not wait for it. With `tp_overlap: chunked`
the product that needs it, or makes its input, runs in pieces meanwhile [Wang2023]_. Hidden collectives take cores from
those kernels. For example, a reduce-scatter of 1 ms during a weight gradient of 0.8 ms exposes 0.2 ms; if it takes 24
of 120 cores, the weight gradient takes 0.8 * 24 / 120 = 0.16 ms more. Equal collectives during equal kernels are
evaluated once and counted. Arrays are (points,) unless shapes say otherwise.

Expert parallelism sends tokens to their experts and results back. Context parallelism sends keys and values around
attention cores, or states of mixers along the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any, Final

import numpy as np

from costmodel.columns import EACH_ITS_OWN, BoolArray, FloatArray, IntArray, UniqueRows
from costmodel.kernels.collectives import (
    COSTS_AS,
    RING,
    CollectiveCost,
    all_to_all,
    collective,
    exposed_time,
    input_bytes,
    posted_sends,
    send_recv,
    spans,
)
from costmodel.kernels.kernel_cost import Item, Items, KernelCost, added, labelled, quantities_of, traffic_energy
from costmodel.kernels.kernel_tables import Part, dispatched_bytes, is_quantised, operand_bytes
from costmodel.machine import LinkTier, System
from costmodel.training.blocks import LAYOUTS, TRANSITIONS, Edge
from costmodel.training.design import (
    CHUNKED,
    CP_A2A,
    CP_A2A_P2P,
    CP_ALL_GATHER,
    DISPATCH_ALL_GATHER,
    DISPATCH_ALL_TO_ALL,
    DISPATCH_TWO_HOP,
    NO_OVERLAP,
)
from costmodel.training.kernel_kind import KernelKind
from costmodel.training.model import ModelShape
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun

#: Collectives by their codes; 0 is none.
COLLECTIVES: Final = (None, "all_gather", "all_reduce", "reduce_scatter", "all_to_all")
#: Code of the collective from one layout to another, by their places in `LAYOUTS`; (held, needed).
_CODES: Final = np.array([[COLLECTIVES.index(TRANSITIONS.get((a, b))) for b in LAYOUTS] for a in LAYOUTS])


#: Names of kernels of a block, and one pass over them.
KernelsOfPass = tuple[tuple[str, ...], str]
NOTHING: Final[KernelsOfPass] = ((), "")
#: Collective that a product can overlap with in pieces -> number of pieces; 0: one for each rank [Wang2023]_.
PIECES: Final = {"all_gather": 0.0, "reduce_scatter": 4.0}


@dataclass(frozen=True, slots=True, eq=False)
class LayoutChange:
    """A collective of an edge, in the designs that need it."""

    name: str
    features: str  #: width of the tensor, a word of `ModelShape.features`
    width: float  #: [elements]
    happens: BoolArray
    hidden_by: KernelsOfPass  #: kernels that run meanwhile
    in_pieces: KernelsOfPass  #: the product that may run in pieces meanwhile
    narrow: bool = False  #: whether operands of a product are cast before they are gathered


def layout_changes(run: RankRun, edge: Edge) -> tuple[list[LayoutChange], list[LayoutChange]]:
    """Collectives of an edge in the forward and in the backward pass.

    A collective that several edges share counts for the first of them. Products keep shards of a gathered input, and
    gather it again during the activation gradient [Korthikanti2022]_, unless software keeps it (`repeats`).
    """
    activation, gradient = _codes(run, edge)
    for other in edge.sharing:
        shared = _codes(run, other)
        activation = np.where(activation == shared[0], 0, activation)
        gradient = np.where(gradient == shared[1], 0, gradient)
    start, end, features = (edge.start.name,), (edge.end.name,), edge.end.reads
    width, narrow = run.width(edge.end, features), is_quantised(edge.end if edge.end.splits_weight else edge.start)
    narrow = narrow and bool((run.system.software.narrow_gathers > 0).any())

    def present(codes: IntArray, hidden_by: KernelsOfPass, in_pieces: KernelsOfPass) -> Iterator[LayoutChange]:
        for code in np.flatnonzero(np.bincount(codes.ravel())).tolist():
            if (name := COLLECTIVES[code]) is not None:
                pieces = in_pieces if name in PIECES else NOTHING
                casts = narrow and name == "all_gather"
                yield LayoutChange(name, features, width, codes == code, hidden_by, pieces, casts)

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
    tp, message = run.design.tp, run.of_kernel(edge.end).activation_bytes(edge.end.reads)
    shares = {name: sent_of(tp)[1] for name, sent_of in RING.items()}
    shares["all_to_all"], none = (tp - 1) / tp**2, np.zeros(tp.shape)  # each rank keeps its own share of its share

    def sent(one: LayoutChange) -> FloatArray:
        size = message * cast_share(run, one.narrow) * repeats(run, one.hidden_by)
        return np.where(one.happens, shares[one.name] * size, 0.0)

    forward, backward = (sum(map(sent, changes), none) for changes in layout_changes(run, edge))
    return forward, backward


def expert_parallel(run: RankRun) -> KernelCost:
    """Dispatch and combination of the tokens of one layer of experts, in either direction.

    Returns
    -------
    cost : KernelCost
        (points,) columns, nothing hidden; nothing where a rank holds all experts. [s], [J]

    Notes
    -----
    An all-to-all sends each token to the ranks of its experts, one copy for each expert; an all-gather brings all
    tokens to all; two hops send a token once to each node and from there once to each rank [DeepEP2025]_. Bytes follow
    the fullest rank, or the capacity of experts that have one. With blockwise scales, messages to experts, tokens
    forward and gradients backward, have 8 bits; their results have 16 [DeepSeek2024]_. Tensor-parallel ranks of an
    expert gather the tokens that each of them received, and scatter the sums.
    """
    shape, network, cost = run.design, run.system.network, KernelCost()
    if not (shape.ep * shape.etp > 1).any():
        return cost
    for name, element_bytes in dispatched_sizes(run).items():
        used = {code: where for code in DISPATCHES if (where := shape.dispatcher == code).any()}
        costs = {code: DISPATCHES[code](run, name, element_bytes) for code in used}
        _, whole = costs.popitem()
        for code, cost_of_dispatch in costs.items():
            whole = _joined(cost_of_dispatch, whole, partial(np.where, used[code]))
        cost += KernelCost(
            ep_time=whole.time,
            link_energy=traffic_energy(whole.bytes_sent, network),
            launches=np.where(whole.time > 0, 1.0, 0.0) * run.system.software.collective_launches,
        )
    return cost


def expert_messages(run: RankRun) -> Items:
    """Items of the bytes that a rank puts into the collectives of one layer of experts, in either direction.

    Groups are "ep", "etp" and "etp ep". Hops are taken among all. [B]
    """
    shape, items = run.design, dict[Item, FloatArray]()
    everyone = expert_groups(run)[2].size
    for name, size in dispatched_sizes(run).items():
        once = routed_bytes(run, size)
        hops = once * run.imbalance * places_reached(shape.ep, run.model)
        direct_or_hops = np.where(shape.dispatcher == DISPATCH_TWO_HOP, hops, sent_copies(run, size))
        gathers = shape.dispatcher == DISPATCH_ALL_GATHER
        sent = {
            ("ep", "all_to_all"): np.where(gathers | (shape.ep == 1), 0.0, direct_or_hops),
            ("etp", name): np.where(
                gathers | (shape.etp == 1), 0.0, input_bytes(name, direct_or_hops * shape.etp, shape.etp)
            ),
            ("etp ep", name): np.where(gathers, input_bytes(name, once * everyone, everyone), 0.0),
        }
        for (group, collective_name), message in sent.items():
            label = Item(column="ep_communication_time", group=group, collective=collective_name)
            items = {**items, **added(items, quantities_of(label, {"message": message}))}
    return items


def dispatched_sizes(run: RankRun) -> dict[str, FloatArray | float]:
    """Bytes of an element on its way to experts, and back, by the collective within experts. [B]"""
    return {"all_gather": dispatched_bytes(run), "reduce_scatter": run.precision.element_bytes}


def expert_groups(run: RankRun) -> tuple[Group, Group, Group]:
    """Ranks with different experts, with shares of the same ones, and both."""
    shape = run.design
    one, together = np.ones_like(shape.ep), shape.tp * shape.cp
    sizes = ((shape.ep, shape.etp), (shape.etp, one), (shape.ep * shape.etp, one))
    ep, etp, both = (Group.of_stage(*size, together, shape.expert_spread) for size in sizes)
    return ep, etp, both


def direct(run: RankRun, within: str, size: FloatArray | float) -> CollectiveCost:
    """Each copy of a token to the rank of its expert, or back; with a collective within experts."""
    copies = sent_copies(run, size)
    sent = all_to_all(copies, expert_groups(run)[0], run.system.network)
    return _joined(sent, _within_experts(run, within, copies))


def gathered(run: RankRun, name: str, size: FloatArray | float) -> CollectiveCost:
    """All tokens to all ranks, or all sums back."""
    everyone = expert_groups(run)[2]
    return collective(name, routed_bytes(run, size) * everyone.size, everyone, run.system.network)


def hopping(run: RankRun, within: str, size: FloatArray | float) -> CollectiveCost:
    """Each token once to each node and rank of its experts, or back; with a collective within experts."""
    ep, once = expert_groups(run)[0], routed_bytes(run, size) * run.imbalance
    arrived = once * places_reached(run.design.ep, run.model)
    return _joined(two_hops(run.model, once, ep, run.system.network), _within_experts(run, within, arrived))


#: Cost of a dispatch: of a run, the collective within experts, and bytes of an element.
Dispatch = Callable[[RankRun, str, FloatArray | float], CollectiveCost]

#: Code of `dispatcher` -> cost of dispatching tokens, or of combining results.
DISPATCHES: Final[Mapping[int, Dispatch]] = {
    DISPATCH_ALL_TO_ALL: direct,
    DISPATCH_ALL_GATHER: gathered,
    DISPATCH_TWO_HOP: hopping,
}


def routed_bytes(run: RankRun, size: FloatArray | float) -> FloatArray:
    """Bytes of the tokens that a rank routes, each counted once. [B]"""
    return run.routed_tokens * run.model.features["expert_in"] * size


def sent_copies(run: RankRun, size: FloatArray | float) -> FloatArray:
    """Bytes of the copies of tokens that the fullest rank sends; its share of capacities. [B]"""
    model, shape = run.model, run.design
    copies = routed_bytes(run, size) * model.moe_topk * run.imbalance
    row = model.features["expert_in"] * size
    share = run.expert_rows * model.num_experts / (shape.ep * shape.etp)
    return np.where(shape.capacity_factor > 0, share * row, copies)


def _within_experts(run: RankRun, name: str, arrived: FloatArray) -> CollectiveCost:
    """A collective of the ranks that share out an expert, over the tokens that arrived on each. [B]"""
    group = expert_groups(run)[1]
    return collective(name, arrived * group.size, group, run.system.network)


def places_reached(places: FloatArray, model: ModelShape) -> FloatArray:
    """Places, each with an equal share of the experts, that hold one of a token's experts on average. [-]

    Experts are drawn without replacement: p (1 - C(E - E/p, k) / C(E, k)).
    """
    experts, missed = model.num_experts, np.ones_like(places)
    for drawn in range(int(model.moe_topk)):
        missed = missed * np.maximum(experts - experts / places - drawn, 0.0) / (experts - drawn)
    return places * (1 - missed)


def two_hops(model: ModelShape, token_bytes: FloatArray, group: Group, network: Sequence[LinkTier]) -> CollectiveCost:
    """Time and traffic of a dispatch that sends a token once to each node, and there once to each rank.

    `token_bytes` is the size of a rank's tokens, each once, (points,) [B]; `group` are ranks with different experts.
    The first tier of the network is the node; copies for nodes of other racks go over their tier.

    The second hop starts with the first tokens of the first one. A byte costs the same as in an all-to-all: DeepEP
    publishes the bandwidths that other exchanges reach on the same links [DeepEP2025]_.
    """
    tiers = [*spans(group, network)]
    nodes = tiers[1].inner if len(tiers) > 1 else np.ones_like(group.size)
    reached = places_reached(nodes, model)
    if model.routing_groups:
        limit = model.routing_group_topk * np.maximum(nodes / model.routing_groups, 1.0)
        reached = np.minimum(reached, limit)
    arrived = token_bytes * places_reached(group.size, model)
    # In each node one rank has the token already: its own, or the one that it came to.
    within = arrived * (1 - nodes / group.size)
    # Of other nodes each tier reaches those that no nearer one does.
    between = [token_bytes * reached * (1 / span.outer - 1 / span.inner) for span in tiers[1:]]
    return posted_sends([within, *between], arrived, group, tiers)


def _joined(one: CollectiveCost, other: CollectiveCost, how: Callable[..., Any] = np.add) -> CollectiveCost:
    """Times and bytes of two collectives, by default one after the other."""
    return CollectiveCost(how(one.time, other.time), tuple(map(how, one.bytes_sent, other.bytes_sent)))


#: Time of kernels in a pass, (points,). [s]
KernelsTime = Callable[[tuple[str, ...], str], FloatArray]

#: Share of a collective that pieces of a product hide, over the share that they could: copies and pieces slow
#: each other down. Seconds that asynchronous tensor parallelism saved in Llama 3 8B with tp=8 on 64 H100s,
#: over those that it could (torchtitan, benchmarks/asyncTP_llama3_h100_2025-06): 0.69 in bf16, 0.61 in fp8.
HIDDEN_BY_PIECES: Final = 0.65


def collective_launches(run: RankRun) -> FloatArray:
    """Work of the host for one tensor-parallel collective, over that for a kernel; (points,). [-]"""
    software, shape = run.system.software, run.design
    return software.collective_launches + shape.spans_nodes * shape.tp * software.pipelined_launches


class Exchanges:
    """Collectives of tensor-parallel groups and of experts, each evaluated once; shardings do not matter."""

    def __init__(self, run: RankRun) -> None:
        self.run = run
        self.several_ranks = np.where(run.design.tp > 1, 1.0, 0.0)  #: 0 where a group has one rank; (points,) [-]
        self._costs: dict[tuple[str, float, bool], KernelCost] = {}

    @cached_property
    def of_experts(self) -> KernelCost:
        """Exchanges of one layer of experts in either direction, nothing hidden; (points,) columns."""
        return expert_parallel(self.run)

    @cached_property
    def split(self) -> tuple[UniqueRows, RankRun]:
        """Rows that differ in how kernels are split, on which alone layouts depend, and the run of these."""
        if self.run.design.assignment.ndim != 1:
            return EACH_ITS_OWN, self.run
        unique = UniqueRows.of(self.run.design.assignment)
        return unique, self.run.with_shape(unique.take(self.run.design))

    def cost(self, name: str, width: float, narrow: bool) -> KernelCost:
        """Time and energy of a collective of some features, as if all designs had it; (points,) columns. [s], [J]"""
        key = COSTS_AS.get(name, name), width, narrow
        if key not in self._costs:
            size = self.run.bytes_of(width) * cast_share(self.run, narrow)
            cost = exchange(name, size, self.run.design.tp, self.run.system)
            energy = traffic_energy(cost.bytes_sent, self.run.system.network)
            self._costs[key] = KernelCost(tp_time=cost.time, link_energy=energy)
        return self._costs[key]


def cast_share(run: RankRun, narrow: bool) -> FloatArray | float:
    """Bytes of a message of activations over those of 16 bits, `narrow` where operands are cast before. [-]"""
    if not narrow:
        return 1.0
    return np.where(run.system.software.narrow_gathers > 0, operand_bytes(run) / run.precision.element_bytes, 1.0)


def repeats(run: RankRun, hidden_by: KernelsOfPass) -> FloatArray | float:
    """0 for a collective of an activation gradient, which brings an input again, where that is kept; else 1. [-]"""
    return 1.0 - run.system.software.kept_gathers if hidden_by[1] == "activation_gradient" else 1.0


def exchange(name: str, message_bytes: FloatArray, tp: FloatArray, system: System) -> CollectiveCost:
    """A collective of a tensor-parallel group of neighbours; the message is the whole tensor."""
    group = Group.of_neighbours(tp)
    if name == "all_to_all":
        return all_to_all(message_bytes / tp, group, system.network)
    return collective(name, message_bytes, group, system.network)


def tensor_parallel(
    run: RankRun, edges: Iterable[Edge], kernels_time: KernelsTime, exchanges: Exchanges
) -> tuple[KernelCost, KernelCost]:
    """Exposed collectives of the edges of one part of the model, forward and backward, (points,). [s], [J]

    `kernels_time` returns the time, (points,), of kernels of a pass that collectives may hide behind. [s]
    """
    if run.itemized:
        costs = [edge_cost(run, edge, kernels_time, exchanges) for edge in edges]
        forward, backward = (sum((cost[of_pass] for cost in costs), start=KernelCost()) for of_pass in (0, 1))
        return forward, backward
    unique, split = exchanges.split
    of_edges = [layout_changes(split, edge) for edge in edges]
    forward, backward = (
        exposed_collectives(run, chain(*changes), unique, kernels_time, exchanges)
        for changes in ([of_edge[of_pass] for of_edge in of_edges] for of_pass in (0, 1))
    )
    return forward, backward


def adapter_collectives(run: RankRun, part: Part) -> list[KernelCost]:
    """Collectives for the adapters of a part of the model, which hide behind nothing: forward, backward. [s], [J]"""
    from costmodel.kernels.adapters import adapter_exchanges, may_adapt

    costs, several = {"forward": KernelCost(), "backward": KernelCost()}, np.where(run.design.tp > 1, 1.0, 0.0)
    for kernel in part.kernels if several.any() else ():
        for direction, name, message in adapter_exchanges(run, kernel) if may_adapt(kernel) else ():
            happens, cost = np.where(message > 0, several, 0.0), exchange(name, message, run.design.tp, run.system)
            items: Items = {}
            if run.itemized:
                label = Item("", "tp_communication_time", name=f"adapter of {kernel.name}", group="tp", collective=name)
                sent = happens * input_bytes(name, message, run.design.tp)
                items = quantities_of(label, {"time": happens * cost.time, "hidden": 0 * sent, "message": sent})
            costs[direction] += KernelCost(
                tp_time=happens * cost.time,
                link_energy=happens * traffic_energy(cost.bytes_sent, run.system.network),
                launches=happens * run.system.software.collective_launches,
                items=items,
            )
    return [*costs.values()]


def edge_cost(
    run: RankRun, edge: Edge, kernels_time: KernelsTime, exchanges: Exchanges
) -> tuple[KernelCost, KernelCost]:
    """Exposed collectives of one edge; parameters and result are those of `tensor_parallel`."""
    name, changes = f"{edge.start.name} to {edge.end.name}", layout_changes(run, edge)
    costs = [exposed_collectives(run, of_pass, EACH_ITS_OWN, kernels_time, exchanges) for of_pass in changes]
    forward, backward = (replace(cost, items=labelled(cost.items, name=name)) for cost in costs)
    return forward, backward


def exposed_collectives(
    run: RankRun, changes: Iterable[LayoutChange], unique: UniqueRows, kernels_time: KernelsTime, exchanges: Exchanges
) -> KernelCost:
    """Time of the collectives of one pass that no kernels hide, with the cores that hidden ones take. [s], [J]

    `changes` are those of the `unique` rows among the points; other arguments are those of `tensor_parallel`.
    """
    counts: dict[tuple[str, str, KernelsOfPass, float, bool], dict[KernelsOfPass, FloatArray]] = {}
    for change in changes:
        key = change.name, change.features, change.hidden_by, change.width, change.narrow
        by_product = counts.setdefault(key, {})
        by_product[change.in_pieces] = by_product.get(change.in_pieces, np.zeros(())) + change.happens
    chunked, total = np.asarray(run.design.tp_overlap == CHUNKED), KernelCost()
    # sorted: their order does not depend on designs
    for (name, _, hidden_by, width, narrow), by_product in sorted(counts.items()):
        happens = exchanges.several_ranks * repeats(run, hidden_by)
        numbers = {key: happens * unique.of_points(count) for key, count in by_product.items()}
        number, single = sum(numbers.values(), start=np.zeros(())), exchanges.cost(name, width, narrow)
        if chunked.any():
            for product in {NOTHING, *numbers}:
                whole = number if product == NOTHING else 0.0
                numbers[product] = np.where(chunked, numbers.get(product, 0.0), whole)
        else:
            numbers = {NOTHING: number}
        time, items = np.zeros(()), dict[Item, FloatArray]()
        for product, count in sorted(numbers.items()):
            hidden = hidden_time(run, name, single.tp_time, kernels_time, hidden_by, product)
            exposed = exposed_time(single.tp_time, hidden, run.system.chip, "tp")
            time = time + count * exposed
            if run.itemized:
                label = Item(column="tp_communication_time", group="tp", collective=name)
                message, tp = run.bytes_of(width) * cast_share(run, narrow), run.design.tp
                sent = message / tp if name == "all_to_all" else input_bytes(name, message, tp)
                quantities = {"time": exposed, "hidden": hidden, "message": sent}
                of_product = quantities_of(label, {key: count * value for key, value in quantities.items()})
                items = {**items, **added(items, of_product)}
        energy, launches = number * single.link_energy, number * collective_launches(run)
        total += KernelCost(tp_time=time, link_energy=energy, launches=launches, items=items)
    return total


def hidden_time(
    run: RankRun, name: str, time: FloatArray, time_of: KernelsTime, hidden_by: KernelsOfPass, product: KernelsOfPass
) -> FloatArray:
    """Part of a collective's time that overlaps with kernels: a product in pieces, or else other kernels. [s]

    Pieces hide all transfers but one: that of the first tile of a gather, that of the last piece of a scatter.
    """
    if product != NOTHING:
        share = HIDDEN_BY_PIECES * (1 - 1 / (PIECES[name] or run.design.tp))
        return np.minimum(time, time_of(*product)) * share
    if hidden_by == NOTHING:
        return np.zeros(())
    return np.where(run.design.tp_overlap > NO_OVERLAP, np.minimum(time, time_of(*hidden_by)), 0.0)


def context_parallel(
    run: RankRun, key_features: FloatArray | float, core_time: FloatArray, direction: str
) -> KernelCost:
    """Exchanges of the keys and values of one attention core, "forward" or "backward"; 0 in groups of one. [s], [J]

    `key_features` are those of a token's keys and values together [elements]; `core_time` is the time of the core in
    that direction, which hides a ring, (points,). [s]

    Keys and values go around a ring, each step during a step of the core [Liu2023]_; or they are gathered before it
    [Llama2024]_; or heads are exchanged for tokens, before and behind it [Jacobs2023]_; or heads within small groups,
    and rings between those. Backward a ring carries gradients too, and gathered keys and values are gathered again and
    their gradients scattered.
    """
    shape, model, system = run.design, run.model, run.system
    share = run.tokens * run.precision.element_bytes / shape.tp
    keys_values = run.key_tokens * run.precision.element_bytes / shape.tp * key_features * run.key_repeats
    groups = exchange_groups(run)
    heads = share * (model.query_size + model.attention_size) + keys_values
    backward = direction == "backward"

    swapped = all_to_all(heads, groups["all_to_all"], system.network)
    outer, around = groups["send_recv"].size, keys_values * (2.0 if backward else 1.0)
    ring = send_recv(around, groups["send_recv"], system.network)
    gathered = collective("all_gather", keys_values * shape.cp, groups["all_gather"], system.network)
    cost = _exposed(run, "all_to_all", swapped, 0.0, 4.0, heads)
    cost += _exposed(run, "send_recv", ring, core_time / outer, 1.0, around) * (outer - 1)
    cost += _exposed(run, "all_gather", gathered, 0.0, 1.0, keys_values)
    if backward:
        scattered = collective("reduce_scatter", keys_values * shape.cp, groups["reduce_scatter"], system.network)
        cost += _exposed(run, "reduce_scatter", scattered, 0.0, 1.0, keys_values * shape.cp)
    return cost


def state_passing(run: RankRun, state_bytes: float) -> KernelCost:
    """Passing of a linear mixer's state through the ranks of a sequence, or of its gradient on the way back. [s], [J]

    `state_bytes` are those of one sequence, all heads together [B]; a group of one sends nothing.

    A rank waits for the state of the one before, adds the state of its tokens, and passes it on; all except the last
    send one message. Ranks run late by a message each, but stay so from layer to layer: each layer adds one message for
    each rank, which nothing hides. The delay of the last rank, once in a pass over the layers, is left out.
    """
    shape = run.design
    state = shape.micro_batch_size * state_bytes / shape.tp
    hop = send_recv(state, Group(shape.cp, shape.tp), run.system.network)
    cost = _exposed(run, "send_recv", hop, 0.0, 1.0, state, name="state")
    return replace(cost, link_energy=cost.link_energy * (1 - 1 / shape.cp))


def exchange_groups(run: RankRun) -> dict[str, Group]:
    """Ranks that share a sequence, by the collective that they take; one rank where they do not take it."""
    cp, tp, how = run.design.cp, run.design.tp, run.design.cp_communication
    inner = np.where(how == CP_A2A, cp, np.where(how == CP_A2A_P2P, np.minimum(run.design.cp_a2a, cp), 1.0))
    gathers = how == CP_ALL_GATHER
    gathering = Group(np.where(gathers, cp, 1.0), tp)
    return {
        "all_to_all": Group(inner, tp),
        "send_recv": Group(np.where(gathers, 1.0, cp / inner), tp * inner),
        "all_gather": gathering,
        "reduce_scatter": gathering,
    }


def _exposed(
    run: RankRun,
    used: str,
    cost: CollectiveCost,
    hidden_by: FloatArray | float,
    launches: float,
    message: FloatArray,
    name: str = "",
) -> KernelCost:
    """An exchange, less the part that kernels hide; `message` are the bytes that each rank puts into it. [B]"""
    system, hidden = run.system, np.minimum(cost.time, hidden_by)
    exposed = exposed_time(cost.time, hidden, system.chip, "cp")
    items: Items = {}
    if run.itemized:
        group = f"cp {name or used}"
        label = Item(column="cp_communication_time", name=name, group=group, collective=used)
        sent = np.where(cost.time > 0, message, 0.0)
        items = quantities_of(label, {"time": exposed, "hidden": hidden, "message": sent})
    return KernelCost(
        cp_time=exposed,
        link_energy=traffic_energy(cost.bytes_sent, system.network),
        launches=np.where(cost.time > 0, launches, 0.0) * system.software.collective_launches,
        items=items,
    )
