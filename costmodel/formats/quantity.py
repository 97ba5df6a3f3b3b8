"""Physical quantities as text: ``"3.35 TB/s"`` <-> 3.35e12 B/s.

A unit is a product of prefixed symbols with whole powers. K, M, G are decimal; Ki, Mi, Gi are binary;
``b`` or ``bit`` is a bit. Minutes, hours, days and tonnes take no prefix. The factors are exact, so
``"0.6 pJ"`` is the float nearest to 0.6e-12. A count may end in K, M, B (1e9) or T: ``15T`` tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from costmodel.errors import suggestion

#: Powers of (second, byte, joule, metre, dollar, FLOP, kilogram).
Dimension = tuple[int, ...]

PURE_NUMBER: Final[Dimension] = (0, 0, 0, 0, 0, 0, 0)
#: Tables of units; the file explains them.
_TABLES: Final[Any] = yaml.load(
    Path(__file__).with_suffix(".yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
SYMBOLS: Final[dict[str, tuple[Fraction, Dimension]]] = {
    symbol: (Fraction(factor), tuple(powers)) for symbol, (factor, powers) in _TABLES["symbols"].items()
}
#: Units that take no prefix.
WORDS: Final[dict[str, tuple[Fraction, Dimension]]] = {
    word: (Fraction(factor), tuple(powers)) for word, (factor, powers) in _TABLES["words"].items()
}
_DECIMAL: Final = dict(zip("fpnuµμmkKMGTPE", (-15, -12, -9, -6, -6, -6, -3, 3, 3, 6, 9, 12, 15, 18), strict=True))
PREFIXES: Final[dict[str, Fraction]] = {
    **{letter: Fraction(10) ** power for letter, power in _DECIMAL.items()},
    **{letter + "i": Fraction(2) ** (10 * power) for power, letter in enumerate("KMGTP", start=1)},
}
#: Suffixes of counts and dollars; B is 1e9, as in 70B parameters.
COUNT_SCALES: Final[dict[str, int]] = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
#: A quantity of each unit, for messages.
EXAMPLES: Final[dict[str, str]] = _TABLES["examples"]

#: Most characters of a number with its unit; the largest number has 309 digits. [characters]
LONGEST_NUMBER: Final = 350
_UNSIGNED = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_NUMBER = rf"[+-]?{_UNSIGNED}"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*(.*?)\s*", re.DOTALL)
_DOLLARS = re.compile(rf"\s*\$\s*({_NUMBER})\s*([KMB]?)\s*(/.*)?")
_COUNT = re.compile(rf"\s*({_NUMBER})\s*([KMBT]?)\s*")
_FACTOR = re.compile(r"\s*(?:([*/])\s*)?(1|[A-Za-zµμ$]+)(?:\^?(-?[0-9]))?")
_PREFIX = "|".join(sorted(PREFIXES, key=len, reverse=True))
_SYMBOL = rf"(?:(?:{_PREFIX})?(?:FLOP|Hz|bit|Wh|[sBbJWmg])[0-9]?\b|(?:{'|'.join(WORDS)})\b|\$)"
#: A number with its unit inside a formula: ``72 GiB``, ``2 TB/s``, ``$20M``.
QUANTITY_IN_FORMULA: Final = re.compile(
    rf"(?<![\w.$]){_UNSIGNED}\s*{_SYMBOL}(?:/{_SYMBOL})*"
    rf"|\$\s?[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]{{1,3}})?[KMB]?\b(?:/{_SYMBOL})*"
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number in SI units, and its dimension."""

    value: float
    dimension: Dimension


def plain_number(text: str) -> float:
    """A number without a unit, in ASCII digits without underscores.

    Raises `ValueError` for other texts.

    >>> plain_number("1e5")
    100000.0
    """
    if not text.isascii() or "_" in text:
        raise ValueError(f"{text!r} is not a number in ASCII digits")
    return float(text)


@lru_cache(4096)
def quantity(text: str) -> Quantity:
    """Read a number with a unit; a number alone is a pure number.

    Raises `ValueError` if the text is neither, with the mistake.

    >>> quantity("200 Gb/s").value, quantity("40 MiB").value, quantity("$23.4M").value
    (25000000000.0, 41943040.0, 23400000.0)
    """
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number and a unit take no more than {LONGEST_NUMBER} characters")
    dollars = _DOLLARS.fullmatch(text)
    if dollars:
        factor, measures = unit("$" + (dollars[3] or "").rstrip())
        return Quantity(_scaled(dollars[1], factor * COUNT_SCALES[dollars[2]]), measures)
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError("expected a number and a unit")
    factor, measures = unit(match[2])
    return Quantity(_scaled(match[1], factor), measures)


def _scaled(written: str, factor: Fraction) -> float:
    """A number times the factor of its unit."""
    try:
        return float(Fraction(written) * factor)
    except OverflowError:
        raise ValueError("the number is too large") from None


@cache
def unit(text: str) -> tuple[Fraction, Dimension]:
    """Factor to SI, and the dimension, of a unit; ``""`` and ``"-"`` are pure numbers.

    Raises `ValueError` for a unit that is not known.

    >>> unit("GB/s")
    (Fraction(1000000000, 1), (-1, 1, 0, 0, 0, 0, 0))
    """
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a unit takes no more than {LONGEST_NUMBER} characters")
    factor, powers, at = Fraction(1), list(PURE_NUMBER), 0
    end = 0 if text == "-" else len(text)
    while at < end:
        match = _FACTOR.match(text, at)
        if not match or (match[1] and at == 0):
            raise ValueError(f"{text!r} is not a unit")
        scale, measures = _symbol(match[2])
        power = int(match[3] or 1) * (-1 if match[1] == "/" else 1)
        factor *= scale**power
        powers = [total + power * measure for total, measure in zip(powers, measures, strict=True)]
        at = match.end()
    return factor, tuple(powers)


def _symbol(text: str) -> tuple[Fraction, Dimension]:
    """Factor and dimension of one symbol with its prefix."""
    if text == "1":
        return Fraction(1), PURE_NUMBER
    if text in SYMBOLS or text in WORDS:
        return SYMBOLS.get(text) or WORDS[text]
    for prefix, scale in PREFIXES.items():
        if text.startswith(prefix) and text.removeprefix(prefix) in SYMBOLS:
            factor, measures = SYMBOLS[text.removeprefix(prefix)]
            return scale * factor, measures
    known = {prefix + symbol for prefix in ("", *PREFIXES) for symbol in SYMBOLS} | {*WORDS}
    close = suggestion(text, known)
    raise ValueError(f"{text!r} is not a unit" + (close if "did you mean" in close else ""))


def dimension(unit_text: str) -> Dimension:
    """Dimension that a unit measures.

    >>> dimension("W") == dimension("J/s")
    True
    """
    return unit(unit_text)[1]


def si_value(text: object, unit_text: str) -> float:
    """The number in SI units of a text (or, for pure numbers, of a number) that measures `unit_text`.

    Raises `ValueError` if it has another dimension, or is not a quantity, with an example of a correct one.

    >>> si_value("3.35 TB/s", "B/s"), si_value(8, "-"), si_value("825 mm2", "m2")
    (3350000000000.0, 8.0, 0.000825)
    """
    example = f"such as {EXAMPLES.get(unit_text, '1 ' + unit_text)!r}"
    pure = dimension(unit_text) == PURE_NUMBER
    expected = "a number" if pure else f"a number and a unit, {example}"
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{text!r}: expected {expected}")
    if not isinstance(text, str) and not pure:
        raise ValueError(f"{text!r}: expected {expected}")
    try:
        parsed = quantity(str(text))
    except ValueError as error:
        raise ValueError(f"{text!r}: {str(error).removesuffix(' and a unit') if pure else error}"
                         + ("" if pure else f"; {example}")) from None  # fmt: skip
    if parsed.dimension != dimension(unit_text):
        raise ValueError(f"{text!r}: expected {expected}; this is in {unit_name(parsed.dimension)}")
    return parsed.value


def count_value(text: object) -> float:
    """A count as people write it: a number, or one that ends in K, M, B (1e9) or T. [-]

    Raises `ValueError` if it is not a whole number of at least 1.

    >>> count_value("15T"), count_value("15.6 B"), count_value(3e9)
    (15000000000000.0, 15600000000.0, 3000000000.0)
    """
    known = isinstance(text, str | int | float) and not isinstance(text, bool)
    match = _COUNT.fullmatch(str(text)) if known and len(str(text)) <= LONGEST_NUMBER else None
    number = Fraction(match[1]) * COUNT_SCALES[match[2]] if match else Fraction(0)
    if not 1 <= number <= 10**18 or number.denominator != 1:
        raise ValueError(f"{text!r}: expected a count, such as 15T or 300B")
    return float(number)


def readable_count(value: float) -> str:
    """A count as people write it.

    >>> [readable_count(value) for value in (15e12, 15.63e9, 512.0)]
    ['15T', '15.6B', '512']
    """
    scales = sorted(COUNT_SCALES.items(), key=lambda entry: -entry[1])
    letter, scale = next((pair for pair in scales if value >= pair[1]), ("", 1))
    return _plain(value / scale, 3) + letter


@cache
def unit_name(measures: Dimension) -> str:
    """The SI unit of a dimension, by its usual name where it has one.

    >>> unit_name(dimension("J/s")), unit_name(dimension("$ s/B")), unit_name(dimension("FLOP/J"))
    ('W', '$ s/B', 'FLOP/J')
    """
    for name in ("-", "s", "B", "J", "W", "m", "$", "FLOP", "1/s", "FLOP/s", *EXAMPLES):
        if dimension(name) == measures:
            return name
    powers = dict(zip(("s", "B", "J", "m", "$", "FLOP", "kg"), measures, strict=True))
    above = " ".join(f"{symbol}{power if power > 1 else ''}" for symbol, power in powers.items() if power > 0)
    below = "".join(f"/{symbol}{-power if power < -1 else ''}" for symbol, power in powers.items() if power < 0)
    return (above or "1") + below


#: Units that read better in another than their own prefixed form: SI unit -> unit shown.
_SHOWN: Final[dict[str, str]] = _TABLES["shown"]
#: Units that read better in others from some value on: SI unit -> (from here on, shown).
_LARGE: Final[dict[str, list[tuple[float, str]]]] = _TABLES["large"]
_STEPS: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""),
                 (1e-3, "m"), (1e-6, "u"), (1e-9, "n"), (1e-12, "p"))  # fmt: skip


def readable(value: float, unit_text: str, *, digits: int = 3) -> str:
    """A quantity as a person writes it.

    >>> [readable(v, u) for v, u in [(3.35e12, "B/s"), (0.037, "s"), (2.34e7, "$"), (1.5e-8, "$/B")]]
    ['3.35 TB/s', '37 ms', '$23.4M', '15 $/GB']
    >>> [readable(v, "s") for v in (17.98, 3600, 1234.5, 3.78e7)]
    ['18.0 s', '60 min', '20.6 min', '438 days']
    >>> [readable(v, u) for v, u in [(1.02e8, "s"), (5.5e-13, "J")]]
    ['1180 days', '0.55 pJ']
    """
    if unit_text == "-" or not abs(value) < float("inf"):
        return _plain(value, digits) + ("" if unit_text == "-" else " " + unit_text)
    if unit_text == "$":
        scale, letter = next(((s, n) for s, n in ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1.0, ""))
                              if abs(value) >= s * (1 - 0.5 * 10**-digits)), (1.0, ""))  # fmt: skip
        return f"{'-' if value < 0 else ''}${_plain(abs(value) / scale, digits)}{letter}"
    if unit_text in _SHOWN:
        shown = _SHOWN[unit_text]
        return f"{_plain(value / float(unit(shown)[0]), digits)} {shown}"
    for start, shown in _LARGE.get(unit_text, ()):
        if abs(value) >= start:
            return f"{_plain(value / float(unit(shown)[0]), digits)} {shown}"
    largest = 1.0 if unit_text == "s" else 1e18
    steps = [step for step in _STEPS if step[0] <= largest]
    scale, letter = next((s for s in steps if abs(value) >= s[0] * (1 - 0.5 * 10**-digits)), steps[-1])
    if unit_text.startswith("1/") or value == 0:
        scale, letter = 1.0, ""
    return f"{_plain(value / scale, digits)} {letter}{unit_text}"


def _plain(value: float, digits: int) -> str:
    """Significant digits, zeros among them where the value is rounded; large numbers without exponent.

    >>> [_plain(value, 3) for value in (1182.4, 1.5e7, 0.1, 1 / 3, float("inf"))]
    ['1180', '15000000', '0.1', '0.333', 'inf']
    """
    if abs(value) < 1e6 and float(value).is_integer():
        return str(int(value))
    short = f"{value:.{digits}g}"
    if 1 <= abs(value) < 1e15 and "e" in short:
        return f"{float(short):.0f}"
    rounded = abs(float(short) - value) > 1e-12 * abs(value)
    return f"{value:#.{digits}g}".rstrip(".") if rounded else short


def exact(value: float, unit_text: str) -> str:
    """The shortest readable text that reads back as the very same number.

    >>> exact(3.35e12, "B/s"), exact(1 / 3, "s"), exact(2**27, "B")
    ('3.35 TB/s', '333.3333333333333 ms', '128 MiB')
    """
    texts = (readable(value, unit_text, digits=digits) for digits in range(3, 18))
    decimal = next((text for text in texts if si_value(text, unit_text) == value), f"{value!r} {unit_text}")
    return min([decimal, *_binary(value, unit_text)], key=len)


def _binary(value: float, unit_text: str) -> list[str]:
    """A number of bytes in KiB, MiB, ..., in the largest unit that divides it; [] where none does.

    >>> _binary(3 * 2**29, "B"), _binary(1000, "B")
    (['1536 MiB'], [])
    """
    if unit_text != "B" or not abs(value) < float("inf"):
        return []
    scales = [(2.0**power, f"{letter}iB") for power, letter in zip(range(50, 0, -10), "PTGMK", strict=True)]
    return [f"{value / scale:.0f} {word}" for scale, word in scales if value and value % scale == 0][:1]
