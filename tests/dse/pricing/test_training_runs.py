"""Whole training runs: how often to save, what failures cost, and what a space makes of it."""

import numpy as np
import pytest

from costmodel import DseError
from costmodel.steps.breakdown import daly_goodput, daly_interval
from dse.pricing.evaluation import evaluate, evaluated_design
from dse.spaces.sections.training_run import DEFAULTS
from dse.spaces.space import Space
from tests.support.cases import cases
from tests.support.commands import json_of, stdout_of

DAY, HOUR = 86400.0, 3600.0


def simulated_goodput(interval, checkpoint_time, restart_time, mtbf, *, segments=4000):
    """Second method: a run, interval by interval, failures drawn at random."""
    random, wall = np.random.default_rng(7), 0.0
    until_failure = random.exponential(mtbf)
    for _ in range(segments):
        needed = interval + checkpoint_time
        while until_failure < needed:  # lost: what was done so far, and each restart that fails itself
            wall += until_failure
            while (until_failure := random.exponential(mtbf)) < restart_time:
                wall += until_failure
            wall, until_failure = wall + restart_time, until_failure - restart_time
        wall, until_failure = wall + needed, until_failure - needed
    return segments * interval / wall


@pytest.mark.parametrize("mtbf", [20.0, 100.0, 1000.0])
def test_goodput_is_that_of_a_simulated_run(mtbf):
    interval = daly_interval(np.array(3.0), np.array(mtbf))
    expected = daly_goodput(interval, np.array(3.0), np.array(11.0), np.array(mtbf))
    assert simulated_goodput(float(interval), 3.0, 11.0, mtbf) == pytest.approx(float(expected), rel=0.03)


@pytest.mark.parametrize("share", [1e-4, 1e-2, 0.25, 1.0, 1.5, 2.0, 5.0])
def test_no_interval_beats_dalys_by_more_than_its_series_leaves_out(share):
    mtbf, checkpoint = np.array(1.0), np.array(share)
    every = daly_goodput(np.geomspace(1e-4, 10, 20001), checkpoint, np.array(0.0), mtbf)
    at_daly = daly_goodput(daly_interval(checkpoint, mtbf), checkpoint, np.array(0.0), mtbf)
    assert every.max() * (1 - (2e-4 if share <= 1 else 1.5e-3)) <= at_daly <= every.max() * (1 + 1e-6)


def test_goodput_without_failures_is_what_checkpoints_leave():
    assert daly_goodput(np.array(90.0), np.array(10.0), np.array(5.0), np.array(1e15)) == pytest.approx(0.9)
    assert daly_goodput(np.array(0.0), np.array(0.0), np.array(0.0), np.array(1e5)) == 1.0


def test_more_chips_longer_checkpoints_and_restarts_lower_goodput():
    def goodput(chips=1024.0, checkpoint=30.0, restart=600.0):
        chips, checkpoint, restart = np.broadcast_arrays(chips, checkpoint, restart)
        mtbf = 1.8e8 / chips
        return daly_goodput(daly_interval(checkpoint, mtbf), checkpoint, restart, mtbf)

    rising = np.geomspace(1, 1e6, 50)
    for actual in (goodput(chips=rising), goodput(checkpoint=rising), goodput(restart=rising)):
        assert (np.diff(actual) < 0).all()
        assert (actual >= 0).all()
        assert (actual < 1).all()


# Grattafiori et al. 2024, section 3.3.4: 419 unexpected interruptions in 54 days of 16,384 chips, with more
# than 90 % effective training time.
LLAMA3 = "llama3_405b_16384_h100"


def published(space: Space):
    return evaluated_design(space, space.completed(space.layouts["published"]))


def test_failures_are_those_that_llama_3_saw():
    run = published(Space.load(LLAMA3).with_tokens(15e12))["run"]
    assert run["failures"] * 54 * DAY / run["run_time_s"] == pytest.approx(419, abs=0.5)
    assert run["goodput"] > 0.9


def test_emissions_of_a_kilowatt_hour_are_near_those_of_llama_3():
    """The model card of Llama 3.1 405B: 30.84M GPU hours at 700 W, 8,930 t of CO2 by location."""
    grams = float(DEFAULTS["grid_intensity"]["value"].split()[0])
    assert grams == pytest.approx(8930e6 / (30.84e6 * 0.7), rel=0.05)


@pytest.fixture(scope="module")
def plain() -> Space:
    return Space.load("llama3_70b_512_h100")


def test_a_run_follows_from_its_step(plain):
    space = Space.from_text(plain.text + "run: {tokens: 1T, chip_mtbf: 20000 h, gpu_hour_price: 2.5 $/h}\n")
    record = evaluated_design(space, space.completed({}))
    run, step = record["run"], record["breakdown"]
    assert run["tokens"] == 1e12
    assert run["run_steps"] == np.ceil(1e12 / (space.given["global_batch_size"] * space.model.seq_len))
    assert run["run_time_s"] == pytest.approx(run["run_steps"] * step["step_time_s"] / run["goodput"])
    assert run["gpu_hours"] == pytest.approx(512 * run["run_time_s"] / HOUR)
    assert run["run_cost_usd"] == pytest.approx(2.5 * run["gpu_hours"])
    assert run["failures"] == pytest.approx(run["gpu_hours"] / 20000)
    busy = step["average_power_w"] * run["run_time_s"]
    assert 0.95 * busy < run["run_energy_j"] < busy  # restarts and checkpoints draw less
    assert run["run_emissions_kg"] == pytest.approx(run["run_energy_j"] * 0.429 / 3.6e6)
    assert record["derived"]["checkpoint_time"] == pytest.approx(space.model.num_parameters * 14 / (512 * 122e6))


def test_bought_machines_cost_their_price_over_their_life_and_electricity(plain):
    record = evaluated_design(plain.with_tokens(1e12), plain.completed({}))
    run = record["run"]
    bought = record["breakdown"]["system_price_usd"] * run["run_time_s"] / (1461 * DAY)
    assert run["run_cost_usd"] == pytest.approx(bought + 0.08 * run["run_energy_j"] / 3.6e6)


def test_columns_of_a_run_are_limits_and_objectives(plain):
    data = {**plain.data, "constraints": {**plain.data["constraints"], "in_time": "run_time <= 60 days"}}
    data |= {"objectives": {"minimize": ["run_cost"], "maximize": ["goodput"]}}
    space = plain._changed({**data, "run": {"tokens": "2T"}})
    actual = evaluate(space, space.legal.random(64, np.random.default_rng(1)))
    assert actual.margins[:, -1] == pytest.approx(60 * DAY - actual.derived["run_time"])
    assert actual.values[:, 0] == pytest.approx(actual.derived["run_cost"])
    assert [objective.key for objective in space.objectives] == ["run_cost_usd", "goodput"]


def test_a_space_with_a_run_reads_back_and_takes_other_tokens(plain):
    space = plain.with_tokens(15e12)
    assert Space.from_text(space.text).fingerprint == space.fingerprint != plain.fingerprint
    assert space.with_tokens(3e11).given["tokens"] == 3e11
    assert space.pinned({"chip_mtbf": "20000 h"}).given["chip_mtbf"] == 7.2e7


@pytest.mark.parametrize(("section", "message"), cases(__file__, "MISTAKES"))
def test_a_wrong_section_says_what_would_do(plain, section, message):
    with pytest.raises(DseError, match="run") as caught:
        Space.from_text(f"{plain.text}run: {section}\n")
    assert message in str(caught.value)


def test_the_command_line_says_the_run_in_words_and_in_json():
    command = ["evaluate", LLAMA3, "--layout", "published", "--tokens", "15T"]
    assert "15T tokens: 73.7 days, 29.0M GPU-hours" in stdout_of(*command)
    assert json_of(*command)["run"]["run_time_s"] == pytest.approx(73.7 * DAY, rel=1e-3)
