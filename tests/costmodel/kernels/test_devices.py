"""Shipped systems against the public figures of their devices, as `data/devices.csv` prints them."""

import csv

import pytest

from costmodel import load_system, system_names
from costmodel.kernels.kernel_tables import Gemms, Label
from costmodel.kernels.products import gemm_cost
from costmodel.machine import chip_power
from tests.support.paths import TEST_DATA

TABLE = TEST_DATA / "devices.csv"


def read_devices(path):
    """Rows of a table of devices, as they are printed."""
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


DEVICES = read_devices(TABLE)
MEASURED = [row for row in DEVICES if row["measured_bf16_tflops"]]

#: Devices of which software sees several; a system has one of them.
PARTS = {"mi250x_64g_die": 2}

#: Figures that print fewer digits than the system has: 125 for 125.3 TFLOP/s, 900 for 897 GB/s.
ROUNDED = {("v100_32g_dgx2", "bf16_tflops"): 0.005, ("v100_32g_dgx2", "memory_bandwidth_gbs"): 0.005}
ROUNDED |= {("mi455x_432g_helios", "bf16_tflops"): 0.007}

#: Best of some large products over the timed one, beyond 2 %: fitted to timings of whole steps instead, since
#: products timed for a moment leave more power than hours of them.
FITTED_TO_STEPS = {"a100_40g_dgx": 0.09, "a100_80g_dgx": 0.09, "h100_80g_dgx": 0.16, "h200_141g_dgx": 0.16}
#: The same of products that were timed at the power limit, for longer than a moment.
FITTED_TO_STEPS |= {"b200_180g_dgx": 0.14, "gb200_186g_nvl72": 0.14}


#: Boards of which everything together draws less than they may.
BELOW_THE_BOARD = {"v100_32g_dgx2": 0.25, "h20_96g_dgx": 0.2}


def by_system(rows):
    return pytest.mark.parametrize("row", rows, ids=[row["system"] for row in rows])


#: Devices of which pairs are linked unevenly; a tier takes the mean.
UNEVEN = {"mi250x_64g_die"}


def pair_bandwidth(tier):
    """Of the links from one chip to the next: one of a torus, a pair's, or all of them through a switch."""
    axes = sum(min(float(axis), 1.0) for axis in tier.axes)
    return min(tier.bandwidth / (2 * axes) if axes else tier.bandwidth, tier.peer_bandwidth)


def figures(name):
    """Figures of a system, by the columns of the table."""
    system, parts = load_system(name), PARTS.get(name, 1)
    node = next(tier for tier in system.network if tier.name == "node")
    return {
        "bf16_tflops": parts * system.chip.peak_flop_rate / 1e12,
        "memory_gb": parts * system.dram.sold_capacity / 1e9,
        "memory_bandwidth_gbs": parts * system.dram.bandwidth / 1e9,
        "scale_up_gbs": parts * node.bandwidth / 1e9,
        "peer_gbs": parts * pair_bandwidth(system.network[0]) / 1e9,
        "scale_up_domain": system.network[0].size / parts,
        "nic_gbps_per_device": parts * system.network[-1].bandwidth * 8 / 1e9,
        "host_link_gbs": parts * system.host.link_bandwidth / 1e9,
    }


@by_system(DEVICES)
def test_a_system_has_the_public_figures_of_its_device(row):
    """Peaks within 0.1 %, since clocks are printed to four digits; all else to the digit."""
    uneven = {"peer_gbs"} if row["system"] in UNEVEN else set()
    for name, figure in figures(row["system"]).items():
        if name in uneven or not row[name]:
            continue  # no public figure
        exact = 1e-3 if name == "bf16_tflops" else 1e-12
        assert figure == pytest.approx(float(row[name]), rel=ROUNDED.get((row["system"], name), exact)), name
    assert len(row["source"]) > 20


def test_every_device_ships_once():
    """And nothing else but the accelerator that no one makes, and some in networks of their own."""
    others = {"open_chip_pod", "h100_80g_llama3", "h100_80g_efa", "b200_180g_efa", "v100_32g_dgx1"}
    assert sorted(row["system"] for row in DEVICES) == sorted({*system_names()} - others)


@by_system([row for row in DEVICES if row["tdp_w"]])
def test_everything_busy_at_once_draws_what_the_board_may(row):
    """Idle power, arithmetic, every memory level, and the links that are not an adapter's: within 2 %."""
    name = row["system"]
    system, parts = load_system(name), PARTS.get(name, 1)
    adapter = system.network[-1].bandwidth * system.network[-1].energy
    machine = chip_power(system) / system.host.power_overhead
    board = parts * (machine - system.host.power - adapter)
    assert board == pytest.approx(float(row["tdp_w"]), rel=BELOW_THE_BOARD.get(name, 0.02))


@by_system(MEASURED)
def test_large_products_are_as_fast_as_the_fastest_that_was_timed(row):
    """The best of some sizes, as the best of many was timed: within 2 %."""
    edges = (4096.0, 8192.0, 16384.0, 20480.0)
    shapes = [(m, n, k) for m in edges for n in edges for k in edges]
    products = Gemms.stack(
        [(Label(f"{index}", "forward", "layer"), (*shape, 1.0, 2.0, 1.0)) for index, shape in enumerate(shapes)]
    )
    cost = gemm_cost(products, load_system(row["system"]), element_bytes=2.0)
    best = (cost.flops / cost.time).max() / 1e12
    assert best == pytest.approx(float(row["measured_bf16_tflops"]), rel=FITTED_TO_STEPS.get(row["system"], 0.02))
