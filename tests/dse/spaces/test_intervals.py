"""Ends of formulas over boxes hold for every design in the box."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from dse.spaces.formulas.expressions import Expression, Name
from dse.spaces.formulas.interval_arithmetic import interval_of, point
from tests.support.cases import by_table

NAMES = {**dict.fromkeys("abc", Name()), "recompute": Name(words=("none", "selective", "full"))}
NUMBERS = st.sampled_from([-2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0])


def joined(*parts: str) -> str:
    return f"({''.join(parts)})"


def called(name: str, *arguments: str) -> str:
    return f"{name}({','.join(arguments)})"


TERMS = st.recursive(
    st.sampled_from(["a", "b", "c", "2", "0.5"]),
    lambda inner: st.one_of(
        st.builds(joined, inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner),
        st.builds(called, st.sampled_from(["min", "max"]), inner, inner),
        st.builds(called, st.sampled_from(["abs", "ceil", "floor", "-", "sqrt"]), inner),
        st.builds("({} if {} < {} else c)".format, inner, inner, inner),
    ),
    max_leaves=6,
)
CONDITIONS = st.recursive(
    st.builds(joined, TERMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), TERMS),
    lambda inner: st.one_of(
        st.builds("(not {})".format, inner),
        st.builds(joined, inner, st.sampled_from([" and ", " or ", "&", "|"]), inner),
    ),
    max_leaves=3,
)


@example(text="(a<abs(sqrt(a)))", ends=[(-2.5, -2.5)] * 3)
@example(text="(a<max(c//b,a))", ends=[(-1.0, -1.0), (0.0, 0.0), (0.0, 0.0)])
@given(text=st.one_of(TERMS, CONDITIONS), ends=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=3))
def test_ends_hold_for_all_within(text, ends):
    box = {name: (np.array(min(bounds)), np.array(max(bounds))) for name, bounds in zip("abc", ends, strict=True)}
    rng = np.random.default_rng(0)
    inside = {name: np.append(rng.uniform(low, high, 50), [low, high]) for name, (low, high) in box.items()}
    values = Expression.parse(text).compiled(NAMES)(inside)
    values = np.asarray(values, dtype=np.float64)
    low, high = interval_of(Expression.parse(text), box, NAMES)
    known = ~np.isnan(values)  # an undefined design keeps no limit, and has no place on a front
    assert (np.broadcast_to(low, values.shape)[known] <= values[known]).all()
    assert (values[known] <= np.broadcast_to(high, values.shape)[known]).all()


@by_table("text", "surely", "maybe")
def test_conditions_hold_for_certain_or_perhaps(text, surely, maybe):
    box = {"a": (np.array(1.0), np.array(2.0)), "b": (np.array(1.5), np.array(9.0)), "recompute": point(2.0)}
    low, high = interval_of(Expression.parse(text), box, NAMES)
    assert (low, high) == (surely, maybe)
