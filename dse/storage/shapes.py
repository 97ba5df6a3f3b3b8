"""Shapes of what attributes of studies and trials hold as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dse.storage.damage import damaged


@dataclass(frozen=True)
class JsonShape:
    """What a value is to be."""

    expected: str  #: in words
    fits: Callable[[Any], bool]

    def check(self, value: Any, where: str, place: str) -> None:
        """Refuse a value of another shape.

        Raises
        ------
        DseError
            Naming the database and the place in it.
        """
        if not self.fits(value):
            raise damaged(where, place, json.dumps(value), self.expected)


def is_number(value: Any) -> bool:
    """A number that a column holds; no truth value."""
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    )


def is_count(value: Any) -> bool:
    """A whole number from 0."""
    return isinstance(value, int) and is_number(value) and value >= 0


def is_text(value: Any) -> bool:
    """A text."""
    return isinstance(value, str)


def has(fields: Mapping[str, JsonShape], value: Any) -> bool:
    """A mapping with some keys, each with a value of its shape."""
    return isinstance(value, dict) and all(
        name in value and shape.fits(value[name]) for name, shape in fields.items()
    )


def names_to(fits: Callable[[Any], bool], value: Any) -> bool:
    """A mapping with values of one shape."""
    return isinstance(value, dict) and all(map(fits, value.values()))


def list_of(fits: Callable[[Any], bool], value: Any) -> bool:
    """A list of one shape."""
    return isinstance(value, list) and all(map(fits, value))


def is_box(value: Any) -> bool:
    """Two corners, each coordinate of the first below that of the second."""
    corners = list_of(lambda corner: list_of(is_number, corner) and bool(corner), value)
    return (
        corners
        and len({len(corner) for corner in value}) == 1
        and len(value) == 2
        and all(-math.inf < low < high < math.inf for low, high in zip(*value, strict=True))
    )


#: Larger whole numbers have no place among floating-point numbers.
LARGEST: Final = 10**300
#: Most trials of a batch, and most batches under way, that a study may ask for. [-]
MOST_AT_ONCE: Final = 100_000

TEXT: Final = JsonShape("a text", is_text)
COUNT: Final = JsonShape("a whole number from 0", is_count)
SIZE: Final = JsonShape(
    f"a whole number from 1 to {MOST_AT_ONCE:,}", lambda value: is_count(value) and 0 < value <= MOST_AT_ONCE
)
NUMBERS: Final = JsonShape("names and numbers", lambda value: names_to(is_number, value))
TEXTS: Final = JsonShape("names and texts", lambda value: names_to(is_text, value))
NAMES: Final = JsonShape("a list of names", lambda value: list_of(is_text, value))
BOX: Final = JsonShape("two corners of as many numbers as there are objectives", is_box)
LAYOUTS: Final = JsonShape(
    "a design for each workload", lambda value: names_to(lambda own: isinstance(own, dict), value)
)
WINNERS: Final = JsonShape(
    "designs with their params and values",
    lambda value: list_of(
        lambda own: has(
            {"params": JsonShape("", lambda params: isinstance(params, dict)), "values": NUMBERS}, own
        ),
        value,
    ),
)
