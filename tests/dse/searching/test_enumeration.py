"""Exact fronts: all designs are listed, in any pieces and by any workers; or ruled out by bounds."""

from typing import Any

import numpy as np
import pytest

from costmodel import DseError
from costmodel.formats.input_files import dump
from dse.fronts import FrontIndex, non_dominated
from dse.pricing.evaluated import costs_of
from dse.pricing.evaluation import evaluate
from dse.pricing.workers import Pricer, Workers
from dse.searching.bounding import bounds, branching
from dse.searching.exact import enumeration
from dse.searching.exact import exact_front as exact
from dse.searching.exact.exact_front import Headway, exact_front
from dse.spaces.space import Space
from tests.support.cases import cases


@pytest.fixture(scope="module")
def layouts() -> Space:
    """2,340 layouts of GPT-3, two of three over the memory of its chips."""
    return Space.load("gpt3_175b_1024_a100")


#: Options that random spaces draw from.
OPEN: dict[str, list[Any]] = cases(__file__, "OPEN")
#: Options of the other parameters, and options that some design needs to fit.
ELSE, FITS = cases(__file__, "ELSE"), cases(__file__, "FITS")
#: Objectives, limits and formulas that bounds have to follow.
SOUGHT, LIMITS = cases(__file__, "SOUGHT"), cases(__file__, "LIMITS")
DERIVED = cases(__file__, "DERIVED")


def random_space(seed: int) -> Space:
    """A codesign space of a few options of each parameter."""
    rng = np.random.default_rng(seed)
    parameters = dict(ELSE)
    for name, options in OPEN.items():
        least = [options.index(FITS[name])] if name in FITS else []
        kept = {*least, *rng.permutation(len(options))[: rng.integers(1, 3)].tolist()}
        parameters[name] = [options[index] for index in sorted(kept)]
    data = Space.load("gpt_1t_codesign").data
    changes = {"derived": DERIVED, "constraints": LIMITS[seed % len(LIMITS)]}
    changed = {name: {**data[name], **values} for name, values in changes.items()}
    chosen = {"parameters": parameters, "objectives": SOUGHT[seed % len(SOUGHT)]}
    return Space.from_text(dump({**data, **changed, **chosen}))


def members(front: exact.ExactFront) -> set[tuple[float, ...]]:
    """Costs and parameters of every design of a front."""
    return {*map(tuple, np.column_stack([front.costs, *front.designs.values()]).tolist())}


def test_listing_is_the_front_of_all_designs(layouts, usual):
    columns = next(iter(layouts.legal.enumerate(10_000)))
    evaluation = evaluate(layouts, columns)
    costs = costs_of(layouts, evaluation)
    assert members(usual) == {*map(tuple, np.column_stack([costs, *columns.values()])[non_dominated(costs)].tolist())}
    assert usual.legal == usual.evaluated == evaluation.num_points
    assert usual.infeasible == (~evaluation.feasible).sum() == usual.broken["fits_in_memory"]
    assert usual.costs[usual.best["peak_memory"], 1] == np.nanmin(costs[:, 1])


@pytest.fixture(scope="module")
def usual(layouts):
    """The front of all layouts, listed."""
    return exact_front(layouts)


def same(one, other) -> bool:
    """True if two fronts hold the same bits and counts."""
    bits = [{name: values.tobytes() for name, values in front.designs.items()} for front in (one, other)]
    return bits[0] == bits[1] and one.costs.tobytes() == other.costs.tobytes() and one.broken == other.broken


@pytest.mark.parametrize(("step", "chunk", "jobs"), [(2340, 2340, 2), (700, 300, 1), (64, 64, 2)])
def test_who_lists_and_in_what_pieces_changes_nothing(layouts, usual, monkeypatch, step, chunk, jobs):
    monkeypatch.setattr(exact, "STEP", step)
    monkeypatch.setattr(enumeration, "CHUNK", chunk)
    actual = exact_front(layouts, workers=Workers(jobs), best=usual.costs[0].tolist())
    assert same(actual, usual)
    assert actual.tally.better[0] == 0 < actual.tally.better[1]


def test_an_interrupted_listing_keeps_what_it_has(layouts, usual, monkeypatch):
    """The front of the designs that were evaluated, if asked for; else the interruption passes."""
    monkeypatch.setattr(exact, "STEP", 500)
    monkeypatch.setattr(exact, "CHUNK", 500)

    def interrupted(headway: Headway) -> None:
        if headway.evaluated >= 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exact_front(layouts, progress=interrupted)
    actual = exact_front(layouts, progress=interrupted, partial_too=True)
    assert (actual.is_partial, actual.evaluated, actual.legal) == (True, 1000, 2340)
    assert not usual.is_partial
    assert all((usual.costs <= cost).all(axis=1).any() for cost in actual.costs)


@pytest.mark.parametrize("name", ["gpt_1t_codesign", "gpt_1t_power_split"])
def test_what_bounds_take_for_granted(name):
    """More of one quantity, the others as they were, is not slower by a bit, and no layout holds more."""
    space, rng = Space.load(name), np.random.default_rng(0)
    pricer, columns = Pricer.of(space), space.known_values(space.legal.random(400, rng))
    before = bounds.breakdown_of(pricer, columns)
    for quantity in {*space.system.never_slower()} & {*space.by_name, *(d.name for d in space.derived)}:
        more = np.ceil(columns[quantity] * rng.uniform(1.01, 3, 400))
        actual = bounds.breakdown_of(pricer, {**columns, quantity: more})
        assert (actual.step_time <= before.step_time).all(), quantity
        for column in ("tokens_per_second", "system_price", "system_power"):
            assert (getattr(actual, column) >= getattr(before, column)).all(), (quantity, column)
        for column in bounds.OF_LAYOUTS:
            assert (getattr(actual, column) == getattr(before, column)).all(), (quantity, column)


OPEN_LINKS = cases(__file__, "OPEN_LINKS")
#: Spaces whose bounds no formula proves: machines decide the memory of solved shardings, too.
UNPROVED = {
    "zero 3": lambda: Space.from_text(OPEN_LINKS.replace("zero: 0", "zero: 3")),
    "energy": lambda: Space.from_text(OPEN_LINKS).with_objectives(["step_time", "energy_per_step"]),
    "work": lambda: Space.from_text(OPEN_LINKS).with_objectives(["maximize:mfu", "compute_energy"]),
    "solved": lambda: Space.load("gpt3_175b_codesign").pinned(cases(__file__, "PINS")),
}


@pytest.mark.parametrize("seed", [*range(2, 6), *UNPROVED])
def test_bounds_rule_out_nothing_of_the_front(seed, monkeypatch):
    monkeypatch.setattr(branching, "CHECKS", 100)
    space = UNPROVED[seed]() if seed in UNPROVED else random_space(seed)
    everything, bounded = exact_front(space, method="list"), exact_front(space, method="bounds")
    assert members(bounded) == members(everything) != set()
    assert bounded.proof == ("numerical bounds" if seed in UNPROVED else "bounds")
    problem, known = bounds.problem_of(Pricer.of(space)), np.empty((0, len(space.objectives)))
    best = branching.Search(problem, Workers(), branching.start(problem), known, branching.LeastCosts)
    best.run()
    assert best.costs.min(axis=0).tolist() == everything.costs.min(axis=0).tolist()


@pytest.mark.slow
def test_the_way_through_the_boxes_changes_nothing(monkeypatch):
    """Neither which boxes come first, nor what is known early, nor who evaluates their corners."""
    space = random_space(2)
    usual = exact_front(space, method="bounds")
    monkeypatch.setattr(branching, "MOST_BOXES", 64)
    monkeypatch.setattr(branching, "MOST_PROBES", 1)
    monkeypatch.setattr(branching, "WORTH_SENDING", 100)
    assert same(exact_front(space, method="bounds", workers=Workers(2)), usual)


@pytest.mark.slow
def test_bounds_evaluate_few_designs_of_many():
    data = dict(random_space(4).data)
    open_machine = {name: options for name, options in OPEN.items() if name.endswith(("width", "capacity", "clock"))}
    data["parameters"] = {**data["parameters"], **open_machine}
    space = Space.from_text(dump(data))
    actual = exact_front(space, method="bounds")
    assert actual.infeasible is None
    assert actual.evaluated < space.legal.count / 4


@pytest.mark.parametrize("change", [{"objectives": {"minimize": ["step_time", "average_power"]}},
                                    {"given": {"global_batch_size": 3072, "tiling": "sample"}}])  # fmt: skip
def test_where_nothing_bounds_designs_they_have_to_be_listed(change):
    data = {**Space.load("gpt_1t_codesign").data, **change}
    with pytest.raises(DseError, match="with method list"):
        exact_front(Space.from_text(dump(data)), method="bounds")
    with pytest.raises(DseError, match="too many to evaluate"):
        exact_front(Space.from_text(dump(data)))


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_an_index_of_a_front_beats_what_its_points_beat(objectives):
    """Against all pairs; costs from few values, so that many are equal."""
    rng = np.random.default_rng(objectives)
    costs = rng.integers(0, 12, (3000, objectives)).astype(float)
    front = np.unique(costs[: 300 * objectives][non_dominated(costs[: 300 * objectives])], axis=0)
    beaten = [any((f <= c).all() and (f < c).any() for f in front) for c in costs]
    assert FrontIndex(front).beats(costs).tolist() == beaten
    assert not FrontIndex(front[:0]).beats(costs).any()


def test_a_design_that_breaks_its_bound_ends_the_trust_in_bounds(monkeypatch):
    space = Space.from_text(OPEN_LINKS)
    front = exact_front(space, method="list").costs
    np.testing.assert_array_equal(exact_front(space, method="bounds").costs, front)
    honest = bounds.Problem.bounds

    def too_high(problem, boxes):
        costs, possible = honest(problem, boxes)
        return 1.5 * costs, possible

    monkeypatch.setattr(bounds.Problem, "bounds", too_high)
    with pytest.raises(DseError, match="enumerate it with method list"):
        exact_front(space, method="bounds")
