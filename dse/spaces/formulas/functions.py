"""Functions that formulas may call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, divisors
from costmodel.errors import DseError
from costmodel.formats.quantity import Dimension, dimension, quantity
from costmodel.steps.result.interruptions import daly_goodput, daly_interval


def powers_of_two(low: float, high: float) -> FloatArray:
    """Powers of two from `low` to `high`. [-]

    >>> powers_of_two(1, 10).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    powers: FloatArray = np.exp2(np.arange(-64.0, 65.0))
    return powers[(powers >= low) & (powers <= high)]


def multiples(step: float, low: float, high: float) -> FloatArray:
    """Multiples of `step` from `low` to `high`, in the unit of all three. [-]

    >>> multiples(16, 20, 64).tolist()
    [32.0, 48.0, 64.0]
    """
    if not (step > 0 and (high - low) / step <= 1e6):
        raise ValueError("multiples(step, low, high): expected a step above 0, and at most a million steps")
    return step * np.arange(np.ceil(low / step), np.floor(high / step) + 1)


#: Functions that give a parameter's options: name -> function, number of arguments.
LISTS: Final[dict[str, tuple[Callable[..., FloatArray], int]]] = {
    "divisors": (divisors, 1),
    "powers_of_two": (powers_of_two, 2),
    "multiples": (multiples, 3),
}
#: Functions of one number: name -> function, whether it takes a quantity and keeps its unit.
OF_ONE: Final[dict[str, tuple[Callable[[Any], Any], bool]]] = {
    "abs": (np.abs, True),
    "ceil": (np.ceil, False),
    "floor": (np.floor, False),
    "round": (np.round, False),
    "log2": (np.log2, False),
    "sqrt": (np.sqrt, False),
}
#: Functions of any number of numbers of one unit.
OF_MANY: Final[dict[str, Callable[[Any, Any], Any]]] = {"min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class UnitFunction:
    """A function whose arguments, and what it gives, each have a unit of their own."""

    name: str
    function: Callable[..., Any]  #: arrays of one length, one for each of `of` -> an array of that length
    of: tuple[str, ...]  #: units of its arguments
    unit: str  #: of what it gives

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Dimensions that the arguments of a function have."""
        return tuple(dimension(unit) for unit in self.of)

    @property
    def dimension(self) -> Dimension:
        """Dimension of what the function gives."""
        return dimension(self.unit)

    def __call__(self, *arguments: Any) -> FloatArray:
        """Values of the function, one for each row. [SI units]

        Raises `DseError` if that is not a number for each row.
        """
        rows = np.broadcast_arrays(*(np.asarray(argument, dtype=np.float64) for argument in arguments))
        own = [row / quantity(f"1 {unit}").value for row, unit in zip(rows, self.of, strict=True)]
        given = quantity(f"1 {self.unit}").value * np.asarray(self.function(*own), dtype=np.float64)
        if given.shape not in (rows[0].shape, ()):
            raise DseError(
                f"{self.name}: gave an array of shape {given.shape} for arguments of shape {rows[0].shape}; "
                "expected a number for each row"
            )
        return given


#: Formulas of the cost model, by name.
OF_MODEL: Final = {
    function.name: function
    for function in (
        UnitFunction("daly_interval", daly_interval, ("s", "s"), "s"),
        UnitFunction("daly_goodput", daly_goodput, ("s", "s", "s", "s"), "-"),
    )
}
#: Functions that `formula_function` has made known, by name.
OWN: Final[dict[str, UnitFunction]] = {}


def formula_function(
    *, of: Sequence[str] = ("-",), unit: str = "-", name: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of arrays known to the formulas of all spaces that are read from then on.

    A space that calls it, and a study of that space, is read where it was made known before. Workers get it
    with the space.

    Raises `DseError` for a name that formulas have, or an unknown unit.

    Parameters
    ----------
    of : sequence of str
        The unit in which it gets each of its arguments, arrays of one length.
    unit : str
        The unit of what it gives, a number for each row.
    name : str, optional
        What formulas call it; its own name by default.

    Examples
    --------
    >>> @formula_function(of=["mm2"], unit="$")
    ... def mask_set(die_area):
    ...     return 10e6 + 20e3 * die_area
    >>> mask_set(800)
    26000000.0
    """

    def known(function: Callable[..., Any]) -> Callable[..., Any]:
        called = name or function.__name__
        if not called.isidentifier() or called in (*LISTS, *OF_ONE, *OF_MANY, *OF_MODEL):
            raise DseError(f"function {called!r}: expected a name that formulas do not have yet")
        for one in (*of, unit):
            quantity(f"1 {one}")
        OWN[called] = UnitFunction(called, function, tuple(of), unit)
        return function

    return known
