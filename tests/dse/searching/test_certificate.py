"""Distance of a study to the exact front: on fronts known by hand, and from a command."""

import re

import numpy as np
import pytest

from benchmarks.exploration.fronts import load
from dse.api.study import Study
from dse.pricing.evaluated import costs_of
from dse.pricing.evaluation import evaluate
from dse.searching.exact.certificate import certified, match_gaps, quick_certificate, remembered_front, surroundings
from dse.spaces.space import Space
from tests.support.commands import json_of, stdout_of


def test_an_exact_design_is_as_far_as_the_nearest_found():
    """(1, 4) is found; (2, 2) is matched by (2.2, 2.5), 25 % worse; (4, 1) by the same, 150 % worse."""
    actual = np.array([[1.0, 4.0], [2.2, 2.5]])
    best = np.array([[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]])
    assert match_gaps(actual, best).tolist() == pytest.approx([0.0, 0.25, 1.5])


@pytest.fixture
def study(small_space) -> Study:
    """Ten of the small space's legal designs."""
    study = Study.open(Space.from_text(small_space), "ten", sampler="random")
    study.run(10)
    return study


def test_a_certificate_counts_what_is_better(study):
    space, told = study.space, quick_certificate(study)
    assert told is not None
    costs = costs_of(space, evaluate(space, next(space.legal.enumerate(1000))))
    best = study.table.front().costs.min(axis=0)
    assert list(told.ranks.values()) == (costs < best).sum(axis=0).tolist()
    assert list(told.gaps.values()) == pytest.approx(best / np.nanmin(costs, axis=0) - 1)
    assert told == certified(study)


@pytest.mark.parametrize("searched", [False, True])
def test_a_whole_study_misses_nothing(study, space, searched):
    whole = Study.open(space, "searched") if searched else study
    whole.run(100 if searched else 1000)
    told = certified(whole)
    assert told == quick_certificate(whole)
    assert told.found == told.of
    assert told.worst_missed is None
    assert set(told.ranks.values()) == {0}
    assert told.hypervolume_ratio == 1.0
    assert bool(remembered_front(whole)) == searched


def test_designs_around_the_best_are_counted_one_by_one(study):
    """All that differ in one parameter are among them; of the legal ones some are faster than the best of ten."""
    around, space = surroundings(study), study.space
    assert around is not None
    [best] = study.table.front().take(np.arange(1)).trials
    [designs] = space.legal.enumerate(1000)
    differ = sum((designs[p.name] != p.code(best.params[p.name])).astype(int) for p in space.parameters)
    costs = costs_of(space, evaluate(space, designs))[:, 0]
    one_off = differ == 1
    assert one_off.sum() <= around.designs <= (differ > 0).sum()
    assert (costs[one_off] < best.values[0]).sum() <= around.better <= (costs < best.values[0]).sum()


def test_a_search_of_a_large_space_ends_with_what_is_known_of_its_distance():
    """Bounds prove the best of each objective, those of the benchmark's certified front; without bounds, unknown."""
    said = " ".join(stdout_of("search", "gpt_1t_power_split", "--budget", "100").split())
    assert "no legal design is better by step_time, system_price, system_power: bounds prove it." in said
    best = Study.load("gpt_1t_power_split").table.front().costs.min(axis=0)
    assert best.tolist() == load("gpt_1t_power_split").costs.min(axis=0).tolist()
    asked = "search", "gpt_1t_power_split", "--study", "power", "--objective", "average_power", "--budget", "50"
    assert re.search(r"unknown\. [\d,]+ designs were evaluated\. Of [\d,]+", " ".join(stdout_of(*asked).split()))
    assert json_of(*asked)["surroundings"].items() >= {"better": 0, "proved": []}.items()


def test_the_certificate_of_a_focused_study_is_of_its_focus(small_space):
    """Designs outside the focus are faster: they are neither missed nor counted."""
    space = Space.from_text(small_space)
    designs = next(space.legal.enumerate(1000))
    costs = costs_of(space, evaluate(space, designs))
    known = costs[np.isfinite(costs).all(axis=1)]
    fastest = known[np.argmin(known[:, 0])]
    focus = f"peak_memory < {float(fastest[1]) - 1.0!r} B"
    study = Study.open(space, "focused")
    study.steer(focus, {})
    study.run(40)
    within = known[known[:, 1] < fastest[1] - 1.0]
    assert within[:, 0].min() > fastest[0]
    told = certified(study)
    assert told.focus == focus
    actual = study.table.front().costs
    best = actual[actual[:, 1] < fastest[1] - 1.0].min(axis=0)
    assert [*told.gaps.values()] == pytest.approx((best / within.min(axis=0) - 1).tolist())
    assert told.ranks["step_time"] == int((within[:, 0] < best[0]).sum())
    said = " ".join(stdout_of("enumerate", "--certify", "focused").split())
    assert f"Study focused, within '{focus}', after 40 trials" in said
    assert study.certify() == told
