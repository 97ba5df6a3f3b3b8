"""Dimensions of models, and what must be true of them."""

from __future__ import annotations

from typing import Final, Protocol

from costmodel.errors import DseError

#: Most layers of a model, which are gone through one by one. [-]
MOST_LAYERS: Final = 10_000


class Dimensions(Protocol):
    """A record with fields that count something."""

    @property
    def name(self) -> str: ...
    @property
    def dimensions(self) -> tuple[str, ...]: ...
    @property
    def counts(self) -> tuple[str, ...]: ...


def check_dimensions(model: Dimensions) -> None:
    """Refuse dimensions that are not whole and positive, counts that are not whole, and too many layers.

    Raises
    ------
    DseError
        For the first one.
    """
    lowest = dict.fromkeys(model.dimensions, 1) | dict.fromkeys(model.counts, 0)
    for name, low in lowest.items():
        value = getattr(model, name)
        if isinstance(value, str) or not (value >= low and float(value).is_integer()):
            raise DseError(f"model {model.name}: {name}: expected a whole number from {low}, got {value!r}")
        if name == "num_layers" and value > MOST_LAYERS:
            raise DseError(f"model {model.name}: {name}: expected at most {MOST_LAYERS:,}, got {value:g}")
