"""Laws of the cost model over models, machines and designs by chance, thousands in a batch.

`tests/stress/test_many_laws.py` is the same over some 400,000 designs.
"""

import pytest

from costmodel import load_system
from tests.support import laws

#: What is drawn in a run of the usual tests. [-]
DRAWS, POINTS = 2, 100


@pytest.mark.parametrize("seed", range(DRAWS))
def test_every_column_of_every_design_is_finite_and_lawful(seed):
    """Costs are numbers from 0 for every design; those whose format a chip has no units for have none."""
    laws.check_transformers(seed, POINTS)
    laws.check_lstm(seed, POINTS)


@pytest.mark.parametrize("profile", ["simai", "dfmodel-gen1", "dfmodel-gen2a", "dfmodel-gen2b", "dfmodel-gen3"])
def test_reference_profiles_are_finite_or_say_why(profile):
    laws.check_profile(profile, 0, POINTS // 2)


def test_resources_are_the_quantities_that_work_is_divided_by():
    resources = set(load_system("a100_80g_dgx").never_slower())
    assert {"cores", "clock", "sram_capacity", "l2_capacity", "dram_capacity", "dram_bandwidth"} <= resources
    assert {"node_bandwidth", "fabric_bandwidth", "host_link_bandwidth"} <= resources
    assert not resources & {"array_height", "array_width", "node_size", "tile_latency", "collective_cores"}


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 20004])  # 20004: an indexer and a core in rings
def test_more_of_a_resource_is_never_slower_cheaper_or_less_hungry(seed):
    laws.check_resources(seed, 30)
    laws.check_lstm_resources(seed, 30)


@pytest.mark.parametrize("seed", [1, 51, 52])  # 51: one is solved alone in DualPipe; 52: beside one that overlaps
def test_order_and_company_change_no_bit(seed):
    """Any permutation, any part of a batch, and each design alone."""
    laws.check_order(seed, 60)


@pytest.mark.parametrize(
    ("law", "seeds"),
    [(laws.check_zero, (0, 1)), (laws.check_scale, (0, 1)), (laws.check_work, (0,)), (laws.check_items, (16, 26))],
)  # 16, 26: two kinds of layers where a second pass runs beside the first
def test_laws_of_states_rates_work_and_items(law, seeds):
    for seed in seeds:
        law(seed, POINTS)
