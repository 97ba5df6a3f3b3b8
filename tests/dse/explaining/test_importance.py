"""Importance of parameters, and comparisons of studies and machines."""

import re

import numpy as np
import pytest

from costmodel.formats import shipped
from dse import Space, Study
from dse.explaining.importance import explained_share, importance
from dse.pricing.evaluation import evaluated_design
from dse.reporting.studies.comparison import dominated, study_pair
from tests.support.cases import by_table
from tests.support.commands import json_of, outputs_of, stderr_of, stdout_of


@pytest.fixture(scope="module")
def storage(searched, small_space):
    """Two studies: of all designs of a space, and of some of another that gives one more value."""
    space = Space.from_text(small_space)
    storage = searched(space, 60, "all").storage
    Study.create(space.pinned({"sequence_parallel": False}), "some", storage=storage).run(40)
    return storage


pytestmark = pytest.mark.usefixtures("stored")


def test_what_explains_everything_has_all_of_the_variance_and_the_rest_none():
    rng = np.random.default_rng(0)
    one, other = rng.integers(4, size=(2, 20_000)).astype(float)
    assert explained_share(np.exp(one), one) == pytest.approx(1)
    assert explained_share(np.exp(one), other) < 1e-3
    assert explained_share(np.exp(one + other), one) == pytest.approx(0.5, abs=0.02)  # independent: half


def test_importances_are_of_the_parameters_that_vary():
    study = Study.load("some")
    actual = importance(study.space, study.table, study.profile)
    assert actual.parameters == ("tp", "pp", "recompute")
    assert np.allclose(actual.trials.sum(axis=1), 1)
    assert ((actual.designs >= 0) & (actual.designs <= 1)).all()
    assert json_of("importance", "some")["objectives"]["step_time_s"].keys() == {*actual.parameters}
    table = stdout_of("importance", "some")
    assert max(map(len, table.splitlines())) <= 100
    assert all(name in table for name in actual.parameters)
    assert "shares overlap and do not add up" in table


def test_too_few_trials_say_nothing(small_space):
    Study.create(Space.from_text(small_space), "few").run(3)
    assert "needs at least" in stderr_of("importance", "few")


def test_of_two_studies_the_one_that_has_seen_all_is_not_dominated():
    one, other = (Study.load(name) for name in ("all", "some"))
    pair = study_pair(one, other)
    assert pair.hypervolumes[0] >= pair.hypervolumes[1]
    assert pair.fronts[0] == len(one.table.front())
    costs = [study.table.front().costs for study in (one, other)]
    assert pair.beaten == (dominated(*costs), dominated(*costs[::-1]))
    for row, objective in enumerate(pair.objectives):
        for study, best in zip(pair.studies, pair.best[row], strict=True):
            assert best.value == pytest.approx(study.table.front().costs[:, row].min())
            assert evaluated_design(study.space, best.params)["values"][objective.key] == best.value
    told = json_of("compare", "all", "some")
    assert told["spaces_differ_in"] == ["given"]
    assert sum(told["joint_front"]) <= sum(told["front"])
    text = stdout_of("compare", "all", "some")
    assert "joint front" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_study_beside_itself_is_alike():
    text = stdout_of("compare", "all", "all")
    assert "Both search one space." in text
    assert re.match(r"Best step time: [\d.]+ m?s in both \(trials 0 and 0\)\.", text)
    assert "are alike" in text
    assert "No design of either front is better" in text


def test_designs_of_a_study_are_evaluated_on_another_machine():
    argv = ["compare", "all", "--system", "h100_80g_dgx"]
    actual = json_of(*argv)
    assert actual["systems"] == ["a100_80g_dgx", "h100_80g_dgx"]
    assert actual["median_ratio"] < 1
    other = Study.load("all").space.with_system("h100_80g_dgx")
    best = actual["designs"][0]
    assert best["values"]["h100_80g_dgx"] == evaluated_design(other, best["params"])["values"]["step_time_s"]
    out = stdout_of(*argv)
    assert f"median ratio {actual['median_ratio']:.3f}" in out
    change = 100 * (actual["median_ratio"] - 1)
    assert out.startswith(f"On h100_80g_dgx, the step time of the same design changes by {change:.0f} % ")


def test_a_machine_of_ones_own_is_compared_by_its_file(tmp_path):
    machine_file = tmp_path / "mychip.yaml"
    text = (shipped.ROOT / "systems" / "h100_80g_dgx.yaml").read_text()
    machine_file.write_text(text.replace("value: 3.35 TB/s", "value: 6.7 TB/s"))
    for argv in (["h100_80g_dgx", str(machine_file)], [str(machine_file), "h100_80g_dgx"]):
        actual = json_of("compare", *argv)
        rows = {row["quantity"]: row["values"] for row in actual["quantities"]}
        assert sorted(rows["dram_bandwidth"]) == [3.35e12, 6.7e12]
        assert "peak_flop_rate" not in rows


def test_a_study_of_an_open_machine_is_not_compared_on_another():
    """Its designs would keep their own cores and memory, and take the rest from the other machine."""
    study = Study.create(Space.load("gpt_1t_codesign"), "chips", sampler="random")
    study.run(8)
    told = outputs_of("compare", "chips", "--system", "h200_141g_dgx", code=1)
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "sets cores, array_height, " in told.err
    assert f"`dse compare {study.space.system.name} h200_141g_dgx`" in told.err


@by_table("argv", "says")
def test_what_cannot_be_compared_is_refused_in_a_line(argv, says):
    assert says in stderr_of("compare", *argv)
