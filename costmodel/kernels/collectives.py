"""Collectives over tiers of links: algorithms as data, rings through all tiers.

A group of ranks lies in one or several tiers of the network: chips of a node, nodes of a rail, racks. In each tier it
reaches peers through a switch, by direct links, or along a torus. An algorithm states its steps and the share of the
message that a rank sends in each tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.machine import Chip, LinkTier
from costmodel.training.ranks import Group


@dataclass(frozen=True, slots=True, eq=False)
class TierSpan:
    """The part of one tier of links that a group has; every array broadcasts against (points,)."""

    tier: LinkTier
    inner: FloatArray  #: parts of the group that the tier joins [-]
    outer: FloatArray  #: parts that are left to join behind it [-]
    rings: FloatArray  #: rate of a rank in ring collectives, all groups at once [B/s]
    exchange: FloatArray  #: in an all-to-all, of the bytes that it sends to others of the tier [B/s]
    message: FloatArray  #: of a message to the next rank of the group [B/s]
    hops: FloatArray | None = None  #: of a torus: links from one end of the group to the other [-]
    apart: FloatArray | float = 1.0  #: links on the way to the next rank of the group [-]

    @property
    def members(self) -> FloatArray:
        """Parts of the group that one group of the tier joins. [-]"""
        return self.inner / self.outer

    def steps(self, switched: FloatArray, passes: FloatArray | float = 1.0) -> FloatArray:
        """Steps of an algorithm through switches, or hops that its passes take on a torus. [-]"""
        if self.hops is None:
            return switched
        return np.where(self.tier.torus_x > 0, passes * self.hops, switched)


def held_ranks(network: Sequence[LinkTier]) -> list[FloatArray]:
    """Ranks in one group of each tier: its chips, without those that a run leaves idle. [-]"""
    held, share = [], np.ones(())
    for tier in network:
        held.append(np.minimum(tier.size * share, tier.used))
        share = held[-1] / tier.size
    return held


def subgroups_per_tier(group: Group, network: Sequence[LinkTier]) -> list[FloatArray]:
    """Parts of a group that are left to be joined after each tier, from the inside out, (points,) each. [-]

    First the ranks themselves; the last is 1.

    A group that fills its last node only in part is taken as spread evenly over its nodes.
    """
    return _subgroups(group, held_ranks(network))


def _subgroups(group: Group, held_per_tier: Sequence[FloatArray]) -> list[FloatArray]:
    subgroups = [group.size]
    for held in held_per_tier[:-1]:
        subgroups.append(np.minimum(group.blocks(held), subgroups[-1]))
    return [*subgroups, np.ones_like(group.size)]


def spans(group: Group, network: Sequence[LinkTier]) -> Iterator[TierSpan]:
    """The part of each tier of links that a group has, from the inside out.

    In a group of chips all linked with all, members reach each other over one link for each pair: few of them
    cannot use all links of a chip.
    """
    held_per_tier, unit = held_ranks(network), np.ones(())
    subgroups = _subgroups(group, held_per_tier)
    for tier, inner, outer, held in zip(network, subgroups[:-1], subgroups[1:], held_per_tier, strict=True):
        span = TierSpan(tier, inner, outer, tier.rate, tier.rate, tier.rate)
        if np.isfinite(tier.peer_bandwidth).any():
            pair = np.minimum(tier.rate, tier.peer_bandwidth * tier.efficiency)
            together = np.minimum(tier.rate, np.maximum(span.members - 1, 1.0) * pair)
            span = TierSpan(tier, inner, outer, together, together, pair)
        yield torus_span(span, group, unit) if tier.is_torus else span
        unit = held


def torus_span(switched: TierSpan, group: Group, unit: FloatArray) -> TierSpan:
    """Share of a group in a torus whose `bandwidth` is that of all links of a chip, two for each axis.

    `switched` is its share where links are switched, which some points may have; `unit` are ranks at one place. [-]

    Parts of a gathered or reduced tensor go along all axes of the group at once, in both directions of a ring, so that
    the links of the chip at the end of a line set the time. In an all-to-all the links in the middle of the longest
    axis do: they carry n / 8 of the message of a rank on a ring of n, a quarter of the time of an all-gather of the
    same bytes; n / 4 on a line [Austin2025]_.
    """
    tier, axes = switched.tier, torus_axes(switched, group, unit)
    link = tier.rate / np.maximum(2 * sum(np.minimum(axis, 1.0) for axis in tier.axes), 1.0)
    sides = sum(axis.directions / axis.gap for axis in axes)
    middle = np.maximum.reduce(
        [axis.gap * np.floor(axis.length**2 / 4) / axis.length / np.maximum(axis.directions, 1.0) for axis in axes]
    )
    alone, members = middle == 0, switched.members
    sent = np.where(alone, 1.0, (members - 1) / members)  # the rank's share of its message is not sent
    apart = np.maximum.reduce([np.where(axis.length > 1, axis.gap, 1.0) for axis in axes])

    other = (tier.torus_x <= 0) | alone
    return replace(
        switched,
        rings=np.where(other, switched.rings, link * sides),
        exchange=np.where(other, switched.exchange, link * sent / np.where(alone, 1.0, middle)),
        message=np.where(other, switched.message, link / apart),
        hops=sum((axis.hops for axis in axes), start=np.zeros(())),
        apart=np.where(tier.torus_x > 0, apart, 1.0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class TorusAxis:
    """The part of an axis of a torus that a group fills; every array broadcasts against (points,). [-]"""

    length: FloatArray  #: members of the group along it
    gap: FloatArray  #: links from one of them to the next: as many groups share each
    directions: FloatArray  #: 2 on a ring, 1 on a line, 0 where there is one member alone

    @property
    def hops(self) -> FloatArray:
        """Links from one end to the other; on a ring, half way around."""
        return self.gap * np.where(self.directions > 1, np.floor(self.length / 2), self.length - 1)


def torus_axes(span: TierSpan, group: Group, unit: FloatArray) -> list[TorusAxis]:
    """The box that a group fills: ranks stand along the first axis, then the next.

    Parameters are those of `torus_span`. A group that has all of an axis is a ring if the axis closes to one,
    and a line if not, as is one that has a part of it.
    """
    tier, filled, block, left = span.tier, [], unit, span.inner
    for number, axis in enumerate(tier.axes):
        whole = np.maximum(axis, 1.0)
        behind = block * whole
        rest = span.outer if number == len(tier.axes) - 1 else np.clip(group.blocks(behind), span.outer, left)
        length, gap = np.ceil(left / rest), np.clip(group.gap(block), 1.0, whole)
        closed = (whole > 1) & (length * gap >= whole) & (whole % tier.torus_wrap == 0)
        filled.append(TorusAxis(length, gap, np.where(length > 1, np.where(closed, 2.0, 1.0), 0.0)))
        block, left = behind, rest
    return filled


#: An algorithm: group size n -> (steps, bytes that each rank sends as a share of the message).
Algorithm = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

#: Ring algorithms. The message is the whole tensor.
RING: dict[str, Algorithm] = {
    "all_gather": lambda n: (n - 1, (n - 1) / n),  # [Thakur2005]
    "reduce_scatter": lambda n: (n - 1, (n - 1) / n),  # [Patarasuk2009]
    "all_reduce": lambda n: (2 * (n - 1), 2 * (n - 1) / n),  # [Patarasuk2009]
}

#: Collectives with the cost of others: the same rings in the other direction.
COSTS_AS: Final = {"reduce_scatter": "all_gather"}

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
    """Time of a collective that overlaps with kernels in part: the exposed rest, and the cores that it takes. [s]

    `overlapped` is the part of its `time` that overlaps, (points,). [s] `kind` of communication is "tp", "cp", "ep" or
    "dp".
    """
    return time - overlapped + overlapped * chip.taken_cores(kind) / chip.cores


def climbed(sent: FloatArray, tier: LinkTier, passes: FloatArray | float = 1.0) -> FloatArray:
    """Bytes that links could carry at their full rate while a message climbs to it. [B]

    Parameters
    ----------
    sent : (points,) array
        By one rank over the tier. [B]
    tier : LinkTier
        Its `ramp` is the time to fill the pipelines of the chunks of a message.
    passes : (points,) array or float
        Times that they are filled: 2 where a reduction is followed by a gather. [-]

    Notes
    -----
    Short messages reach half of the rate, long ones lose `ramp` once a pass. It grows with `sent`.
    """
    fill = passes * tier.ramp
    return sent * (1 + fill / np.maximum(np.abs(sent) + fill, SOME_BYTES))


def own_copy(message_bytes: FloatArray, group: Group, tier: LinkTier) -> FloatArray:
    """Cost of copying the part of a message that a rank has for itself, as bytes sent. [B]"""
    return tier.own_share * message_bytes / group.size


def hop_latency(name: str, group: Group, tiers: Sequence[TierSpan]) -> FloatArray:
    """Latency of a collective through rings, or of an all-reduce through trees where they are shallower. [s]

    `tiers` are ranks and links of the group in each tier, `name` and `group` as for `collective`.

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
    Rings go through all ranks, node after node, one ring per rank of a node, so that all NICs of a node work at once.
    Of the bytes that a rank sends, the share of hops that leave its node goes over the outer tier. Chunks are
    pipelined: the slowest tier sets the time, plus the latency of all steps (`hop_latency`) and the time to fill the
    pipelines (`climbed`). Switches that reduce are used where they are faster than rings. On a torus there are rings
    along each axis. The arithmetic of the reduction is left out.
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

    Parameters and returns as for `collective`; the message is that of one rank. Shares for ranks that are reached only
    over an outer tier go over that tier.
    """
    tiers = [*spans(group, network)]
    peers = [group.size / span.outer - group.size / span.inner for span in tiers]
    return posted_sends([message_bytes * number / group.size for number in peers], message_bytes, group, tiers)


def posted_sends(
    sent: Sequence[FloatArray], message_bytes: FloatArray, group: Group, tiers: Sequence[TierSpan]
) -> CollectiveCost:
    """Time [s] and traffic [B] of messages between any ranks of a group, all of them posted together, (points,).

    `sent` are the bytes of one rank over each tier, (points,) each [B]; `message_bytes` are those that the rank holds,
    with an equal share for every rank of the group, (points,) [B]; a rank copies its share locally.

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
