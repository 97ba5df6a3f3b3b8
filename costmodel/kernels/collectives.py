"""Collectives over tiers of links: algorithms as data, rings through all tiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.group_links import TierSpan, spans
from costmodel.machine.system import Chip, LinkTier
from costmodel.training.ranks import Group

#: An algorithm: group size n -> (steps, bytes that each rank sends as a share of the message).
Algorithm = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

#: Ring algorithms. The message is the whole tensor.
RING: dict[str, Algorithm] = {
    "all_gather": lambda n: (n - 1, (n - 1) / n),  # [Thakur2005]
    "reduce_scatter": lambda n: (n - 1, (n - 1) / n),  # [Patarasuk2009]
    "all_reduce": lambda n: (2 * (n - 1), 2 * (n - 1) / n),  # [Patarasuk2009]
}

#: Switches that reduce and multicast: every rank sends its message up once and its share of the sum once.
#: Short messages do not take them, so that the steps are those of rings.
IN_SWITCH: dict[str, Algorithm] = {
    **RING,
    "all_reduce": lambda n: (2 * (n - 1), (n + 1) / n * np.minimum(n - 1, 1)),  # [Klenk2020]
}


#: Less than any message, and more than none. [B]
SOME_BYTES: Final = 1e-9


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Cost of a collective; every array has shape (points,)."""

    time: FloatArray  #: [s]
    bytes_sent: tuple[FloatArray, ...]  #: by one rank over each tier [B]


def exposed_time(time: FloatArray, overlapped: FloatArray, chip: Chip, kind: str) -> FloatArray:
    """Time of a collective that runs beside kernels for a while: the rest, and the cores it takes. [s]

    Parameters
    ----------
    time, overlapped : (points,) array
        Of the collective, in all and beside kernels. [s]
    chip : Chip
        Whose cores.
    kind : str
        Of communication: "tp", "cp", "ep", "dp".
    """
    return time - overlapped + overlapped * chip.taken_cores(kind) / chip.cores


def climbed(sent: FloatArray, tier: LinkTier, passes: FloatArray | float = 1.0) -> FloatArray:
    """Bytes that links could carry at their full rate while a message climbs to it. [B]

    Parameters
    ----------
    sent : (points,) array
        By one rank over the tier. [B]
    tier : LinkTier
        Its `ramp` is what it takes to fill the pipelines of chunks that a message is sent in.
    passes : (points,) array or float
        Times that they are filled: 2 where a reduction is followed by a gather. [-]

    Notes
    -----
    Short messages reach half of the rate, long ones lose `ramp` once a pass. It grows with `sent`, so that
    more never takes less.
    """
    fill = passes * tier.ramp
    return sent * (1 + fill / np.maximum(np.abs(sent) + fill, SOME_BYTES))


def own_copy(message_bytes: FloatArray, group: Group, tier: LinkTier) -> FloatArray:
    """Cost of copying the part of a message that a rank has for itself, as bytes sent. [B]"""
    return tier.own_share * message_bytes / group.size


def hop_latency(name: str, group: Group, tiers: Sequence[TierSpan]) -> FloatArray:
    """Latency of a collective through rings, or of an all-reduce through trees where they are shallower. [s]

    Parameters
    ----------
    name, group
        As for `collective`.
    tiers : sequence of TierSpan
        What the group has of each tier.

    Notes
    -----
    Each of the n - 1 steps of a ring waits for the slowest of its hops. Trees are chains inside of a node
    and binary between nodes [Sanders2009]_. On a torus latencies are those of its hops.
    """
    passes = RING[name](np.asarray(2.0))[0]
    used = [np.where(span.members > 1, span.tier.latency, 0.0) for span in tiers]
    slowest = np.maximum.reduce(np.broadcast_arrays(*used))
    ring = sum(
        np.where(span.tier.torus_x > 0, span.tier.latency, slowest)
        * span.steps(passes * (span.inner - span.outer), passes)
        for span in tiers
    )
    if name != "all_reduce":
        return np.asarray(ring)
    tree = sum(
        passes * span.steps(np.log2(span.members) if number else span.members - 1) * span.tier.latency
        for number, span in enumerate(tiers)
    )
    return np.minimum(ring, tree)


def collective(name: str, message_bytes: FloatArray, group: Group, network: Sequence[LinkTier]) -> CollectiveCost:
    """Time and traffic of a collective over a group that may span several tiers.

    Parameters
    ----------
    name : str
        A key of `RING`.
    message_bytes : (points,) array
        The whole tensor: gathered output, or input of the reduction. [B]
    group : Group
        Ranks, (points,).
    network : sequence of LinkTier
        Tiers from the inside out; bandwidths are of one rank and one direction.

    Returns
    -------
    cost : CollectiveCost
        Time [s] and bytes sent per tier [B]; a group of one is free.

    Notes
    -----
    Rings go through all ranks, node after node, one ring per rank of a node, so that all NICs of
    a node work at once. Of the bytes that a rank sends, the share of hops that leave its node goes
    over the outer tier. Chunks are pipelined, so that the slowest tier sets the time, beside the latency of
    all steps (`hop_latency`) and what it takes to fill the pipelines (`climbed`). Switches that reduce are
    taken where they are faster than rings. On a torus there are rings along each axis. The arithmetic of the
    reduction is left out.
    """
    passes = RING[name](np.asarray(2.0))[0]
    sent_of = RING[name](group.size)[1]
    leaving: FloatArray = np.ones_like(group.size)
    transfer: FloatArray = np.zeros(np.broadcast(message_bytes, group.size, group.stride).shape)
    launch = transfer
    tiers, sent_per_tier = list(spans(group, network)), []
    for span in tiers:
        tier, members = span.tier, span.members
        still_leaving = np.where(span.outer > 1, span.outer / group.size, 0.0)
        tier_bytes = sent_of * (leaving - still_leaving) * message_bytes
        copied = np.where(members > 1, own_copy(message_bytes, group, tier), 0.0)
        time = (climbed(tier_bytes, tier, passes) + copied) / span.rings
        if (tier.in_switch > 0).any():
            up = IN_SWITCH[name](members)[1] * span.inner / group.size * message_bytes
            switched = (climbed(up, tier, passes) + copied) / (span.rings * tier.in_switch_rate)
            better = (tier.in_switch > 0) & (switched < time)
            time, tier_bytes = np.where(better, switched, time), np.where(better, up, tier_bytes)
        transfer = np.maximum(transfer, time)
        launch = np.maximum(launch, np.where(members > 1, tier.launch, 0.0))
        sent_per_tier.append(tier_bytes)
        leaving = still_leaving
    return CollectiveCost(launch + hop_latency(name, group, tiers) + transfer, tuple(sent_per_tier))


def input_bytes(name: str, message_bytes: FloatArray, size: FloatArray) -> FloatArray:
    """Bytes that each rank of a group puts into a collective: of a gather its part, else the message, (points,). [B]

    `name` is a key of `RING`, or "all_to_all", or "send_recv"; `size` are the ranks of the group, (points,). [-]
    """
    return message_bytes / size if name == "all_gather" else message_bytes


def send_recv(message_bytes: FloatArray, group: Group, network: Sequence[LinkTier]) -> CollectiveCost:
    """Time and traffic of a message to the next rank of a group, over the outermost tier in use.

    Parameters and returns as for `collective`; a group of one sends nothing. Where some neighbours
    share a node and others do not, the slower pair counts.
    """
    cost: FloatArray = np.zeros(np.broadcast(message_bytes, group.size, group.stride).shape)
    sent_per_tier: list[FloatArray] = []
    for span in spans(group, network):
        crosses = span.inner > span.outer
        tier_time = span.tier.launch + span.apart * span.tier.latency
        tier_time = tier_time + climbed(message_bytes, span.tier) / span.message
        cost = np.where(crosses, tier_time, cost)
        sent_per_tier = [np.where(crosses, 0.0, sent) for sent in sent_per_tier]
        sent_per_tier.append(np.where(crosses, message_bytes, 0.0))
    return CollectiveCost(cost, tuple(sent_per_tier))


def all_to_all(message_bytes: FloatArray, group: Group, network: Sequence[LinkTier]) -> CollectiveCost:
    """Time and traffic of an exchange in which every rank sends an equal share of its message to every other.

    Parameters and returns as for `collective`; the message is what one rank holds. Shares for ranks that only
    an outer tier reaches go over that tier alone.
    """
    tiers = [*spans(group, network)]
    peers = [group.size / span.outer - group.size / span.inner for span in tiers]
    return posted_sends([message_bytes * number / group.size for number in peers], message_bytes, group, tiers)


def posted_sends(
    sent: Sequence[FloatArray], message_bytes: FloatArray, group: Group, tiers: Sequence[TierSpan]
) -> CollectiveCost:
    """Time [s] and traffic [B] of messages between any ranks of a group, all of them posted together, (points,).

    `sent` are the bytes of one rank over each tier, (points,) each [B]; `message_bytes` are what the rank holds, with
    an equal share for every rank of the group, of which it copies its own, (points,) [B]. A group of one is free.

    The slowest tier sets the time. Messages to all peers of a tier are under way at once, so that they wait for its
    latency once: exchanges of 64 KiB take as long among 8 ranks as between 2 (NVIDIA AI Configurator collector, B200).
    """
    latency: FloatArray = np.zeros(np.broadcast(message_bytes, group.size, group.stride).shape)
    transfer, launch = latency, latency
    for tier_bytes, span in zip(sent, tiers, strict=True):
        joined = span.members > 1
        latency = latency + np.where(joined, span.steps(np.asarray(1.0)) * span.tier.latency, 0.0)
        copied = np.where(joined, own_copy(message_bytes, group, span.tier), 0.0)
        transfer = np.maximum(transfer, (climbed(tier_bytes, span.tier) + copied) / span.exchange)
        launch = np.maximum(launch, np.where(joined, span.tier.launch, 0.0))
    return CollectiveCost(launch + latency + transfer, tuple(sent))
