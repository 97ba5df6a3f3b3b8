"""Kernels timed once with each of their shardings: what is put together of them is what is timed directly."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system, resolve_sharding, step
from costmodel.kernels.kernel_cost import TIMES
from costmodel.kernels.kernel_tables import transformer_gemms
from costmodel.kernels.products import distinct_products
from costmodel.steps.micro_batch.micro_batch import micro_batches, quantities_read
from costmodel.steps.sharded_kernels import OptionTables
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


@pytest.mark.parametrize("name", MODELS)
def test_what_is_put_together_is_what_is_timed(name):
    """Every number of random assignments, to the last bit; and times alone are the same times."""
    ranks = ranks_of(name)
    count = ranks.design.assignments.count
    numbers = np.random.default_rng(0).integers(0, count, (5, 6)).astype(np.float64)
    tables = OptionTables.of(ranks)
    together, times = (tables.micro_batches(numbers, times_alone=alone) for alone in (False, True))
    for row, own in enumerate(numbers):
        direct = micro_batches(ranks.with_shape(replace(ranks.design, assignment=own)))
        for found, timed, wanted in zip(*(sum(table.passes, ()) for table in (together, times, direct)), strict=True):
            for column, values in wanted.columns().items():
                for other in (found, timed) if column in TIMES else (found,):
                    whole = np.broadcast_to(getattr(other, column), numbers.shape)
                    assert np.array_equal(whole[row], np.broadcast_to(values, (6,))), column


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


def test_pipelines_of_several_kinds_are_solved_side_by_side(gpt):
    """Interleaved 1F1B by its closed form takes any number of micro-batches, beside schedules that do not."""
    columns = {"vpp": [2, 1], "gradient_accumulation_steps": [3, 3], "schedule": ["1f1b", "gpipe"]}
    design = DesignPoints.of(tp=2, pp=2, micro_batch_size=64, sharding="solve", **columns)
    system = load_system("v100_32g_dgx1")
    both = step(gpt, system, design)
    for row in range(2):
        alone = step(gpt, system, design.take(np.array([row])))
        assert alone.step_time[0] == both.step_time[row]
