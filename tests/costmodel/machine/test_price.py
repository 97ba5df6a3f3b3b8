"""Dollars, watts and joules: sums of parts, and what shipped machines come to."""

import numpy as np
import pytest

from costmodel import DesignPoints, load_system, step
from costmodel.machine import chip_price, die_area, die_yield
from tests.support.cases import cases


def test_die_area_is_the_sum_of_its_parts(toy_system):
    """230 mm2, 37 cores of 3 arrays of 8 by 16 at 0.0011 mm2 each, 28 MB of SRAM at 0.9 mm2/MB."""
    assert die_area(toy_system) * 1e6 == pytest.approx(230 + 37 * 3 * 8 * 16 * 0.0011 + 28 * 0.9)


def test_chip_price_is_the_sum_of_its_parts(toy_system):
    """Base 2300, die at 190 000 $/m2, host 1700, 53 GB at 11 $/GB, links at 3 and 23 $ per GB/s."""
    die = die_area(toy_system).item() * 1.9e5
    assert chip_price(toy_system) == pytest.approx(2300 + die + 1700 + 53 * 11 + 97 * 3 + 13 * 23)


@pytest.mark.parametrize(("quantity", "per_unit"), cases(__file__, "price_follows_each_open_quantity"))
def test_price_follows_each_open_quantity(quantity, per_unit, toy_system):
    before = toy_system.quantities()[quantity]
    more = toy_system.with_quantities({quantity: 1.5 * before})
    assert chip_price(more) - chip_price(toy_system) == pytest.approx(0.5 * before * per_unit)


#: What is chosen of an open chip, all of which costs.
OPEN = ("cores", "array_height", "array_width", "clock", "sram_capacity", "sram_bandwidth", "l2_capacity",
        "l2_bandwidth", "dram_capacity", "dram_bandwidth", "node_bandwidth", "fabric_bandwidth")  # fmt: skip


@pytest.mark.parametrize("quantity", OPEN)
def test_nothing_of_an_open_chip_is_free(quantity):
    system = load_system("open_chip_pod")
    rising = system.quantities()[quantity] * np.geomspace(0.25, 4, 33)
    assert (np.diff(chip_price(system.with_quantities({quantity: rising}))) > 0).all()


def test_good_dies_pay_for_bad_ones(toy_system):
    """Faults in no clusters are Poisson's; the more they cluster, the more dies have none."""

    def yields(clustering):
        faults = {"defect_density": 1000.0, "defect_clustering": clustering}
        return float(die_yield(toy_system.with_quantities(faults)))

    area = die_area(toy_system).item()
    assert yields(1e9) == pytest.approx(np.exp(-1000 * area))
    assert yields(1.0) == pytest.approx(1 / (1 + 1000 * area))
    assert yields(1.0) > yields(3.0) > yields(1e9)
    assert die_yield(toy_system) == 1.0
    spoilt = toy_system.with_quantities({"defect_density": 1000.0, "defect_clustering": 1e9})
    assert chip_price(spoilt) - chip_price(toy_system) == pytest.approx(
        area * 1.9e5 * (np.exp(1000 * area) - 1), rel=1e-6
    )


def test_power_of_arithmetic_goes_with_the_cube_of_the_clock():
    """From the least voltage on; below, with the clock itself."""
    system = load_system("open_chip_pod")

    def arithmetic(clock):
        chip = system.with_quantities({"clock": clock}).chip
        return float(chip.matrix_flop_rate * chip.flop_energy)

    assert arithmetic(2.4e9) == pytest.approx(1.5**3 * arithmetic(1.6e9))
    assert arithmetic(1.28e9) == pytest.approx(0.8**3 * arithmetic(1.6e9))
    assert arithmetic(0.5e9) == pytest.approx(0.5 * arithmetic(1.0e9))
    assert system.with_quantities({"clock": 0.5e9}).chip.voltage == 0.7


@pytest.mark.parametrize("name", ["h100_80g_dgx", "tpu_v5p_pod", "mi300x_192g"])
def test_chips_that_are_sold_draw_as_measured_whatever_their_clock(name):
    chip = load_system(name).chip
    assert chip.voltage == 1.0
    assert chip.flop_energy == chip.energy_per_flop


def test_a_run_draws_less_than_what_is_provisioned(gpt):
    busy = step(gpt, load_system("a100_80g_dgx"), DesignPoints.of(micro_batch_size=8))
    assert 0.4 * busy.system_power < busy.average_power < busy.system_power
