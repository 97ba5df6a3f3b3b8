"""The bottleneck of a design, in words."""

from __future__ import annotations

import pytest

from dse import Space
from dse.pricing.evaluation import priced_design
from dse.reporting.binding import binding_shares, sentence


@pytest.mark.parametrize(
    ("pins", "binds"),
    [
        ({"tp": 8, "pp": 16}, "arithmetic"),
        ({"tp": 8, "pp": 16, "dram_bandwidth": "100 GB/s"}, "memory traffic"),
        ({"tp": 8, "pp": 16, "node_bandwidth": "1 GB/s"}, "tensor-parallel communication"),
        ({"tp": 8, "pp": 16, "host_dispatch": "1 s"}, "kernel launches"),
        ({"tp": 1, "pp": 96, "global_batch_size": 32, "world_size": 96, "micro_batch_size": 8}, "the pipeline bubble"),
    ],
)
def test_the_starved_resource_is_the_bottleneck(pins, binds):
    space = Space.load("gpt3_175b_1024_a100", pins)
    record = priced_design(space, space.completed({}))
    assert sentence(space, record).startswith(f"Bottleneck: {binds}, ")
    assert sum(binding_shares(record).values()) == pytest.approx(1)
