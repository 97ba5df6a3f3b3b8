"""The bottleneck of a design, in words."""

import pytest

from dse import Space
from dse.pricing.evaluation import evaluated_design
from dse.reporting.binding import binding_shares, sentence
from tests.support.cases import by_table


@by_table("pins", "binds")
def test_the_starved_resource_is_the_bottleneck(pins, binds):
    space = Space.load("gpt3_175b_1024_a100", pins)
    record = evaluated_design(space, space.completed({}))
    assert sentence(space, record).startswith(f"Bottleneck: {binds}, ")
    assert sum(binding_shares(record).values()) == pytest.approx(1)
