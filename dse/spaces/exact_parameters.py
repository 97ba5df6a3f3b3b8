"""Legal designs in two parts: outer ones, which are sampled, and all legal inner ones of each.

The tables of legal combinations have their exact parameters last, so that the rows of one outer combination
follow each other: its inner ones are a range of rows in every table, and all of them the product of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import IntArray
from costmodel.errors import DseError
from dse.spaces.legal import Batch, Check, Component, LegalDesigns, options_of

#: Designs that are listed at a time.
CHUNK: Final = 1 << 16
#: Most inner designs of one outer design.
MOST_INNER: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Nest:
    """A table of legal combinations, and where in it the rows of each outer combination are."""

    table: Component
    outer: Component  #: distinct combinations of the parameters that are sampled
    starts: IntArray  #: (combinations + 1,) first row of each, and the end
    keys: tuple[IntArray, ...]  #: of each outer parameter, its places next to the rank of those before

    @classmethod
    def of(cls, table: Component) -> Self:
        """The rows of a table by their outer places."""
        parameters = tuple(p for p in table.parameters if not p.exact)
        rank = np.zeros(table.rows, dtype=np.intp)
        new = np.arange(table.rows) == 0
        keys = []
        for parameter, places in zip(parameters, table.places[: len(parameters)], strict=True):
            key = rank * options_of(parameter).size + places
            new[1:] = key[1:] != key[:-1]  # rows are in order
            rank = np.cumsum(new) - 1
            keys.append(key[new])
        first = np.flatnonzero(new)
        outer = Component(parameters, tuple(places[first] for places in table.places[: len(parameters)]))
        return cls(table, outer, np.append(first, table.rows), tuple(keys))

    def combinations(self, columns: Batch, points: int) -> IntArray:
        """(points,) Which outer combination each of some designs has. [-]"""
        rank = np.zeros(points, dtype=np.intp)
        for parameter, keys in zip(self.outer.parameters, self.keys, strict=True):
            options = options_of(parameter)
            order = np.argsort(options)
            places = order[np.searchsorted(options, columns[parameter.name], sorter=order)]
            rank = np.searchsorted(keys, rank * options.size + places)
        return rank


class OuterDesigns(LegalDesigns):
    """Legal designs of a space without its exact parameters: those with legal values of the exact ones."""

    def __init__(self, whole: LegalDesigns) -> None:
        space = whole.space
        super().__init__(replace(space, parameters=tuple(p for p in space.parameters if not p.exact)))
        self.whole = whole
        # Rules between ranges and exact parameters are known only for whole designs.
        sampled = {p.name for p in self.space.parameters}
        self._tied = [check for check in whole._late if not check.parameters <= sampled]

    @cached_property
    def nests(self) -> tuple[Nest, ...]:
        """The tables of the whole space, by their outer combinations."""
        return tuple(Nest.of(component) for component in self.whole.components)

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """Tables of the outer combinations that have inner ones."""
        return tuple(nest.outer for nest in self.nests if nest.outer.parameters)

    @property
    def inner_count(self) -> float:
        """Inner designs of one of these, the mean over all. [-]"""
        return float(np.prod([nest.table.rows / (nest.starts.size - 1) for nest in self.nests]))

    def has(self, columns: Batch, points: int) -> NDArray[np.bool_]:
        """(points,) Which of some designs are legal; values must be options of their parameters."""
        is_known = np.ones(points, dtype=bool)
        for nest in self.nests:
            rows = np.minimum(nest.combinations(columns, points), nest.starts.size - 2)
            for name, values in nest.outer.columns(rows).items():
                is_known &= values == columns[name]
        return is_known

    def inner(self, columns: Batch, points: int) -> Iterator[tuple[IntArray, Batch]]:
        """Every legal whole design of outer designs, (points,): its outer design [-] and all parameters [SI units].

        At most `CHUNK` at a time, in the order of outer designs. Raises `DseError` if one has more than `MOST_INNER`.
        """
        rows = [nest.combinations(columns, points) for nest in self.nests]
        first = [nest.starts[row] for nest, row in zip(self.nests, rows, strict=True)]
        sizes = [nest.starts[row + 1] - nest.starts[row] for nest, row in zip(self.nests, rows, strict=True)]
        most = np.prod([size.astype(np.float64) for size in sizes], axis=0)
        if (most > MOST_INNER).any():
            raise DseError(f"space {self.space.name}: {most.max():.3g} exact designs for one that is drawn; "
                           "let fewer parameters be exact")  # fmt: skip
        ends, total = np.cumsum(most.astype(np.intp)), int(most.sum())
        for low in range(0, total, CHUNK):
            numbers = np.arange(low, min(low + CHUNK, total))
            owner = np.searchsorted(ends, numbers, side="right")
            numbers -= np.append(0, ends)[owner]
            designs = {name: values[owner] for name, values in columns.items()}
            for nest, start, size in zip(reversed(self.nests), first[::-1], sizes[::-1], strict=True):
                numbers, digit = np.divmod(numbers, size[owner])
                designs |= nest.table.columns(start[owner] + digit)
            kept = np.flatnonzero(self.whole._kept(designs, self._tied, owner.size))
            yield owner[kept], self.whole._ordered({name: design[kept] for name, design in designs.items()})

    def _kept(self, columns: Batch, checks: Sequence[Check], n: int) -> NDArray[np.bool_]:
        """Rows that pass every check, and have an inner design."""
        kept = super()._kept(columns, checks, n)
        if self._tied:
            rows = np.flatnonzero(kept)
            owners = [owner for owner, _ in self.inner({k: v[rows] for k, v in columns.items()}, rows.size)]
            kept[:] = False
            kept[rows[np.unique(np.concatenate([*owners, np.empty(0, dtype=np.intp)]))]] = True
        return kept

    def _some(self) -> None:
        self.whole._some()
