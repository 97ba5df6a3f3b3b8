"""The default sampler, which evaluates designs in bulk, on plain studies of Optuna and on those of dse."""

import base64
import zlib

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.testing import pytest_samplers as of_optuna

from dse.api.study import Study
from dse.fronts import Box, non_dominated
from dse.pricing.evaluated import costs_of
from dse.pricing.evaluation import evaluate
from dse.searching.exact.exact_front import exact_front
from dse.searching.samplers.archive import Archive, least_beaten
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED, ScreeningSampler
from dse.spaces.lattice import Lattice
from dse.spaces.question import Question, planned_space
from dse.spaces.space import Space
from dse.storage.optuna_store import DAMAGED
from tests.support.cases import by_table
from tests.support.rules import broken_rules


def study_of(space, **options):
    directions = [objective.direction for objective in space.objectives]
    return optuna.create_study(directions=directions, sampler=ScreeningSampler(space, **options))


@pytest.fixture(scope="module")
def codesign():
    """Hardware, links and layouts open: far too many designs to price them all."""
    return Space.load("gpt_1t_codesign")


#: Ranges of every kind: even, on a logarithmic axis, in steps.
NUMBERS = [
    FloatDistribution(-1.0, 1.0), FloatDistribution(1e-7, 1.0, log=True), FloatDistribution(-10, 10, step=0.5),
    IntDistribution(3, 10), IntDistribution(1, 100, log=True), IntDistribution(3, 9, step=2),
]  # fmt: skip

# Optuna's own conformance tests: any suggestion, conditional ones, several objectives, threads.


class TestConformance(
    of_optuna.BasicSamplerTestCase, of_optuna.RelativeSamplerTestCase, of_optuna.MultiObjectiveSamplerTestCase
):
    """Where Optuna pairs every two kinds of parameters, each kind is paired with itself here."""

    @pytest.fixture
    def sampler(self, space):
        return lambda: ScreeningSampler(space, batch_size=16, designs_per_trial=1)

    @of_optuna.parametrize_suggest_method("x")
    def test_combination_of_different_distributions_objective(self, sampler, suggest_method_x):
        super().test_combination_of_different_distributions_objective(sampler, suggest_method_x, suggest_method_x)

    @pytest.mark.parametrize("distribution", NUMBERS, ids=repr)
    def test_sample_relative_numerical(self, sampler, distribution):
        super().test_sample_relative_numerical(sampler, distribution, distribution)


# Proposals.


def costs_at(space, columns):
    """Costs of designs; NaN where one is not feasible."""
    return costs_of(space, evaluate(space, columns))


def asked(study, count):
    """Parameters of the next trials of a study."""
    return [study.ask(study.sampler.distributions).params for _ in range(count)]


def test_a_plain_optuna_study_gets_the_whole_front_of_a_space_but_designs_that_are_taken(space):
    [designs] = space.legal.enumerate(10_000)
    front = non_dominated(costs_at(space, designs))
    best = space.decode({name: values[front] for name, values in designs.items()})
    keys = {space.legal.key(params) for params in best}
    assert {space.legal.key(params) for params in asked(study_of(space), len(keys))} == keys
    assert not keys & {space.legal.key(params) for params in asked(study_of(space, taken=keys), 50)}


def test_every_trial_says_how_many_designs_were_evaluated_for_it(codesign):
    study = study_of(codesign, batch_size=10, designs_per_trial=30)
    asked(study, 20)
    evaluated = [trial.user_attrs[DESIGNS_PRICED] for trial in study.trials]
    assert min(evaluated) >= 30
    assert sum(evaluated[10:]) < sum(evaluated[:10])


def test_proposals_are_legal_feasible_and_beat_as_many_random_designs(codesign):
    proposed = asked(study_of(codesign, batch_size=20, designs_per_trial=100), 20)
    assert not any(broken_rules(codesign, params) for params in proposed)
    actual = costs_at(codesign, codesign.encode(proposed))
    drawn = costs_at(codesign, codesign.legal.random(2000, np.random.default_rng(0)))
    assert not np.isnan(actual).any()
    assert (actual.min(axis=0) <= np.nanmin(drawn, axis=0)).all()


@pytest.mark.parametrize("name", ["gpt_1t_codesign", "lstm_24b_power"])
def test_no_one_step_neighbour_beats_the_best_of_any_objective(name):
    space = Space.load(name)
    study, lattice = study_of(space, batch_size=10, designs_per_trial=200), Lattice(space)
    columns = space.encode(asked(study, 10))
    costs, places = costs_at(space, columns), lattice.places(columns)
    for objective in range(costs.shape[1]):
        best = int(np.nanargmin(costs[:, objective]))
        near, _ = lattice.moved(places[[best]], (*lattice.one_step, *lattice.lines, *lattice.pairs))
        assert not np.nanmin(costs_at(space, lattice.columns(near))[:, objective]) < costs[best, objective]


@pytest.mark.slow
@by_table("model", "system", "chips", "objective", "options")
def test_found_fronts(model, system, chips, objective, options):
    plan = planned_space(Question(model=model, system=system, chips=chips)).space
    space = plan.opened(options).with_objectives(["step_time", objective])
    exact, actual = exact_front(space).costs, asked(study_of(space), 500)
    costs, box = costs_at(space, space.encode(actual)), Box.around(exact)
    assert np.nanmin(costs, axis=0).tolist() == exact.min(axis=0).tolist()
    assert box.hypervolume(costs) >= 0.99 * box.hypervolume(exact)


def test_a_study_that_is_loaded_again_goes_on_as_if_it_had_not_stopped(codesign):
    small = {"batch_size": 5, "designs_per_trial": 10}
    designs = asked(study_of(codesign, **small), 15)
    study, again = study_of(codesign, **small), []
    for _ in range(3):
        study.sampler = ScreeningSampler(codesign, **small)
        again += asked(study, 5)
    assert again == designs


def test_limits_that_no_random_design_keeps_are_met(codesign):
    rare = codesign.focused("step_time < 10 s")
    assert not evaluate(rare, rare.legal.random(5000, np.random.default_rng(0))).feasible.any()
    assert evaluate(rare, rare.encode(asked(study_of(rare, seed=0), 1))).feasible.all()


def test_where_nothing_is_feasible_the_nearest_to_feasibility_come(space):
    impossible = space.pinned({"dram_capacity": "6 GB"})
    [everything] = impossible.legal.enumerate(10_000)
    violations = evaluate(impossible, everything).violations.sum(axis=1)
    proposed = asked(study_of(impossible, batch_size=5), 5)
    actual = evaluate(impossible, impossible.encode(proposed)).violations.sum(axis=1)
    assert np.sort(actual) == pytest.approx(np.sort(violations)[:5])


# Spaces that end.


def test_a_space_that_is_pinned_as_a_whole_has_one_trial(space):
    names = {"tp": 8, "pp": 8, "recompute": "full", "micro_batch_size": 1}
    pinned = space.pinned({**names, "sequence_parallel": True, "distributed_optimizer": False})
    for sampler in ("screening", "nsga2", "random"):
        outcome = Study.create(pinned, sampler, sampler=sampler).run(100)
        assert (outcome.complete, outcome.exhausted) == (1, True)


def test_a_range_of_which_few_values_are_legal_ends(space):
    many = {"from": 1, "to": 240, "scale": "log", "kind": "integer"}
    parameters, given = {"pp": many, "micro_batch_size": [1, 2]}, {**space.data["given"], "tp": 8}
    ranged = Space.from_data({**space.data, "parameters": parameters, "given": given})
    for sampler in ("screening", "random"):
        study = Study.create(ranged, sampler, sampler=sampler)
        outcome = study.run(100)
        assert (outcome.complete, outcome.exhausted) == (8, True)
        assert sorted(set(study.trials()["pp"])) == [1, 2, 4, 8]


# The parts.


def test_moves_and_crossings_are_legal(codesign):
    lattice, rng = Lattice(codesign), np.random.default_rng(2)
    places = lattice.random(50, rng)
    near, parents = lattice.moved(places, lattice.one_step)
    assert ((near != places[parents]).sum(axis=1) == 1).all()
    paired, parents = lattice.moved(places, lattice.pairs)
    assert ((paired != places[parents]).sum(axis=1) == 2).all()
    children = lattice.crossed(places, np.arange(3), 200, rng)
    assert all(lattice.legal(rows).all() for rows in (near, paired, children))
    at = [p.name for p in codesign.parameters].index("tp")
    assert np.isin(children[:, at], places[:, at]).all()


@pytest.mark.parametrize("column", [1 << 28, 17 * 8, 9, "eJwr", "!", "x", 5.0, None])
def test_a_column_that_no_archive_packs_is_refused(column):
    """Numbers stand for as many packed bytes."""
    if isinstance(column, int):
        column = base64.b64encode(zlib.compress(bytes(column), 1)).decode("ascii")
    with pytest.raises(DAMAGED):
        Archive.unpacked(Archive.empty(18, 3).packed() | {"places": column}, 18, 3)


def test_the_least_beaten_needs_the_least_taken_off():
    front = np.array([[0.0, 10.0], [10.0, 0.0]])
    costs = np.array([[5.0, 10.5], [1.0, 11.0], [np.nan, 0.0], [12.0, 12.0]])
    assert least_beaten(costs, front, 3).tolist() == [0, 1, 3]
