"""Tables of single points are remembered across calls: the same bits, a bounded number, and no wrong neighbour."""

from typing import Any

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system, step
from costmodel.training import run as runs

DESIGN: dict[str, Any] = {"tp": 4, "pp": 4, "dp": 8, "gradient_accumulation_steps": 16}


@pytest.fixture(autouse=True)
def forgotten():
    runs._REMEMBERED.clear()


def price(model: str = "gpt3_175b", system: str = "a100_80g_dgx", **changes: Any) -> dict[str, np.ndarray]:
    return step(load_model(model), load_system(system), DesignPoints.of(**DESIGN, **changes)).columns()


@pytest.mark.parametrize("model", ["gpt3_175b", "deepseek_v3", "llama3_8b"])
def test_a_design_costs_the_same_again_and_in_a_batch(model):
    first, again = price(model), price(model)
    both = price(model, micro_batch_size=[1, 2])
    for name, values in first.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)
        np.testing.assert_array_equal(np.broadcast_to(both[name], (2,))[:1], np.atleast_1d(values), err_msg=name)


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(runs, "MOST_REMEMBERED", 5)
    for size in range(1, 9):
        price(micro_batch_size=size)
    assert len(runs._REMEMBERED) == 5
