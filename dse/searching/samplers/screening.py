"""Finds the designs of a batch of trials by bulk pricing: hundreds are priced for each that becomes a trial.

Each round prices a few thousand designs in one call: neighbours of the front's designs, crossings of them, steps of
climbers, each of which seeks a goal of its own, and designs at random, from which climbers start again where no step
is better. In the end the best design of each objective is polished until no neighbour beats it. A space of few designs
is priced whole. What was found is an `Archive`, from which the next batch goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from costmodel.columns import BoolArray, FloatArray
from dse.searching.samplers.archive import Archive, Climbers, least_beaten
from dse.spaces.lattice import Lattice, Move, hashes

#: Most designs priced in one call: enough to drown Python's overhead, few enough to learn from each.
ROUND: Final = 3072
#: Share of the first batch's designs that are drawn at random, before anything is known.
DRAWN: Final = 0.15
#: Shares of a round that are steps of climbers, crossings, and designs at random; the others are neighbours.
CLIMBING, CROSSED, FRESH = 0.3, 0.25, 0.1
#: Spaces of at most so many times the designs of a batch are priced whole.
WHOLE: Final = 4

#: Most designs priced for polishing beyond single options, over those of the batch.
POLISHED: Final = 4
#: Most designs as good as the best of an objective that are looked around as well.
MOST_EQUAL: Final = 4

#: Prices designs given as places: costs, less is better, NaN where infeasible; and violations of limits, or
#: where none is broken less than 0 by the least margin.
Price = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
#: Which of some designs, given as places.
Chosen = Callable[[FloatArray], BoolArray]
#: Designs with their costs and violations.
Priced = tuple[FloatArray, FloatArray, FloatArray]


class Screening:
    """The search for the designs of one batch."""

    def __init__(
        self,
        lattice: Lattice,
        price: Price,
        archive: Archive,
        budget: int,
        rng: Generator,
        preferred: Chosen | None = None,
        polished: Iterable[int] | None = None,
        rounds: int = 2,
    ) -> None:
        self.lattice = lattice
        self.price = price
        self.archive = archive
        self.budget = budget
        self.rng = rng
        self.preferred = preferred
        self.polished = range(archive.costs.shape[1]) if polished is None else polished
        self.priced = 0  #: designs so far
        self._size = min(ROUND, max(budget // rounds, 1))  # of a round
        self._moves: tuple[Move, ...] = (*lattice.one_step, *lattice.swaps)
        self._known: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._all: list[Priced] = []
        self._whole = lattice.space.legal.count <= WHOLE * budget

    def run(self, reserve: int, starts: FloatArray) -> Archive:
        """Spend the budget; what is found then, with so many designs in reserve where the front is small."""
        if self.archive.complete:
            return self.archive
        self._noted(starts)
        if self._whole:
            for columns in self.lattice.space.legal.enumerate(4 * ROUND):
                self._noted(self.lattice.places(columns))
            self.archive = replace(self.archive, complete=True)
        else:
            if not len(self.archive.climbers.places):
                self._draw()
            while self.priced < self.budget - self._size // 2:
                self._round()
            self._polish()
        return replace(self.archive.thinned(), reserve=self._reserve(reserve))

    def _noted(self, places: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Costs and violations of designs, which are kept where nothing beats them."""
        if not len(places):
            return np.empty((0, self.archive.costs.shape[1])), np.empty(0)
        costs, violations = self.price(places)
        self.priced += len(places)
        self._all.append((places, costs, violations))
        self.archive = self.archive.joined(places, costs, ties=self._whole)
        return costs, violations

    def _new(self, places: FloatArray) -> FloatArray:
        """Designs among some that no round of this batch has had, each once."""
        keys = hashes(places)
        first = np.unique(keys, return_index=True)[1]
        at = np.searchsorted(self._known, keys[first])
        known = at < self._known.size
        known[known] = self._known[at[known]] == keys[first][known]
        new = np.sort(first[~known])
        self._known = np.sort(np.concatenate([self._known, keys[new]]), kind="stable")  # both are in order
        return places[new]

    def _draw(self) -> None:
        """Designs at random, and climbers that start from some of them."""
        most = max(int(self.budget * DRAWN), 1)
        for start in range(0, most, self._size):
            self._noted(self._new(self.lattice.random(min(self._size, most - start), self.rng)))
        count = max(1, int(self._size * CLIMBING) // max(len(self._moves), 1))
        climbers = Climbers.starting(count, *joined(self._all), self.archive.costs, self.rng)
        self.archive = replace(self.archive, climbers=climbers)

    def _round(self) -> None:
        """Price in one call steps of climbers, neighbours and crossings of the front, and random designs."""
        climbers = self.archive.climbers
        steps, parents = self.lattice.moved(climbers.places, self._moves)
        others = self._new(np.concatenate([self._near(), self._crossings()]))
        free = max(int(self._size * FRESH), self._size - len(steps) - len(others), 1)
        places = np.concatenate([steps, others, self.lattice.random(free, self.rng)])
        costs, violations = self._noted(places)
        ends = np.cumsum([len(steps), len(others)])
        parts = list(zip(*(np.split(column, ends) for column in (places, costs, violations)), strict=True))
        climbers = climbers.stepped(parents, parts[0], parts[2], self.archive.costs, self.rng)
        self.archive = replace(self.archive, climbers=climbers)

    def _near(self) -> FloatArray:
        """Neighbours of some designs of the front whose neighbours are not priced yet."""
        unexplored = self.rng.permutation(np.flatnonzero(self.archive.explored == 0))
        most = int(self._size * (1 - CLIMBING - CROSSED - FRESH)) // max(len(self._moves), 1)
        if self.preferred:
            unexplored = unexplored[np.argsort(~self.preferred(self.archive.places[unexplored]), kind="stable")]
        parents = unexplored[: max(most, 1)]
        self.archive.explored[parents] = 1
        return self.lattice.moved(self.archive.places[parents], self._moves)[0]

    def _crossings(self) -> FloatArray:
        """Children of designs of the front; the best of each objective have many."""
        front = self.archive
        best = front.costs.argmin(axis=0) if len(front.costs) else np.empty(0, dtype=np.intp)
        return self.lattice.crossed(front.places, best, int(self._size * CROSSED), self.rng)

    def _polish(self) -> None:
        """Move the best design of each objective until no option, pair of steps or component is better.

        Pairs of steps, and other values of a whole component, are also tried from designs that are as good by
        one other option, those with most room below their limits first: more memory, say, lets layouts be
        feasible that were not. Where few designs
        are priced for a batch, since they are dear, some pairs and combinations are left out by chance.
        """
        most = self.priced + POLISHED * self.budget
        for objective in self.polished:
            while len(self.archive.costs) and self.priced < most:
                best = int(self.archive.costs[:, objective].argmin())
                if self.archive.explored[best] == 2:
                    break
                self.archive.explored[best] = 2
                here, cost = self.archive.places[[best]], self.archive.costs[best, objective]
                options, _ = self.lattice.moved(here, self.lattice.lines)
                costs, tightest = self._noted(options)
                equal = np.flatnonzero(costs[:, objective] == cost)
                roomy = equal[np.argsort(tightest[equal], kind="stable")][:MOST_EQUAL]
                starts = np.concatenate([here, options[roomy]])
                self._noted(self._some(self.lattice.moved(starts, self.lattice.pairs)[0], most))
                for start in starts[:2]:
                    if self.archive.costs[:, objective].min() == cost:
                        self._noted(self._some(self.lattice.blocks(start[np.newaxis]), most))

    def _some(self, places: FloatArray, most: int) -> FloatArray:
        """New designs among some; by chance where there are more than may be priced, `most` in all."""
        left = max(most - self.priced, 0)
        new = self._new(places) if left else places[:0]
        return new if len(new) <= left else self.rng.permutation(new)[:left]

    def _reserve(self, n: int) -> FloatArray:
        """The designs next to the front; where nothing is feasible, those next to feasibility."""
        if int((~self.archive.sent).sum()) >= n or not self._all:
            return self.archive.reserve
        places, costs, violations = joined(self._all)
        if not len(self.archive.places):
            return places[np.argsort(violations, kind="stable")[:n]]
        front = {row.tobytes() for row in self.archive.places}
        rows = least_beaten(costs, self.archive.costs, n + len(front))
        return places[[row for row in rows if places[row].tobytes() not in front]][:n]


def joined(parts: Iterable[Priced]) -> Priced:
    """Designs of several calls as one table."""
    places, costs, violations = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return places, costs, violations
