"""Stages get what they read of a system and nothing else: what they do not read is not a number for them."""

import numpy as np

from costmodel import DesignPoints, load_model, load_system
from costmodel.steps.micro_batch.micro_batch import micro_batches, quantities_read
from costmodel.training.run import Run, rank_run

LAYOUTS = {
    "gpt3_175b": {"tp": [1, 8, 8], "recompute": [0, 1, 2], "cp": [1, 2, 4], "overlap_tp": [0, 1, 1]},
    "deepseek_v2_lite": {"tp": [1, 2, 2], "ep": [8, 4, 8], "precision": ["bf16", "fp8_blockwise", "mxfp8"]},
}


def ranks_of(model_name, **quantities):
    model = load_model(model_name)
    system = load_system("b200_180g_dgx").with_quantities(quantities)
    return rank_run(Run(model, system, DesignPoints.of(blocks=model.blocks, **LAYOUTS[model_name])))


def test_a_quantity_that_is_left_out_is_missed():
    """A stage that read more than it says would give no number."""
    ranks = ranks_of("gpt3_175b")
    assert np.isnan(micro_batches(ranks.reading(quantities_read(ranks.system) - {"clock"})).forward[0].time).all()
