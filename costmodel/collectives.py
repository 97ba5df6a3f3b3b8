"""Collectives over tiers of links: algorithms as data, placement of groups, hierarchical composition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from costmodel.columns import FloatArray
from costmodel.system import LinkTier

#: An algorithm: group size n -> (steps, bytes that each rank sends as a share of the message).
Algorithm = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

#: Ring algorithms. The message is the whole tensor.
RING: dict[str, Algorithm] = {
    "all_gather": lambda n: (n - 1, (n - 1) / n),  # [Thakur2005]
    "reduce_scatter": lambda n: (n - 1, (n - 1) / n),  # [Patarasuk2009]
    "all_reduce": lambda n: (2 * (n - 1), 2 * (n - 1) / n),  # [Patarasuk2009]
    "all_to_all": lambda n: (n - 1, (n - 1) / n),  # each rank keeps 1/n of its own message
}

#: Switches that reduce and multicast: every rank sends its message up once and its share of the sum once.
IN_SWITCH: dict[str, Algorithm] = {
    **RING,
    "all_reduce": lambda n: (2 * np.minimum(n - 1, 1), (n + 1) / n * np.minimum(n - 1, 1)),  # [Klenk2020]
}


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Price of a collective; every array has shape (points,)."""

    time: FloatArray  #: [s]
    bytes_sent: tuple[FloatArray, ...]  #: by one rank over each tier [B]


def members_per_tier(
    group_size: FloatArray, stride: FloatArray, network: Sequence[LinkTier]
) -> list[FloatArray]:
    """How a group of ranks spreads over the tiers, from the inside out. [-]

    Parameters
    ----------
    group_size : (points,) array
        Ranks of the group. [-]
    stride : (points,) array
        Distance between neighbours of the group in the numbering of all ranks, which fills nodes one
        after the other. [-]
    network : sequence of LinkTier
        Tiers from the inside out.

    Returns
    -------
    members : list of (points,) array
        Sizes of the sub-groups that each tier joins; their product is `group_size`. [-]

    Notes
    -----
    A group that fills its last node only in part is taken as spread evenly over its nodes.
    """
    islands = [group_size]
    for tier in network[:-1]:
        spanned = np.ceil(group_size * stride / tier.size)
        islands.append(np.clip(spanned, 1.0, islands[-1]))
    islands.append(np.ones_like(group_size))
    return [inner / outer for inner, outer in pairwise(islands)]


def collective(
    name: str,
    message_bytes: FloatArray,
    group_size: FloatArray,
    *,
    stride: FloatArray,
    network: Sequence[LinkTier],
) -> CollectiveCost:
    """Time and traffic of a hierarchical collective.

    Parameters
    ----------
    name : str
        A key of `RING`.
    message_bytes : (points,) array
        The whole tensor: gathered output, or input of the reduction. [B]
    group_size, stride : (points,) array
        Ranks, and their distance in the numbering of all ranks. [-]
    network : sequence of LinkTier
        Tiers from the inside out; bandwidths are of one rank and one direction.

    Returns
    -------
    cost : CollectiveCost
        Time [s] and bytes sent per tier [B]; a group of one is free.

    Notes
    -----
    Reduce-scatter inside the node, then between nodes on the node's share, then gather back: the tier
    behind g ranks carries 1/g of the message per rank, so all NICs of a node work at once. Bytes sent
    over all tiers add up to those of one flat ring. The arithmetic of the reduction is left out.
    """
    time = np.zeros(np.broadcast(message_bytes, group_size, stride).shape)
    share: FloatArray = np.ones_like(time)
    launch = np.zeros_like(time)
    sent_per_tier = []
    for tier, members in zip(network, members_per_tier(group_size, stride, network), strict=True):
        steps, sent = RING[name](members)
        switch_steps, switch_sent = IN_SWITCH[name](members)
        reducing = tier.in_switch > 0
        steps, sent = np.where(reducing, switch_steps, steps), np.where(reducing, switch_sent, sent)
        tier_bytes = sent * share * message_bytes
        time = time + steps * tier.latency + tier_bytes / (tier.bandwidth * tier.efficiency)
        launch = np.maximum(launch, np.where(members > 1, tier.launch, 0.0))
        sent_per_tier.append(tier_bytes)
        share = share / members
    return CollectiveCost(time + launch, tuple(sent_per_tier))


def send_recv(
    message_bytes: FloatArray, group_size: FloatArray, *, stride: FloatArray, network: Sequence[LinkTier]
) -> CollectiveCost:
    """Time and traffic of a message to the next rank of a group, over the outermost tier in use.

    Parameters and returns as for `collective`; a group of one sends nothing. Where some neighbours
    share a node and others do not, the slower pair counts.
    """
    cost: FloatArray = np.zeros(np.broadcast(message_bytes, group_size, stride).shape)
    sent_per_tier: list[FloatArray] = []
    for tier, members in zip(network, members_per_tier(group_size, stride, network), strict=True):
        crosses = members > 1
        tier_time = tier.launch + tier.latency + message_bytes / (tier.bandwidth * tier.efficiency)
        cost = np.where(crosses, tier_time, cost)
        sent_per_tier = [np.where(crosses, 0.0, sent) for sent in sent_per_tier]
        sent_per_tier.append(np.where(crosses, message_bytes, 0.0))
    return CollectiveCost(cost, tuple(sent_per_tier))
