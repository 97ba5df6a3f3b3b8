"""Tiling and reload analysis."""

import numpy as np
import pytest

from costmodel import load_system
from costmodel.kernels.kernel_tables import Gemms, Label, optimizer_work
from costmodel.kernels.output_tiles import tile_edge
from costmodel.kernels.products import gemm_cost, reload_factors, reload_traffic
from tests.support.cases import cases


def product(m: float, n: float, k: float, batch: float = 1.0, output_bytes: float = 2.0) -> Gemms:
    return Gemms.stack([(Label("product", "forward", "layer"), (m, n, k, batch, output_bytes, 1.0))])


# A log of the first generation of DeepFlow, 4-byte elements: L2 of 9.2201 MiB has tiles of 512, shared
# memory of 55.3206 MiB tiles of 2048. Products (m, k, n) with reload factors of AB, AC, BC at both levels.
DEEPFLOW_RELOADS = cases(__file__, "DEEPFLOW_RELOADS")


def test_tile_edges_match_the_deepflow_log():
    assert tile_edge(np.array([9.2201 * 2**20, 55.3206 * 2**20, 0.0, -1.0]), 4.0).tolist() == [512, 2048, 0, 0]


@pytest.mark.parametrize(("shape", "l2", "shared"), DEEPFLOW_RELOADS)
def test_reload_factors_match_the_deepflow_log(shape, l2, shared):
    m, k, n = (np.array(float(x)) for x in shape)
    for edge, (of_ab, of_ac, of_bc) in ((512.0, l2), (2048.0, shared)):
        factors = reload_factors(m, k, n, edge=np.array(edge))
        assert [float(x) for x in factors] == [of_ab, of_bc, of_ac]


def test_reload_traffic_matches_the_deepflow_log():
    """Cf: 4 (512 * 39936 * 156 + 39936 * 79872 * 1 + 512 * 79872) bytes from DRAM."""
    gemms = product(512.0, 79872.0, 39936.0, output_bytes=4.0)
    assert reload_traffic(gemms, edge=np.array([[512.0]]), element_bytes=4.0).item() == 25_681_723_392


def test_optimizer_work_matches_the_deepflow_log():
    """The hidden weights of the log: 2 * 19968 by 4 * 19968, 4-byte elements."""
    weights = np.array(2 * 19968.0 * 4 * 19968)
    clip_flops, clip_bytes = optimizer_work("gradclip", weights, element_bytes=4.0)
    apply_flops, apply_bytes = optimizer_work("apply_grad", weights, element_bytes=4.0)
    assert (clip_flops, clip_bytes / clip_flops) == (12_759_072_768, 3)
    assert (apply_flops, apply_bytes) == (9_569_304_576, 89_313_509_376)


def test_a_large_product_runs_near_the_sustained_rate(toy_system):
    cost = gemm_cost(product(16384, 16384, 16384), toy_system, element_bytes=2.0)
    assert 0.9 < cost.flops / cost.time / toy_system.chip.matrix_flop_rate < 1.0


def test_no_product_beats_the_roofline(toy_system):
    rng = np.random.default_rng(5)
    chip, dram = toy_system.chip, toy_system.dram
    for m, n, k in rng.integers(1, 5000, (50, 3)).astype(float):
        cost = gemm_cost(product(m, n, k), toy_system, element_bytes=2.0)
        least = 2 * (m * k + k * n + m * n) / (dram.bandwidth * dram.efficiency)
        assert cost.time >= max(least, cost.flops.item() / chip.matrix_flop_rate) + chip.kernel_launch
        assert cost.traffic[-1] >= 2 * (m * k + k * n + m * n)


def test_one_tile_more_than_a_wave_costs_a_wave(toy_system):
    """37 cores finish 37 large tiles of 64 by 128 together; one row more needs another round of some tile."""
    full, spilled = (
        gemm_cost(product(rows, 128.0, 8192.0), toy_system, element_bytes=2.0).time.item()
        for rows in (37 * 64.0, 37 * 64.0 + 1)
    )
    assert spilled > 1.2 * full


def test_a_deep_product_with_few_tiles_is_split_along_k(toy_system):
    """One tile would leave 36 cores idle: pieces of k keep them busy, at the price of partial sums."""
    deep = gemm_cost(product(128.0, 128.0, 262144.0), toy_system, element_bytes=2.0)
    assert deep.time < (deep.flops / (toy_system.chip.matrix_flop_rate / toy_system.chip.cores)) / 10


@pytest.mark.parametrize(("dimension", "slower"), [("k", True), ("n", True), ("m", False)])
def test_rows_of_no_multiple_of_16_bytes_cost_a_third_of_the_rate(dimension, slower):
    """Which a dimension of 4100 has in 16 bits; how many rows there are does not matter [Anthony2024]_."""
    system = load_system("a100_80g_dgx").with_quantities({"tile_latency": 0.0, "kernel_launch": 0.0})
    sizes = {"m": 4096.0, "n": 4096.0, "k": 4096.0}
    label = Label("product", "forward", "layer")

    def rate(**changed):
        m, n, k = (np.array([{**sizes, **changed}[name]]) for name in "mnk")
        cost = gemm_cost(Gemms.stack([(label, (m, n, k, 1.0, 2.0, 1.0))]), system, element_bytes=2.0)
        return (cost.flops / cost.time).item()

    even, odd = rate(**{dimension: 4224.0}), rate(**{dimension: 4100.0})
    assert odd / even == pytest.approx(2 / 3 if slower else 1.0, rel=0.06)


#: A chip of each kind.
CHIPS = ["a100_80g_dgx", "h100_80g_dgx", "gb200_186g_nvl72", "mi300x_192g", "tpu_v5p_pod", "trainium2_96g"]


def random_products(seed: int, number: int = 1500) -> tuple[np.ndarray, ...]:
    """Edges m, n, k in even multiples of 64 and batches, each (number,). [elements], [-]"""
    draw = np.random.default_rng(seed)
    edges = [128 * np.ceil(2 ** draw.uniform(6, most, number) / 128) for most in (14, 15, 15.5)]
    return *edges, np.where(draw.random(number) < 0.5, 1.0, 2 * draw.integers(1, 33, number))


def times(name, m, n, k, batch, output_bytes=2.0) -> np.ndarray:
    columns = (m, n, k, batch, output_bytes, 1.0)
    gemms = Gemms.stack([(Label("product", "forward", "layer"), np.broadcast_arrays(*columns))])
    return gemm_cost(gemms, load_system(name), element_bytes=2.0).time[:, 0]


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_product_is_slower_than_its_two_halves(name, seed):
    """Launched one after the other; the second half of k reads what the first one wrote."""
    m, n, k, batch = random_products(seed)
    whole = times(name, m, n, k, batch)
    assert (whole <= 2.002 * times(name, m / 2, n, k, batch)).all()
    assert (whole <= 2.002 * times(name, m, n / 2, k, batch)).all()
    assert (whole <= 2.002 * times(name, m, n, k, batch / 2))[batch > 1].all()
    assert (whole <= 1.02 * (times(name, m, n, k / 2, batch) + times(name, m, n, k / 2, batch, output_bytes=4.0))).all()


@pytest.mark.parametrize("name", CHIPS)
def test_a_longer_product_is_never_faster(name):
    m, n, k, batch = random_products(2)
    whole = times(name, m, n, k, batch)
    for longer in ((m + 128, n, k), (m, n + 128, k), (m, n, k + 128), (m, n, 2 * k)):
        assert (whole <= times(name, *longer, batch) * (1 + 1e-12)).all()
