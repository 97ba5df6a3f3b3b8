"""Exchanges of ranks with different experts: tokens on their way to their experts, and results back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.collectives import CollectiveCost, all_to_all, collective, input_bytes, posted_sends
from costmodel.kernels.group_links import spans
from costmodel.kernels.items import Item, Items, added, quantities_of
from costmodel.kernels.kernel_cost import KernelCost, traffic_energy
from costmodel.machine.system import LinkTier
from costmodel.training.design import DISPATCH_ALL_GATHER, DISPATCH_ALL_TO_ALL, DISPATCH_TWO_HOP
from costmodel.training.model import ModelShape
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun
from costmodel.workload.quantisation import dispatched_bytes


def expert_parallel(run: RankRun) -> KernelCost:
    """Dispatch and combination of the tokens of one layer of experts, in either direction.

    Returns
    -------
    cost : KernelCost
        (points,) columns, nothing hidden; nothing where a rank holds all experts. [s], [J]

    Notes
    -----
    An all-to-all sends each token to the ranks of its experts, one copy for each expert; an all-gather
    brings all tokens to all; two hops send a token once to each node and from there once to each rank
    [DeepEP2025]_. Bytes follow the fullest rank, or the capacity of experts that have one. With blockwise
    scales what goes to experts, tokens forward and gradients backward, is sent in 8 bits; what they return
    has 16 [DeepSeek2024]_. Tensor-parallel ranks of an expert gather what each of them received, and scatter
    the sums.
    """
    shape, network, cost = run.design, run.system.network, KernelCost()
    if not (shape.ep * shape.etp > 1).any():
        return cost
    for name, element_bytes in dispatched_sizes(run).items():
        whole: CollectiveCost | None = None
        for code, dispatch in DISPATCHES.items():
            used = shape.dispatcher == code
            if used.any():
                cost_of_dispatch = dispatch(run, name, element_bytes)
                whole = cost_of_dispatch if whole is None else _chosen(used, cost_of_dispatch, whole)
        assert whole is not None
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
        hops = once * shape.imbalance * places_reached(shape.ep, run.model)
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
    return _sum(sent, _within_experts(run, within, copies))


def gathered(run: RankRun, name: str, size: FloatArray | float) -> CollectiveCost:
    """All tokens to all ranks, or all sums back."""
    everyone = expert_groups(run)[2]
    return collective(name, routed_bytes(run, size) * everyone.size, everyone, run.system.network)


def hopping(run: RankRun, within: str, size: FloatArray | float) -> CollectiveCost:
    """Each token once to each node and rank of its experts, or back; with a collective within experts."""
    shape, model = run.design, run.model
    ep, once = expert_groups(run)[0], routed_bytes(run, size) * shape.imbalance
    arrived = once * places_reached(shape.ep, model)
    return _sum(two_hops(model, once, ep, run.system.network), _within_experts(run, within, arrived))


#: What a dispatch costs: of a run, the collective within experts, and bytes of an element.
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
    copies = routed_bytes(run, size) * model.moe_topk * shape.imbalance
    if not run.has_capacity:
        return copies
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

    Parameters
    ----------
    model : ModelShape
        Its experts, and the nodes that routing may reach.
    token_bytes : (points,) array
        What a rank's tokens hold, each once. [B]
    group : Group
        Ranks that hold different experts, (points,).
    network : sequence of LinkTier
        Tiers from the inside out; the first is the node. Copies for nodes of other racks go over their tier.

    Notes
    -----
    The second hop starts with the first tokens of the first one. A byte costs as much as in an all-to-all:
    DeepEP publishes the bandwidths that other exchanges reach on the same links [DeepEP2025]_.
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


def _chosen(where: FloatArray, one: CollectiveCost, other: CollectiveCost) -> CollectiveCost:
    tiers = zip(one.bytes_sent, other.bytes_sent, strict=True)
    return CollectiveCost(np.where(where, one.time, other.time), tuple(np.where(where, a, b) for a, b in tiers))


def _sum(one: CollectiveCost, other: CollectiveCost) -> CollectiveCost:
    tiers = zip(one.bytes_sent, other.bytes_sent, strict=True)
    return CollectiveCost(one.time + other.time, tuple(a + b for a, b in tiers))
