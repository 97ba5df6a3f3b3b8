"""Verdicts on memory from the spread of measured peaks, and the headroom of plans."""

import re

import numpy as np
import pytest

from costmodel.errors import DseError
from dse.predictions import DOES_NOT_FIT, FITS, SPREADS, TIGHT, peak_spread
from dse.spaces.question import Question, planned_space, usable_memory
from tests.support.cases import by_table
from tests.support.commands import json_of, stdout_of


def test_a_framework_without_runs_has_the_spread_of_all():
    assert peak_spread("torchtitan") == peak_spread("maxtext") == SPREADS[""]
    assert peak_spread("") == peak_spread("megatron_core")


def test_verdicts_follow_the_spread():
    spread = SPREADS["nanotron"]
    peaks = np.linspace(1, 120, 60)
    actual = [spread.verdict(peak, 80.0) for peak in peaks]
    assert actual == sorted(actual, key=[FITS, TIGHT, DOES_NOT_FIT].index)
    assert [*dict.fromkeys(actual)] == [FITS, TIGHT, DOES_NOT_FIT]
    assert spread.verdict(80.0 / 1.25, 80.0) == FITS
    assert spread.verdict(80.0 / 1.06 + 0.1, 80.0) == DOES_NOT_FIT
    assert spread.headroom_share == pytest.approx(1 - 1 / 1.25)


@by_table("headroom", "formula")
def test_headroom_is_a_size_or_a_share(headroom, formula):
    assert usable_memory(headroom, "m") == formula


def test_a_headroom_that_is_neither_is_refused():
    for headroom in ("4", "-1 GB", "100 %", "-5 %", "x", "", "3 s", "%"):
        with pytest.raises(DseError, match="expected a size or a share of memory, such as 4 GB, 5 % or 0"):
            usable_memory(headroom, "m")


def planned(headroom=None, framework=""):
    question = Question(model="llama3_8b", system="h100_80g_dgx", chips=8, headroom=headroom, framework=framework)
    return planned_space(question)


def test_plans_leave_the_headroom_of_their_framework():
    assert planned().data["constraints"]["fits_in_memory"] == "peak_memory <= 0.926 * dram_capacity"
    by_all = planned(framework="torchtitan").data["constraints"]["fits_in_memory"]
    assert by_all == "peak_memory <= 0.826 * dram_capacity"
    assert planned("0").data["constraints"]["fits_in_memory"] == "peak_memory <= dram_capacity"
    assert any(text.startswith("headroom '7.4 %'") for text in planned().assumed)
    assert not any("headroom" in text for text in planned("0").assumed)


PLAN = ("plan", "llama3_8b", "--gpus", "8", "--system", "h100_80g_dgx")


@pytest.mark.slow
def test_a_plan_recommends_nothing_tight_unless_it_is_asked_to():
    """Lifting the headroom leaves faster layouts."""
    capacity, spread = 81559 * 2**20, peak_spread("megatron_core")
    peaks, steps = {}, {}
    for name, more in {"default": (), "none": ("--headroom", "0")}.items():
        front = json_of(*PLAN, *more)["front"]
        peaks[name] = [one["breakdown"]["peak_memory_bytes"] for one in front]
        steps[name] = min(one["breakdown"]["step_time_s"] for one in front)
    assert all(spread.verdict(peak, capacity) == FITS for peak in peaks["default"])
    assert max(peaks["default"]) <= 0.926 * capacity
    assert max(peaks["default"]) <= max(peaks["none"]) <= capacity
    assert steps["none"] <= steps["default"]
    assert TIGHT not in stdout_of(*PLAN)
    assert "Megatron Core are 0.94 to 1.08 times" in str(spread)


def test_a_design_is_tight_until_half_of_such_runs_need_more_than_there_is(tmp_path):
    space = planned("0").space
    (tmp_path / "space.yaml").write_text(space.text)
    design = ["tp=1", "pp=1", "vpp=1", "zero=1", "micro_batch_size=1", "recompute=none"]
    sets = [word for value in design for word in ("--set", value)]
    peak = json_of("evaluate", "space.yaml", *sets, code=1)["breakdown"]["peak_memory_bytes"]
    for share, verdict, code in ((1.09, "Fits", 0), (1.02, "Tight", 0), (0.98, "Does not fit", 1)):
        capacity = f"{share * peak / 1e9:.6g} GB"
        (tmp_path / "space.yaml").write_text(space.set_to({"dram_capacity": capacity}).text)
        line = stdout_of("evaluate", "space.yaml", *sets, code=code).splitlines()[1]
        assert re.match(rf"{verdict}(:|  )", line)
