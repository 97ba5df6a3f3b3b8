"""Stages get what they read of a system and nothing else: what they do not read is no number for them."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system
from costmodel.steps.micro_batch.micro_batch import cost_table, micro_batches, of_chips, quantities_read
from costmodel.training.run import Run, rank_run

LAYOUTS = {
    "gpt3_175b": {"tp": [1, 8, 8], "recompute": [0, 1, 2], "cp": [1, 2, 4], "overlap_tp": [0, 1, 1]},
    "deepseek_v2_lite": {"tp": [1, 2, 2], "ep": [8, 4, 8], "precision": ["bf16", "fp8_blockwise", "mxfp8"]},
}


def ranks_of(model_name, **quantities):
    model = load_model(model_name)
    system = load_system("b200_180g_dgx").with_quantities(quantities)
    return rank_run(Run(model, system, DesignPoints.of(blocks=model.blocks, **LAYOUTS[model_name])))


@pytest.mark.parametrize("model", LAYOUTS)
def test_kernels_are_timed_once_for_chips_with_different_links(model):
    ranks = ranks_of(model, node_bandwidth=[5e11, 6e11, 7e11], cores=[140, 148, 148])
    chips, unique = of_chips(ranks)
    assert unique.places is None  # three layouts
    alike = ranks.take(np.array([0, 0, 0]))
    links = replace(alike, system=alike.system.with_quantities({"node_bandwidth": [5e11, 6e11, 7e11]}))
    chips, unique = of_chips(links)
    assert chips.num_points == 1
    assert unique.places.tolist() == [0, 0, 0]
    assert np.isnan(chips.system.network[0].bandwidth)
    assert np.isnan(chips.system.host.dispatch)
    times = [cost_table(run).gemm_costs.time for run in (chips, links)]
    assert np.isfinite(times[0]).all()
    assert np.array_equal(times[0][unique.places], times[1])


def test_a_quantity_that_is_left_out_is_missed():
    """A stage that read more than it says would give no number."""
    ranks = ranks_of("gpt3_175b")
    blind = ranks.reading(quantities_read(ranks.system) - {"clock"})
    assert np.isnan(micro_batches(blind).forward[0].time).all()
