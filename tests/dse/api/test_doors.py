"""Extensions by users: functions, callbacks, samplers, profiles; the examples of docs/python.md."""

import re

import numpy as np
import optuna
import pytest

import dse
from costmodel.kernels.collectives import RING
from costmodel.rules.registry import NATIVE, REGISTERED, Profile, profile_named, register_profile
from dse.cli import main
from dse.spaces.formulas.expressions import OWN
from tests.support.cases import by_table
from tests.support.commands import stderr_of
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "python.md"


@pytest.fixture(autouse=True)
def _nothing_stays():
    """Functions, profiles and algorithms that a test makes known are unknown to the next."""
    before = [(known, dict(known)) for known in (OWN, REGISTERED, RING)]
    yield
    for known, earlier in before:
        known.clear()
        known.update(earlier)


def space_with(**extended):
    return dse.Space.load("gpt3_175b_1024_a100").extended(**extended)


@pytest.mark.slow
def test_the_examples_of_the_page_run_as_they_stand():
    told = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(example, PAGE.name, "exec"), told)
    assert len(dse.studies()) == 4
    assert dse.Study.load("bills").trials()["step_time_s"].min() < 20


def test_a_function_of_a_formula_gets_and_gives_the_units_that_it_says():
    @dse.formula_function(of=["GB", "ms"], unit="GB/s")
    def rate(memory, time):
        return memory / (time / 1e3)

    space = space_with(derived={"own": "rate(peak_memory, step_time)", "same": "peak_memory / step_time"})
    study = dse.Study.create(space, "rates")
    study.run(20)
    trials = study.trials()
    np.testing.assert_allclose(trials["own"], trials["same"], rtol=1e-12)


def test_workers_get_the_users_functions_and_profiles():
    @dse.formula_function(of=["s"], unit="s")
    def squeezed(time):
        return time - 1

    register_profile(Profile("again", "native by another name", designs=profile_named(NATIVE).designs))
    space = space_with(derived={"less": "squeezed(step_time)"}).with_objectives(["less"])
    fronts = []
    for jobs in (1, 2):
        study = dse.Study.create(space, f"of {jobs}", profile="again", sampler="random")
        study.run(50, jobs=jobs)
        fronts.append(study.trials().drop(columns=["completed"]))
    assert fronts[0].equals(fronts[1])


def test_a_study_asks_for_a_function_that_is_not_registered(small_space):
    """The study is whole: neither a backup nor its deletion helps."""
    dse.formula_function(of=["s"], unit="s", name="waited")(lambda time: 2 * time)
    space = dse.Space.from_text(small_space).extended(derived={"wait": "waited(step_time)"})
    dse.Study.create(space.with_objectives(["step_time", "wait"]), "own").run(4)
    OWN.pop("waited")
    for command in ("resume", "pareto", "trials"):
        error = stderr_of(command, "own")
        assert "study 'own': its formulas call waited, which this process does not know" in error
        assert "import the module that defines it with @dse.formula_function" in error
        assert "delete" not in error
    dse.formula_function(of=["s"], unit="s", name="waited")(lambda time: 2 * time)
    assert main(["pareto", "own"]) == 0


@by_table("formula", "mistake")
def test_a_call_that_cannot_be_is_said_to_be_one(formula, mistake):
    dse.formula_function(of=["s"], unit="s", name="half")(lambda time: time / 2)
    with pytest.raises(dse.DseError, match=re.escape(mistake)):
        space_with(derived={"own": formula})


def test_a_function_gives_a_number_for_each_row():
    dse.formula_function(of=["s"], unit="s", name="two")(lambda time: time[:2])
    with pytest.raises(dse.DseError, match="two: gave an array of shape"):
        dse.Study.create(space_with(derived={"own": "two(step_time)"}).with_objectives(["own"]))


@pytest.mark.parametrize("name", ["min", "not a name"])
def test_a_name_that_formulas_have_or_cannot_have_is_refused(name):
    with pytest.raises(dse.DseError, match="expected a name that formulas do not have yet"):
        dse.formula_function(name=name)(lambda x: x)


def test_callbacks_get_each_new_trial_once_and_may_stop_the_run():
    study = dse.Study.create(dse.Space.load("gpt3_175b_1024_a100"), "heard", sampler="random")
    heard = []
    study.run(60, callbacks=[lambda running, trial: heard.append((running.study_name, trial.number))])
    assert heard == [("heard", number) for number in range(60)]

    assert study.run(500, callbacks=[optuna.study.MaxTrialsCallback(100)]).complete == 100
    assert study.run(150).complete == 150


class Stubborn(optuna.samplers.RandomSampler):
    """Proposes the same design again and again, be it legal or not."""

    def sample_independent(self, study, trial, param_name, param_distribution):
        return param_distribution.choices[0] if hasattr(param_distribution, "choices") else param_distribution.low


def test_what_an_own_sampler_proposes_is_made_legal_and_new():
    study = dse.Study.create(dse.Space.load("gpt3_175b_1024_a100"), "own")
    study.run(50)
    names = [parameter.name for parameter in study.space.parameters]
    for budget, options in ((120, {"sampler": Stubborn()}), (170, {})):
        study.run(budget, **options)
        assert len(study.trials()) == len(study.trials()[names].drop_duplicates()) == budget


def test_a_profile_that_ships_is_not_replaced():
    with pytest.raises(dse.DseError, match="'simai': is built in"):
        register_profile(Profile("simai", "another"))
