"""The law of `tests/dse/searching/test_random_spaces.py` over more spaces."""

import pytest

from tests.support.random_studies import check_round_trip


@pytest.mark.parametrize("seed", range(100, 300))
def test_trials_of_random_spaces_are_read_back_as_they_were(seed):
    check_round_trip(seed)
