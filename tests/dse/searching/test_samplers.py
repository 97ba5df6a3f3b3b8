"""Whatever the sampler, proposals are legal and new."""

import numpy as np
import optuna
import pytest
from numpy.random import SeedSequence

from costmodel.errors import DseError
from dse.searching.samplers.samplers import SAMPLERS, SpaceExhausted, legal_sampler, sampler_choice
from tests.support.rules import broken_rules


def installed(name):
    try:
        sampler_choice(name)
    except DseError as error:
        return pytest.param(name, marks=pytest.mark.skip(reason=str(error)))
    return name


every_sampler = pytest.mark.parametrize("name", [installed(name) for name in SAMPLERS])


def asked(space, name, batches, seed=0):
    """Designs of some batches, each told a made-up result before the next is asked for."""
    study = optuna.create_study(directions=["minimize", "minimize"])
    designs = []
    for batch in range(batches):
        seen = [space.legal.key(params) for params in designs]
        study.sampler = legal_sampler(name, space, SeedSequence([seed, batch]), seen)
        trials = [study.ask(study.sampler.distributions) for _ in range(SAMPLERS[name].batch_size)]
        for trial in trials:
            trial.set_constraint("memory", trial.params["tp"] - 3)
            study.tell(trial, [1 / trial.params["tp"], trial.params["pp"]])
        designs += [trial.params for trial in trials]
    return designs


@every_sampler
def test_proposals_are_legal_and_new_and_follow_from_the_seed(space, name):
    designs = asked(space, name, 4)
    assert not [params for params in designs if broken_rules(space, params)]
    assert len({space.legal.key(params) for params in designs}) == len(designs)
    assert asked(space, name, 4) == designs
    assert asked(space, name, 1, seed=1) != asked(space, name, 1)


def test_the_first_batch_is_uniform_over_legal_designs(space):
    """Choosing one parameter after another would favour those of few completions."""
    designs = space.legal.count
    study = optuna.create_study(directions=["minimize", "minimize"])
    sampler = legal_sampler("nsga2", space, SeedSequence(3), [])
    study.sampler = sampler
    drawn = [study.ask(sampler.distributions).params for _ in range(int(designs) // 2)]
    everything = [params for batch in space.legal.enumerate(10_000) for params in space.decode(batch)]
    for tp in (1, 8):
        share = np.mean([params["tp"] == tp for params in everything])
        spread = np.sqrt(share * (1 - share) / len(drawn))
        assert np.mean([params["tp"] == tp for params in drawn]) == pytest.approx(share, abs=4 * spread)


def test_a_space_of_few_designs_runs_out(space):
    few = space.pinned({"tp": 8, "pp": 8, "recompute": "full", "micro_batch_size": 1})
    study = optuna.create_study(directions=["minimize", "minimize"])
    study.sampler = sampler = legal_sampler("random", few, SeedSequence(0), [])
    for _ in range(int(few.legal.count)):
        study.ask(sampler.distributions)
    with pytest.raises(SpaceExhausted):
        study.ask(sampler.distributions)


def test_an_unknown_sampler_suggests_a_known_one():
    with pytest.raises(DseError, match=r"sampler 'nsga': unknown; did you mean 'nsga\d'\?"):
        sampler_choice("nsga")


def test_a_sampler_says_which_packages_it_needs(monkeypatch):
    monkeypatch.setattr("dse.searching.samplers.samplers.find_spec", lambda package: None)
    with pytest.raises(DseError, match="needs scipy and torch; pip install scipy torch"):
        sampler_choice("gp")
