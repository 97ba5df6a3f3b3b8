"""The designs that a screening search has found, and which of them a batch may propose.

An archive holds the designs that no evaluated design dominates, and near ones.

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

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.fronts import FrontIndex, low_and_span, non_dominated, shortfalls
from dse.spaces.lattice import hashes
from dse.spaces.sections.parameters import Parameter, Value

#: Trials whose designs are found together.
BATCH_SIZE: Final = 100

#: Draws of a design, times the number of shares, until one is of a share: few miss it.
DRAWS_EACH: Final = 8

#: Most designs of the front that are kept, in addition to trials.
MOST_KEPT: Final = 4096
#: Columns of the designs of the front.
OF_FRONT: Final = ("places", "costs", "explored", "sent")
#: Largest unpacked size of a column: far more than `MOST_KEPT` designs, and the trials. [B]
LARGEST: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Archive:
    """Designs that no evaluated design dominates, with their state, and the next best.

    Designs are rows of places, as `dse.spaces.lattice.Lattice` has them.
    """

    places: FloatArray  #: (designs, parameters)
    costs: FloatArray  #: (designs, objectives), less is better [the unit of each]
    explored: FloatArray  #: (designs,) 1: neighbours were evaluated; 2: polished; 3: polished as the best; else 0
    sent: BoolArray  #: (designs,) whether it became a trial
    reserve: FloatArray  #: (others, parameters): feasible designs that are beaten, the least beaten first
    complete: bool = False  #: whether every legal design is evaluated, or ruled out by proved bounds
    best_proved: bool = False  #: whether proved bounds rule out a better best design of any objective
    thin: bool = False  #: whether some designs of the front were left out

    @classmethod
    def empty(cls, parameters: int, objectives: int) -> Self:
        """Archive without designs."""
        places = np.empty((0, parameters))
        return cls(places, np.empty((0, objectives)), np.empty(0), np.empty(0, dtype=bool), places)

    def take(self, rows: IntArray | BoolArray) -> Archive:
        """Archive of some of the front's designs."""
        return replace(self, **{name: getattr(self, name)[rows] for name in OF_FRONT})

    def joined(self, places: FloatArray, costs: FloatArray, *, ties: bool = False) -> Archive:
        """Archive with other designs; those that nothing beats are kept, of equal costs all or the first.

        Rows with NaN are infeasible.
        """
        rows = np.flatnonzero(non_dominated(costs))
        rows = rows[~FrontIndex(self.costs).beats(costs[rows])]
        kept = self.take(~FrontIndex(costs[rows]).beats(self.costs))
        new = places[rows], costs[rows], np.zeros(rows.size), np.zeros(rows.size, dtype=bool)
        columns = {name: np.r_[getattr(kept, name), more] for name, more in zip(OF_FRONT, new, strict=True)}
        both = replace(kept, **columns)
        return both if ties else both.take(np.sort(np.unique(both.costs, axis=0, return_index=True)[1]))

    def thinned(self) -> Archive:
        """At most about `MOST_KEPT` designs: one of each cell of a grid that is as fine as that allows."""
        if len(self.places) <= MOST_KEPT:
            return self
        low, span = low_and_span(self.costs)
        scaled = (self.costs - low) / span
        for cells in 2 ** np.arange(16, 3, -1):
            first = np.unique(np.floor(scaled * cells), axis=0, return_index=True)[1]
            ends = np.concatenate([np.flatnonzero(self.sent), self.costs.argmin(axis=0)])
            kept = np.union1d(first, ends)
            if kept.size <= MOST_KEPT:
                break
        return replace(self.take(kept), thin=True)

    def packed(self) -> dict[str, Any]:
        """The archive as texts and numbers for JSON."""
        arrays = {name: getattr(self, name).astype(np.float64) for name in (*OF_FRONT, "reserve")}
        packed = {name: zlib.compress(array.tobytes(), 6) for name, array in arrays.items()}
        texts = {name: base64.b64encode(data).decode("ascii") for name, data in packed.items()}
        return {**texts, "complete": self.complete, "thin": self.thin, "best_proved": self.best_proved}

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any], parameters: int, objectives: int) -> Self:
        """The opposite of `packed`.

        Raises `ValueError`, `LookupError`, `TypeError` or `AttributeError` if it is no such thing.
        """
        archive = cls(
            places=_array(packed["places"]).reshape(-1, parameters),
            costs=_array(packed["costs"]).reshape(-1, objectives),
            explored=_array(packed["explored"]),
            sent=_array(packed["sent"]) > 0,
            reserve=_array(packed["reserve"]).reshape(-1, parameters),
            complete=bool(packed["complete"]),
            best_proved=bool(packed.get("best_proved", False)),
            thin=bool(packed.get("thin", True)),  # unknown of archives of earlier versions
        )
        if len({len(getattr(archive, name)) for name in OF_FRONT}) > 1:
            raise ValueError("columns of unequal length")
        return archive


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


@dataclass(frozen=True)
class DesignShare:
    """The designs that may become trials of a batch."""

    number: int
    concurrency: int
    parameters: Sequence[Parameter]

    def has(self, columns: Mapping[str, FloatArray]) -> BoolArray:
        """(designs,) Which designs are in this share. [-]"""
        codes = np.stack([columns[p.name] for p in self.parameters], axis=1)
        return np.asarray(hashes(codes) % np.uint64(self.concurrency) == self.number)

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
