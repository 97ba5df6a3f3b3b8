"""The benchmark of samplers: its spaces, its fronts, and a sampler of ten lines."""

import json

import numpy as np
import pytest

from benchmarks.exploration import __main__ as scores
from benchmarks.exploration import fronts, samplers
from benchmarks.exploration.problem import SPACES, Problem, Spent, space_of

SMALL = "gpt3_1024_a100_split"


def greedy(problem: Problem, seed: int) -> None:
    """Changes one option at a time, and keeps what is better by the first objective."""
    rng = np.random.default_rng(seed)
    row = problem.lattice.random(1, rng).astype(int)
    best = problem.evaluate(row)[0][0, 0]
    while True:
        other = row.copy()
        at = rng.integers(problem.sizes.size)
        other[0, at] = rng.integers(problem.sizes[at])
        costs, violations = problem.evaluate(other)
        if violations[0] == 0 and costs[0, 0] <= best:
            row, best = other, costs[0, 0]


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fronts, "FOLDER", tmp_path_factory.mktemp("fronts"))
        yield fronts.certify(SMALL)


@pytest.mark.parametrize("name", SPACES)
def test_a_space_is_large_enough_and_its_front_has_a_proof_by_the_present_cost_model(name):
    space, front, record = space_of(name), fronts.load(name), json.loads((fronts.FOLDER / f"{name}.json").read_text())
    assert 1e4 <= space.legal.count == front.legal <= 1e14
    assert SPACES[name]["half"] in ("develop", "report")
    assert front.proof == "bounds" or (front.proof == "list" and record["evaluated"] == front.legal)
    assert len({*record["designs"]}) == len(record["designs"]) > 0


def test_a_front_of_another_cost_model_is_refused(front):
    path = fronts.FOLDER / f"{SMALL}.json"
    stored = path.read_text()
    record = json.loads(stored)
    record["least_costs_and_hypervolume"][0] *= 0.99
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"the cost model has changed .* --certify {SMALL}"):
        fronts.load(SMALL)
    path.write_text(stored)


def test_rules_and_limits_are_violations_and_the_budget_ends():
    problem = Problem(SMALL, 5)
    rows = np.array([[0] * problem.sizes.size, [*(problem.sizes - 1)]])
    costs, violations = problem.evaluate(rows)
    legal = problem.lattice.legal(rows.astype(float))
    assert (np.isfinite(costs).all(axis=1) == legal).all()
    assert (violations[~legal] == 1).all()
    assert len(problem.evaluate(np.tile(rows, (3, 1)))[0]) == 3
    with pytest.raises(Spent):
        problem.evaluate(rows)


@pytest.mark.slow
def test_a_sampler_of_ten_lines_is_scored(front, monkeypatch):
    monkeypatch.setattr(samplers, "SAMPLERS", {**samplers.SAMPLERS, "greedy": greedy})
    table = [*scores.rows([SMALL], ["greedy", "screening"], 2, 100)]
    assert [row["evaluations"] >= 100 for row in table] == [True, True]
    assert 0 < table[0]["share"] <= table[1]["share"] == pytest.approx(1)
    assert table[1]["best"] == "2/2"
    assert len([*scores.summary(table)]) == 2


def test_a_missing_library_is_one_line(front, monkeypatch, capsys):
    def absent(problem: Problem, seed: int) -> None:
        raise ImportError("No module named 'nevergrad'")

    monkeypatch.setattr(samplers, "SAMPLERS", {"nevergrad": absent})
    assert [*scores.rows([SMALL], ["nevergrad"], 2, 100)] == []
    assert capsys.readouterr().err == "nevergrad: left out: No module named 'nevergrad'\n"
