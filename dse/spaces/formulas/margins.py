"""Formulas as functions of columns, and conditions with the distance to their limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from costmodel.columns import FloatArray
from costmodel.formats.quantity import PURE_NUMBER, Dimension

#: Name -> values of every column a formula may use.
Values = Mapping[str, Any]
Function = Callable[[Values], Any]

#: Margin of a strict inequality at its limit: infeasible, by nothing that matters.
JUST_OUTSIDE: Final = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class Margin:
    """Distance of a condition from its limit; at least 0 where it holds."""

    function: Callable[[Values], tuple[Any, Any]]  #: values -> margin and scale, both in `dimension`
    dimension: Dimension


@dataclass(frozen=True, slots=True)
class Compiled:
    """A formula as a function of columns."""

    kind: Literal["number", "boolean", "word", "list"]
    function: Function
    dimension: Dimension = PURE_NUMBER
    margin: Margin | None = None  #: of a condition
    constant: float | None = None  #: value of a formula that is a number written out

    def __call__(self, values: Values) -> Any:
        """Result for every row; a division by zero gives inf or nan, not a warning."""
        with np.errstate(all="ignore"):
            return self.function(values)

    def margins(self, values: Values) -> tuple[FloatArray, FloatArray]:
        """Margin of a condition, and the scale that makes margins comparable, for every row."""
        assert self.margin is not None
        with np.errstate(all="ignore"):
            margin, scale = self.margin.function(values)
        return np.asarray(margin, dtype=np.float64), np.asarray(scale, dtype=np.float64)


def fixed(value: float, dimension: Dimension = PURE_NUMBER) -> Compiled:
    """A number written out."""
    return Compiled("number", lambda v: value, dimension, constant=value)


def truth(holds: Function) -> Compiled:
    """A condition that has no distance from its limit: 1 where it holds, -1 where not."""
    margin = Margin(lambda v: (np.where(holds(v), 1.0, -1.0), 1.0), PURE_NUMBER)
    return Compiled("boolean", holds, margin=margin)


def comparison(operator: str, holds: Function, a: Function, b: Function, dimension: Dimension) -> Compiled:
    """``a <= b`` and its like: the margin is the difference of the sides, its scale the right side."""

    def margin(values: Values) -> tuple[Any, Any]:
        left, right = a(values), b(values)
        room = np.subtract(left, right) if operator in (">", ">=") else np.subtract(right, left)
        scale = np.abs(right)
        scale = np.where((scale > 0) & (scale < np.inf), scale, 1.0)
        if operator == "==":
            return -np.abs(room), scale
        if operator == "!=":
            room = np.abs(room)
        if operator in ("<", ">", "!="):
            room = np.where(room == 0, -JUST_OUTSIDE, room)
        return room, scale

    return Compiled("boolean", holds, margin=Margin(margin, dimension))


def negated(condition: Compiled) -> Compiled:
    """not: the margin turns round. At the limit itself the condition holds, so that this does not."""
    assert condition.margin is not None
    holds, margin = condition.function, condition.margin.function

    def turned(values: Values) -> tuple[Any, Any]:
        distance, scale = margin(values)
        return np.where(distance == 0, -JUST_OUTSIDE, np.negative(distance)), scale

    turned_margin = Margin(turned, condition.margin.dimension)
    return Compiled("boolean", lambda v: np.logical_not(holds(v)), margin=turned_margin)


def joined(parts: Sequence[Compiled], *, all_of: bool) -> Compiled:
    """and: the worst of the margins, relative to their scales; or: the best.

    The margin keeps its unit where all parts have the same, else it is relative.
    """
    functions = [part.function for part in parts]
    margins = [part.margin for part in parts if part.margin is not None]
    same = len({margin.dimension for margin in margins}) == 1
    combine = np.logical_and if all_of else np.logical_or

    def margin(values: Values) -> tuple[Any, Any]:
        pairs = [own.function(values) for own in margins]
        best, best_scale = pairs[0]
        for other, scale in pairs[1:]:
            lower = other / scale < best / best_scale
            chosen = lower if all_of else np.logical_not(lower)
            best, best_scale = np.where(chosen, other, best), np.where(chosen, scale, best_scale)
        return (best, best_scale) if same else (best / best_scale, 1.0)

    return Compiled(
        "boolean",
        lambda v: reduced(combine, [f(v) for f in functions]),
        margin=Margin(margin, margins[0].dimension if same else PURE_NUMBER),
    )


def reduced(function: Any, values: Sequence[Any]) -> Any:
    """``function(function(a, b), c)``, on arrays that broadcast."""
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result
