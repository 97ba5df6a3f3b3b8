"""Combinations of components are those that an enumeration of all finds."""

from itertools import product

import numpy as np
import pytest

from dse.searching.samplers.knapsack import combined, paired


@pytest.mark.parametrize("seed", range(20))
def test_the_best_combination_within_the_limits_is_among_them(seed):
    rng = np.random.default_rng(seed)
    changes = [rng.normal(size=(rows, 3)) for rows in (5, 7, 9, 4)]
    for change in changes:
        change[0] = 0  # the design itself
    room = rng.uniform(-1 if seed % 2 else 0, 1, 2)  # a design that breaks a limit needs no better objective
    every = np.array([*product(*(range(len(change)) for change in changes))])
    totals = sum(change[rows] for change, rows in zip(changes, every.T, strict=True))
    within = (totals[:, 1:] <= room).all(axis=1) & ((totals[:, 0] < 0) | (room < 0).any())
    assert within.any()
    actual = {*map(tuple, combined(changes, room, len(changes)).tolist())}
    assert tuple(every[np.where(within, totals[:, 0], np.inf).argmin()].tolist()) in actual
    costs = np.where(within & ((every > 0).sum(axis=1) <= 2), totals[:, 0], np.inf)
    two = {*map(tuple, paired(changes, room, 64).tolist())}
    assert np.isinf(costs.min()) or tuple(every[costs.argmin()].tolist()) in two
