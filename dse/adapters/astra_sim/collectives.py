"""Collectives as rings within the tiers of a network, one after the other: what ASTRA-sim's groups can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

#: A ring: ranks n -> messages that each sends one after the other, and each as a share of `comm_size`.
RINGS: Final[Mapping[str, Callable[[int], tuple[int, float]]]] = {
    "ALL_GATHER": lambda n: (n - 1, 1.0),
    "REDUCE_SCATTER": lambda n: (n - 1, 1 / n),
    "ALL_REDUCE": lambda n: (2 * (n - 1), 1 / n),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A ring in one tier."""

    tier: int  #: place in the network, from the inside out
    word: str  #: key of `RINGS`
    size: float  #: `comm_size`, what a rank puts in [B]
    ranks: int

    @property
    def steps(self) -> int:
        """Messages that each rank sends, one after the other. [-]"""
        return RINGS[self.word](self.ranks)[0]

    @property
    def sent(self) -> float:
        """Bytes that each rank sends. [B]"""
        steps, share = RINGS[self.word](self.ranks)
        return steps * share * self.size

    def scaled(self, ranks: int) -> Phase:
        """This ring with as many bytes of each rank as in a ring of so many ranks."""
        if ranks == self.ranks:
            return self
        wanted = Phase(self.tier, self.word, self._whole(ranks), ranks).sent
        return Phase(self.tier, self.word, self.size * wanted / self.sent, self.ranks)

    def _whole(self, ranks: int) -> float:
        """The bytes that a rank of another ring sends for a tensor of the same size. [B]"""
        return self.size * self.ranks / ranks if self.word == "ALL_GATHER" else self.size


def phases(collective: str, message: float, sizes: Sequence[int]) -> list[Phase]:
    """Rings, one after the other, that do the work of a collective over a group that spans several tiers.

    `message` is the input of a rank [B]; `sizes` are the ranks of the group in each tier, from the inside out. [-]
    Tiers with one rank have no ring.

    A reduction goes outwards with ever smaller parts, a gather inwards, an all-reduce there and back. An
    exchange of all with all is a gather of the parts for the ranks that only this tier reaches: as many
    messages, of as many bytes, as if each rank sent its parts to one rank after the other. (ASTRA-sim's own,
    of a group, is a ring that sends every part through all ranks between.) So is a ring of keys and values.
    """
    tiers = [tier for tier, size in enumerate(sizes) if size > 1]
    if not tiers:
        return []
    inside = {tier: prod(sizes[:tier]) for tier in tiers}
    outside = {tier: prod(sizes[tier + 1 :]) for tier in tiers}
    if collective == "all_to_all":
        parts = {tier: message / (sizes[tier] * outside[tier]) for tier in tiers}
        return [Phase(tier, "ALL_GATHER", parts[tier], sizes[tier]) for tier in tiers]
    if collective == "send_recv":
        collective, message = "all_gather", message / (prod(sizes) - 1)
    if collective == "all_gather":
        return [Phase(tier, "ALL_GATHER", message * outside[tier], sizes[tier]) for tier in reversed(tiers)]
    reduced = [Phase(tier, "REDUCE_SCATTER", message / inside[tier], sizes[tier]) for tier in tiers]
    if collective == "reduce_scatter":
        return reduced
    *_, last = tiers
    whole = Phase(last, "ALL_REDUCE", message / inside[last], sizes[last])
    gathered = [
        Phase(tier, "ALL_GATHER", message / inside[tier] / sizes[tier], sizes[tier]) for tier in reversed(tiers[:-1])
    ]
    return [*reduced[:-1], whole, *gathered]
