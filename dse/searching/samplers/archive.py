"""The designs that a screening search has found, how designs climb from them, and which of them a batch may propose.

An archive holds the designs that no evaluated design dominates, and near ones. From these, designs climb: each moves to
its best neighbour by a separate goal, until none is better.

In a study of concurrency n, n batches can be proposed and evaluated at the same time, by as many processes. Designs are
dealt out to n shares by a number that follows from each. Batch k proposes from share k modulo n; it continues from
batch k - n, the one before it of its share, and does not read those in between, so that no two concurrent batches
propose the same. No other batch runs during the first, and all shares continue from it. All this follows from seed and
space: the process and the time of a batch do not change the trials.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.random import Generator

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.fronts import low_and_span, non_dominated, shortfalls
from dse.spaces.lattice import hashes
from dse.spaces.sections.parameters import Parameter, Value

#: Share of climbers with a single objective.
SINGLE: Final = 0.5
#: Concentration of the weights of the others: below 1, most of them favour some objectives.
CONCENTRATION: Final = 0.7
#: Share of the weighted sum in a goal, in addition to the largest term.
SUM_SHARE: Final = 0.1
#: Score of a design that breaks limits, before by how much: worse than any that keeps them.
BROKEN: Final = 1e6
#: Random designs; a climber starts from the best of them.
STARTS_EACH: Final = 16


@dataclass(frozen=True, slots=True)
class Climbers:
    """Positions of climbers, and their goals.

    A goal is the largest weighted objective and a little of their sum [Steuer1983]_, where the front's span
    of each objective is 1; before it come the limits, by how much they are broken.
    """

    places: FloatArray  #: (climbers, parameters)
    costs: FloatArray  #: (climbers, objectives), NaN where infeasible [the unit of each]
    violations: FloatArray  #: (climbers,) of limits [-]
    weights: FloatArray  #: (climbers, objectives) [-]

    @classmethod
    def empty(cls, parameters: int, objectives: int) -> Self:
        """Table without climbers."""
        none = np.empty((0, objectives))
        return cls(np.empty((0, parameters)), none, np.empty(0), none)

    def columns(self) -> tuple[FloatArray, ...]:
        """Columns of the table, a row for each climber."""
        return self.places, self.costs, self.violations, self.weights

    @classmethod
    def starting(
        cls, count: int, places: FloatArray, costs: FloatArray, violations: FloatArray, front: FloatArray,
        rng: Generator,
    ) -> Self:  # fmt: skip
        """New climbers, each at the best of a few designs by a goal at random."""
        weights = drawn_weights(count, costs.shape[1], rng)
        candidates = rng.integers(len(places), size=(count, STARTS_EACH))
        best = scores(costs[candidates], violations[candidates], weights[:, None], front).argmin(axis=1)
        rows = candidates[np.arange(count), best]
        return cls(places[rows], costs[rows], violations[rows], weights)

    def aimed(self, rng: Generator) -> Climbers:
        """Climbers of the same designs, with other goals at random."""
        return replace(self, weights=drawn_weights(len(self.weights), self.weights.shape[1], rng))

    def stepped(
        self, parents: IntArray, near: tuple[FloatArray, FloatArray, FloatArray],
        fresh: tuple[FloatArray, FloatArray, FloatArray], front: FloatArray, rng: Generator,
    ) -> Climbers:  # fmt: skip
        """The climbers a step further; who finds no better neighbour starts again from a fresh design."""
        count = len(self.places)
        nearby = scores(near[1], near[2], self.weights[parents], front)
        order = np.lexsort((nearby, parents))
        first = order[np.unique(parents[order], return_index=True)[1]]
        climbers = parents[first]
        better = nearby[first] < scores(self.costs, self.violations, self.weights, front)[climbers]
        again = Climbers.starting(count, *fresh, front, rng)
        places, costs, violations, weights = again.places, again.costs, again.violations, again.weights
        rows, climbers = first[better], climbers[better]
        places[climbers], costs[climbers], violations[climbers] = near[0][rows], near[1][rows], near[2][rows]
        weights[climbers] = self.weights[climbers]
        return Climbers(places, costs, violations, weights)


def drawn_weights(count: int, objectives: int, rng: Generator) -> FloatArray:
    """(count, objectives) Weights of random goals; a share of them have a single objective. [-]"""
    mixed = rng.dirichlet(np.full(objectives, CONCENTRATION), count)
    single = np.eye(objectives)[rng.integers(objectives, size=count)]
    return np.where(rng.random((count, 1)) < SINGLE, single, mixed)


def scores(costs: FloatArray, violations: FloatArray, weights: FloatArray, front: FloatArray) -> FloatArray:
    """Score of designs by goals, less is better; arrays broadcast, objectives last. [-]"""
    low, span = low_and_span(front) if len(front) else (0.0, 1.0)
    weighted = weights * ((costs - low) / span)
    score = weighted.max(axis=-1) + SUM_SHARE * weighted.sum(axis=-1)
    return np.where(np.isnan(score), BROKEN + violations, score)


#: Most designs of the front that are kept, in addition to trials.
MOST_KEPT: Final = 4096
#: Largest unpacked size of a column: far more than `MOST_KEPT` designs, and the trials. [B]
LARGEST: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Archive:
    """Designs that no evaluated design dominates, with their state, and the next best.

    Designs are rows of places, as `dse.spaces.lattice.Lattice` has them.
    """

    places: FloatArray  #: (designs, parameters)
    costs: FloatArray  #: (designs, objectives), less is better [the unit of each]
    explored: FloatArray  #: (designs,) 1 where neighbours are evaluated, 2 where it was polished, else 0
    sent: BoolArray  #: (designs,) whether it became a trial
    reserve: FloatArray  #: (others, parameters): feasible designs that are beaten, the least beaten first
    climbers: Climbers  #: where they are
    complete: bool = False  #: whether every legal design is evaluated

    @classmethod
    def empty(cls, parameters: int, objectives: int) -> Self:
        """Archive without designs."""
        places, climbers = np.empty((0, parameters)), Climbers.empty(parameters, objectives)
        return cls(places, np.empty((0, objectives)), np.empty(0), np.empty(0, dtype=bool), places, climbers)

    def take(self, rows: IntArray | BoolArray) -> Archive:
        """Archive of some of the front's designs."""
        return replace(
            self, places=self.places[rows], costs=self.costs[rows], explored=self.explored[rows], sent=self.sent[rows]
        )

    def joined(self, places: FloatArray, costs: FloatArray, *, ties: bool = False) -> Archive:
        """Archive with other designs; those that nothing beats are kept, of equal costs all or the first.

        Rows with NaN are infeasible.
        """
        rows = np.flatnonzero(non_dominated(costs))
        fresh = np.zeros(rows.size)
        both = replace(
            self,
            places=np.concatenate([self.places, places[rows]]),
            costs=np.concatenate([self.costs, costs[rows]]),
            explored=np.concatenate([self.explored, fresh]),
            sent=np.concatenate([self.sent, fresh > 0]),
        )
        kept = np.flatnonzero(non_dominated(both.costs))
        if not ties:
            kept = kept[np.sort(np.unique(both.costs[kept], axis=0, return_index=True)[1])]
        return both.take(kept)

    def merged(self, other: Archive) -> Archive:
        """Archive with the designs of another batch; of equal costs a trial is kept, else the first."""
        names = ("places", "costs", "explored", "sent")
        both = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        order = np.argsort(~both["sent"], kind="stable")
        both = {name: column[order] for name, column in both.items()}
        _, first, owners = np.unique(both["costs"], axis=0, return_index=True, return_inverse=True)
        explored = np.zeros(first.size)
        np.maximum.at(explored, owners.ravel(), both["explored"])
        both["explored"] = explored[owners.ravel()]
        first.sort()
        kept = first[non_dominated(both["costs"][first])]
        archive = Archive(**both, reserve=self.reserve, climbers=self.climbers, complete=self.complete)
        return archive.take(kept)

    def thinned(self) -> Archive:
        """At most about `MOST_KEPT` designs: one of each cell of a grid that is as fine as that allows."""
        if len(self.places) <= MOST_KEPT:
            return self
        low, span = low_and_span(self.costs)
        scaled = (self.costs - low) / span
        kept = np.arange(len(scaled))
        for cells in 2 ** np.arange(16, 3, -1):
            first = np.unique(np.floor(scaled * cells), axis=0, return_index=True)[1]
            ends = np.concatenate([np.flatnonzero(self.sent), self.costs.argmin(axis=0)])
            kept = np.union1d(first, ends)
            if kept.size <= MOST_KEPT:
                break
        return self.take(kept)

    def packed(self) -> dict[str, Any]:
        """Archive as text and numbers that JSON knows."""
        names = ("places", "costs", "explored", "sent", "reserve")
        climbers = ("places", "costs", "violations", "weights")
        return {
            **{name: _text(getattr(self, name)) for name in names},
            "climbers": {name: _text(getattr(self.climbers, name)) for name in climbers},
            "complete": self.complete,
        }

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any], parameters: int, objectives: int) -> Self:
        """The opposite of `packed`.

        Raises `ValueError`, `LookupError`, `TypeError` or `AttributeError` if it is no such thing.
        """
        climbers = {name: _array(text) for name, text in packed["climbers"].items()}
        archive = cls(
            places=_array(packed["places"]).reshape(-1, parameters),
            costs=_array(packed["costs"]).reshape(-1, objectives),
            explored=_array(packed["explored"]),
            sent=_array(packed["sent"]) > 0,
            reserve=_array(packed["reserve"]).reshape(-1, parameters),
            climbers=Climbers(
                climbers["places"].reshape(-1, parameters),
                climbers["costs"].reshape(-1, objectives),
                climbers["violations"],
                climbers["weights"].reshape(-1, objectives),
            ),
            complete=bool(packed["complete"]),
        )
        front = archive.places, archive.costs, archive.explored, archive.sent
        for columns in (front, archive.climbers.columns()):
            if len({len(column) for column in columns}) > 1:
                raise ValueError("columns of unequal length")
        return archive


def _text(values: FloatArray | BoolArray) -> str:
    return base64.b64encode(zlib.compress(values.astype(np.float64).tobytes(), 6)).decode("ascii")


def _array(text: str) -> FloatArray:
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(base64.b64decode(text), LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacking.eof:
        raise ValueError(f"cut short, or unpacks to more than {LARGEST:,} bytes")
    return np.frombuffer(unpacked, dtype=np.float64).copy()


def least_beaten(costs: FloatArray, front: FloatArray, n: int) -> IntArray:
    """Rows of the `n` designs that the front beats by least, the least first.

    A design is beaten by the least share of the front's span that would have to be taken off all of its
    costs so that no design of the front beat it.
    """
    rows = np.flatnonzero(~np.isnan(costs).any(axis=1))
    low, span = low_and_span(front)
    beaten = shortfalls((costs[rows] - low) / span, (front - low) / span)
    return rows[np.argsort(beaten, kind="stable")[:n]]


#: Identity of a design.
Key = tuple[Any, ...]


def base_of(number: int, concurrency: int) -> int:
    """The batch from which another goes on: the one before it of its share, or the first; -1 is none. [-]"""
    return max(number - concurrency, min(number, 1) - 1)


def memories_of(base: int, concurrency: int) -> range:
    """Batches from whose memories all is known that was found up to one of them, this one first. [-]"""
    return range(base, max(base - concurrency, -1), -1)


@dataclass(frozen=True)
class DesignShare:
    """The designs that may become trials of a batch."""

    number: int
    concurrency: int
    parameters: Sequence[Parameter]

    def has(self, columns: Mapping[str, FloatArray]) -> BoolArray:
        """(designs,) Which designs are in this share. [-]"""
        codes = np.stack([columns[p.name] for p in self.parameters], axis=1)
        inside: BoolArray = hashes(codes) % np.uint64(self.concurrency) == self.number
        return inside

    def has_key(self, key: Sequence[Value]) -> bool:
        """True if a design is among them."""
        codes = zip(self.parameters, key, strict=True)
        return bool(self.has({p.name: np.array([p.code(value)]) for p, value in codes})[0])


@dataclass(frozen=True)
class Known:
    """Designs that are trials of the batches up to one."""

    batches: Mapping[Key, int]
    last: int

    def __contains__(self, key: Key) -> bool:
        return self.batches.get(key, self.last + 1) <= self.last

    def __bool__(self) -> bool:
        return bool(self.batches) and self.last >= 0
