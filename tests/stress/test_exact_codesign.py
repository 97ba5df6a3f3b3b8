"""Exact fronts and bounds that take half a minute or more, which the README and the tests show smaller."""

import pytest

from dse.searching.exact.exact_front import exact_front
from dse.spaces.space import Space
from tests.dse.searching.test_bound import test_a_bound_is_never_above_the_best as check_bound


def test_the_front_of_chips_and_layouts_is_exact():
    """Of 2.5e10 designs bounds leave a few million to evaluate."""
    exact = exact_front(Space.load("gpt_1t_codesign"))
    assert exact.legal > 2.4e10
    assert exact.evaluated < 4e6


@pytest.mark.parametrize("seed", range(2, 16))
def test_a_bound_is_never_above_the_best(seed, tmp_path, monkeypatch):
    check_bound(tmp_path, monkeypatch, seed)
