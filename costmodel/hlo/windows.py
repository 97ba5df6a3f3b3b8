"""Windows of convolutions and window reductions: what they cover, and what is padding or holes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Final

from costmodel.errors import DseError
from costmodel.hlo.module import Instruction

#: Most places of a window, or of a result, along one dimension. [-]
LONGEST: Final = 200_000
#: Keys of stride, dilation of the data and dilation of the window.
_STEPS: Final = ("stride", "lhs_dilate", "rhs_dilate")
_FIELD: Final = re.compile(r"(\w+)=([\dx_\-]+)")


@dataclass(frozen=True, slots=True)
class WindowDimension:
    """A window along one dimension, as XLA writes it."""

    size: int  #: places of the window [-]
    stride: int = 1  #: from one place of the result to the next [-]
    low: int = 0  #: padding before, negative where data is left out [-]
    high: int = 0  #: padding after [-]
    base_dilation: int = 1  #: from one element of the data to the next [-]
    window_dilation: int = 1  #: from one place of the window to the next [-]


def window_of(instruction: Instruction) -> list[WindowDimension]:
    """An instruction's window; [] where it has none.

    Raises
    ------
    DseError
        If the text of it makes no sense.

    Examples
    --------
    ``{size=3x3 pad=1_1x0_2 stride=2x2 lhs_dilate=1x4 rhs_dilate=2x1}``
    """
    fields = dict(_FIELD.findall(instruction.attributes.get("window", "")))
    if "size" not in fields:
        return []
    try:
        sizes = _numbers(fields["size"])
        paddings = [pair.split("_") for pair in fields.get("pad", "x".join("0_0" for _ in sizes)).split("x")]
        steps = [_numbers(fields.get(key, "x".join("1" for _ in sizes))) for key in _STEPS]
        rows = zip(sizes, paddings, *steps, strict=True)
        found = [
            WindowDimension(size, stride, int(low), int(high), base, own)
            for size, (low, high), stride, base, own in rows
        ]
    except ValueError:
        found = []
    if not found or min(sizes) < 0 or min(min(own) for own in steps) < 1:
        raise DseError(f"{instruction.name}: window={fields}: expected as many numbers for each dimension")
    return found


def _numbers(written: str) -> list[int]:
    """``3x5`` -> [3, 5]."""
    return [int(number) for number in written.split("x")]


@lru_cache(maxsize=4096)
def valid_positions(window: WindowDimension, data: int, result: int) -> int:
    """How often a place of the window lies on an element, over all places of the result. [-]

    Place k of the window at place o of the result is on element i where o * stride + k * window_dilation -
    low = i * base_dilation; all other places are padding, or holes of a dilation.

    Raises
    ------
    DseError
        If the window is longer than any.
    """
    few, many = sorted([(window.size, window.window_dilation), (result, window.stride)])
    if few[0] > LONGEST:
        raise DseError(f"a window of {window.size:,} places; at most {LONGEST:,} are read")
    reach = window.base_dilation * (data - 1)
    return sum(
        _multiples(many, window.low - place * few[1], reach, window.base_dilation) for place in range(few[0])
    )


def _multiples(steps: tuple[int, int], first: int, reach: int, modulus: int) -> int:
    """How many of 0, step, 2 step, ... are first, first + modulus, ... and at most first + reach. [-]"""
    count, step = steps
    common = gcd(step, modulus)
    if first % common:
        return 0
    period = modulus // common
    start = (first // common) * pow(step // common, -1, period) % period if period > 1 else 0
    low, high = max(0, -(-first // step)), min(count - 1, (first + reach) // step)
    from_low = low + (start - low) % period
    return max(0, (high - from_low) // period + 1)


def spans_dimension(windows: Sequence[WindowDimension], dims: Sequence[int]) -> int | None:
    """The dimension that a window reduction reduces and repeats, if that is all it does.

    Its window is padded so that it covers the whole dimension from every place, which XLA counts as one
    reduction and a broadcast.
    """
    reducing = [each for each in windows if each.size != 1]
    padded = [each for each in windows if each.low or each.high]
    if len(reducing) != 1 or len(padded) != 1 or reducing != padded or len(windows) != len(dims):
        return None
    only = reducing[0]
    place = windows.index(only)
    covers = only.low == only.high and only.size == 2 * only.low + 1
    return place if covers and only.low == dims[place] - 1 else None
