"""Quantities as text: units are products of prefixed symbols, and numbers survive the way there and back."""

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
from tests.support.cases import cases

WRITTEN = cases(__file__, "WRITTEN")


@pytest.mark.parametrize(("text", "unit", "value"), WRITTEN)
def test_a_text_is_the_float_nearest_to_what_it_says(text, unit, value):
    assert si_value(text, unit) == value


WRONG = cases(__file__, "WRONG")


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


READABLE = cases(__file__, "READABLE")


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
