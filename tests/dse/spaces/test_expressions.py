"""Formulas are parsed, checked for names and units, and worked out on whole columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import DseError
from costmodel.formats.quantity import dimension, unit_name
from dse.spaces.formulas.expressions import Expression, Name

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
    "a": np.array([7.0, 2.0, 0.0]),
    "b": np.array([3.0, 3.0, 3.0]),
    "tp": np.array([1.0, 2.0, 8.0]),
    "pp": np.array([1.0, 1.0, 4.0]),
    "num_layers": 96.0,
    "memory": np.array([60e9, 72 * 2**30, 90e9]),
    "capacity": 80e9,
    "power": np.array([1e6, 2e6, 3e6]),
    "time": np.array([10.0, 20.0, 30.0]),
    "recompute": np.array([0.0, 1.0, 2.0]),
    "sharded": np.array([0.0, 1.0, 1.0]),
}


def compiled(text):
    return Expression.parse(text).compiled(KNOWN)


NUMBERS = [
    ("a + b * 2", [13, 8, 6]),
    ("(a - b) ** 2", [16, 1, 9]),
    ("-a // b", [-3, -1, 0]),
    ("a % b", [1, 2, 0]),
    ("min(a, b, 5)", [3, 2, 0]),
    ("max(a, b)", [7, 3, 3]),
    ("ceil(a / b) + floor(a / b)", [5, 1, 0]),
    ("log2(tp) + sqrt(pp)", [1, 2, 5]),
    ("round(a / b)", [2, 1, 0]),
    ("abs(a - b)", [4, 1, 3]),
    ("a if tp > 1 else b", [3, 2, 0]),
    ("num_layers / (tp * pp)", [96, 48, 3]),
    ("(tp > 1) + sharded", [0, 2, 2]),
    ("memory / 1 GB", [60, 72 * 2**30 / 1e9, 90]),
    ("power * time / 1 MJ", [10, 40, 90]),
    ("0 + memory / capacity * 4", [3, 72 * 2**30 / 20e9, 4.5]),
    ("$2M / 1 $", [2e6] * 3),
]


@pytest.mark.parametrize(("text", "numbers"), NUMBERS)
def test_numbers(text, numbers):
    formula = compiled(text)
    assert formula.kind == "number"
    assert np.broadcast_to(formula(VALUES), (3,)) == pytest.approx(numbers)


CONDITIONS = [
    # formula, where it holds, margin, unit of the margin
    ("memory <= capacity", [1, 1, 0], [20e9, 80e9 - 72 * 2**30, -10e9], "B"),
    ("memory <= 72 GiB", [1, 1, 0], [72 * 2**30 - 60e9, 0, 72 * 2**30 - 90e9], "B"),
    ("memory < 72 GiB", [1, 0, 0], None, "B"),
    ("power > 2 MW", [0, 0, 1], None, "W"),
    ("power >= 2 MW", [0, 1, 1], [-1e6, 0, 1e6], "W"),
    ("num_layers % (tp * 5) == 0", [0, 0, 0], [-1, -6, -16], "-"),
    ("a == 2", [0, 1, 0], [-5, 0, -2], "-"),
    ("a != 2", [1, 0, 1], None, "-"),
    ("1 <= a <= 3", [0, 1, 0], None, "-"),
    ("not memory <= capacity", [0, 0, 1], [-20e9, 72 * 2**30 - 80e9, 10e9], "B"),
    ("not a == 2", [1, 0, 1], None, "-"),
    ("tp == 1 or pp > 1", [1, 0, 1], None, "-"),
    ("(tp == 1) | (pp > 1)", [1, 0, 1], None, "-"),
    ("(tp > 1) & (pp == 1)", [0, 1, 0], None, "-"),
    ("~(tp == 1)", [0, 1, 1], None, "-"),
    ("memory <= 80 GB and power <= 2 MW", [1, 1, 0], None, "-"),
    ("memory <= 80 GB or memory >= 85 GB", [1, 1, 1], [20e9, 80e9 - 72 * 2**30, 5e9], "B"),
    ("recompute == full", [0, 0, 1], [-1, -1, 1], "-"),
    ("'none' != recompute", [0, 1, 1], [-1, 1, 1], "-"),
    ("sharded", [0, 1, 1], [-1, 1, 1], "-"),
    ("tp > 1 or not sharded", [1, 1, 1], None, "-"),
    ("true", [1, 1, 1], [1, 1, 1], "-"),
    ("memory > 0", [1, 1, 1], [60e9, 72 * 2**30, 90e9], "B"),
    ("a / 0 > 1", [1, 1, 0], None, "-"),
]


@pytest.mark.parametrize(("text", "holds", "margin", "unit"), CONDITIONS)
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


LISTS = [
    ("divisors(num_layers)", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96]),
    ("powers_of_two(1, 8)", [1, 2, 4, 8]),
    ("multiples(16 GB, 40 GB, 80 GB)", [48e9, 64e9, 80e9]),
]


@pytest.mark.parametrize(("text", "options"), LISTS)
def test_options(text, options):
    assert compiled(text).kind == "list"
    assert compiled(text)(VALUES).tolist() == options


MISTAKES = [
    ("num_layer + 1", "num_layer: unknown name; did you mean 'num_layers'?"),
    ("memory <= 80", "units differ: B against a pure number"),
    ("memory + time", "units differ: B against s"),
    ("memory <= 80 GB/s", "units differ: B against B/s"),
    ("max(memory, 1)", "units differ"),
    ("log2(memory)", "expected a pure number, got B"),
    ("2 ** memory", "needs a whole number as exponent"),
    ("memory ** 0.5", "needs a whole number as exponent"),
    ("tp == 1 | pp > 1", "need parentheses"),
    ("tp and pp", "is no condition"),
    ("recompute == ful", "'ful' is not a value of recompute; did you mean 'full'?"),
    ("recompute + 1", "is a word; expected a number"),
    ("recompute == full == 1", "full: unknown name"),
    ("cube(tp)", "cube: unknown function"),
    ("min()", "expected 1 argument"),
    ("log2(1, 2)", "expected 1 argument, got 2"),
    ("divisors(6) + 1", "is a list; expected a number"),
    ("tp.real", "'tp.real' is not understood"),
    ("tp[0]", "not understood"),
    ("(lambda: 1)()", "unknown function"),
    ("__import__('os').system('true')", "unknown function"),
    ("[t for t in tp]", "not understood"),
    ("'word'", "not understood"),
    ("tp is pp", "'tp is pp' is not understood"),
    ("tp in (1, 2)", "not understood"),
    ("tp := 1", "not a formula"),
    ("tp +", "not a formula"),
    ("", "not a formula"),
    ("1" * 400, "not understood"),
    ("(" * 300, "not a formula"),
    ("-" * 5000 + "1", "not a formula"),
    ("a\x00", "not a formula"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_wrong_formula_says_what_is_wrong(text, message):
    with pytest.raises(DseError) as caught:
        compiled(text)
    assert message in str(caught.value)


def test_a_message_shows_quantities_as_they_are_written():
    with pytest.raises(DseError, match="'tp <= 72 GiB': 'tp <= 72 GiB': units differ"):
        compiled("tp <= 72 GiB")


def test_names_are_known_before_anything_else():
    assert Expression.parse("min(a, tp) <= 3 GB and recompute == full").names == {"a", "tp", "recompute", "full"}


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
