"""Points chosen to stand for a front, against a search of every point at every step."""

import numpy as np
import pytest

from dse.fronts import Undominated, hypervolume, most_dominating


def gain(point, others, reference):
    return hypervolume(np.vstack([others, point]), reference) - hypervolume(others, reference)


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_each_choice_adds_the_most_there_is(objectives):
    rng = np.random.default_rng(objectives)
    reference = np.full(objectives, 0.9)
    for beside in (None, rng.random((7, objectives))):
        costs = rng.random((40, objectives))
        covered = np.empty((0, objectives)) if beside is None else beside
        rows = most_dominating(costs, 12, reference, beside)
        for row in rows:
            gains = [gain(point, covered, reference) for point in costs]
            assert gains[row] == pytest.approx(max(gains), rel=1e-9)
            covered = np.vstack([covered, costs[row]])
        if len(rows) < 12:
            everything = hypervolume(np.vstack([covered, costs]), reference)
            assert hypervolume(covered, reference) == pytest.approx(everything, rel=1e-12)


def test_all_that_adds_something_is_chosen_in_the_end_and_nothing_else():
    costs = np.array([[3.0, 1.0], [1.0, 3.0], [2.0, 2.0], [2.0, 2.0], [2.5, 2.5], [0.0, 4.0], [np.nan, 0.0]])
    assert all(most_dominating(unit * costs, 9, np.full(2, 4 * unit)).tolist() == [2, 1, 0] for unit in (1.0, 1e200))
    assert most_dominating(costs, 9, np.array([4.0, 4.0]), existing=costs[:1]).tolist() == [1, 2]
    assert most_dominating(costs[:0], 9, np.array([4.0, 4.0])).tolist() == []


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_points_take_from_what_is_undominated_what_they_add(objectives):
    """All points from the start, or one after the other, with ties among their levels."""
    rng = np.random.default_rng(objectives)
    points, reference = np.round(rng.random((60, objectives)), 1), np.full(objectives, 0.95)
    probes = np.round(rng.random((30, objectives)), 1)
    start, grown = Undominated(reference, points), Undominated(reference)
    for point in points[(points < reference).all(axis=1)]:
        grown.add(point)
    expected = [gain(probe, points, reference) for probe in probes]
    inside = (probes < reference).all(axis=1)
    np.testing.assert_allclose(start.gains(probes)[inside], np.array(expected)[inside], atol=1e-12)
    np.testing.assert_allclose(grown.gains(probes), start.gains(probes), atol=1e-12)
