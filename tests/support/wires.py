"""Messages between small ranks that really compute, every one of them counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Wires:
    """What each of some ranks has sent to each other one. [elements]"""

    ranks: int
    sent: Array = field(init=False)

    def __post_init__(self) -> None:
        self.sent = np.zeros((self.ranks, self.ranks))

    def send(self, start: int, end: int, message: Array) -> Array:
        """A message as it arrives; what a rank keeps is not sent."""
        if start != end:
            self.sent[start, end] += message.size
        return message.copy()

    def all_gather(self, group: Sequence[int], shards: Sequence[Array]) -> list[list[Array]]:
        """Each shard goes around a ring: every rank gets all of them, in the order of the group."""
        size, held = len(group), [dict[int, Array]() for _ in group]
        for own, shard in enumerate(shards):
            held[own][own] = message = shard
            for hop in range(own, own + size - 1):
                message = self.send(group[hop % size], group[(hop + 1) % size], message)
                held[(hop + 1) % size][own] = message
        return [[shards_of[own] for own in range(size)] for shards_of in held]

    def reduce_scatter(self, group: Sequence[int], parts: Sequence[Sequence[Array]]) -> list[Array]:
        """Of each rank a summand of every shard: a shard's sum grows around a ring, and ends on its rank."""
        size, sums = len(group), []
        for own in range(size):
            message = parts[(own + 1) % size][own]
            for hop in range(own + 1, own + size):
                there = (hop + 1) % size
                message = self.send(group[hop % size], group[there], message) + parts[there][own]
            sums.append(message)
        return sums

    def all_to_all(self, group: Sequence[int], pieces: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Piece j of rank i goes to rank j, which has a list of what came from each."""
        return [
            [self.send(start, end, own[place]) for start, own in zip(group, pieces, strict=True)]
            for place, end in enumerate(group)
        ]

    def between(self, node_size: int) -> tuple[Array, Array]:
        """What each rank has sent within its node, and to others. [elements]"""
        node = np.arange(self.ranks) // node_size
        inside = node[:, np.newaxis] == node
        return (self.sent * inside).sum(axis=1), (self.sent * ~inside).sum(axis=1)
