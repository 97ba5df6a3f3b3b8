"""Quantities as text: units are products of prefixed symbols, and numbers survive the way there and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.formats.quantity import (
    EXAMPLES,
    PREFIXES,
    PURE_NUMBER,
    count_value,
    dimension,
    exact,
    quantity,
    readable,
    readable_count,
    si_value,
    unit_name,
)

WRITTEN = [
    # text, unit, value in SI units
    ("3.35 TB/s", "B/s", 3.35e12),
    ("80 GB", "B", 80e9),
    ("80GB", "B", 80e9),
    ("40 MiB", "B", 40 * 2**20),
    ("1.5 GiB", "B", 1.5 * 2**30),
    ("200 Gb/s", "B/s", 25e9),
    ("1.41 GHz", "Hz", 1.41e9),
    ("400 W", "W", 400.0),
    ("20 MW", "W", 20e6),
    ("0.6 pJ", "J", 0.6e-12),
    ("4 pJ/B", "J/B", 4e-12),
    ("825 mm2", "m2", 825e-6),
    ("825 mm^2", "m2", 825e-6),
    ("0.5 mm2/MB", "m2/B", 0.5e-12),
    ("0.3 $/mm2", "$/m2", 0.3e6),
    ("1.2 us", "s", 1.2e-6),
    ("1.2 µs", "s", 1.2e-6),
    ("$15K", "$", 15000.0),
    ("15000 $", "$", 15000.0),
    ("$23.4M", "$", 23.4e6),
    ("10 $/GB", "$/B", 1e-8),
    ("40 $ s/GB", "$ s/B", 4e-8),
    ("312 TFLOP/s", "FLOP/s", 312e12),
    ("1000 s", "s", 1000.0),
    ("10 min", "s", 600.0),
    ("50000 h", "s", 1.8e8),
    ("3 days", "s", 259200.0),
    ("1 day", "s", 86400.0),
    ("2.5 MWh", "J", 9e9),
    ("2.5 $/h", "$/s", 2.5 / 3600),
    ("$2.5/h", "$/s", 2.5 / 3600),
    ("0.1 $/kWh", "$/J", 1 / 3.6e7),
    ("6900 t", "kg", 6.9e6),
    ("400 g/kWh", "kg/J", 1 / 9e6),
    (8, "-", 8.0),
    ("0.9", "-", 0.9),
    ("1e12", "-", 1e12),
]


@pytest.mark.parametrize(("text", "unit", "value"), WRITTEN)
def test_a_text_is_the_float_nearest_to_what_it_says(text, unit, value):
    assert si_value(text, unit) == value


WRONG = [
    # text, unit, what the message must say
    ("3.35", "B/s", "expected a number and a unit, such as '3.35 TB/s'"),
    (3.35, "B/s", "expected a number and a unit, such as '3.35 TB/s'"),
    ("80 GB", "B/s", "this is in B"),
    ("80 GB", "-", "expected a number"),
    ("80 Gs/B", "B", "this is in s/B"),
    ("80 gb", "B", "'gb' is not a unit"),
    ("80 GHZ", "Hz", "did you mean 'GHz'"),
    ("fast", "B/s", "such as '3.35 TB/s'"),
    ("", "s", "such as '1.2 us'"),
    ("1 /s", "s", "not a unit"),
    (True, "-", "expected a number"),
    (None, "s", "expected a number and a unit"),
    ([1], "-", "expected a number"),
    (float("inf"), "-", "expected a number"),
    ("1e999 s", "s", "too large"),
    ("٣ s", "s", "expected a number and a unit"),
    ("3٣", "-", "not a unit"),
]


@pytest.mark.parametrize(("text", "unit", "message"), WRONG)
def test_a_wrong_quantity_says_what_would_do(text, unit, message):
    with pytest.raises(ValueError, match=r".") as caught:
        si_value(text, unit)
    assert message in str(caught.value)


def test_units_are_products_of_powers():
    assert dimension("W s") == dimension("J")
    assert dimension("B Hz") == dimension("B/s")
    assert dimension("m2 m") == dimension("m3")
    assert quantity("1 kB/ms").value == 1e6
    assert dimension("B/B") == dimension("-") == dimension("") == PURE_NUMBER


@pytest.mark.parametrize("unit", EXAMPLES)
def test_every_unit_has_a_name_that_measures_the_same(unit):
    assert dimension(unit_name(dimension(unit))) == dimension(unit)
    assert si_value(EXAMPLES[unit], unit) > 0


def test_a_unit_without_a_usual_name_is_spelt_out():
    assert unit_name(dimension("$ s2/B2")) == "s2 $/B2"


READABLE = [
    (66.4e9, "B", "66.4 GB"),
    (24.13, "s", "24.1 s"),
    (0.037, "s", "37 ms"),
    (3600.0, "s", "60 min"),
    (599.0, "s", "599 s"),
    (1234.5, "s", "20.6 min"),
    (11160.0, "s", "3.1 h"),
    (3.78e7, "s", "438 days"),
    (-7200.0, "s", "-2 h"),
    (6.12e13, "J", "17 GWh"),
    (6.9e5, "kg", "690 t"),
    (2.5 / 3600, "$/s", "2.5 $/h"),
    (2.34e7, "$", "$23.4M"),
    (15000.0, "$", "$15K"),
    (-2.5e6, "$", "-$2.5M"),
    (999.9996e9, "B", "1.00 TB"),
    (8.0, "-", "8"),
    (0.123456, "-", "0.123"),
    (0.0, "B", "0 B"),
    (-6.1e9, "B", "-6.1 GB"),
    (8.26e-4, "m2", "826 mm2"),
    (float("nan"), "s", "nan s"),
]


@pytest.mark.parametrize(("value", "unit", "text"), READABLE)
def test_a_person_can_read_it(value, unit, text):
    assert readable(value, unit) == text


@given(st.floats(min_value=1e-15, max_value=1e20), st.sampled_from(sorted(EXAMPLES)))
def test_exact_text_reads_back_as_the_very_same_number(value, unit):
    assert si_value(exact(value, unit), unit) == value


@given(st.integers(1, 10**6), st.sampled_from(sorted(PREFIXES)), st.sampled_from(["B", "s", "J", "W", "Hz"]))
def test_a_prefix_scales(count, prefix, symbol):
    assert quantity(f"{count} {prefix}{symbol}").value == pytest.approx(count * float(PREFIXES[prefix]))


def test_a_count_is_a_whole_number_with_the_letter_people_give_it():
    assert [count_value(text) for text in ("15T", "300B", "15.6 M", 7, "1e12")] == [15e12, 3e11, 15.6e6, 7, 1e12]
    assert [readable_count(value) for value in (15e12, 15.6e9, 7.0)] == ["15T", "15.6B", "7"]


@pytest.mark.parametrize("text", ["0", "-1T", "1.5", "15 TB", "many", "٣T", None, True, float("nan"), "1e30"])
def test_what_is_no_count_says_what_would_do(text):
    with pytest.raises(ValueError, match="expected a count, such as 15T or 300B"):
        count_value(text)


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_a_clear_mistake(text):
    try:
        mistake = f"{si_value(text, 'B/s')} such as '3.35 TB/s'"
    except ValueError as error:
        mistake = str(error)
    assert "such as '3.35 TB/s'" in mistake


def test_no_quantity_is_read_with_an_exponent():
    """From a picosecond and a gram to an exabyte, in each unit that tables show."""
    for unit in ("s", "B", "B/s", "FLOP/s", "J", "W", "$", "kg", "-"):
        for exponent in range(-3 if unit in ("-", "$", "kg") else -12, 15):
            for digit in (1.0, 1.182, 9.996):
                text = readable(digit * 10.0**exponent, unit)
                assert not re.search(r"\de[-+]", text), text
    assert readable(1182.4 * 86400, "s") == "1180 days"
    assert readable(112 * 60, "s") == "112 min"
