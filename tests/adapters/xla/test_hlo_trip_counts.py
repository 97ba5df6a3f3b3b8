"""Numbers of trips of loops, from the comparisons of their conditions; where XLA noted one, it is the same."""

from string import Template

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.adapters.xla import hlo
from dse.adapters.xla.work.kernel_graph import trip_counts
from tests.support.cases import cases


def trips(text: str) -> dict[str, int | None]:
    """Loop -> its trips."""
    return {loop.name: count for loop, count in trip_counts(hlo.parse(text, "text")).items()}


def loop(
    *, dtype: str = "s32", start: int = 0, step: int = 1, limit: int = 10, compare: str = "compare(i, n), direction=LT"
) -> str:
    """A loop that adds a step to a counter; its condition as it is written."""
    state = f"({dtype}[], f32[4])"
    return Template(cases(__file__, "loop")).substitute(
        dtype=dtype, state=state, start=start, step=step, limit=limit, compare=compare
    )


def counted(dtype: str, start: int, step: int, limit: int, holds) -> int | None:
    """Trips by running the counter, which is not to wrap around; None where it would."""
    bits = int(dtype[1:])
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if dtype[0] == "s" else (0, 2**bits)
    for trip in range(2**bits + 1):
        value = start + trip * step
        if not low <= value < high:
            return None
        if not holds(value, limit):
            return trip
    return None


HOLDS = {
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
    "NE": lambda a, b: a != b, "EQ": lambda a, b: a == b,
}  # fmt: skip
MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}


@given(
    dtype=st.sampled_from(["s8", "u8", "s4", "u4"]), direction=st.sampled_from(list(HOLDS)), data=st.data(),
    mirrored=st.booleans(), negated=st.booleans(),
)  # fmt: skip
def test_a_counter_and_a_constant(dtype, direction, data, mirrored, negated):
    """By every comparison, either way around, and by a step that wraps: all are as counting one by one."""
    bits = int(dtype[1:])
    low = -(2 ** (bits - 1)) if dtype[0] == "s" else 0
    numbers = st.integers(low, low + 2**bits - 1)
    start, limit = data.draw(numbers), data.draw(numbers)
    step = data.draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    written = step % 2**bits if dtype[0] == "u" else step
    sides, told = ("n, i", MIRRORED[direction]) if mirrored else ("i, n", direction)
    text = loop(dtype=dtype, start=start, step=written, limit=limit, compare=f"compare({sides}), direction={told}")
    assert trips(text) == {"w": counted(dtype, start, step, limit, HOLDS[direction])}


LONG = cases(__file__, "LONG")


def test_counters_are_followed_through_fusions_calls_conversions_and_loops_around():
    """20, 18, ... 4 is 9 trips; the limit travels in the state, and the start comes from the loop around."""
    assert trips(LONG) == {"w": 9, "v": 7}
    assert {kernel.name: kernel.count for kernel in hlo.graph(hlo.parse(LONG, "text")).kernels}["v/r/w/j/f"] == 63
    assert trips(cases(__file__, "NARROWING")) == {"w": 10}  # within the narrower type


UNKNOWN = cases(__file__, "UNKNOWN")


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_the_text_does_not_tell_is_unknown(case):
    text, name = UNKNOWN[case]
    assert trips(text)[name] is None
    assert any(kernel.uncounted for kernel in hlo.graph(hlo.parse(text, "text")).kernels)


def test_a_way_without_end_is_left():
    """Calls of calls, each twice: 2 to the 90th ways through 90 computations."""
    calls = "".join(
        f"c{n} {{ a = s32[] parameter(0)\n b = s32[] call(a), to_apply=c{n - 1}\n"
        f" d = s32[] call(b), to_apply=c{n - 1}\n ROOT e = s32[] subtract(d, b) }}\n"
        for n in range(1, 90)
    )
    text = loop().replace("j = s32[] add(i, s)", "k = s32[] call(i), to_apply=c89\n j = s32[] add(k, s)")
    first = "c0 { a = s32[] parameter(0)\n ROOT b = s32[] copy(a) }\n"
    assert trips(text.replace("HloModule m\n", "HloModule m\n" + first + calls)) == {"w": None}
