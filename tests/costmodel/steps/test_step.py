"""The whole step: parts, laws, and a second implementation."""

import itertools

import numpy as np
import pytest

from costmodel import DesignPoints
from costmodel.steps.breakdown import CHUNK, Breakdown
from costmodel.steps.transformer import step
from tests.support.scalar_step import ScalarStep


def designs() -> DesignPoints:
    """Every mixture of a few choices of each column: 24 layers divide in all of them."""
    choices = {
        "tp": [1, 2, 8], "pp": [1, 2, 4], "vpp": [1, 3], "dp": [1, 6], "micro_batch_size": [1, 3],
        "gradient_accumulation_steps": [4, 7], "sequence_parallel": [0, 1], "recompute": [0, 1, 2],
        "distributed_optimizer": [0, 1], "attention": [0, 1], "overlap_grad_reduce": [0, 1],
    }  # fmt: skip
    rows = np.array(list(itertools.product(*choices.values())), dtype=float)
    rows = rows[(rows[:, 1] > 1) | (rows[:, 2] == 1)]
    return DesignPoints.of(**dict(zip(choices, rows.T, strict=True)))


@pytest.mark.parametrize("model_name", ["gpt", "llama"])
def test_step_equals_a_scalar_recomputation(model_name, request, toy_system):
    model = request.getfixturevalue(model_name)
    every = designs()
    rows = np.arange(0, every.num_points, 131)
    sample = every.take(rows)
    time = step(model, toy_system, sample).step_time
    expected = [ScalarStep(model, toy_system, sample, row).step_time() for row in range(rows.size)]
    np.testing.assert_allclose(time, expected, rtol=1e-12)


@pytest.mark.parametrize("model_name", ["gpt", "llama"])
def test_memory_equals_a_scalar_recomputation(model_name, request, toy_system):
    model = request.getfixturevalue(model_name)
    every = designs()
    sample = every.take(np.arange(0, every.num_points, 31))
    actual = step(model, toy_system, sample)
    rows = [ScalarStep(model, toy_system, sample, row) for row in range(sample.num_points)]
    expected = [row.memory() for row in rows]
    for name in expected[0]:
        np.testing.assert_allclose(getattr(actual, name), [e[name] for e in expected], rtol=1e-12, err_msg=name)
    reserved = [row.reserved() for row in rows]
    np.testing.assert_allclose(actual.reserved_memory, reserved, rtol=1e-12)
    whole = [sum(e.values()) + of_rank for e, of_rank in zip(expected, reserved, strict=True)]
    np.testing.assert_allclose(actual.peak_memory, whole, rtol=1e-12)


def test_energies_are_counts_times_unit_energies(gpt, toy_system):
    """Twice the joule per unit doubles that part alone; idle energy goes with time."""
    layout = DesignPoints.of(tp=2, pp=2, dp=2, gradient_accumulation_steps=4)
    before = step(gpt, toy_system, layout)
    quantities = toy_system.quantities()
    for part, names in {
        "compute_energy": ["energy_per_flop"],
        "memory_energy": ["sram_energy", "l2_energy", "dram_energy"],
        "link_energy": ["node_energy", "fabric_energy"],
    }.items():
        dearer = toy_system.with_quantities({name: 2 * quantities[name] for name in names})
        after = step(gpt, dearer, layout)
        assert getattr(after, part) == pytest.approx(2 * getattr(before, part))
        assert after.energy_per_step - before.energy_per_step == pytest.approx(getattr(before, part))


def test_arithmetic_energy_is_that_of_the_model_and_its_optimizer(gpt, toy_system):
    """Unfused, no recomputation: products are the model's, attention in full; others add a few per cent."""
    actual = step(gpt, toy_system, DesignPoints.of(attention="unfused", micro_batch_size=4))
    flops = actual.compute_energy / toy_system.chip.energy_per_flop
    products = 3 * gpt.forward_flops(causal=False) * 4 * gpt.seq_len
    assert products < flops < 1.05 * products


def test_chunks_do_not_show(gpt, toy_system):
    every = designs()
    many = every.take(np.resize(np.arange(every.num_points), CHUNK + 17))
    once = step(gpt, toy_system, every).step_time
    np.testing.assert_array_equal(step(gpt, toy_system, many).step_time, np.resize(once, CHUNK + 17))


def test_the_table_names_units(gpt, toy_system):
    table = step(gpt, toy_system, DesignPoints.of(tp=[1, 2])).to_frame()
    assert list(table.columns[:2]) == ["step_time_s", "forward_time_s"]
    assert {"peak_memory_bytes", "system_price_usd", "energy_per_step_j", "mfu"} <= set(table.columns)
    assert len(table) == 2
    assert len(table.columns) == len(Breakdown.__slots__)
