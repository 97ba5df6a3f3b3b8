"""Formulas are parsed, checked for names and units, and worked out on whole columns."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import DseError
from costmodel.formats.quantity import dimension, unit_name
from dse.spaces.formulas.expressions import Expression, Name
from tests.support.cases import by_table, cases

KNOWN = {
    **dict.fromkeys(("a", "b", "tp", "pp", "num_layers"), Name()),
    "memory": Name(dimension("B")),
    "capacity": Name(dimension("B")),
    "power": Name(dimension("W")),
    "time": Name(dimension("s")),
    "recompute": Name(words=("none", "selective", "full")),
    "sharded": Name(boolean=True),
}
VALUES = {
    "a": np.array([7.0, 2.0, 0.0]), "b": np.array([3.0, 3.0, 3.0]), "tp": np.array([1.0, 2.0, 8.0]),
    "pp": np.array([1.0, 1.0, 4.0]), "num_layers": 96.0, "memory": np.array([60e9, 72 * 2**30, 90e9]),
    "capacity": 80e9, "power": np.array([1e6, 2e6, 3e6]), "time": np.array([10.0, 20.0, 30.0]),
    "recompute": np.array([0.0, 1.0, 2.0]), "sharded": np.array([0.0, 1.0, 1.0]),
}  # fmt: skip


def compiled(text):
    return Expression.parse(text).compiled(KNOWN)


@pytest.mark.parametrize(("text", "numbers"), cases(__file__, "NUMBERS"))
def test_numbers(text, numbers):
    formula = compiled(text)
    assert formula.kind == "number"
    assert np.broadcast_to(formula(VALUES), (3,)) == pytest.approx(numbers)


@pytest.mark.parametrize(("text", "holds", "margin", "unit"), cases(__file__, "CONDITIONS"))
def test_conditions_and_their_margins(text, holds, margin, unit):
    formula = compiled(text)
    assert formula.margin is not None
    assert unit_name(formula.margin.dimension) == unit
    held = np.broadcast_to(formula(VALUES), (3,))
    margins, scales = formula.margins(VALUES)
    assert held.astype(int).tolist() == holds
    assert np.broadcast_to(margins >= 0, (3,)).tolist() == held.tolist()
    assert (scales > 0).all()
    if margin is not None:
        assert np.broadcast_to(margins, (3,)) == pytest.approx(margin)


def test_margins_of_different_units_are_compared_relative_to_their_limits():
    """90 GB is 12.5 % over 80 GB, 3 MW is 50 % over 2 MW: the worse of both counts."""
    margins, scales = compiled("memory <= 80 GB and power <= 2 MW").margins(VALUES)
    assert margins[2] == pytest.approx(-0.5)
    assert np.all(scales == 1)


@by_table("text", "options")
def test_options(text, options):
    assert compiled(text).kind == "list"
    assert compiled(text)(VALUES).tolist() == options


@pytest.mark.parametrize(("text", "message"), [
    *cases(__file__, "MISTAKES"),
    ("1" * 400, "not understood"),
    ("(" * 300, "not a formula"),
    ("-" * 5000 + "1", "not a formula"),
])  # fmt: skip
def test_a_wrong_formula_says_what_is_wrong(text, message):
    with pytest.raises(DseError, match=re.escape(message)):
        compiled(text)


numbers = st.integers(0, 6).map(str)
arithmetic = st.recursive(
    st.sampled_from(["a", "b", "tp"]) | numbers,
    lambda e: st.tuples(e, st.sampled_from(["+", "-", "*", "/", "%", "//"]), e).map(lambda t: f"({' '.join(t)})"),
    max_leaves=6,
)


@given(arithmetic, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), arithmetic)
def test_formulas_mean_what_python_means(left, sign, right):
    """The same text, worked out by Python for one row at a time."""
    text = f"{left} {sign} {right}"
    held = np.broadcast_to(compiled(text)(VALUES), (3,))
    margins = np.broadcast_to(compiled(text).margins(VALUES)[0], (3,))
    for row in range(3):
        names = {name: float(VALUES[name][row]) for name in ("a", "b", "tp")}
        try:
            expected = eval(text, {"__builtins__": {}}, names)  # the reference of this test, on text made above
        except ZeroDivisionError:
            continue
        assert held[row] == expected
        if all(map(math.isfinite, names.values())):
            assert (margins[row] >= 0) == expected
