"""A file says the same in other units: every bit of what it is read as, and of what is evaluated from it."""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

import dse
from costmodel import load_system, system_names
from costmodel.formats.input_files import Section, Source, dump, parse
from costmodel.formats.quantity import PURE_NUMBER, QUANTITY_IN_FORMULA, SYMBOLS, unit
from costmodel.formats.shipped import opened
from dse import Space
from dse.adapters.deepflow.configuration import read_configuration
from tests.price_snapshot import DEEPFLOW_DOCS

#: Prefixes that take the place of those in a file; bits take that of bytes.
PREFIXES = ("", "k", "m", "Mi", "bits")
SPACES = ("deepseek_v3_2048_h800", "gpt_1t_codesign", "gpt_1t_power_split", "lstm_24b_power")


def in_other_units(text: str, prefix: str) -> str:
    """A quantity whose first symbol has another prefix; the text as it is where no decimal number is left.

    >>> in_other_units("3.35 TB/s", "k"), in_other_units("40 MiB", ""), in_other_units("2 us", "bits")
    ('3350000000 kB/s', '41943040 B', '2 us')
    """
    match = re.fullmatch(r"([\d._]+(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]+)(.*)", text)
    symbol = match and next((s for s in sorted(SYMBOLS, key=len, reverse=True) if match[2].endswith(s)), None)
    if not match or symbol is None or unit(match[2] + match[3])[1] == PURE_NUMBER:
        return text
    other = prefix + symbol
    if prefix == "bits":
        other = {"B": "b", "b": "B"}.get(symbol, match[2])
    number = Fraction(match[1].replace("_", "")) * unit(match[2] + match[3])[0] / unit(other + match[3])[0]
    if 10**60 % number.denominator:
        return text
    digits = str(number.numerator * 10**60 // number.denominator).rjust(61, "0")
    return f"{digits[:-60]}.{digits[-60:]}".rstrip("0").rstrip(".") + f" {other}{match[3]}"


def rewritten(data: Any, prefix: str) -> Any:
    """The content of a file with every quantity in other units, those in its formulas too."""
    if isinstance(data, Mapping):
        return {key: rewritten(value, prefix) for key, value in data.items()}
    if isinstance(data, list):
        return [rewritten(value, prefix) for value in data]
    if not isinstance(data, str):
        return data
    return QUANTITY_IN_FORMULA.sub(lambda match: in_other_units(match[0], prefix), data)


@cache
def quantities_as_shipped(name: str) -> Mapping[str, Any]:
    """Quantities of a system that ships."""
    return load_system(name).quantities()


@pytest.mark.parametrize("prefix", PREFIXES)
def test_systems_are_read_to_the_same_bits(prefix, tmp_path):
    """Every second system has the units of a prefix, the others those of the next."""
    names, changed = system_names()[PREFIXES.index(prefix) % 2 :: 2], 0
    for name in names:
        data = opened(name, "systems")[2].data
        other = rewritten(data, prefix)
        changed += other != data
        path = tmp_path / f"{name}.yaml"
        path.write_text(dump(other))
        actual, expected = load_system(path).quantities(), quantities_as_shipped(name)
        assert {key: value.tobytes() for key, value in actual.items()} == {
            key: value.tobytes() for key, value in expected.items()
        }
    assert changed == len(names)


@pytest.mark.parametrize("name", SPACES)
def test_spaces_are_evaluated_to_the_same_bits(name):
    """Their models, systems and frameworks are written out in them."""
    data = Space.load(name).data
    space = Space.load(name)
    columns = space.legal.random(20, np.random.default_rng(0))
    expected = dse.evaluate(space, columns)
    for prefix in ("k", "bits"):
        assert rewritten(data, prefix) != data
        other = Space.from_data({"name": name, **rewritten(data, prefix)})
        same = other.legal.random(20, np.random.default_rng(0))
        assert {key: of.tobytes() for key, of in same.items()} == {key: of.tobytes() for key, of in columns.items()}
        actual = dse.evaluate(other, same)
        for column in ("values", "margins", "violations"):
            assert getattr(actual, column).tobytes() == getattr(expected, column).tobytes()
        for column, values in actual.breakdown.columns().items():
            assert values.tobytes() == expected.breakdown.columns()[column].tobytes(), column


@pytest.mark.parametrize("prefix", PREFIXES)
def test_configurations_of_deepflow_are_read_to_the_same_bits(prefix):
    [text] = re.findall(r"```yaml\n(schema: deepflow.*?)```", DEEPFLOW_DOCS.read_text(), flags=re.DOTALL)
    data = dict(parse(text, "deepflow").data)
    other = rewritten(data, prefix)
    assert other != data
    actual, expected = map(read_configuration, (Section(Source("other"), (), other), parse(text, "one")))
    with np.printoptions(floatmode="unique"):
        assert repr(actual) == repr(expected)
