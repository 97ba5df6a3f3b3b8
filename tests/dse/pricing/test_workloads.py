"""Several workloads on one machine: each has its best layout there, and their steps become one."""

import re

import numpy as np
import pytest

from costmodel import DseError
from costmodel.steps.breakdown import PARTS
from dse.api.study import Study
from dse.pricing.evaluation import evaluate
from dse.searching.exact.exact_front import exact_front
from dse.spaces.space import Space
from tests.support.cases import cases
from tests.support.commands import json_of, stderr_of, stdout_of

SPACE = cases(__file__, "SPACE")
DENSE, EXPERTS = "{model: llama3_8b, weight: %g}", "{model: mixtral_8x7b, weight: %g}"


def chips(**workloads):
    """The space of some workloads, combined as `combine` says."""
    combine = workloads.pop("combine", "weighted_sum")
    entries = "".join(f"  {name}: {entry}\n" for name, entry in workloads.items())
    return Space.from_text(SPACE % f"combine: {combine}\nworkloads:\n{entries}")


@pytest.fixture(scope="module")
def both() -> Space:
    return chips(dense=DENSE % 0.75, experts=EXPERTS % 0.25)


def every_machine(space: Space):
    """All legal machines of a space, and what they come to."""
    machines = space.legal.at(np.arange(int(space.legal.count)))
    return machines, evaluate(space, machines)


def test_one_workload_is_the_plain_space_with_the_best_layout_of_each_machine():
    """Second method: every design of the plain space, the least of each machine."""
    machines, actual = every_machine(chips(alone=DENSE % 1))
    plain = Space.from_text(SPACE % "model: llama3_8b")
    designs = plain.legal.at(np.arange(int(plain.legal.count)))
    every = evaluate(plain, designs)
    for row in range(actual.num_points):
        same = (designs["nodes"] == machines["nodes"][row]) & (designs["cores"] == machines["cores"][row])
        times = every.values[same & every.feasible]
        if not times.size:
            assert not actual.feasible[row]
            continue
        best = times[times[:, 0].argmin()]
        assert actual.values[row] == pytest.approx(best)
        assert actual.derived["chip_seconds"][row] == pytest.approx(best[0] * machines["nodes"][row] * 8)
    assert actual.feasible.any()


def test_steps_of_workloads_add_up_by_weight_and_so_do_their_parts(both):
    _, actual = every_machine(both)
    dense, experts = (actual.workloads[name].evaluation.breakdown for name in ("dense", "experts"))
    whole = actual.breakdown
    assert whole.step_time == pytest.approx(0.75 * dense.step_time + 0.25 * experts.step_time)
    for total in PARTS:
        assert getattr(whole, total) == pytest.approx(sum(getattr(whole, part) for part in PARTS[total]))
    tokens = 256 * np.array([workload.space.model.seq_len for workload in both.workloads])
    assert whole.tokens_per_second == pytest.approx(tokens @ [0.75, 0.25] / whole.step_time)
    assert (whole.peak_memory == np.maximum(dense.peak_memory, experts.peak_memory)).all()
    assert (whole.system_price == dense.system_price).all()


def test_the_worst_is_the_workload_whose_weighted_step_takes_longest():
    _, actual = every_machine(chips(dense=DENSE % 1, experts=EXPERTS % 2, combine="worst"))
    steps = [actual.workloads[name].evaluation.breakdown.step_time for name in ("dense", "experts")]
    assert actual.breakdown.step_time == pytest.approx(np.maximum(steps[0], 2 * steps[1]))


def test_a_machine_keeps_a_limit_where_all_workloads_do(both):
    _, actual = every_machine(both)
    margins = [actual.workloads[name].evaluation.margins for name in ("dense", "experts")]
    assert (actual.margins == np.minimum(*margins)).all()
    assert (actual.feasible == ((margins[0] >= 0) & (margins[1] >= 0)).all(axis=1)).all()


def test_a_machine_without_a_layout_for_a_workload_is_not_feasible():
    """A global batch of 16 is for 16 replicas at most: 64 chips with tp = 2 are too many."""
    few = "{model: llama3_8b, given: {global_batch_size: 16}}"
    space = chips(dense=DENSE % 1, few=few)
    narrow = space.pinned({"pp": 1, "tp": 2})
    machines, actual = every_machine(narrow)
    without = machines["nodes"] == 8
    assert without.any()
    assert not actual.feasible[without].any()
    assert np.isnan(actual.workloads["few"].evaluation.breakdown.step_time[without]).all()
    assert np.isfinite(actual.workloads["few"].evaluation.breakdown.step_time[~without]).all()


def test_a_space_of_workloads_reads_back_and_can_be_pinned(both):
    again = Space.from_text(both.text)
    assert again.fingerprint == both.fingerprint
    assert chips(dense=DENSE % 0.5, experts=EXPERTS % 0.5).fingerprint != both.fingerprint
    assert [parameter.name for parameter in again.parameters] == ["nodes", "cores"]
    assert {workload.space.by_name["tp"].choices for workload in both.pinned({"tp": 4}).workloads} == {(4,)}
    with pytest.raises(DseError, match="tp"):
        both.pinned({"tp": 3})


def test_a_study_keeps_the_layout_and_the_breakdown_of_each_workload(both):
    study = Study.create(both)
    study.run(9)
    front = Study.load("chips").table.front().records()
    assert [record["values"] for record in front] == [one["values"] for one in exact_front(both).records()]
    for record in front:
        assert set(record["layouts"]) == {"dense", "experts"}
        steps = [record["breakdown"][f"{name}.step_time_s"] for name in ("dense", "experts")]
        assert record["values"]["step_time_s"] == pytest.approx(0.75 * steps[0] + 0.25 * steps[1])
        for one in both.workloads:
            design = one.space.encode([{**record["params"], **record["layouts"][one.name]}])
            again = evaluate(one.space, design).breakdown.step_time
            assert record["breakdown"][f"{one.name}.step_time_s"] == pytest.approx(again)
    assert {"dense.tp", "experts.step_time_s"} <= set(study.pareto_front().columns)


def test_the_command_line_shows_each_workload_and_exports_one(both, tmp_path):
    (tmp_path / "chips.yaml").write_text(both.text)
    shown = stdout_of("search", "chips.yaml", "--budget", "9")
    assert "dense (weight 0.75): " in shown
    assert "experts (weight 0.25): " in shown
    assert "--workload missing: name one of them" in stderr_of("export", "chips")
    assert "HYBRID_TRANSFORMER" in stdout_of("export", "chips", "--workload", "dense")
    layouts = json_of("evaluate", "chips.yaml", "--set", "nodes=4")["layouts"]
    assert layouts["dense"].keys() == {"tp", "pp", "recompute"}


@pytest.mark.parametrize(("text", "message"), cases(__file__, "MISTAKES"))
def test_a_wrong_section_says_what_would_do(text, message):
    with pytest.raises(DseError, match=re.escape(message)):
        Space.from_text(SPACE % text)
