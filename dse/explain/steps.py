"""Designs one step from a design: every parameter up and down, and two at once where their product stays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from costmodel.columns import FloatArray
from dse.search.moves import Lattice, is_ordered
from dse.spaces.parameters import Value
from dse.spaces.space import Batch, Space

#: A way from a design, such as a parameter and up: the first legal design along it counts.
Way = tuple[str | int, ...]


def one_step(space: Space, params: Mapping[str, Value], products: Sequence[Collection[str]]) -> Batch:
    """A design and its neighbours as columns: the design first, then legal others, each once.

    Parameters
    ----------
    space : Space
        Where the design comes from.
    params : mapping
        The design. [SI units]
    products : sequence of collections of str
        Columns whose product is a total, such as the world size: two of them may change together so that it
        stays as it is.

    Returns
    -------
    columns : mapping of (points,) arrays
        As they are evaluated. [SI units]

    Notes
    -----
    Each listed number goes to the next value up and down that is legal; words and switches go to every other
    one; ranges move by a hundredth and a tenth of their span.
    """
    lattice = Lattice(space)
    here = lattice.places(space.encode([params]))[0]
    found = [*_single(lattice, here), *_pairs(lattice, here, products)]
    rows = np.array([row for _, row in found]).reshape(len(found), here.size)
    legal = lattice.legal(rows)
    first: dict[Way, FloatArray] = {}
    for (way, row), keeps in zip(found, legal, strict=True):
        if keeps:
            first.setdefault(way, row)
    others = np.array([*first.values()]).reshape(len(first), here.size)
    unique = np.unique(others, axis=0)
    return lattice.columns(np.concatenate([here[np.newaxis], unique]))


def _single(lattice: Lattice, here: FloatArray) -> Iterator[tuple[Way, FloatArray]]:
    """One parameter changed, the nearest values first; the way it goes."""
    for at, parameter in enumerate(lattice.parameters):
        if not lattice.sizes[at]:
            for number, step in enumerate(lattice.steps[at]):
                yield (at, "range", number), _changed(here, {at: here[at] + step})
        elif is_ordered(parameter):
            for place, away in _outward(lattice, here, at):
                yield (at, "up" if away > 0 else "down"), _changed(here, {at: place})
        else:
            for place in range(int(lattice.sizes[at])):
                if place != here[at]:
                    yield (at, "word", place), _changed(here, {at: float(place)})


def _pairs(
    lattice: Lattice, here: FloatArray, products: Sequence[Collection[str]]
) -> Iterator[tuple[Way, FloatArray]]:
    """Two parameters changed whose product stays, the nearest values first; the way they go."""
    listed = [at for at, parameter in enumerate(lattice.parameters) if is_ordered(parameter)]
    for one, other in combinations(listed, 2):
        names = {lattice.parameters[at].name for at in (one, other)}
        if not any(names <= {*product} for product in products):
            continue
        values = lattice.parameters[other].options
        own = lattice.columns(here[np.newaxis])
        product = own[lattice.parameters[one].name][0] * own[lattice.parameters[other].name][0]
        options = lattice.parameters[one].options
        assert values is not None
        assert options is not None
        for place, away in _outward(lattice, here, one):
            for match in np.flatnonzero(values * options[int(place)] == product):
                changed = _changed(here, {one: place, other: float(match)})
                yield (one, other, "up" if away > 0 else "down"), changed


def _outward(lattice: Lattice, here: FloatArray, at: int) -> list[tuple[float, int]]:
    """Other options of a listed number, the nearest first: their places, and how many values away. [-]"""
    options = lattice.parameters[at].options
    assert options is not None
    rank = np.argsort(np.argsort(options))
    away = rank - rank[int(here[at])]
    return [(float(place), int(away[place])) for place in np.argsort(np.abs(away), kind="stable")[1:]]


def _changed(here: FloatArray, places: Mapping[int, float]) -> FloatArray:
    """A design with some places changed."""
    row = here.copy()
    for at, place in places.items():
        row[at] = place
    return row
