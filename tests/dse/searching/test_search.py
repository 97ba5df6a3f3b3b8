"""The trials of a study follow from its seed alone: not from interruptions, budgets or processes."""

import optuna
import pytest
from optuna.trial import TrialState

from dse.api.study import Study
from dse.pricing.evaluated import rules_for
from dse.searching.samplers.archive import BATCH_SIZE
from dse.searching.samplers.samplers import SAMPLERS
from dse.storage.optuna_store import Store
from tests.support.runs import interrupting, told


def all_trials(study):
    with Store(study.storage, "read") as store:
        return store.trials(store.study(study.name).study_id)


def test_a_search_ends_with_exactly_its_budget(space, url):
    study = Study.create(space, "gpt3", storage=url)
    outcome = study.run(50)
    assert (outcome.complete, outcome.added, outcome.exhausted) == (50, 50, False)
    assert [trial.number for trial in all_trials(study)] == list(range(50))
    assert study.run(50).added == 0


@pytest.mark.parametrize("sampler", ["nsga2", "random"])
def test_budgets_dealt_out_in_parts_give_the_same_trials(space, url, sampler):
    whole = Study.create(space, "whole", storage=url, sampler=sampler, seed=7)
    whole.run(100)
    parts = Study.create(space, "parts", storage=url, sampler=sampler, seed=7)
    for budget in (30, 30, 41, 100):
        parts.run(budget)
    assert told(parts) == told(whole)


def test_a_generation_is_bred_alike_from_the_one_before_alone(space, url, monkeypatch):
    """A genetic sampler gets the trials that it needs, cut down from time to time, or always."""
    whole = Study.create(space, "whole", storage=url, sampler="nsga3")
    whole.run(150)
    monkeypatch.setattr("dse.searching.batches.history.MOST_TRIALS", 1)
    lean = Study.create(space, "lean", storage=url, sampler="nsga3")
    lean.run(150)
    assert told(lean) == told(whole)


def test_progress_tells_what_is_done_and_best(space, url):
    reports = []
    study = Study.create(space, "gpt3", storage=url)
    study.run(BATCH_SIZE + 10, progress=reports.append)
    assert [report.complete for report in reports] == [0, BATCH_SIZE, BATCH_SIZE + 10]
    assert reports[0].best == {}
    feasible = study.trials().query("feasible")
    assert reports[-1].infeasible == BATCH_SIZE + 10 - len(feasible)
    assert reports[-1].best == {key: feasible[key].min() for key in ("step_time_s", "peak_memory_bytes")}


def test_trials_of_other_programs_stay_and_do_not_count(space, url):
    study = Study.create(space, "gpt3", storage=url)
    study.run(25)
    study.optuna.add_trial(optuna.trial.create_trial(values=[0.0, 0.0]))
    study.optuna.ask()  # and at work on it, for all that is known
    outcome = study.run(60)
    assert (outcome.complete, outcome.failed) == (60, 0)
    states = [trial.state for trial in all_trials(study)]
    assert states.count(TrialState.COMPLETE) == 61
    assert states.count(TrialState.RUNNING) == 1
    alone = Study.create(space, "alone", storage=url)
    alone.run(60)
    assert [t.params for t in all_trials(study) if t.params] == [t.params for t in all_trials(alone)]
    assert study.pareto_front()["step_time_s"].min() > 0


def test_an_interrupt_loses_the_batch_in_progress_and_nothing_else(space, url):
    study = Study.create(space, "gpt3", storage=url, seed=3)
    with pytest.raises(KeyboardInterrupt):
        study.run(2 * BATCH_SIZE, progress=interrupting(BATCH_SIZE))
    assert len(all_trials(study)) == BATCH_SIZE
    study.run(2 * BATCH_SIZE)
    whole = Study.create(space, "whole", storage=url, seed=3)
    whole.run(2 * BATCH_SIZE)
    assert told(study) == told(whole)


def test_batch_sizes_suit_their_samplers(space):
    """A generation that ended inside a batch would be bred from different parents after a resume."""
    for name in ("nsga2", "nsga3"):
        assert SAMPLERS[name].build(space, rules_for(space), 0).population_size == SAMPLERS[name].batch_size
