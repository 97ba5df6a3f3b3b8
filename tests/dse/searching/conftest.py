"""A small space that several modules of these tests share."""

import pytest

from dse.spaces.space import Space
from tests.support.paths import TEST_DATA


@pytest.fixture(scope="session")
def space() -> Space:
    """A few hundred designs: few enough to evaluate them all."""
    return Space.load(TEST_DATA / "small_space.yaml")
