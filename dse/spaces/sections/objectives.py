"""Objectives of a search, and limits on results of the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from costmodel.errors import DseError
from costmodel.steps.result.breakdown import UNIT_SUFFIX
from dse.spaces.formulas.expressions import Compiled

Direction = Literal["minimize", "maximize"]
#: Columns of which more is better, where an objective does not say.
MAXIMIZED: Final = ("tokens_per_second", "tokens_per_second_per_gpu", "mfu")


@dataclass(frozen=True, slots=True)
class Objective:
    """A column to minimize or maximize."""

    name: str
    direction: Direction
    unit: str
    expression: str
    formula: Compiled

    @property
    def key(self) -> str:
        """Name in tables and JSON, ending in the unit: ``step_time_s``."""
        return keyed(self.name, self.unit)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on designs. A rule is known before evaluation; a limit needs it, and gives a margin."""

    name: str
    unit: str  #: of the margin
    expression: str
    formula: Compiled
    parameters: frozenset[str]  #: that it depends on, be it through derived columns
    derived: tuple[str, ...]  #: columns it needs, in the order they are worked out

    @property
    def key(self) -> str:
        """Name in tables and JSON, ending in the unit of the margin: ``fits_in_memory_bytes``."""
        return keyed(self.name, self.unit)


def keyed(name: str, unit: str) -> str:
    """A column's name with its unit.

    >>> keyed("step_time", "s"), keyed("mfu", "-")
    ('step_time_s', 'mfu')
    """
    suffix = UNIT_SUFFIX.get(unit, "")
    return name if name.endswith(suffix) else name + suffix


def directed(texts: Sequence[str]) -> dict[str, list[str]]:
    """Objectives as a space file writes them, from ``name``, ``minimize:name`` or ``maximize:name``.

    Raises `DseError` for another direction, or no objective.

    >>> directed(["step_time", "mfu", "minimize:system_power"])
    {'minimize': ['step_time', 'system_power'], 'maximize': ['mfu']}
    """
    directions: dict[str, list[str]] = {"minimize": [], "maximize": []}
    for text in texts:
        before, colon, after = text.partition(":")
        name = after if colon else before
        direction = before if colon else "maximize" if name in MAXIMIZED else "minimize"
        if direction not in directions or not name:
            raise DseError(f"objective {text!r}: expected a name, minimize:name or maximize:name")
        directions[direction].append(name)
    if not any(directions.values()):
        raise DseError("objectives: expected at least one, such as step_time")
    return {direction: names for direction, names in directions.items() if names}
