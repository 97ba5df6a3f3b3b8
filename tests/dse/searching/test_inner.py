"""Exact parameters: all of their designs are evaluated with each design that a sampler proposes."""

import csv
import re

import numpy as np
import pytest

from costmodel.errors import DseError
from costmodel.formats.input_files import dump, parse
from dse.api.study import Study
from dse.fronts import non_dominated
from dse.pricing.evaluated import costs_of
from dse.pricing.evaluation import evaluate
from dse.searching.exact.exact_front import exact_front
from dse.searching.samplers.exact_search import WINNERS
from dse.searching.samplers.samplers import SAMPLERS
from dse.searching.study import studies
from dse.spaces.space import Space
from tests.dse.searching.test_samplers import every_sampler
from tests.support.cases import by_table
from tests.support.commands import json_of, stderr_of, stdout_of
from tests.support.paths import TEST_DATA
from tests.support.runs import told

SMALL = parse((TEST_DATA / "small_space.yaml").read_text(), "small").data
EXACT = {
    "tp": {"options": [1, 2, 4, 8], "by": "exact"},
    "pp": {"options": "divisors(num_layers)", "by": "exact"},
    "recompute": {"options": ["none", "selective", "full"], "by": "exact"},
}


def small(parameters=EXACT, **keys):
    """The small space with some of its parameters exact."""
    return Space.from_text(dump({**SMALL, **keys, "parameters": {**SMALL["parameters"], **parameters}}))


@pytest.fixture(scope="module")
def space():
    return small()


@pytest.fixture(scope="module")
def study(searched, space):
    """All outer designs, each with its winners."""
    return searched(space, 1000, "inner")


def evaluated(space):
    """Every legal design of a space, its outer design, costs, and violations."""
    designs = [params for columns in space.legal.enumerate() for params in space.decode(columns)]
    evaluation = evaluate(space, space.encode(designs))
    violations = np.maximum(evaluation.violations, 0).sum(axis=1)
    return designs, [space.outer.key(params) for params in designs], costs_of(space, evaluation), violations


def test_outer_and_inner_designs_are_the_legal_ones(space, monkeypatch):
    """However few are listed at a time."""
    monkeypatch.setattr("dse.spaces.exact_parameters.CHUNK", 100)
    [outer] = space.outer.enumerate()
    points = outer["micro_batch_size"].size
    parts = list(space.outer.inner(outer, points))
    designs = [params for _, part in parts for params in space.decode(part)]
    every, keys, _, _ = evaluated(space)
    assert sorted(map(str, designs)) == sorted(map(str, every))
    sampled = space.outer.space.parameters
    outer_keys = list(zip(*([p.value(code) for code in outer[p.name]] for p in sampled), strict=True))
    assert set(outer_keys) == set(keys)
    assert len(outer_keys) == points == space.outer.count
    owners = np.concatenate([owner for owner, _ in parts])
    assert [space.outer.key(params) for params in designs] == [outer_keys[owner] for owner in owners]


def test_the_winners_of_each_trial_are_the_front_of_its_inner_designs(study, space):
    _, keys, costs, violations = evaluated(space)
    for trial in study.table.trials:
        rows = [row for row, key in enumerate(keys) if key == space.outer.key(trial.params)]
        others = [list(winner["values"].values()) for winner in trial.user_attrs[WINNERS]]
        front = costs[rows][non_dominated(costs[rows])]
        assert all(winner["params"].keys() == EXACT.keys() for winner in trial.user_attrs[WINNERS])
        if len(front):
            assert sorted([trial.values, *others]) == np.unique(front, axis=0).tolist()
        else:
            assert others == []
            assert sum(max(v, 0) for v in trial.constraints.values()) == violations[rows].min()


@every_sampler
def test_every_outer_design_is_a_trial_once(space, name):
    study = Study.create(space, sampler=name)
    assert study.run(1000).exhausted
    keys = [space.outer.key(trial.params) for trial in study.table.trials]
    assert len(set(keys)) == len(keys) == space.outer.count
    assert study.designs_priced >= space.legal.count
    assert study.hypervolume == pytest.approx(study.box.hypervolume(exact_front(space).costs), rel=1e-12)


@pytest.mark.parametrize("sampler", [pytest.param("screening", marks=pytest.mark.slow), "nsga2"])
def test_interrupted_studies_have_the_same_trials(sampler, monkeypatch):
    """The batches of all samplers are cut into parts, and the inner designs too."""
    space = small({**EXACT, "clock": {"from": "1 GHz", "to": "1.41 GHz", "step": "10 MHz"}})
    whole, parts = (Study.create(space, name, sampler=sampler, seed=3) for name in ("whole", "parts"))
    batch = SAMPLERS[sampler].batch_size
    whole.run(3 * batch)
    monkeypatch.setattr("dse.spaces.exact_parameters.CHUNK", 1000)
    for budget in (3, batch - 1, batch + 4, 2 * batch, 3 * batch):
        Study.load("parts").run(budget, jobs=2)
    assert told(whole) == told(parts)


def test_the_representative_adds_most_to_what_the_study_has(study):
    reached, keys = [], [objective.key for objective in study.space.objectives]

    def volume(costs):
        return study.box.hypervolume(np.array(costs).reshape(-1, len(keys)))

    several = 0
    for trial, feasible in zip(study.table.trials, study.table.feasible, strict=True):
        if feasible:
            others = [list(winner["values"].values()) for winner in trial.user_attrs[WINNERS]]
            volumes = [volume([*reached, costs]) for costs in (trial.values, *others)]
            assert volumes[0] == pytest.approx(max(volumes), rel=1e-12)
            reached += [trial.values, *others]
            several += len(others) > 0
    assert several > 5
    assert volume(reached) == pytest.approx(study.hypervolume, rel=1e-12)
    assert study.hypervolume_history()["hypervolume"].iloc[-1] == pytest.approx(study.hypervolume, rel=1e-12)


def test_the_front_is_that_of_all_winners(study, space):
    front = study.pareto_front()
    exact = np.unique(exact_front(space).costs, axis=0)
    np.testing.assert_array_equal(np.unique(front[["step_time_s", "peak_memory_bytes"]], axis=0), exact)
    assert front.columns[:2].tolist() == ["trial", "winner"]
    assert 0 in front["winner"].tolist()
    assert front["winner"].max() > 0
    names = [parameter.name for parameter in space.parameters]
    designs = front[names].to_dict("records")
    again = evaluate(space, space.encode(designs))
    assert again.feasible.all()
    np.testing.assert_array_equal(again.breakdown.peak_memory, front["peak_memory_bytes"])
    np.testing.assert_array_equal(again.breakdown.mfu, front["mfu"])
    assert "winner" not in study.trials()
    [summary] = studies(study.storage)
    assert summary.best == {key: front[key].min() for key in ("step_time_s", "peak_memory_bytes")}
    assert study.optuna.trials[0].user_attrs[WINNERS] == study.table.trials[0].user_attrs[WINNERS]


def test_few_winners_are_kept_of_many(study, monkeypatch):
    monkeypatch.setattr("dse.searching.samplers.exact_search.MOST_WINNERS", 1)
    few = Study.create(study.space)
    few.run(1000)
    kept = [len(trial.user_attrs[WINNERS]) for trial in few.table.trials]
    whole = {study.space.outer.key(trial.params): trial for trial in study.table.trials}
    trials = [whole[study.space.outer.key(trial.params)] for trial in few.table.trials]
    assert kept == [min(1, len(trial.user_attrs[WINNERS])) for trial in trials]


@every_sampler
def test_where_nothing_is_feasible_a_trial_breaks_least(name):
    space = small(constraints={**SMALL["constraints"], "fits_in_memory": "peak_memory <= 1 GB"})
    study = Study.create(space, sampler=name)
    study.run(12)
    _, keys, _, violations = evaluated(space)
    for trial in study.table.trials:
        worst = [row for row, key in enumerate(keys) if key == space.outer.key(trial.params)]
        assert sum(max(v, 0) for v in trial.constraints.values()) == violations[worst].min()
    assert study.pareto_front().empty


def test_ranges_alone_may_be_sampled():
    parameters = {name: {"options": options, "by": "exact"} for name, options in SMALL["parameters"].items()}
    space = small({**parameters, "clock": {"from": "1 GHz", "to": "1.41 GHz"}})
    study = Study.create(space, sampler="nsga2")
    study.run(40)
    assert len({trial.params["clock"] for trial in study.table.trials}) == 40
    assert study.designs_priced == 40 * small(parameters).legal.count


def test_rules_tie_exact_parameters_to_ranges():
    """Such a rule is in no table: a range has no end of values."""
    parameters = {"tp": EXACT["tp"], "clock": {"from": "0.1 GHz", "to": "1.41 GHz"}}
    rules = {**SMALL["constraints"], "slow_chips_are_many": "tp * clock >= 3 GHz"}
    space = small(parameters, constraints=rules)
    columns = space.outer.random(200, np.random.default_rng(0))
    assert (columns["clock"] >= 3e9 / 8).all()
    for _, designs in space.outer.inner(columns, 200):
        assert (designs["tp"] * designs["clock"] >= 3e9).all()
    study = Study.create(space, sampler="nsga2")
    study.run(60)
    trials = study.trials()
    assert (trials["tp"] * trials["clock"] >= 3e9).all()


# Files


def test_how_a_parameter_is_chosen_counts_only_where_it_is_exact(space):
    by_search = {"tp": {"options": [1, 2, 4, 8], "by": "search"}, "pp": {"options": SMALL["parameters"]["pp"]}}
    plain = Space.from_text(dump(SMALL))
    assert small(by_search).fingerprint == plain.fingerprint
    assert small({"tp": EXACT["tp"]}).fingerprint != plain.fingerprint
    assert [parameter.name for parameter in space.inner] == ["tp", "pp", "recompute"]
    assert Space.from_text(space.text).fingerprint == space.fingerprint
    steps = small({"clock": {"from": "1 GHz", "to": "1.4 GHz", "step": "100 MHz", "by": "exact"}})
    assert [parameter.name for parameter in steps.inner] == ["clock"]


def test_an_exact_parameter_may_be_pinned(space):
    pinned = space.pinned({"tp": 8})
    assert [parameter.name for parameter in pinned.inner] == ["pp", "recompute"]
    assert pinned.legal.count == sum(params["tp"] == 8 for params in evaluated(space)[0])


@by_table("written", "message")
def test_mistakes_in_how_a_parameter_is_chosen(written, message):
    with pytest.raises(DseError, match=re.escape(message)) as raised:
        small(written)
    assert f"parameters.{next(iter(written))}" in str(raised.value)


def test_too_many_exact_designs_are_refused(space, monkeypatch):
    monkeypatch.setattr("dse.spaces.exact_parameters.MOST_INNER", 20)
    columns = space.outer.random(1, np.random.default_rng(0))
    with pytest.raises(DseError, match="exact designs for one that is drawn; let fewer parameters be exact"):
        next(space.outer.inner(columns, 1))


# Commands


def test_commands_show_and_export_winners(study, tmp_path):
    where = ["--storage", study.storage]
    front = json_of("pareto", "inner", *where)["front"]
    record = next(record for record in front if record["winner"])
    assert list(record)[:3] == ["trial", "winner", "params"]
    assert "trial  winner" in stdout_of("pareto", "inner", *where)
    stdout_of("pareto", "inner", "-o", "front.csv", *where)
    rows = list(csv.DictReader((tmp_path / "front.csv").read_text().splitlines()))
    assert [(int(r["trial"]), int(r["winner"])) for r in rows] == [(r["trial"], r["winner"]) for r in front]

    (tmp_path / "space.yaml").write_text(study.space.text)
    pins = [f"--set={name}={str(value).lower()}" for name, value in record["params"].items()]
    assert json_of("evaluate", "space.yaml", *pins)["values"] == record["values"]

    named = ["--trial", str(record["trial"]), "--winner", str(record["winner"]), *where]
    degrees = stdout_of("export", "inner", *named).splitlines()[0]
    assert f"model_parallel_NPU_group: {record['params']['tp']} " in degrees
    assert f"pp: {record['params']['pp']} " in degrees
    assert "trial 0: no winner 99; it has" in stderr_of("export", "inner", "--trial", "0", "--winner", "99", *where)
    assert "--winner 1: needs --trial" in stderr_of("export", "inner", "--winner", "1", *where)
