"""Kernels timed once with each of their shardings: what is put together of them is what is timed directly."""

import numpy as np
import pytest

from costmodel import DesignPoints, load_system, resolve_sharding, step


def check_explicit(model, system, design):
    """Every column, to the last bit."""
    solved = step(model, system, design)
    explicit = step(model, system, resolve_sharding(model, system, design))
    for column, values in explicit.columns().items():
        assert np.array_equal(values, getattr(solved, column)), column


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0, 8.0])
def test_a_solved_design_costs_what_its_explicit_shardings_do(share, schedule, gpt):
    """In memory for all assignments, and for few."""
    rng, points = np.random.default_rng(3), 60
    system = load_system("a100_80g_dgx")
    known = system.quantities()
    opened = {name: known[name] * rng.uniform(0.5, 2, points) for name in ("cores", "dram_bandwidth")}
    opened["dram_capacity"] = share * 1e9 * rng.uniform(0.5, 2, points)
    system = system.with_quantities({**opened, "reserved_memory": 0.0, "host_dispatch": 2e-5})
    design = DesignPoints.of(
        tp=rng.choice([1, 2, 4], points), pp=rng.choice([1, 2], points),
        micro_batch_size=rng.choice([1, 2], points), recompute=rng.choice(["none", "full"], points),
        gradient_accumulation_steps=4, schedule=schedule, sharding="solve",
    )  # fmt: skip
    check_explicit(gpt, system, design)


def test_solved_designs_with_frozen_weights_or_many_experts_cost_what_their_explicit_shardings_do(gpt, experts):
    """Gradients of biases where only some designs of a batch train adapters; casts for each expert of a rank."""
    rng, points = np.random.default_rng(5), 60
    system = load_system("h100_80g_dgx").with_quantities({"software_expert_casts": 0.6, "host_dispatch": 2e-5})
    for model, differing in (
        (gpt, {"lora_rank": rng.choice([0, 16], points)}),
        (experts, {"ep": rng.choice([1, 2, 4], points), "precision": rng.choice(["bf16", "fp8_blockwise"], points)}),
    ):
        design = DesignPoints.of(
            blocks=model.blocks, tp=rng.choice([2, 4], points), dp=4, sharding="solve",
            micro_batch_size=rng.choice([1, 2, 4], points), **differing,
        )  # fmt: skip
        check_explicit(model, system, design)
