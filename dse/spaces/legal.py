"""Designs that keep every rule, by construction: drawn, repaired, listed, completed, never searched for.

Parameters that a rule ties together, also through derived columns, form a component. Each component's
legal combinations are one table, grown parameter by parameter and filtered by each rule as soon as all
its names are known. A design is a row of every table.

Designs with some values named are completed to the simplest legal ones, or found illegal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.errors import DseError
from costmodel.machine import Range
from dse.spaces.formulas.expressions import Expression
from dse.spaces.formulas.names import is_count
from dse.spaces.sections.frameworks import USUAL_RULES
from dse.spaces.sections.parameters import Parameter, Value, decoded

if TYPE_CHECKING:
    from dse.spaces.definition import Definition


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that legal designs fulfil."""

    name: str
    text: str
    parameters: frozenset[str]
    derived: tuple[str, ...]
    holds: Callable[[Mapping[str, Any]], Any]


def rule_checks(space: Definition) -> Iterator[Check]:
    """The rules of a space."""
    usual = {rule.name: rule.formula for rule in USUAL_RULES}  # in words; a space has codes of its defaults
    for rule in space.rules:
        yield Check(rule.name, usual.get(rule.name, rule.expression), rule.parameters, rule.derived, rule.formula)


def derived_checks(space: Definition) -> Iterator[Check]:
    """Derived counts are whole and at least 1, quantities are not negative, and all columns are finite, except
    where a formula contains `inf`.
    """
    ranges = space.system.ranges()
    for derived in space.derived:
        name = derived.name
        expected = "a whole number of at least 1" if is_count(name) else "a number in its range"
        most = np.inf if "inf" in Expression.parse(derived.expression).names else np.finfo(float).max
        allowed = ranges.get(name, Range(low=-np.finfo(float).max))
        allowed = replace(allowed, low=1.0) if is_count(name) else allowed
        allowed = replace(allowed, high=min(most, max(allowed.high, 0.0)) if name in ranges else most)

        def holds(values: Mapping[str, Any], name: str = name, allowed: Range = allowed) -> Any:
            options_named = values[name]
            possible = (options_named == options_named) & allowed.holds(options_named)
            return possible & (options_named == np.floor(options_named)) if is_count(name) else possible

        if not derived.evaluated:
            text = f"{derived.expression}, expected {expected}"
            yield Check(name, text, derived.parameters, derived.needs, holds)


#: Most legal designs that are all evaluated for an answer: half a minute on one core.
LISTED: Final = 2e6
#: Most rows a component's table may have, and most rows that are filtered at a time.
MOST_ROWS: Final = 20_000_000
BLOCK_ROWS: Final = 1 << 20
#: Draws of parameters that have no list of options before giving up on the rules they must keep.
MOST_DRAWS: Final = 1000
#: Neighbours in ranges: small changes that are tried, and then blocks of designs at random.
MOST_SHIFTS: Final = 16
MOST_BLOCKS, DRAWN_ROWS = 16, 1 << 16
#: Rows of a component that are offered as neighbours, before all others.
MOST_NEIGHBOURS: Final = 256

Batch = dict[str, FloatArray]


@dataclass(frozen=True, slots=True)
class Component:
    """Parameters tied together, and their legal combinations: places of options, in the order of the rows."""

    parameters: tuple[Parameter, ...]
    places: tuple[NDArray[np.int32], ...]

    @property
    def rows(self) -> int:
        """Number of legal combinations."""
        return int(self.places[0].size)

    def columns(self, rows: NDArray[np.int64]) -> Batch:
        """Values of some rows."""
        return {p.name: options_of(p)[row[rows]] for p, row in zip(self.parameters, self.places, strict=True)}

    def nearest_row(self, wanted: Mapping[str, int], rng: np.random.Generator) -> int:
        """Row whose places are those wanted, or near them: chosen one parameter after the other."""
        low, high = 0, self.rows
        for parameter, places in zip(self.parameters, self.places, strict=True):
            codes, want = places[low:high], wanted[parameter.name]
            at = int(codes.searchsorted(np.int32(want)))  # numbers of one type: the codes are not copied
            if at == codes.size or codes[at] != want:
                # Rows are sorted, so that the nearest places below and above are next to each other.
                beside = {int(codes[i]) for i in (at - 1, at) if 0 <= i < codes.size}
                tied = [code for code in beside if abs(code - want) == min(abs(other - want) for other in beside)]
                want = tied[int(rng.integers(len(tied)))] if len(tied) > 1 else tied[0]
                at = int(codes.searchsorted(np.int32(want)))
            low, high = low + at, low + int(codes.searchsorted(np.int32(want), "right"))
        return low

    def nearest_rows(self, wanted: Mapping[str, int], rng: np.random.Generator) -> tuple[NDArray[np.int64], FloatArray]:
        """Rows near the places wanted, but not at them, and how far they are: fewest changes, then smallest.

        In a table of more than `BLOCK_ROWS` rows, as many are looked at, at random.
        """
        whole = self.rows <= BLOCK_ROWS
        rows = np.arange(self.rows) if whole else rng.integers(self.rows, size=BLOCK_ROWS)
        distance = np.zeros(rows.size)
        for parameter, places in zip(self.parameters, self.places, strict=True):
            moved = np.abs((places if whole else places[rows]) - wanted[parameter.name])
            distance += (moved > 0) + moved / options_of(parameter).size
        elsewhere = np.flatnonzero(distance)
        rows, distance = rows[elsewhere], distance[elsewhere] + 1e-6 * rng.random(elsewhere.size)
        if rows.size > MOST_NEIGHBOURS:
            nearest = np.argpartition(distance, MOST_NEIGHBOURS)[:MOST_NEIGHBOURS]
            rows, distance = rows[nearest], distance[nearest]
        return rows, distance


class LegalDesigns:
    """The legal designs of a space."""

    def __init__(self, space: Definition) -> None:
        self.space = space
        names_of_parameters = {p.name for p in space.parameters}
        self.checks = [c for c in (*rule_checks(space), *derived_checks(space)) if c.parameters <= names_of_parameters]
        self._derived = {derived.name: derived for derived in space.derived}
        self._listed = [p for p in space.parameters if p.options is not None]
        self._ranged = [p for p in space.parameters if p.options is None]
        ranged = {p.name for p in self._ranged}
        # Rules that no table can filter, for want of a list of options, filter designs as they are drawn.
        self._late = [check for check in self.checks if check.parameters & ranged or not self._listed]
        self._early = [check for check in self.checks if check not in self._late]
        self.groups = _groups(self._listed, self._early)

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """Tables of legal combinations, one for each group of parameters that rules tie together."""
        return tuple(self.table_of(group) for group in self.groups)

    def table_of(self, group: Sequence[Parameter]) -> Component:
        """Table of the legal combinations of one of the `groups`."""
        return self._table(group, [c for c in self._early if c.parameters <= {p.name for p in group}])

    @property
    def inner_count(self) -> float:
        """Whole designs of one of these, the mean over all. [-]"""
        return 1.0

    @cached_property
    def count(self) -> float:
        """Number of legal designs; infinite where a parameter has no list of options. [-]"""
        listed = math.prod(component.rows for component in self.components)
        return math.inf if self._ranged and listed else float(listed)

    def random(self, n: int, rng: np.random.Generator) -> Batch:
        """`n` legal designs, each as likely as any other. Raises `DseError` if there is none."""
        self._some()
        columns = self._drawn(n, rng)
        for _ in range(MOST_DRAWS):
            bad = np.flatnonzero(~self._kept(columns, self._late, n))
            if bad.size == 0:
                return self._ordered(columns)
            again = self._drawn(bad.size, rng)
            for name, values in columns.items():
                values[bad] = again[name]
        names = ", ".join(check.name for check in self._late)
        text = f"{MOST_DRAWS} draws found no design that keeps {names}"
        raise DseError(f"space {self.space.name}: {text}; narrow the ranges")

    def nearest(self, params: Mapping[str, Value], rng: np.random.Generator) -> dict[str, Value]:
        """A legal design near `params`, `params` itself where it is legal.

        Parameters are chosen in the order of the file: each takes the proposed value if a legal design has it together
        with those chosen before, else the nearest legal option.
        """
        self._some()
        wanted = {p.name: _place(p, params[p.name]) for p in self._listed}
        columns: Batch = {}
        for component in self.components:
            row = component.nearest_row(wanted, rng)
            columns |= component.columns(np.array([row]))
        columns |= {p.name: np.array([within(p, p.code(params[p.name]))]) for p in self._ranged}
        for _ in range(MOST_DRAWS):
            if self._kept(columns, self._late, 1).all():
                break
            columns |= self._drawn_ranges(1, rng)
        else:
            columns = self.random(1, rng)
        return {p.name: p.value(float(columns[p.name][0])) for p in self.space.parameters}

    def neighbours(self, params: Mapping[str, Value], rng: np.random.Generator) -> Iterator[dict[str, Value]]:
        """Legal designs other than `params`, roughly the nearer the earlier, ties in random order.

        First come those that differ in one component only, at most `MOST_NEIGHBOURS` of each. Every legal
        design of a listed space comes at least once; some come more often. Where a parameter has no list of
        options, they end with those that `MOST_BLOCKS` blocks of random designs find.
        """
        self._some()
        if self._ranged:
            for _ in range(MOST_SHIFTS):
                yield self.nearest(self._shifted(params, rng), rng)
            yield from self._found(rng)
            return
        wanted = {p.name: _place(p, params[p.name]) for p in self._listed}
        near = [component.nearest_rows(wanted, rng) for component in self.components]
        distances = np.concatenate([distance for _, distance in near])
        owners = np.repeat(np.arange(len(near)), [rows.size for rows, _ in near])
        starts = np.cumsum([0, *(rows.size for rows, _ in near)])
        changes = [
            {p: columns[p.name].tolist() for p in component.parameters}
            for component, (rows, _) in zip(self.components, near, strict=True)
            for columns in [component.columns(rows)]
        ]
        for at in np.argsort(distances).tolist():
            owner, row = owners[at], at - starts[owners[at]]
            yield {**params, **{p.name: p.value(codes[row]) for p, codes in changes[owner].items()}}
        yield from (design for design in self._all(rng) if design != params)

    def _found(self, rng: np.random.Generator) -> Iterator[dict[str, Value]]:
        """Legal designs among many random ones, where no table lists them."""
        for _ in range(MOST_BLOCKS):
            columns = self._drawn(DRAWN_ROWS, rng)
            rows = np.flatnonzero(self._kept(columns, self._late, DRAWN_ROWS))
            yield from decoded(
                self.space.parameters, self._ordered({name: column[rows] for name, column in columns.items()})
            )

    def _all(self, rng: np.random.Generator) -> Iterator[dict[str, Value]]:
        """Every legal design of a listed space, in order from a random start."""
        total = min(int(self.count), 2**62)
        first = int(rng.integers(total))
        for low in range(0, total, 64):
            numbers = (first + np.arange(low, min(low + 64, total))) % total
            yield from decoded(self.space.parameters, self.at(numbers))

    def enumerate(self, chunk: int = 16384) -> Iterator[Batch]:
        """All legal designs, `chunk` at a time, in the order of the file's options.

        Raises `DseError` if a parameter has no list of options, or the designs are too many to number.
        """
        if self._ranged:
            names = ", ".join(p.name for p in self._ranged)
            raise DseError(f"space {self.space.name}: {names}: a range without steps has no end of designs; "
                           "add a step, or list options")  # fmt: skip
        if self.count > 2**62:
            raise DseError(f"space {self.space.name}: {self.count:.3g} designs are too many to list")
        for low in range(0, int(self.count), chunk):
            yield self.at(np.arange(low, min(low + chunk, int(self.count))))

    def key(self, params: Mapping[str, Value]) -> tuple[Value, ...]:
        """Identity of a design: equal for equal designs, and hashable."""
        return tuple(params[p.name] for p in self.space.parameters)

    def kept(self, columns: Batch, checks: Sequence[Check] | None = None) -> NDArray[np.bool_]:
        """Which designs keep every rule, or some of them; (points,)."""
        checks = self.checks if checks is None else checks
        return self._kept(columns, checks, next(iter(columns.values())).size)

    def values_of(self, name: str) -> list[Value]:
        """Values that a listed parameter has in some legal design."""
        for component in self.components:
            for parameter, places in zip(component.parameters, component.places, strict=True):
                if parameter.name == name and self.count > 0:
                    return [parameter.value(code) for code in options_of(parameter)[np.unique(places)].tolist()]
        return []

    def blocking(self) -> list[tuple[str, str]]:
        """Name and text of rules that no design satisfies together; each of them is necessary."""
        for group in self.groups:
            names = {p.name for p in group}
            checks = [check for check in self._early if check.parameters <= names]
            if self._table(group, checks).rows:
                continue
            for check in list(checks):
                fewer = [other for other in checks if other is not check]
                if self._table(group, fewer).rows == 0:
                    checks = fewer
            return [(check.name, check.text) for check in checks]
        return []

    def _some(self) -> None:
        if self.count == 0:
            reasons = "; ".join(f"{name} ({text})" for name, text in self.blocking())
            raise DseError(f"space {self.space.name}: no design is legal: {reasons}")

    def _kept(self, columns: Batch, checks: Sequence[Check], n: int) -> NDArray[np.bool_]:
        """Rows that pass every check."""
        values: dict[str, Any] = {**self.space.constants, **columns}
        kept = np.ones(n, dtype=bool)
        for check in checks:
            for name in check.derived:
                if name not in values:
                    values[name] = self._derived[name].formula(values)
            kept &= np.asarray(check.holds(values), dtype=bool)
        return kept

    def _table(self, group: Sequence[Parameter], checks: Sequence[Check]) -> Component:
        """Legal combinations of some parameters; rows come in the order of their places."""
        places: list[NDArray[np.int32]] = []
        waiting = list(checks)
        for n, parameter in enumerate(group, start=1):
            names = {p.name for p in group[:n]}
            ready = [check for check in waiting if check.parameters <= names]
            waiting = [check for check in waiting if check not in ready]
            places = self._grown(group[:n], places, options_of(parameter).size, ready)
        return Component(tuple(group), tuple(places))

    def _grown(self, group: Sequence[Parameter], places: list[NDArray[np.int32]], options: int,
               checks: Sequence[Check]) -> list[NDArray[np.int32]]:  # fmt: skip
        """The table with one more parameter, restricted to rows that pass the checks."""
        rows = places[0].size if places else 1
        step = max(1, BLOCK_ROWS // options)
        blocks, total = [], 0
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            wide = [np.repeat(row[start:stop], options) for row in places]
            wide.append(np.tile(np.arange(options, dtype=np.int32), stop - start))
            if checks:
                columns = {p.name: options_of(p)[row] for p, row in zip(group, wide, strict=True)}
                kept = self._kept(columns, checks, wide[0].size)
                wide = [row[kept] for row in wide]
            total += wide[0].size
            if total > MOST_ROWS:
                names = ", ".join(p.name for p in group)
                raise DseError(f"space {self.space.name}: more than {MOST_ROWS:,} combinations of {names}; "
                               "give fewer options, or put parameters that share rules first")  # fmt: skip
            blocks.append(wide)
        return [np.concatenate(column) for column in zip(*blocks, strict=True)] if blocks else [
            np.zeros(0, dtype=np.int32) for _ in group
        ]  # fmt: skip

    def _drawn(self, n: int, rng: np.random.Generator) -> Batch:
        columns: Batch = {}
        for component in self.components:
            columns |= component.columns(rng.integers(component.rows, size=n))
        return columns | self._drawn_ranges(n, rng)

    def _drawn_ranges(self, n: int, rng: np.random.Generator) -> Batch:
        columns: Batch = {}
        for p in self._ranged:
            low, high = p.ends
            share = rng.random(n)
            drawn = low * (high / low) ** share if p.log else low + share * (high - low)
            columns[p.name] = np.array([within(p, value) for value in drawn.tolist()])
        return columns

    def at(self, numbers: NDArray[np.int64]) -> Batch:
        """Designs by their number: the digits of the number are rows of the components, the last fastest."""
        columns: Batch = {}
        for component in reversed(self.components):
            numbers, rows = np.divmod(numbers, component.rows)
            columns |= component.columns(rows)
        return self._ordered(columns)

    def _ordered(self, columns: Batch) -> Batch:
        return {p.name: columns[p.name] for p in self.space.parameters}

    def _shifted(self, params: Mapping[str, Value], rng: np.random.Generator) -> dict[str, Value]:
        """`params` with the values of ranges moved by some hundredths of their span. It may break rules."""
        shifted = dict(params)
        for p in self._ranged:
            low, high = p.ends
            shifted[p.name] = p.value(within(p, p.code(params[p.name]) + 0.05 * (high - low) * rng.standard_normal()))
        return shifted


def options_of(parameter: Parameter) -> FloatArray:
    """Options of a listed parameter. [its unit]"""
    options = parameter.options
    assert options is not None
    return options


def _place(parameter: Parameter, value: Value) -> int:
    """Place of the option nearest to a value."""
    code = parameter.code(value)
    return parameter.places.get(value, int(np.argmin(np.abs(options_of(parameter) - code))))


def within(parameter: Parameter, value: float) -> float:
    """The value of a range nearest to a number."""
    low, high = parameter.ends
    if parameter.step:
        value = low + parameter.step * round((value - low) / parameter.step)
    return min(max(value, low), high)


def _groups(parameters: Sequence[Parameter], checks: Sequence[Check]) -> list[tuple[Parameter, ...]]:
    """Parameters tied together by checks, each group in the order of the file, those that are exact last.

    Checks that no parameter decides join the first group, so that they count.
    """
    group_of = {p.name: {p.name} for p in parameters}
    for check in checks:
        merged = set[str]().union(*(group_of[name] for name in check.parameters))
        for name in merged:
            group_of[name] = merged
    groups = {id(names): names for names in group_of.values()}
    ordered = sorted(parameters, key=lambda p: p.exact)
    return [tuple(p for p in ordered if p.name in names) for names in groups.values()]


#: Combinations of named values whose designs are grown at a time, to find out which rule rules them out.
COMBINATIONS: Final = 32


def completed_rows(legal_designs: LegalDesigns, named: Batch, rows: int) -> tuple[Batch, BoolArray]:
    """The simplest legal designs with some values, and a mask of the rows that have one, (rows,).

    Simplest are the values of `Space.completed`: quantities as the system has them, else the first option; parameters
    give way in the order of the space, whose named parameters come first. `named` has codes, (rows,). Rows without a
    legal design hold values near one.
    """
    columns, legal = dict(named), np.ones(rows, dtype=bool)
    space = legal_designs.space
    for group in legal_designs.groups:
        if all(parameter.name in named for parameter in group):
            continue
        component = legal_designs.table_of(group)
        if not component.rows:
            legal[:] = False
            columns |= {p.name: np.full(rows, simplest(space, p)) for p in group}
            continue
        wanted = [_places(p, named[p.name] if p.name in named else np.full(rows, simplest(space, p))) for p in group]
        columns |= component.columns(nearest_rows(component, wanted))
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
    return parameter.ends[0] if options is None else float(options[0])


def _places(parameter: Parameter, values: FloatArray) -> IntArray:
    """Places of the options nearest to some values; of two as near, the first. [-]"""
    distinct, back = np.unique(values, return_inverse=True)
    options = options_of(parameter)
    nearest = [int(np.argmin(np.abs(options - value))) for value in distinct.tolist()]
    return np.array(nearest, dtype=np.int64)[back.ravel()]


def nearest_rows(component: Component, wanted: Sequence[IntArray]) -> IntArray:
    """Rows of a table whose places are those wanted or near them, one parameter after the other. [-]

    `Component.nearest_row` of many, (rows,) places of each parameter; of two equally near places the lower is taken.
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

    Rules that come before it in the space hold. `columns` are the completed `named`. [units of the parameters]
    """
    checks_of_rows: list[Check | None] = [None] * rows.size
    for group in legal.groups:
        names_in_group = [p.name for p in group if p.name in named]
        table = (
            np.stack([named[name][rows] for name in names_in_group], axis=1)
            if names_in_group
            else np.zeros((rows.size, 0))
        )
        distinct, back = np.unique(table, axis=0, return_inverse=True)
        checks: list[Check | None] = []
        for first in range(0, len(distinct), COMBINATIONS):
            part = distinct[first : first + COMBINATIONS]
            checks += _emptied_by(legal, group, dict(zip(names_in_group, part.T, strict=True)), len(part))
        checks_of_rows = [old or checks[row] for old, row in zip(checks_of_rows, back.ravel().tolist(), strict=True)]
    designs = ({name: values[[row]] for name, values in columns.items()} for row in rows.tolist())
    return [
        check or next((c for c in legal.checks if not legal.kept(design, [c]).all()), None)
        for check, design in zip(checks_of_rows, designs, strict=True)
    ]


def _emptied_by(
    legal: LegalDesigns, group: Sequence[Parameter], named: Mapping[str, FloatArray], combinations: int
) -> list[Check | None]:
    """The rule after which no design is left of each combination of named values, if one is.

    Grows the designs of all combinations parameter by parameter, as tables of legal designs grow.
    """
    checks_of_rows: list[Check | None] = [None] * combinations
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
                checks_of_rows[owner] = check
            owners, columns = owners[kept], {name: values[kept] for name, values in columns.items()}
    return checks_of_rows
