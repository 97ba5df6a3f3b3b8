"""Stored values are exact: random spaces, whose trials are stored, printed, read back and evaluated."""

import pytest

from tests.support.random_studies import check_round_trip


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 300))])
def test_trials_of_random_spaces_are_read_back_as_they_were(seed):
    check_round_trip(seed)
