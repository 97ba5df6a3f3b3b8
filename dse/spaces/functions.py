"""Functions that formulas may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.solve.whole_numbers import divisors
from costmodel.steps.interruptions import daly_goodput, daly_interval


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
#: Formulas of the cost model: name -> function, units of its arguments, and of what it gives.
OF_MODEL: Final[dict[str, tuple[Callable[..., FloatArray], tuple[str, ...], str]]] = {
    "daly_interval": (daly_interval, ("s", "s"), "s"),
    "daly_goodput": (daly_goodput, ("s", "s", "s", "s"), "-"),
}
