"""Designs on machines, all with all, cost what each of them costs alone."""

import numpy as np
import pytest

import costmodel.steps.transformer as combinations
from costmodel import DesignPoints, load_model, load_system
from costmodel.steps.breakdown import in_chunks
from costmodel.steps.micro_batch.micro_batch import micro_batches, quantities_read
from costmodel.steps.transformer import Combinations, transformer_chunk, transformer_step
from costmodel.training.run import Run, rank_run

LAYOUTS = {
    "gpt3_175b": {"tp": [8, 8, 4, 8], "pp": [8, 16, 16, 4], "vpp": [1, 2, 1, 3], "recompute": [0, 1, 2, 2],
                  "recompute_layers": [0, 0, 0, 2], "optimizer": ["adam", "muon", "adam", "muon"]},
    "deepseek_v2_lite": {"tp": [1, 2, 2, 1], "pp": [3, 1, 9, 2], "ep": 4, "dp": 8, "cp": [1, 2, 1, 4],
                         "precision": ["bf16", "fp8_blockwise", "mxfp8", "bf16"], "zero": [0, 1, 2, 3]},
}  # fmt: skip
#: Quantities of chips, and of what is around them: by kind.
CHIPS = {"cores": [140, 148, 132], "dram_bandwidth": [7e12, 8e12, 6e12], "mx_speedup": [2, 0, 1]}
SURROUNDINGS = {"node_bandwidth": [8e11, 9e11], "dram_capacity": [1.8e11, 1e11], "host_dispatch": [0, 1e-3]}


def all_with_all(name, *, kinds=3, missing=0):
    """Each layout on each machine, in no order; some combinations may be missing."""
    model, system = load_model(name), load_system("b200_180g_dgx")
    layouts = DesignPoints.of(
        blocks=model.blocks, gradient_accumulation_steps=8, overlap_grad_reduce=1, **LAYOUTS[name]
    )
    places = np.stack(np.unravel_index(np.random.default_rng(0).permutation(8 * kinds), (4, kinds, 2)))
    layout, chip, around = places[:, missing:]
    drawn = {name: np.array(values)[chip] for name, values in CHIPS.items()}
    drawn |= {name: np.array(values)[around] for name, values in SURROUNDINGS.items()}
    return Run(model, system.with_quantities(drawn), layouts.take(layout))


def assert_same(one, other):
    others = other.columns()
    for name, values in one.columns().items():
        np.testing.assert_array_equal(values, others[name], err_msg=name)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("shape", [{}, {"missing": 3}, {"kinds": 1}])
def test_combinations_cost_what_their_points_do(name, shape):
    run = all_with_all(name, **shape)
    assert Combinations.of(run).shape == (2, shape.get("kinds", 3), 4)
    assert_same(transformer_step(run), in_chunks(transformer_chunk, run))


def test_surroundings_are_evaluated_a_few_at_a_time(monkeypatch):
    run = all_with_all("gpt3_175b")
    monkeypatch.setattr(combinations, "CELLS", 4)
    assert_same(transformer_step(run), in_chunks(transformer_chunk, run))


def test_a_number_has_the_axes_of_what_it_depends_on():
    costs = transformer_chunk(Combinations.of(all_with_all("gpt3_175b")).run)
    assert costs.weights_memory.shape == (4,)
    assert costs.step_time.shape == (2, 3, 4)
    assert costs.system_price.shape == (2, 3, 4)
    assert costs.model_flops.shape == (4,)


def test_a_quantity_that_a_stage_does_not_name_is_not_a_number_for_it():
    ranks = rank_run(all_with_all("gpt3_175b"))
    assert np.isnan(micro_batches(ranks.reading(quantities_read(ranks.system) - {"clock"})).forward[0].time).all()
