"""The exact assignment against trying everything, on random graphs."""

import itertools

import numpy as np
import pytest

from costmodel.errors import DseError
from costmodel.solve import optima, optimum


def every_assignment(costs, links):
    """Least cost, how often, and the first with it, by trying all."""
    totals = {
        choices: sum(cost[c] for cost, c in zip(costs, choices, strict=True))
        + sum(pairs[choices[node], choices[other]] for node, other, pairs in links)
        for choices in itertools.product(*(range(cost.size) for cost in costs))
    }
    least = min(totals.values())
    best = [choices for choices, total in totals.items() if total == least]
    return least, len(best), best[0]


@pytest.mark.parametrize("seed", range(25))
def test_any_graph_agrees_with_trying_everything(seed):
    """Cost, number of ties, and the tie-break: the first in the order of nodes and options."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, size=7)
    costs = [rng.integers(0, 3, size=size).astype(float) for size in sizes]
    pairs = [(int(a), int(b)) for a, b in rng.integers(0, 7, size=(9, 2))]  # parallel ones and loops too
    links = [(a, b, rng.integers(0, 3, size=(sizes[a], sizes[b])).astype(float)) for a, b in pairs]
    least, count, first = every_assignment(costs, links)
    actual = optimum(costs, links)
    assert (actual.cost, actual.count, actual.choices) == (least, count, first)


@pytest.mark.parametrize("seed", range(10))
def test_many_graphs_at_once_are_each_by_itself(seed):
    """Whole numbers, so that there are ties, and infinite costs of options that are not open."""
    rng = np.random.default_rng(seed)
    sizes, points = rng.integers(1, 4, size=6), 20
    costs = [rng.integers(0, 3, size=(size, points)).astype(float) for size in sizes]
    costs[0][0, ::3] = np.inf if sizes[0] > 1 else 0.0
    pairs = [(node, int(other)) for node in range(6) for other in rng.integers(max(node - 2, 0), 6, size=2)]
    links = [(a, b, rng.integers(0, 3, size=(sizes[a], sizes[b], points)).astype(float)) for a, b in pairs]
    least, choices = optima(costs, links)
    for point in range(points):
        alone = optimum([cost[:, point] for cost in costs], [(a, b, cost[..., point]) for a, b, cost in links])
        assert (least[point], tuple(choices[:, point])) == (alone.cost, alone.choices)


def test_a_long_chain_is_as_cheap_as_its_width():
    """2^200 assignments, of which two are best: all nodes alike."""
    differ = np.array([[0.0, 1.0], [1.0, 0.0]])
    actual = optimum([np.zeros(2)] * 200, [(node, node + 1, differ) for node in range(199)])
    assert (actual.cost, actual.count, set(actual.choices)) == (0.0, 2, {0})


def test_a_graph_too_dense_is_refused():
    links = [(a, b, np.ones((5, 5))) for a, b in itertools.combinations(range(12), 2)]
    with pytest.raises(DseError, match="too densely connected"):
        optimum([np.zeros(5)] * 12, links)
