"""The laws of `tests/costmodel/steps/test_laws.py` over many more models, machines and designs: half a million designs.

`LAWS_FROM` and `LAWS_MODELS` say which seeds are drawn, and so how long it takes: some 3 s of one core each.
"""

import os

import pytest

from tests.support import laws

FIRST = int(os.environ.get("LAWS_FROM", "100"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("LAWS_MODELS", "250")))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_column_of_every_design_is_finite_and_lawful(seed):
    laws.check_transformers(seed, 2000 if seed % 2 == 0 else 500)  # odd ones have a machine for each design
    laws.check_lstm(seed, 1000)


@pytest.mark.parametrize("profile", ["simai", "dfmodel-gen1", "dfmodel-gen2a", "dfmodel-gen2b", "dfmodel-gen3"])
@pytest.mark.parametrize("seed", SEEDS[:20])
def test_reference_profiles_are_finite_or_say_why(profile, seed):
    laws.check_profile(profile, seed, 500)


@pytest.mark.parametrize("seed", SEEDS[:60])
def test_more_of_a_resource_is_never_slower_and_order_changes_no_bit(seed):
    laws.check_resources(seed, 100)
    laws.check_order(seed, 300)


@pytest.mark.parametrize("seed", SEEDS)
def test_zero_scale_work_and_items(seed):
    laws.check_zero(seed, 300)
    laws.check_scale(seed, 300)
    laws.check_work(seed, 300)
    laws.check_items(seed, 300)
