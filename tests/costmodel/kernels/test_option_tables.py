"""Kernels timed once with each of their shardings: what is put together of them is what is timed directly."""

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system, resolve_sharding, step
from costmodel.kernels.kernel_tables import transformer_gemms
from costmodel.kernels.products import distinct_products
from costmodel.steps.micro_batch.micro_batch import quantities_read
from costmodel.training.run import Run, rank_run

LAYOUT = {
    "tp": [1, 2, 4, 8, 8, 3],
    "micro_batch_size": [1, 2, 1, 4, 1, 2],
    "recompute": ["none", "full", "selective", "none", "none", "full"],
    "attention": ["fused", "fused", "unfused", "fused", "unfused", "fused"],
    "tp_overlap": ["none", "gradients", "chunked", "chunked", "gradients", "none"],
}
MODELS = {
    "gpt3_175b": {"cp": [1, 1, 2, 1, 1, 1], "gradient_accumulation_fusion": [1, 0, 1, 1, 0, 1]},
    "gemma_2_27b": {},
    "mixtral_8x22b": {"ep": [1, 2, 2, 1, 8, 1]},
    "deepseek_v3": {"precision": ["bf16", "fp8_blockwise"] * 3},
    "qwen3_next_80b_a3b": {},
}


def ranks_of(name):
    """Six designs of a model on six machines, some of which differ in their links alone."""
    model, system = load_model(name), load_system("b200_180g_dgx")
    known = system.quantities()
    factors = {"cores": [1, 1, 1, 1, 0.5, 2], "node_bandwidth": [1, 2, 3, 1, 1, 0.5], "host_dispatch": 3}
    opened = {quantity: known[quantity] * np.array(factor) for quantity, factor in factors.items()}
    design = DesignPoints.of(blocks=model.blocks, **LAYOUT, **MODELS[name])
    ranks = rank_run(Run(model, system.with_quantities(opened), design))
    full = ranks.design.map(lambda values: np.broadcast_to(values, (6,)))
    return ranks.with_shape(full).reading(quantities_read(system))


def test_equal_products_are_timed_once():
    """GPT's second product forward is its first one's gradient backward, and back; so is its core's."""
    ranks = ranks_of("gpt3_175b")
    gemms = transformer_gemms(ranks)
    first, back = distinct_products(ranks, gemms)
    alike = {
        (label.name, label.of_pass): (gemms.labels[first[kind]].name, gemms.labels[first[kind]].of_pass)
        for place, (label, kind) in enumerate(zip(gemms.labels, back, strict=True))
        if first[kind] != place
    }
    assert alike == {
        (later, of_pass): (earlier, other)
        for earlier, later in (("mlp_up", "mlp_down"), ("scores", "context"))
        for of_pass, other in (("forward", "activation_gradient"), ("activation_gradient", "forward"))
    }


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0, 8.0])
def test_a_solved_design_costs_what_its_explicit_shardings_do(share, schedule, gpt):
    """Every column, to the last bit, whether all fits or few assignments do."""
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
    solved = step(gpt, system, design)
    explicit = step(gpt, system, resolve_sharding(gpt, system, design))
    for column, values in explicit.columns().items():
        assert np.array_equal(values, getattr(solved, column)), column
