"""Groups of nodes: ties, sizes of the search and its limits; test_dfmodel_mapping.py tries every grouping."""

import itertools

import numpy as np
import pytest

from costmodel.errors import DseError
from dse.adapters.dfmodel.layer import layer_graph
from dse.adapters.dfmodel.mapping import cheapest, groupings, shortened, windows

NODES = 6


def random_edges(rng, nodes=NODES, share=0.4):
    """Edges of a graph without cycles."""
    pairs = [pair for pair in itertools.combinations(range(nodes), 2) if rng.random() < share]
    return np.array(pairs, dtype=np.intp).reshape(-1, 2).T


def every_grouping(start, end, first, last):
    """All ways to give nodes groups within their windows, no edge leading back."""
    for member in itertools.product(*(range(a, b + 1) for a, b in zip(first, last, strict=True))):
        if all(member[s] <= member[e] for s, e in zip(start, end, strict=True)):
            yield member


def sets_of(member):
    """Nodes of each group that is not empty, as they are in the groupings."""
    return [tuple(m == group for m in member) for group in sorted(set(member))]


@pytest.mark.parametrize("seed", range(40))
def test_windows_are_the_groups_that_nodes_have_in_any_grouping(seed):
    """Windows of some nodes are narrower; they cross where no grouping is left."""
    rng = np.random.default_rng(seed)
    start, end = random_edges(rng)
    count = int(rng.integers(1, 5))
    given_first = np.where(rng.random(NODES) < 0.2, rng.integers(0, count, NODES), 0)
    given_last = np.where(rng.random(NODES) < 0.2, rng.integers(0, count, NODES), count - 1)
    legal = np.array([*every_grouping(start, end, given_first, given_last)])
    first, last = windows(start, end, given_first, given_last)
    assert (legal.size > 0) == (first <= last).all()
    if legal.size:
        assert [first.tolist(), last.tolist()] == [legal.min(axis=0).tolist(), legal.max(axis=0).tolist()]


@pytest.mark.parametrize("seed", range(20))
def test_equally_cheap_groupings_the_fewest_groups_then_the_smallest_last_ones(seed):
    rng = np.random.default_rng(seed)
    start, end = random_edges(rng)
    actual = groupings(start, end, np.zeros(NODES, int), np.full(NODES, 3), 4)
    costs = rng.integers(0, 3, len(actual.sets)) / 7  # sums of sevenths round
    price = dict(zip(map(tuple, actual.sets.tolist()), costs, strict=True))
    ranked = [
        (round(7 * sum(price[nodes] for nodes in sets_of(m))), len(set(m)), [m.count(g) for g in (3, 2, 1)])
        for m in every_grouping(start, end, [0] * NODES, [3] * NODES)
    ]
    _, member = cheapest(actual, costs)
    chosen = tuple(member.tolist())
    cost = round(7 * sum(price[nodes] for nodes in sets_of(chosen))), len(set(chosen))
    assert cost == min(rank[:2] for rank in ranked)
    assert [chosen.count(g) for g in (3, 2, 1)] == min(sizes for *rank, sizes in ranked if tuple(rank) == cost)


@pytest.mark.parametrize(("backward", "ideals", "pairs"), [(False, 26, 301), (True, 1146, 120_755)])
def test_ideals_of_the_halves_of_a_transformer_layer(backward, ideals, pairs):
    """Counted by the reference's own analysis: 26 forward with 301 nested pairs, 1,146 backward."""
    graph = layer_graph(64, 4, 32)
    half = np.flatnonzero(graph.backward == backward)
    inside = np.isin(graph.start, half) & np.isin(graph.end, half)
    start, end = (np.searchsorted(half, nodes[inside]) for nodes in (graph.start, graph.end))
    actual = groupings(start, end, np.zeros(half.size, int), np.full(half.size, 2), 3)
    middle = actual.steps[1]
    assert len(middle.later) == ideals
    assert np.sum(middle.nodes > 0) == pairs


@pytest.mark.parametrize("seed", range(10))
def test_groups_more_than_there_are_nodes_for_make_no_other_groupings(seed):
    """Twelve groups for three nodes: fewer are tried, and nothing is lost."""
    rng = np.random.default_rng(seed)
    start, end = random_edges(rng, nodes=3)
    first, last = rng.integers(0, 4, 3), rng.integers(6, 12, 3)
    first, last = windows(start, end, first, last)
    *short, count = shortened(first, last, 12)
    assert count < 12
    assert {tuple(sets_of(member)) for member in every_grouping(start, end, *short)} == {
        tuple(sets_of(member)) for member in every_grouping(start, end, first, last)
    }


def test_nodes_without_edges_are_refused_when_there_are_many():
    with pytest.raises(DseError, match="kernels are too loosely connected: more than 7,071 possible orders"):
        groupings(*np.zeros((2, 0), int), np.zeros(20, int), np.full(20, 1), 2)
