"""The model against steps that others measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measured_steps import kendall_tau, predicted, read_measured
from costmodel import DesignPoints, ModelShape, load_system, step

MEASURED = Path(__file__).parents[2] / "shared" / "measured" / "measured.csv"

# Korthikanti et al. 2022, table 5: GPT of num_layers, hidden_size and heads at tp 8, laid out as pp, vpp,
# micro-batch, micro-batches; seconds per iteration with full recomputation, and with selective
# recomputation and sequence parallelism. Printed to 0.01 s.
TABLE_5 = [
    ((48, 6144, 64), (1, 1, 4, 1), (1.42, 1.10)),
    ((96, 12288, 96), (8, 3, 1, 64), (18.13, 13.75)),
    ((105, 20480, 128), (35, 3, 1, 280), (49.05, 37.83)),
    ((128, 25600, 160), (64, 1, 1, 512), (94.42, 71.49)),
]


def test_steps_of_korthikanti_2022_table_5():
    """At most 10 % off on average, and no run more than that."""
    system = load_system("a100_80g_dgx")
    errors = []
    for (layers, hidden, heads), (pp, vpp, micro_batch, steps), seconds in TABLE_5:
        design = DesignPoints.of(
            tp=8,
            pp=pp,
            vpp=vpp,
            micro_batch_size=micro_batch,
            gradient_accumulation_steps=steps,
            attention="unfused",
            recompute=["full", "selective"],
            sequence_parallel=[0, 1],
        )
        model = ModelShape(num_layers=layers, hidden_size=hidden, num_attention_heads=heads)
        errors.extend(step(model, system, design).step_time / seconds - 1)
    assert max(map(abs, errors)) < 0.10
    assert sum(map(abs, errors)) / len(errors) < 0.05


@pytest.fixture(scope="module")
def measured():
    if not MEASURED.exists():
        pytest.skip("the table of measured runs is not beside this checkout")
    return predicted(read_measured(MEASURED).query("dataset in ['vtrain_multi_a100', 'vtrain_single_a100']"))


def test_steps_on_many_nodes(measured):
    """Published runs of 64 to 512 A100s, to which nothing was fitted: half of them within 5 %."""
    error = measured[measured.dataset == "vtrain_multi_a100"].error.abs()
    assert error.mean() < 0.20
    assert error.median() < 0.05


def test_steps_of_small_models_wait_for_the_host(measured):
    error = measured[measured.dataset == "vtrain_single_a100"].error.abs()
    assert error.mean() < 0.20


@pytest.mark.parametrize("model", ["GPT-3.6B", "GPT-18.4B", "GPT-175B"])
def test_layouts_are_ordered_as_measured(measured, model):
    runs = measured[measured.model == model]
    assert kendall_tau(runs.predicted_s, runs.iter_time_s) >= 0.7


def test_layouts_of_the_39_billion_model_are_ordered_no_worse_than_before(measured):
    """A snapshot, not a goal: six of its runs contradict each other, see docs/cost_model.md."""
    runs = measured[measured.model == "GPT-39.1B"]
    assert kendall_tau(runs.predicted_s, runs.iter_time_s) >= 0.25
