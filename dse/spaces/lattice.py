"""Designs of a space as rows of places, and the moves from one design to others near it.

A listed parameter has the place of its option, a range its value, or the logarithm of it. Rows are moved,
crossed and checked thousands at a time; `Lattice.legal` says which of them keep every rule.
"""

from __future__ import annotations

from functools import cache, cached_property
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.spaces.legal import within
from dse.spaces.sections.parameters import Parameter
from dse.spaces.space import Batch, Space

#: Most options of a parameter without an order (words) that are all neighbours of each other.
MOST_WORDS: Final = 8
#: How far values of a range move, as shares of its span.
RANGE_STEPS: Final = (-0.1, -0.01, 0.01, 0.1)
#: Most combinations of a component that are tried one and all.
MOST_ROWS: Final = 1 << 18
#: Share of crossings that have one of the best designs as a parent.
ELITE: Final = 0.3

#: One move: changes of places, for one parameter or for two at once.
Move = tuple[tuple[int, float], ...]


class Lattice:
    """The designs of a space as a table of places, (designs, parameters)."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.parameters = space.parameters
        self.sizes = np.array([0 if p.options is None else p.options.size for p in self.parameters])
        self._options = [p.options for p in self.parameters]
        self._sorted = [None if options is None else np.argsort(options) for options in self._options]

    def columns(self, places: FloatArray) -> Batch:
        """Values of designs, as they are evaluated. [SI units]"""
        return {
            p.name: _values(p, codes) if options is None else options[codes.astype(np.intp)]
            for p, options, codes in zip(self.parameters, self._options, places.T, strict=True)
        }

    def places(self, columns: Batch) -> FloatArray:
        """The opposite of `columns`. [-]"""
        rows = [
            _coordinate(p, columns[p.name]) if order is None or options is None
            else order[np.searchsorted(options, columns[p.name], sorter=order)]
            for p, options, order in zip(self.parameters, self._options, self._sorted, strict=True)
        ]  # fmt: skip
        return np.stack(rows, axis=1).astype(np.float64)

    def random(self, n: int, rng: Generator) -> FloatArray:
        """`n` legal designs, each as likely as any other."""
        return self.places(self.space.legal.random(n, rng))

    def legal(self, places: FloatArray) -> BoolArray:
        """Which designs are within their options and ranges, and keep every rule."""
        low, high = self._bounds
        inside: BoolArray = np.all((places >= low) & (places <= high), axis=1)
        rows = np.flatnonzero(inside)
        if rows.size:
            inside[rows] = self.space.legal.kept(self.columns(places[rows]))
        return inside

    @cached_property
    def _bounds(self) -> FloatArray:
        """(2, parameters) Least and largest places, or values of ranges."""
        bounds = [
            (0.0, size - 1.0) if size else tuple(_coordinate(p, np.array(p.ends)))
            for p, size in zip(self.parameters, self.sizes, strict=True)
        ]
        return np.array(bounds).T

    @cached_property
    def _cyclic(self) -> IntArray:
        """Parameters without an order, whose steps go round. [-]"""
        return np.array(
            [at for at, p in enumerate(self.parameters) if self.sizes[at] and not is_ordered(p)], dtype=np.intp
        )

    @cached_property
    def steps(self) -> tuple[tuple[float, ...], ...]:
        """For each parameter the changes of one step: up and down, or from word to word."""
        return tuple(
            _steps(p, int(size)) if size else tuple(share * (high - low) for share in RANGE_STEPS)
            for p, size, low, high in zip(self.parameters, self.sizes, *self._bounds, strict=True)
        )

    @cached_property
    def one_step(self) -> tuple[Move, ...]:
        """Every change of one parameter by one step."""
        return tuple(((at, step),) for at, steps in enumerate(self.steps) for step in steps)

    @cached_property
    def lines(self) -> tuple[Move, ...]:
        """Every change of one listed parameter to any other option."""
        return tuple(
            ((at, float(step)),)
            for at, size in enumerate(self.sizes)
            for step in (*range(1 - size, 0), *range(1, size))
        )

    @cached_property
    def pairs(self) -> tuple[Move, ...]:
        """Every change of two parameters by one step each."""
        return tuple((*one, *other) for one, other in combinations(self.one_step, 2) if one[0][0] != other[0][0])

    def varied(self, design: FloatArray) -> list[FloatArray]:
        """For each component, a design and the legal ones with another combination of it, all else kept.

        One of more than `MOST_ROWS` combinations has a table for each of its parameters, and one of pairs of steps.
        """
        tables, columns = [], {parameter.name: at for at, parameter in enumerate(self.parameters)}
        components = dict(enumerate(self.space.legal.components))
        for group in np.unique(self.groups).tolist():
            component = components.get(group)
            if component is not None and component.rows <= MOST_ROWS:
                others = np.repeat(design[None], component.rows, axis=0)
                for parameter, codes in zip(component.parameters, component.places, strict=True):
                    others[:, columns[parameter.name]] = codes
                others = others[self.legal(others)]
            else:
                inside = {*np.flatnonzero(self.groups == group).tolist()}
                for at in inside:
                    moves = tuple(move for move in (*self.one_step, *self.lines) if move[0][0] == at)
                    tables.append(np.concatenate([design[None], self.moved(design[None], moves)[0]]))
                others = self.moved(design[None], tuple(m for m in self.pairs if {at for at, _ in m} <= inside))[0]
            tables.append(np.concatenate([design[None], others]))
        return tables

    def moved(self, places: FloatArray, moves: tuple[Move, ...]) -> tuple[FloatArray, IntArray]:
        """The legal designs that some moves make of each of some designs, and which each comes from."""
        changes = np.zeros((len(moves), len(self.parameters)))
        for row, move in zip(changes, moves, strict=True):
            for at, step in move:
                row[at] += step
        neighbours = places[:, None] + changes
        neighbours[..., self._cyclic] %= self.sizes[self._cyclic]
        flat = self._settled(neighbours.reshape(-1, len(self.parameters)))
        rows = np.flatnonzero(self.legal(flat))
        return flat[rows], rows // len(moves)

    def crossed(self, places: FloatArray, elite: IntArray, n: int, rng: Generator) -> FloatArray:
        """`n` children of random pairs of designs, without the illegal ones.

        Half of them take each group of parameters that rules tie together from one parent as a whole, the
        others each parameter for itself; a share of `ELITE` have one of some rows as a parent.
        """
        if not len(places):
            return places
        one, other = rng.integers(len(places), size=(2, n))
        one = np.where(rng.random(n) < ELITE, elite[rng.integers(len(elite), size=n)], one)
        whole = rng.random((n, int(self.groups.max()) + 1))[:, self.groups]
        single = rng.random((n, len(self.parameters)))
        share = np.where(rng.random((n, 1)) < 0.5, whole, single)
        children = np.where(share < 0.5, places[one], places[other])
        return children[self.legal(children)]

    def _settled(self, places: FloatArray) -> FloatArray:
        """Designs with parameters of ranges rounded to values that they can have."""
        for at in np.flatnonzero(self.sizes == 0):
            parameter = self.parameters[at]
            places[:, at] = _coordinate(parameter, _values(parameter, places[:, at]))
        return places

    @cached_property
    def groups(self) -> IntArray:
        """(parameters,) Number of the component that each parameter belongs to. [-]"""
        component = {p.name: n for n, c in enumerate(self.space.legal.components) for p in c.parameters}
        alone = len(self.space.legal.components)
        return np.array([component.get(p.name, alone + at) for at, p in enumerate(self.parameters)])


def _coordinate(parameter: Parameter, values: FloatArray) -> FloatArray:
    """Where values of a range are on its scale: the values, or their logarithms. [-]"""
    return np.log(values) if parameter.log else values


def _values(parameter: Parameter, coordinates: FloatArray) -> FloatArray:
    """The values of a range that are nearest to places on its scale. [unit of the parameter]"""
    values = np.exp(coordinates) if parameter.log else coordinates
    return np.array([within(parameter, value) for value in values.tolist()])


def is_ordered(parameter: Parameter) -> bool:
    """True if options have an order, as numbers do and words do not."""
    return parameter.options is not None and not parameter.words and not parameter.boolean


def _steps(parameter: Parameter, size: int) -> tuple[float, ...]:
    """Changes of place of one step."""
    if size < 2:
        return ()
    if is_ordered(parameter) or size > MOST_WORDS:
        return (-1.0, 1.0)
    return tuple(float(step) for step in range(1, size))


def hashes(places: FloatArray) -> NDArray[np.uint64]:
    """Hash of each row of places; (designs,)."""
    bits: NDArray[np.uint64] = np.ascontiguousarray(places + 0.0).view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(32))) * _factors(places.shape[1])
    total: Any = (mixed ^ (mixed >> np.uint64(29))).sum(axis=1, dtype=np.uint64)
    return np.asarray(total, dtype=np.uint64)


@cache
def _factors(columns: int) -> NDArray[np.uint64]:
    """An odd number for each column."""
    factors = np.random.default_rng(0).integers(2**63, size=columns, dtype=np.uint64)
    return factors * np.uint64(2) + np.uint64(1)
