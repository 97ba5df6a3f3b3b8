"""Fronts and hypervolumes, against definitions that are too slow to use."""

import numpy as np
import pytest

from dse.fronts import Box, as_costs, history, hypervolume, non_dominated, shortfalls


def beaten(point, others):
    return any((other <= point).all() and (other < point).any() for other in others)


@pytest.mark.parametrize("objectives", [1, 2, 3, 4, 5])
def test_front_is_what_the_definition_says(objectives):
    """Of few levels, so that many rows share a value with others, or are duplicates."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for size, levels in ((1, 6), (2, 6), (7, 6), (60, 6), (40, 3), (40, 3)):
            costs = 1.0 * rng.integers(0, levels, (size, objectives))
            no_worse, better = costs[:, None] <= costs, costs[:, None] < costs
            dominated = (no_worse.all(axis=2) & better.any(axis=2)).any(axis=0)
            assert (non_dominated(costs) == ~dominated).all()


@pytest.mark.parametrize("objectives", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_front_of_many_points_beats_the_rest_and_not_itself(objectives):
    """Enough points that most are sieved out; of points in a plane, all stay."""
    rng = np.random.default_rng(objectives)
    costs = np.round(rng.random((9_000, objectives)), 2)
    costs[::500, -1] = np.inf
    kept = non_dominated(costs)
    assert all(beaten(point, costs[kept]) for point in costs[~kept][::50])
    assert not any(beaten(point, costs) for point in costs[kept][::7])
    plane = 1.0 * rng.integers(0, 1000, (9_000, objectives))
    plane[:, -1] = -plane[:, :-1].sum(axis=1)
    assert non_dominated(plane).all()


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_a_point_is_not_beaten_once_its_shortfall_is_taken_off(objectives):
    rng = np.random.default_rng(objectives)
    front, points = rng.random((50, objectives)), rng.random((1000, objectives))
    for point, shortfall in zip(points, shortfalls(points, front), strict=True):
        assert not (front < point - shortfall - 1e-12).all(axis=1).any()
        assert (front < point - shortfall + 1e-12).all(axis=1).any()


def test_infeasible_points_are_never_on_the_front():
    assert non_dominated(np.empty((0, 2))).tolist() == []
    assert non_dominated(np.array([[np.nan, np.nan], [3.0, 3.0]])).tolist() == [False, True]


def test_more_is_better_where_an_objective_is_maximized():
    values = np.array([[1.0, 10.0], [1.0, 20.0]])
    assert non_dominated(as_costs(values, ["minimize", "maximize"])).tolist() == [False, True]


def test_points_beyond_the_reference_add_nothing():
    assert hypervolume(np.array([[4.0, 0.0], [1.0, 1.0]]), np.array([3.0, 3.0])) == 4


@pytest.mark.parametrize("objectives", [1, 2, 3, 4, 5])
def test_hypervolume_is_the_measure_of_the_union_of_boxes(objectives):
    """Inclusion and exclusion over every subset of points: exact, and exponential."""
    points = np.random.default_rng(objectives).random((8, objectives))
    reference = np.full(objectives, 1.1)
    union = 0.0
    for subset in range(1, 2 ** len(points)):
        members = [i for i in range(len(points)) if subset >> i & 1]
        corner = points[members].max(axis=0)
        union += (-1) ** (len(members) + 1) * np.prod(reference - corner)
    assert hypervolume(points, reference) == pytest.approx(union, rel=1e-9)


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_history_is_the_hypervolume_of_each_prefix(objectives):
    points = np.round(np.random.default_rng(objectives).random((30, objectives)), 1)  # few levels: ties
    points[[3, 17]] = np.nan  # infeasible
    reference = np.ones(objectives)
    prefixes = [hypervolume(points[: i + 1][~np.isnan(points[: i + 1, 0])], reference) for i in range(30)]
    assert history(points, reference) == pytest.approx(prefixes)


def test_a_box_scales_its_corners_to_zero_and_one():
    box = Box.around(np.array([[1.0, 400.0], [3.0, 200.0]]))
    assert box.hypervolume(np.array([[1.0, 200.0]])) == 1
    assert box.hypervolume(np.array([[2.0, 300.0]])) == 0.25
    assert box.hypervolume(np.array([[3.0, 400.0]])) == 0
