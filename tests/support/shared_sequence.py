"""Causal attention that is run twice: whole, and by ranks that share a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.support.wires import Array, Wires


class Tokens(NamedTuple):
    """Queries, keys, values of some tokens (tokens, heads, width), or their gradients; and their places."""

    queries: Array
    keys: Array
    values: Array
    places: Array

    def map(self, function: Callable[[Array], Array]) -> Tokens:
        """Something done to queries, keys and values."""
        return Tokens(function(self.queries), function(self.keys), function(self.values), self.places)


Block = tuple[Array, Array, Array]  #: keys and values with their places


def joined(parts: list[Tokens]) -> Tokens:
    """Tokens one after the other."""
    return Tokens(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def scores(queries: Array, places: Array, block: Block, window: float) -> Array:
    """Scores of each head, (heads, queries, keys): causal, within a window."""
    keys, _, others = block
    repeated = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    behind = places[:, np.newaxis] - others
    found = np.einsum("qhd,khd->hqk", queries, repeated) / np.sqrt(queries.shape[2])
    return np.where((behind >= 0) & (behind < window), found, -np.inf)


@dataclass
class SoftmaxSum:
    """A softmax of scores times values, block of keys by block."""

    most: Array  #: largest score so far, (heads, queries)
    weight: Array  #: sum of exponentials
    context: Array  #: (queries, heads, width)
    seen: float = 0.0  #: scores that are not masked

    @classmethod
    def empty(cls, queries: Array, width: int) -> SoftmaxSum:
        count, heads, _ = queries.shape
        return cls(np.full((heads, count), -1e300), np.zeros((heads, count)), np.zeros((count, heads, width)))

    def add(self, own: Array, values: Array) -> None:
        most = np.maximum(self.most, own.max(axis=2))
        old, new = np.exp(self.most - most), np.exp(own - most[:, :, np.newaxis])
        repeated = np.repeat(values, len(own) // values.shape[1], axis=1)
        self.context = self.context * old.T[:, :, np.newaxis] + np.einsum("hqk,khd->qhd", new, repeated)
        self.weight = self.weight * old + new.sum(axis=2)
        self.most, self.seen = most, self.seen + np.isfinite(own).sum()

    @property
    def result(self) -> Array:
        return self.context / self.weight.T[:, :, np.newaxis]

    @property
    def log_weight(self) -> Array:
        return self.most + np.log(self.weight)


def block_gradients(
    tokens: Tokens, done: SoftmaxSum, gradient: Array, block: Block, window: float
) -> tuple[Array, Array, Array]:
    """Gradients of queries, and of a block's keys and values, from scores that are computed again."""
    keys, values, _ = block
    repeats, scale = tokens.queries.shape[1] // keys.shape[1], np.sqrt(tokens.queries.shape[2])
    weights = np.exp(scores(tokens.queries, tokens.places, block, window) - done.log_weight[:, :, np.newaxis])
    behind = (gradient * done.result).sum(axis=2).T
    of_weights = np.einsum("qhd,khd->hqk", gradient, np.repeat(values, repeats, axis=1))
    of_scores = weights * (of_weights - behind[:, :, np.newaxis]) / scale
    of_queries = np.einsum("hqk,khd->qhd", of_scores, np.repeat(keys, repeats, axis=1))

    def grouped(of_heads: Array) -> Array:
        return of_heads.reshape(len(keys), keys.shape[1], repeats, -1).sum(axis=2)

    of_keys = grouped(np.einsum("hqk,qhd->khd", of_scores, tokens.queries))
    return of_queries, of_keys, grouped(np.einsum("hqk,qhd->khd", weights, gradient))


@dataclass
class SharedSequence:
    """One attention core by ranks that share a sequence: heads move within groups, keys between them.

    Ranks `group` are those of one share of the heads. Of `inner` neighbours each takes some heads of all
    their tokens; groups of those pass their keys around a ring, or gather them.
    """

    wires: Wires
    group: list[int]
    inner: int
    gathers: bool
    window: float = np.inf

    def __post_init__(self) -> None:
        size = len(self.group)
        self.inside = [[*range(start, start + self.inner)] for start in range(0, size, self.inner)]
        self.rings = [[*range(first, size, self.inner)] for first in range(self.inner)]

    def forward(self, shards: list[Tokens]) -> list[Array]:
        """Context of each rank's own tokens."""
        self.held = self.heads_for_tokens(shards)
        width = shards[0].values.shape[2]
        self.done = [SoftmaxSum.empty(own.queries, width) for own in self.held]
        self.blocks: dict[int, Block] = {i: own[1:] for i, own in enumerate(self.held)}
        for ring in self.rings:
            for turn in range(len(ring)):
                if turn and not self.gathers:
                    self.passed(ring, 1)
                everything = self.gathered(ring) if self.gathers else None
                for at in ring:
                    block = everything[ring.index(at)] if everything else self.blocks[at]
                    own = self.held[at]
                    self.done[at].add(scores(own.queries, own.places, block, self.window), block[1])
                if self.gathers:
                    break
        return self.tokens_for_heads([done.result for done in self.done])

    def passed(self, ring: list[int], way: int) -> None:
        """Keys and values one rank further around a ring."""
        before = {at: self.blocks[at] for at in ring}
        for place, at in enumerate(ring):
            there = ring[(place + way) % len(ring)]
            keys, values, places = before[at]
            self.blocks[there] = (self.sent(at, there, keys), self.sent(at, there, values), places)

    def sent(self, start: int, end: int, message: Array) -> Array:
        return self.wires.send(self.group[start], self.group[end], message)

    def gathered(self, ring: list[int]) -> list[Block]:
        """Keys and values of the whole sequence on every rank."""
        ranks = [self.group[at] for at in ring]
        keys, values = (
            self.wires.all_gather(ranks, [own[part] for own in (self.held[at][1:] for at in ring)]) for part in (0, 1)
        )
        places = np.concatenate([self.held[at].places for at in ring])
        return [(np.concatenate(k), np.concatenate(v), places) for k, v in zip(keys, values, strict=True)]

    def backward(self, gradients: list[Array]) -> list[Tokens]:
        """Gradients of queries, keys and values of each rank's own tokens."""
        shares = self.heads_of(gradients)
        found: dict[int, Tokens] = {}
        for ring in self.rings:
            back = self.scattered_back if self.gathers else self.ring_back
            found.update(back(ring, shares))
        columns = [self.tokens_for_heads([found[at][part] for at in range(len(self.group))]) for part in range(3)]
        return [Tokens(q, k, v, np.zeros(0)) for q, k, v in zip(*columns, strict=True)]

    def gradients_at(self, at: int, shares: list[Array], block: Block) -> tuple[Array, Array, Array]:
        return block_gradients(self.held[at], self.done[at], shares[at], block, self.window)

    def ring_back(self, ring: list[int], shares: list[Array]) -> dict[int, Tokens]:
        """Keys go back the way that they came; their gradients follow them, and so come home."""
        of_queries = {at: np.zeros_like(self.held[at].queries) for at in ring}
        following: dict[int, tuple[Array, Array]] = {}
        for turn in range(len(ring)):
            if turn:
                self.passed(ring, -1)
                following = {
                    ring[place - 1]: (self.sent(at, ring[place - 1], k), self.sent(at, ring[place - 1], v))
                    for place, at in enumerate(ring)
                    for k, v in (following[at],)
                }
            for at in ring:
                queries, *own = self.gradients_at(at, shares, self.blocks[at])
                of_queries[at] = of_queries[at] + queries
                before = following.get(at, (0.0, 0.0))
                following[at] = (before[0] + own[0], before[1] + own[1])
        for at in ring:
            np.testing.assert_array_equal(self.blocks[at][2], self.held[at].places)
        return {at: Tokens(of_queries[at], *following[at], np.zeros(0)) for at in ring}

    def scattered_back(self, ring: list[int], shares: list[Array]) -> dict[int, Tokens]:
        """Keys are gathered again; the gradients of all are added up where the keys belong."""
        found = [self.gradients_at(at, shares, block) for at, block in zip(ring, self.gathered(ring), strict=True)]
        ranks, count = [self.group[at] for at in ring], len(ring)
        keys, values = (
            self.wires.reduce_scatter(ranks, [np.split(own[part], count) for own in found]) for part in (1, 2)
        )
        return {at: Tokens(found[i][0], keys[i], values[i], np.zeros(0)) for i, at in enumerate(ring)}

    def heads_for_tokens(self, shards: list[Tokens]) -> list[Tokens]:
        """Some heads of the tokens of all ranks inside a group, for all heads of a rank's own tokens."""
        columns = [self.heads_of([own[part] for own in shards]) for part in range(3)]
        places = [np.concatenate([shards[other].places for other in inside]) for inside in self.inside for _ in inside]
        return [Tokens(*each) for each in zip(*columns, places, strict=True)]

    def heads_of(self, arrays: list[Array]) -> list[Array]:
        found: list[Array] = []
        for inside in self.inside:
            pieces = [np.split(arrays[at], self.inner, axis=1) for at in inside]
            exchanged = self.wires.all_to_all([self.group[at] for at in inside], pieces)
            found += [np.concatenate(own) for own in exchanged]
        return found

    def tokens_for_heads(self, arrays: list[Array]) -> list[Array]:
        """The other way round."""
        found: list[Array] = []
        for inside in self.inside:
            pieces = [np.split(arrays[at], self.inner) for at in inside]
            exchanged = self.wires.all_to_all([self.group[at] for at in inside], pieces)
            found += [np.concatenate(own, axis=1) for own in exchanged]
        return found


def in_two_chunks(whole: Array, ranks: int) -> list[Array]:
    """The i-th of 2 c chunks and the i-th from the end for each rank, so that causal work is even."""
    chunks = np.split(whole, 2 * ranks)
    return [np.concatenate([chunks[i], chunks[-1 - i]]) for i in range(ranks)]
