"""Legality of designs: the rules of the space, and derived columns that have the values they must."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.machine.system import Range
from dse.spaces.formulas.expressions import Expression
from dse.spaces.formulas.names import is_count

if TYPE_CHECKING:
    from dse.spaces.definition import Definition
from dse.spaces.sections.usual_rules import USUAL_RULES


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
    for own in space.rules:
        yield Check(own.name, usual.get(own.name, own.expression), own.parameters, own.derived, own.formula)


def derived_checks(space: Definition) -> Iterator[Check]:
    """Derived counts are whole and at least 1, quantities are not negative, and all columns are finite, but
    where a formula says `inf` itself.
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
            found = values[name]
            possible = (found == found) & allowed.holds(found)
            return possible & (found == np.floor(found)) if is_count(name) else possible

        if not derived.evaluated:
            text = f"{derived.expression}, expected {expected}"
            yield Check(name, text, derived.parameters, derived.needs, holds)
