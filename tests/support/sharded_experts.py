"""Experts that are run twice: all on each token, and by ranks that hold some and send tokens about."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from costmodel.columns import IntArray
from tests.support.wires import Array, Wires


class Copy(NamedTuple):
    """A row on a rank: a token of some rank, for one of its experts, or (-1) for all that are there."""

    source: int
    token: int
    expert: int = -1


#: What a rank holds: rows by whose they are.
Rows = dict[Copy, Array]


@dataclass(frozen=True)
class Weights:
    """Matrices of all experts, (experts, hidden, ffn) and (experts, ffn, hidden): (x up)^2 down."""

    up: Array
    down: Array


@dataclass(frozen=True)
class Routing:
    """Experts of each token of each rank and their weights, (ranks, tokens, chosen)."""

    experts: IntArray
    shares: Array

    def chosen(self, copy: Copy) -> list[tuple[int, float]]:
        """Experts that a row is for, with their weights."""
        both = zip(self.experts[copy.source, copy.token], self.shares[copy.source, copy.token], strict=True)
        return [(int(e), share) for e, share in both if share and copy.expert in (-1, int(e))]


def dense(weights: Weights, tokens: Array, routing: Routing) -> Array:
    """What the experts of each token make of it, (ranks, tokens, hidden)."""
    made = np.einsum(
        "enth->neth", np.stack([(tokens @ up) ** 2 @ down for up, down in zip(weights.up, weights.down, strict=True)])
    )
    picked = np.zeros((*tokens.shape[:2], len(weights.up)))
    np.put_along_axis(picked, routing.experts, routing.shares, axis=2)
    return np.einsum("neth,nte->nth", made, picked)


def dense_gradient(weights: Weights, tokens: Array, routing: Routing, gradient: Array) -> Array:
    """Gradient of the tokens from that of what is made of them."""
    picked = np.zeros((*tokens.shape[:2], len(weights.up)))
    np.put_along_axis(picked, routing.experts, routing.shares, axis=2)
    found = np.zeros_like(tokens)
    for e, (up, down) in enumerate(zip(weights.up, weights.down, strict=True)):
        own = gradient * picked[:, :, e : e + 1]
        found = found + (2 * (tokens @ up) * (own @ down.T)) @ up.T
    return found


@dataclass
class ExpertRanks:
    """Ranks that hold experts: `etp` neighbours share out the width of each, `ep` such groups all of them."""

    ep: int
    etp: int
    weights: Weights
    routing: Routing
    node_size: int = 8
    capacity: int = 0  #: rows that a rank may send to an expert; 0: as many as there are
    wires: Wires = field(init=False)

    def __post_init__(self) -> None:
        self.wires = Wires(self.ep * self.etp)
        self.each = len(self.weights.up) // self.ep
        self.ranks = range(self.ep * self.etp)
        self.tokens = self.routing.experts.shape[1]
        ups = np.split(self.weights.up, self.etp, axis=2)
        self.shards = [*zip(ups, np.split(self.weights.down, self.etp, axis=1), strict=True)]

    def holder(self, expert: int, beside: int) -> int:
        """The rank of an expert that has the same place among those that share it out."""
        return expert // self.each * self.etp + beside % self.etp

    def shared(self, rank: int) -> list[int]:
        """Ranks that share out the experts of one, in order."""
        return [rank - rank % self.etp + other for other in range(self.etp)]

    def forward(self, tokens: Array) -> Array:
        self.kept = self.arrived(tokens)
        made = [
            {copy: self.expert_sum(rank, copy, row) for copy, row in own.items()} for rank, own in enumerate(self.kept)
        ]
        return self.returned(made)

    def backward(self, gradient: Array) -> Array:
        found = [
            {copy: self.expert_gradient(rank, copy, self.kept[rank][copy], row) for copy, row in own.items()}
            for rank, own in enumerate(self.arrived(gradient))
        ]
        return self.returned(found)

    def local(self, rank: int, copy: Copy) -> list[tuple[Array, Array, float]]:
        """Shards of the experts of a row that a rank holds."""
        first, (ups, downs) = rank // self.etp * self.each, self.shards[rank % self.etp]
        return [(ups[e], downs[e], share) for e, share in self.routing.chosen(copy) if first <= e < first + self.each]

    def expert_sum(self, rank: int, copy: Copy, row: Array) -> Array:
        return sum((share * (row @ up) ** 2 @ down for up, down, share in self.local(rank, copy)), 0 * row)

    def expert_gradient(self, rank: int, copy: Copy, row: Array, gradient: Array) -> Array:
        return sum(
            (share * (2 * (row @ up) * (gradient @ down.T)) @ up.T for up, down, share in self.local(rank, copy)),
            0 * row,
        )

    def arrived(self, tokens: Array) -> list[Rows]:
        """What each rank holds after the dispatch."""
        raise NotImplementedError

    def returned(self, made: list[Rows]) -> Array:
        """Sums for each token on its own rank, from what ranks made of what had arrived."""
        raise NotImplementedError

    def gathered_within(self, own: list[Rows]) -> list[Rows]:
        """What arrived on any of the ranks that share out an expert, on all of them."""
        found: list[Rows] = [{} for _ in self.ranks]
        for first in range(0, len(self.ranks), self.etp):
            group = self.shared(first)
            keys = [[*own[rank]] for rank in group]
            packed = [np.array([own[rank][key] for key in keys[i]]) for i, rank in enumerate(group)]
            for rank, parts in zip(group, self.wires.all_gather(group, packed), strict=True):
                found[rank] = {
                    k: row for ks, rows in zip(keys, parts, strict=True) for k, row in zip(ks, rows, strict=True)
                }
        return found

    def scattered_within(self, made: list[Rows]) -> list[Rows]:
        """Sums over those ranks, each where its row had arrived."""
        found: list[Rows] = [{} for _ in self.ranks]
        for first in range(0, len(self.ranks), self.etp):
            group = self.shared(first)
            keys = [[key for key in made[first] if key.source % self.etp == i] for i in range(self.etp)]
            parts = [[np.array([made[rank][key] for key in own]) for own in keys] for rank in group]
            for rank, ks, rows in zip(group, keys, self.wires.reduce_scatter(group, parts), strict=True):
                found[rank] = dict(zip(ks, rows, strict=True))
        return found

    def added_up(self, rows: list[tuple[Copy, Array]], hidden: int) -> Array:
        total = np.zeros((len(self.ranks), self.tokens, hidden))
        for copy, row in rows:
            if copy.token >= 0:
                total[copy.source, copy.token] += row
        return total


class AllToAll(ExpertRanks):
    """A copy of each token to every one of its experts."""

    def copies(self, rank: int) -> list[Copy]:
        """In the order of experts; with a capacity so many of each, the last of them padding."""
        routed = defaultdict(list)
        for token in range(self.tokens):
            for e, _ in self.routing.chosen(Copy(rank, token)):
                routed[e].append(Copy(rank, token, e))
        if self.capacity:
            for e in range(len(self.weights.up)):
                missing = self.capacity - len(routed[e])
                routed[e] = routed[e][: self.capacity] + [Copy(rank, -1 - i, e) for i in range(missing)]
        return [copy for e in sorted(routed) for copy in routed[e]]

    def arrived(self, tokens: Array) -> list[Rows]:
        own: list[Rows] = [{} for _ in self.ranks]
        for rank in self.ranks:
            for copy in self.copies(rank):
                there = self.holder(copy.expert, rank)
                row = tokens[rank, copy.token] if copy.token >= 0 else np.zeros(tokens.shape[2])
                own[there][copy] = self.wires.send(rank, there, row)
        return self.gathered_within(own)

    def local(self, rank: int, copy: Copy) -> list[tuple[Array, Array, float]]:
        return super().local(rank, copy) if copy.token >= 0 else []

    def returned(self, made: list[Rows]) -> Array:
        back = [
            (copy, self.wires.send(rank, copy.source, row))
            for rank, own in enumerate(self.scattered_within(made))
            for copy, row in own.items()
        ]
        return self.added_up(back, self.weights.up.shape[1])


class AllGather(ExpertRanks):
    """Every token to every rank, and sums of all of them back."""

    def arrived(self, tokens: Array) -> list[Rows]:
        everywhere = self.wires.all_gather([*self.ranks], [*tokens])
        return [
            {Copy(source, t): row for source, rows in enumerate(own) for t, row in enumerate(rows)}
            for own in everywhere
        ]

    def returned(self, made: list[Rows]) -> Array:
        parts = [
            [np.array([own[Copy(source, t)] for t in range(self.tokens)]) for source in self.ranks] for own in made
        ]
        return np.stack(self.wires.reduce_scatter([*self.ranks], parts))


class TwoHops(ExpertRanks):
    """A token once to each node, to the rank of its own rank's place there, and from that once to each."""

    def forwarder(self, source: int, there: int) -> int:
        return there - there % self.node_size + source % self.node_size

    def ways(self, rank: int, token: int) -> dict[int, list[int]]:
        """Rank that a token comes to in each node -> ranks that need it there."""
        found = defaultdict(list)
        chosen = self.routing.chosen(Copy(rank, token))
        for there in sorted({self.holder(e, rank) for e, _ in chosen}):
            found[self.forwarder(rank, there)].append(there)
        return found

    def arrived(self, tokens: Array) -> list[Rows]:
        own: list[Rows] = [{} for _ in self.ranks]
        for rank in self.ranks:
            for token, row in enumerate(tokens[rank]):
                for between, ends in self.ways(rank, token).items():
                    came = self.wires.send(rank, between, row)
                    for there in ends:
                        own[there][Copy(rank, token)] = self.wires.send(between, there, came)
        return self.gathered_within(own)

    def returned(self, made: list[Rows]) -> Array:
        sums, back = self.scattered_within(made), []
        for rank in self.ranks:
            for token in range(self.tokens):
                copy = Copy(rank, token)
                for between, ends in self.ways(rank, token).items():
                    total = np.sum([self.wires.send(there, between, sums[there][copy]) for there in ends], axis=0)
                    back.append((copy, self.wires.send(between, rank, total)))
        return self.added_up(back, self.weights.up.shape[1])


DISPATCHERS = {"all_to_all": AllToAll, "all_gather": AllGather, "two_hop": TwoHops}
