"""Sensitivity of a step to its parameters and its hardware."""

import xml.etree.ElementTree as ET

import pandas as pd
import pytest

from dse import Space, Study
from dse.explaining.explanation import explain
from dse.explaining.neighbours import COUNTED, STEP, quantity_steps
from dse.pricing.evaluation import evaluated_design
from tests.support.cases import cases
from tests.support.commands import json_of, stdout_of

#: Exponent of seconds in a unit.
SECONDS = {"s": 1.0, "Hz": -1.0, "1/s": -1.0, "B/s": -1.0, "FLOP/s": -1.0}

SPACES = ["gpt3_175b_1024_a100", "mixtral_8x22b_128_h100", "lstm_24b_power"]


@pytest.fixture(params=SPACES)
def explanation(request):
    space = Space.load(request.param)
    return explain(space, space.completed({}))


def test_a_machine_all_of_whose_times_are_longer_is_slower_by_as_much(explanation):
    """Euler: elasticities, each as often as its unit has seconds, add up to one."""
    _, actual = quantity_steps(explanation)
    assert sum(SECONDS.get(e.unit, 0.0) * e.elasticity for e in actual) == pytest.approx(1, abs=2e-3)


def test_an_elasticity_is_what_two_machines_say():
    space = Space.load("gpt3_175b_1024_a100")
    params = space.completed({"tp": 8, "pp": 16})
    [actual] = [e for e in quantity_steps(explain(space, params))[1] if e.quantity == "fabric_bandwidth"]
    times = [
        evaluated_design(space.pinned({"fabric_bandwidth": actual.value * factor}), params)["breakdown"]["step_time_s"]
        for factor in (1 + STEP, 1 - STEP)
    ]
    assert actual.elasticity == pytest.approx((times[0] - times[1]) / (2 * STEP * sum(times) / 2), rel=1e-3)


@pytest.mark.parametrize("space", ["gpt3_175b_1024_a100", "gpt_1t_codesign"])
def test_counts_are_steps_to_the_next_number_of_parts(space):
    """108 cores become 112; 109.08 are not a chip. Parameters of a space are stepped as parameters."""
    space = Space.load(space)
    params = space.completed({})
    counts, elasticities = quantity_steps(explain(space, params))
    assert not [e.quantity for e in elasticities if e.quantity.endswith(COUNTED)]
    step_time = evaluated_design(space, params)["breakdown"]["step_time_s"]
    assert counts
    for count in counts:
        assert count.quantity not in space.by_name
        changed = space.pinned({count.quantity: count.larger})
        time = evaluated_design(changed, params)["breakdown"]["step_time_s"]
        assert count.change == pytest.approx(time / step_time - 1, abs=1e-12)
    cores = [(count.value, count.larger) for count in counts if count.quantity == "cores"]
    assert cores == ([(108.0, 112.0)] if "cores" not in space.by_name else [])


def test_memory_of_tiles_is_doubled_and_has_no_elasticity():
    """A hundredth less of the SRAM of Gaudi 2 holds smaller tiles: a slope of -2.3, where more changes nothing."""
    space = Space.from_text(cases(__file__, "TILES"))
    counts, elasticities = quantity_steps(explain(space, space.completed({})))
    [step] = [count for count in counts if count.quantity == "sram_capacity"]
    assert step.larger == 2 * step.value
    assert step.change == 0  # the tiles of these products fit already
    assert max(abs(elasticity.elasticity) for elasticity in elasticities) <= 1


@pytest.mark.slow
def test_every_format_of_the_command_holds_the_same(small_space):
    Study.create(Space.from_text(small_space), "small").run(30)
    sensitivity = ["sensitivity", "small", "--trial", "3"]
    actual = json_of(*sensitivity)
    assert actual["trial"] == 3
    stdout_of(*sensitivity, "-o", "rows.csv")
    rows = pd.read_csv("rows.csv")
    assert len(rows) == len(actual["parameters"]) + len(actual["counts"]) + len(actual["elasticities"])
    table = stdout_of(*sensitivity)
    assert max(map(len, table.splitlines())) <= 100
    for name in (*actual["parameters"][0]["changes"], actual["elasticities"][0]["quantity"]):
        assert name in table
    stdout_of(*sensitivity, "-o", "tornado.svg")
    texts = [text.text for text in ET.parse("tornado.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert f"{actual['elasticities'][0]['elasticity']:+.3f} %" in texts
