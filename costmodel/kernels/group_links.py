"""Where a group lies in the tiers of a network, and what it reaches there: switches, pairs of peers, tori."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.columns import FloatArray
from costmodel.machine.system import LinkTier
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
    """Ranks that one group of each tier holds: its chips, but for those that a run leaves idle. [-]"""
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

    `switched` is its share where links are switched, which some points may have instead; `unit` are the ranks at one
    place of the torus. [-]

    Parts of a gathered or reduced tensor go along all axes of the group at once, in both directions of a
    ring, so that the links of the chip at the end of a line set the time. In an all-to-all the links in the
    middle of the longest axis do: they carry n / 8 of what a rank holds on a ring of n, a quarter of the time
    that an all-gather of all that takes; n / 4 on a line [Austin2025]_.
    """
    tier, axes = switched.tier, torus_axes(switched, group, unit)
    link = tier.rate / np.maximum(2 * sum(np.minimum(axis, 1.0) for axis in tier.axes), 1.0)
    sides = sum(axis.directions / axis.gap for axis in axes)
    middle = np.maximum.reduce(
        [axis.gap * np.floor(axis.length**2 / 4) / axis.length / np.maximum(axis.directions, 1.0) for axis in axes]
    )
    alone, members = middle == 0, switched.members
    sent = np.where(alone, 1.0, (members - 1) / members)  # what a rank has for itself is not sent
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
