"""Batches that are under way at the same time: what each may know, and which designs are its own.

In a study of concurrency n, n batches can be proposed and evaluated at the same time, by as many processes.
Designs are dealt out to n shares by a number that follows from each. Batch k proposes from share k modulo n;
it goes on from batch k - n, the one before it of its share, and knows nothing of those in between, so that no
two batches under way propose the same. The first batch is under way alone, and all shares go on from it. All
this follows from seed and space: who evaluates which batch, and when, leaves no trace in the trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from dse.spaces.lattice import hashes
from dse.spaces.sections.parameters import Parameter, Value

#: What tells two designs apart.
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
