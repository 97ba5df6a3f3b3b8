"""Designs that climb: each moves to its best neighbour by a goal of its own, until none is better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.random import Generator

from costmodel.columns import FloatArray, IntArray
from dse.fronts.pareto import low_and_span

#: Share of climbers that seek one objective alone.
SINGLE: Final = 0.5
#: Concentration of the weights of the others: below 1, most of them favour some objectives.
CONCENTRATION: Final = 0.7
#: Share of the weighted sum beside the largest term in a goal.
SUM_SHARE: Final = 0.1
#: Score of a design that breaks limits, before by how much: worse than any that keeps them.
BROKEN: Final = 1e6
#: Designs at random of which a climber starts from the best.
STARTS_EACH: Final = 16


@dataclass(frozen=True, slots=True)
class Climbers:
    """Where some climbers are, and what they seek.

    A goal is the largest weighted objective and a little of their sum [Steuer1983]_, where the front's span
    of each objective is 1; before it come the limits, by how much they are broken.
    """

    places: FloatArray  #: (climbers, parameters)
    costs: FloatArray  #: (climbers, objectives), NaN where infeasible [the unit of each]
    violations: FloatArray  #: (climbers,) of limits [-]
    weights: FloatArray  #: (climbers, objectives) [-]

    @classmethod
    def empty(cls, parameters: int, objectives: int) -> Self:
        """Table without climbers."""
        none = np.empty((0, objectives))
        return cls(np.empty((0, parameters)), none, np.empty(0), none)

    def columns(self) -> tuple[FloatArray, ...]:
        """Columns of the table, a row for each climber."""
        return self.places, self.costs, self.violations, self.weights

    @classmethod
    def starting(
        cls,
        count: int,
        places: FloatArray,
        costs: FloatArray,
        violations: FloatArray,
        front: FloatArray,
        rng: Generator,
    ) -> Self:
        """New climbers, each at the best of a few designs by a goal at random."""
        weights = drawn_weights(count, costs.shape[1], rng)
        some = rng.integers(len(places), size=(count, STARTS_EACH))
        best = scores(costs[some], violations[some], weights[:, None], front).argmin(axis=1)
        rows = some[np.arange(count), best]
        return cls(places[rows], costs[rows], violations[rows], weights)

    def aimed(self, rng: Generator) -> Climbers:
        """Climbers of the same designs, with other goals at random."""
        return replace(self, weights=drawn_weights(len(self.weights), self.weights.shape[1], rng))

    def stepped(
        self,
        parents: IntArray,
        near: tuple[FloatArray, FloatArray, FloatArray],
        fresh: tuple[FloatArray, FloatArray, FloatArray],
        front: FloatArray,
        rng: Generator,
    ) -> Climbers:
        """The climbers a step further; who finds no better neighbour starts again from a fresh design."""
        count = len(self.places)
        nearby = scores(near[1], near[2], self.weights[parents], front)
        order = np.lexsort((nearby, parents))
        first = order[np.unique(parents[order], return_index=True)[1]]
        own = parents[first]
        better = nearby[first] < scores(self.costs, self.violations, self.weights, front)[own]
        again = Climbers.starting(count, *fresh, front, rng)
        places, costs, violations, weights = again.places, again.costs, again.violations, again.weights
        rows, own = first[better], own[better]
        places[own], costs[own], violations[own] = near[0][rows], near[1][rows], near[2][rows]
        weights[own] = self.weights[own]
        return Climbers(places, costs, violations, weights)


def drawn_weights(count: int, objectives: int, rng: Generator) -> FloatArray:
    """(count, objectives) Weights of goals at random; a share of them seek one objective. [-]"""
    mixed = rng.dirichlet(np.full(objectives, CONCENTRATION), count)
    single = np.eye(objectives)[rng.integers(objectives, size=count)]
    return np.where(rng.random((count, 1)) < SINGLE, single, mixed)


def scores(costs: FloatArray, violations: FloatArray, weights: FloatArray, front: FloatArray) -> FloatArray:
    """Score of designs by goals, less is better; arrays broadcast, objectives last. [-]"""
    low, span = low_and_span(front) if len(front) else (0.0, 1.0)
    weighted = weights * ((costs - low) / span)
    score = weighted.max(axis=-1) + SUM_SHARE * weighted.sum(axis=-1)
    return np.where(np.isnan(score), BROKEN + violations, score)
