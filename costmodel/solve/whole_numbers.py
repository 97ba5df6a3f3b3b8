"""Whole numbers that divide others."""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodel.columns import FloatArray

#: The largest number whose divisors are looked for; its root is tried number by number.
LARGEST: Final = 1e13


def divisors(number: float) -> FloatArray:
    """Whole numbers that divide a whole number, in order. [-]

    >>> divisors(12).tolist()
    [1.0, 2.0, 3.0, 4.0, 6.0, 12.0]
    """
    if not (1 <= number <= LARGEST and float(number).is_integer()):
        raise ValueError(f"divisors({number:g}): expected a whole number from 1 to {LARGEST:g}")
    low = np.arange(1.0, np.floor(np.sqrt(number)) + 1)
    low = low[number % low == 0]
    return np.unique(np.concatenate([low, number / low]))
