"""Starting designs of searches: named ones, another study's front; and a focus."""

import pytest

from costmodel.errors import DseError
from dse.api.study import Study
from dse.pricing.evaluated import rules_for
from dse.searching.starting_designs import front_designs, named_starts
from dse.spaces.space import Space
from tests.support.rules import broken_rules


@pytest.mark.parametrize("sampler", ["screening", "nsga2"])
def test_named_designs_are_the_first_trials_of_a_study_that_is_loaded_again(space, sampler):
    study = Study.create(space, "named", sampler=sampler)
    study.steer(None, named_starts(space, ["tp=2,pp=8", "tp=8 pp=4"]))
    again = Study.load("named")
    again.run(5)
    assert again.trials()[["tp", "pp"]].head(2).to_numpy().tolist() == [[2, 8], [8, 4]]


def test_starts_given_later_come_next(space):
    study = Study.create(space, "named")
    study.run(50)
    seen = {study.space.legal.key(trial.params) for trial in study.table.trials}
    designs = space.decode(next(space.legal.enumerate(10_000)))
    new = next(params for params in designs if space.legal.key(params) not in seen)
    study.steer(None, {"mine": new})
    study.run(51)
    assert study.table.trials[-1].params == new


def test_the_front_of_another_study_is_where_a_search_of_a_changed_space_starts(space):
    first = Study.create(space, "first")
    first.run(50)
    fewer = space.pinned({"recompute": "none"})
    starts = front_designs(first, fewer, rules_for(fewer))
    assert 0 < len(starts) <= 20
    assert all(not broken_rules(fewer, params) for params in starts.values())
    second = Study.create(fewer, "second")
    second.steer(None, starts)
    second.run(len(starts))
    actual = [fewer.legal.key(trial.params) for trial in second.table.trials]
    assert set(actual) >= {fewer.legal.key(params) for params in starts.values()}


@pytest.mark.slow
def test_a_focus_keeps_all_trials_within_it_and_can_be_lifted():
    study = Study.create(Space.load("gpt_1t_codesign"), "focus")
    study.steer("step_time < 20 s", {})
    study.run(50)
    assert study.trials()["step_time_s"].max() < 20
    study.steer("", {})
    study.run(100)
    assert study.trials()["step_time_s"].max() > 20
    assert "focus" not in study.table.trials[0].constraints


def test_what_cannot_be_started_from_or_sought_is_refused(space):
    rules = rules_for(space)
    study = Study.create(space, "refused", sampler="random")
    for start, message in (
        ("tp=3", "tp=3: not an option; tp can be 1, 2, 4, 8"),
        ("tp", r"^start 'tp': expected NAME=VALUE,\.\.\."),
        ("tq=8", "tq: no parameter of this space"),
        ("tp=8,pp=32", "no legal design with tp=8 pp=32"),
    ):
        with pytest.raises(DseError, match=message):
            study.steer(None, named_starts(space, [start]))
    with pytest.raises(DseError, match="a focus needs sampler screening, it has random"):
        study.steer("step_time < 20 s", {})
    with pytest.raises(DseError, match="has no feasible design to start from"):
        front_designs(study, space, rules)
