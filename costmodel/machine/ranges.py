"""Ranges of the quantities of machines: that of each follows from its column."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from costmodel.columns import Columns, FloatArray
from costmodel.errors import DseError

#: Endings of the names of quantities of which a machine needs some.
POSITIVE: Final = (
    "bandwidth", "capacity", "clock", "efficiency", "sustained", "size", "height", "width",
    "used", "oversubscription", "wrap", "clustering", "lanes", "cores", "per_core",
)  # fmt: skip
#: Such endings of names of which a machine may have none.
NONE_OF: Final = ("collective_cores", "nominal_clock")
#: The largest number that is finite. [-]
LARGEST: Final = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`, in the unit of the quantity; where `above` is set, `low` itself is outside."""

    low: float = 0.0
    high: float = LARGEST
    above: bool = False

    def holds(self, values: ArrayLike) -> Any:
        """Which values are in it; NaN, which stands for what is not known, is. [as the values]"""
        found: FloatArray = np.asarray(values, dtype=np.float64)
        return ~((found < self.low) | (found > self.high) | (self.above & (found == self.low)))

    def refusal(self, value: float) -> str:
        """Message for a value outside of a range: what was expected.

        >>> Range(high=1.0).refusal(5.0)
        '5: expected a share, at most 1'
        """
        if value > self.high:
            wanted = "a share, at most 1" if self.high == 1 else f"at most {self.high:g}"
            return f"{value:g}: expected {wanted if self.high < LARGEST else 'a finite number'}"
        if value < 0:
            return f"{value:g}: expected no negative number"
        return f"{value:g}: expected {f'at least {self.low:g}' if self.low else 'more than nothing'}"


class MachinePart(Columns):
    """A table of quantities of machines, each in its range."""

    __slots__ = ()

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Build from scalars, lists and arrays; non-column fields pass through untouched.

        Raises `DseError` if a quantity is out of its range.
        """
        part = super().of(**values)
        ranges = part_ranges(cls)
        for name, own in part.columns().items():
            refuse_outside(f"{cls.__name__}: {name}", own, ranges[name])
        return part


def part_ranges(record: type[Columns]) -> dict[str, Range]:
    """Name -> range of each quantity of a record: what its columns say, else as its name ends."""
    if record not in _RANGES:
        _RANGES[record] = {own.name: _range(own) for own in fields(record) if "unit" in own.metadata}
    return _RANGES[record]


#: Record class -> its ranges, kept because they are asked for with every batch.
_RANGES: dict[type[Any], dict[str, Range]] = {}


def _range(own: Field[Any]) -> Range:
    """The range of a column."""
    high = np.inf if _is_infinite(own.default_factory) else LARGEST
    low = own.metadata.get("low", 0.0)
    needed = own.name.endswith(POSITIVE) and not own.name.endswith(NONE_OF)
    return Range(low, own.metadata.get("high", high), above=needed and low == 0)


def _is_infinite(default: Any) -> bool:
    """True if a column has no end unless it declares one."""
    return default is not MISSING and bool(np.isinf(default()).any())


def refuse_outside(name: str, values: ArrayLike, allowed: Range) -> None:
    """Refuse values that are out of a range.

    Raises `DseError`, saying which, and what was expected.
    """
    inside = allowed.holds(values)
    if not np.all(inside):
        first = np.broadcast_to(np.asarray(values, dtype=np.float64), np.shape(inside))[~inside].flat[0]
        raise DseError(f"{name}: {allowed.refusal(float(first))}")
