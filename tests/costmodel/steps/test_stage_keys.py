"""Stages get the quantities of a system that they read, and no others."""

import numpy as np

from costmodel import DesignPoints, load_model, load_system
from costmodel.steps.micro_batch.micro_batch import micro_batches, quantities_read
from tests.support.runs import ranks_of


def test_a_quantity_that_is_left_out_is_missed():
    """A stage that read more than it says would give no number."""
    designs = DesignPoints.of(tp=[1, 8, 8], recompute=[0, 1, 2], cp=[1, 2, 4], overlap_tp=[0, 1, 1])
    ranks = ranks_of(load_model("gpt3_175b"), designs, load_system("b200_180g_dgx"))
    assert np.isnan(micro_batches(ranks.reading(quantities_read(ranks.system) - {"clock"})).forward[0].time).all()
