"""Values that a name is swept over, as a command line says them: ``64:1024:x2``, ``1,2,4``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from costmodel.errors import ParameterError
from costmodel.formats.input_files import scalar
from costmodel.formats.quantity import dimension, readable, si_value
from dse.spaces.sections.parameters import MOST_OPTIONS, Value

#: A number, and what comes after it.
_NUMBER: Final = re.compile(r"\s*(\$?\s*[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.ASCII)
_FACTOR: Final = re.compile(r"\s*[x*]\s*([\d.]+)\s*(.*?)\s*", re.ASCII)

EXAMPLES: Final = "1,2,4 or 64:1024:x2"


def swept_values(name: str, text: str, unit: str) -> list[Value]:
    """Values that a text stands for: a list ``a,b,c``, or a range ``a:b``, ``a:b:step`` or ``a:b:xfactor``.

    A number without a unit has that of the last number that has one. Ranges hold their ends where they meet them.
    `unit` is the SI unit of the name; "-" for pure numbers and words. Raises `DseError` if the text is none of these.

    >>> swept_values("nodes", "64:512:x2", "-"), swept_values("recompute", "none,full", "-")
    ([64, 128, 256, 512], ['none', 'full'])
    >>> swept_values("node_bandwidth", "200:800:x2 GB/s", "B/s")
    [200000000000.0, 400000000000.0, 800000000000.0]
    """
    try:
        is_range = ":" in text
        values = _range(text.split(":"), unit) if is_range else _list(text.split(","), unit)
    except ValueError as error:
        raise ParameterError(f"{{sweep}} {name}={text}: {error}; expected values such as {EXAMPLES}") from None
    if len(values) > MOST_OPTIONS:
        raise ParameterError(f"{{sweep}} {name}={text}: more than {MOST_OPTIONS:,} values")
    if len(set(values)) < len(values):
        twice = next(value for place, value in enumerate(values) if value in values[:place])
        shown = twice if unit == "-" else readable(float(twice), unit)
        raise ParameterError(f"{{sweep}} {name}={text}: {shown}: given twice")
    return values


def _list(parts: Sequence[str], unit: str) -> list[Value]:
    """Values one by one."""
    if not all(part.strip() for part in parts):
        raise ValueError("a value is missing")
    if unit == "-":
        return [_plain(part.strip()) for part in parts]
    return [si_value(part, unit) for part in _with_units(parts)]


def _plain(text: str) -> Value:
    """A word, a boolean or a pure number."""
    value = scalar(text)
    return text if value is None else value


def _range(parts: Sequence[str], unit: str) -> list[Value]:
    """Values from an end to another, by steps or factors."""
    if not 2 <= len(parts) <= 3 or not all(part.strip() for part in parts):
        raise ValueError("a range has two ends, and perhaps a step")
    factor = _FACTOR.fullmatch(parts[2]) if len(parts) == 3 else None
    ends = [*parts[:2], *([f"1 {factor[2]}".strip()] if factor else parts[2:])]
    if len(parts) == 2 and dimension(unit) != dimension("-"):
        raise ValueError("a range of quantities needs a step, such as 100:400:100 GB/s, or a factor x2")
    low, high, *steps = (Fraction(str(si_value(part, unit))) for part in _with_units(ends))
    by = Fraction(factor[1]) if factor else steps[0] if steps else Fraction(1)
    if low > high or (factor and (by <= 1 or low <= 0)) or (not factor and by <= 0):
        raise ValueError("a range goes up, by a step above 0 or a factor above 1")
    found = [low]
    while len(found) <= MOST_OPTIONS and (after := found[-1] * by if factor else found[-1] + by) <= high:
        found.append(after)
    whole = unit == "-" and all(value.denominator == 1 for value in found)
    return [int(value) if whole else float(value) for value in found]


def _with_units(parts: Sequence[str]) -> list[str]:
    """Numbers of a sweep; those without a unit take that of the last that has one."""
    units = [match[2] for part in parts if (match := _NUMBER.fullmatch(part)) and match[2]]
    shared = units[-1] if units else ""
    bare = [bool((match := _NUMBER.fullmatch(part)) and not match[2] and "$" not in part) for part in parts]
    return [f"{part} {shared}".strip() if is_bare else part for part, is_bare in zip(parts, bare, strict=True)]
