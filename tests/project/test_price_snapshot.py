"""Designs cost what they did. These are our own numbers: what is right, other tests say."""

import pytest

from tests.price_snapshot import TOLERANCE, cases, moved, stored


@pytest.mark.parametrize("name", cases())
def test_designs_cost_what_they_did(name):
    """A change on purpose keeps its new prices by `python -m tests.price_snapshot --keep`, and says why."""
    designs, old, commit = stored(name)
    new = cases()[name][1](designs)
    assert len(commit) == 40
    assert new.keys() >= old.keys()
    changes = {column: moved(old[column], new[column]) for column in old}
    assert {column: change for column, change in changes.items() if change[0] > TOLERANCE} == {}
