"""Many designs of which some values are named, each completed to the simplest legal one, or found illegal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.spaces.designs.legal import Batch, Component, LegalDesigns, options_of, within
from dse.spaces.sections.parameters import Parameter

if TYPE_CHECKING:
    from dse.spaces.definition import Definition
    from dse.spaces.designs.legal import Check

#: Combinations of named values whose designs are grown at a time, to find out which rule rules them out.
COMBINATIONS: Final = 32


def completed_rows(legal_designs: LegalDesigns, named: Batch, rows: int) -> tuple[Batch, BoolArray]:
    """The simplest legal designs with some values, and a mask of the rows that have one, (rows,).

    Simplest is what `Space.completed` takes: quantities as the system has them, else the first option; parameters give
    way in the order of the space, whose named parameters come first. `named` has codes, (rows,). Rows without a legal
    design hold values near one.
    """
    columns, legal = dict(named), np.ones(rows, dtype=bool)
    space = legal_designs.space
    for group in legal_designs.groups:
        if all(parameter.name in named for parameter in group):
            continue
        component = legal_designs.table_of(group)
        if not component.rows:
            legal[:] = False
        columns |= _simplest(component, named, rows, space)
    for parameter in space.parameters:
        if parameter.name not in columns:
            columns[parameter.name] = np.full(rows, within(parameter, simplest(space, parameter)))
    for name, values in named.items():
        legal &= columns[name] == values
    columns = {p.name: named.get(p.name, columns[p.name]) for p in space.parameters}
    return columns, legal & legal_designs.kept(columns)


def simplest(space: Definition, parameter: Parameter) -> float:
    """The system's own value of a quantity, else the first option or the lower end. [its unit]"""
    quantities = space.system.quantities()
    if parameter.name in quantities:
        return float(quantities[parameter.name])
    options = parameter.options
    return parameter.low or 0.0 if options is None else float(options[0])


def _simplest(component: Component, named: Batch, rows: int, space: Definition) -> Batch:
    """Columns of a component: of each row the nearest to what is named, then to what is simplest."""
    if not component.rows:
        return {p.name: np.full(rows, simplest(space, p)) for p in component.parameters}
    wanted = [
        _places(p, named[p.name] if p.name in named else np.full(rows, simplest(space, p)))
        for p in component.parameters
    ]
    return component.columns(nearest_rows(component, wanted))


def _places(parameter: Parameter, values: FloatArray) -> IntArray:
    """Places of the options nearest to some values; of two as near, the first. [-]"""
    distinct, back = np.unique(values, return_inverse=True)
    options = options_of(parameter)
    nearest = [int(np.argmin(np.abs(options - value))) for value in distinct.tolist()]
    return np.array(nearest, dtype=np.int64)[back.ravel()]


def nearest_rows(component: Component, wanted: Sequence[IntArray]) -> IntArray:
    """Rows of a table whose places are those wanted or near them, one parameter after the other. [-]

    `Component.nearest_row` of many, (rows,) places of each parameter; of two places that are as near, the lower is
    taken.
    """
    low = np.zeros(wanted[0].size, dtype=np.int64)
    high = np.full(wanted[0].size, component.rows)
    for places, want in zip(component.places, wanted, strict=True):
        at = _first_at_least(places, want, low, high)
        below, above = places[np.maximum(at - 1, low)], places[np.minimum(at, high - 1)]
        chosen = np.where(np.abs(above - want) < np.abs(below - want), above, below)
        low, high = _first_at_least(places, chosen, low, high), _first_at_least(places, chosen + 1, low, high)
    return low


def _first_at_least(places: NDArray[np.int32], wanted: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """First row of sorted stretches, from `low` up to `high`, whose place is not below that wanted. [-]"""
    while (open_ := low < high).any():
        middle = np.minimum((low + high) // 2, places.size - 1)
        below = places[middle] < wanted
        low, high = np.where(open_ & below, middle + 1, low), np.where(open_ & ~below, middle, high)
    return low


def blocking_rules(legal: LegalDesigns, named: Batch, columns: Batch, rows: IntArray) -> list[Check | None]:
    """A rule that no design with some values keeps, for each of `rows`; None where no single rule is to blame.

    Rules that come before it in the space hold. `columns` are what `named` was completed to. [units of the parameters]
    """
    found: list[Check | None] = [None] * rows.size
    for group in legal.groups:
        own = [p.name for p in group if p.name in named]
        table = np.stack([named[name][rows] for name in own], axis=1) if own else np.zeros((rows.size, 0))
        distinct, back = np.unique(table, axis=0, return_inverse=True)
        checks: list[Check | None] = []
        for first in range(0, len(distinct), COMBINATIONS):
            part = distinct[first : first + COMBINATIONS]
            checks += _emptied_by(legal, group, dict(zip(own, part.T, strict=True)), len(part))
        found = [old or checks[place] for old, place in zip(found, back.ravel().tolist(), strict=True)]
    return [
        check or _first_broken(legal, {name: values[[row]] for name, values in columns.items()})
        for check, row in zip(found, rows.tolist(), strict=True)
    ]


def _first_broken(legal: LegalDesigns, design: Batch) -> Check | None:
    """The first rule that a design breaks."""
    return next((check for check in legal.checks if not legal.kept(design, [check]).all()), None)


def _emptied_by(
    legal: LegalDesigns, group: Sequence[Parameter], named: Mapping[str, FloatArray], combinations: int
) -> list[Check | None]:
    """The rule after which no design is left of each combination of named values, if one is.

    Grows the designs of all combinations parameter by parameter, as tables of legal designs grow.
    """
    found: list[Check | None] = [None] * combinations
    owners, columns = np.arange(combinations), dict(named)
    names = {p.name for p in group}
    waiting = [check for check in legal.checks if check.parameters <= names]
    for parameter in (None, *(p for p in group if p.name not in named)):
        if parameter:
            options = options_of(parameter)
            columns = {name: np.repeat(values, options.size) for name, values in columns.items()}
            columns[parameter.name] = np.tile(options, owners.size)
            owners = np.repeat(owners, options.size)
        ready = [check for check in waiting if columns and check.parameters <= columns.keys()]
        waiting = [check for check in waiting if check not in ready]
        for check in ready:
            kept = legal.kept(columns, [check])
            for owner in np.setdiff1d(owners, owners[kept]).tolist():
                found[owner] = check
            owners, columns = owners[kept], {name: values[kept] for name, values in columns.items()}
    return found
