"""Inner searches: the exact parameters of a space are tried whole for each design that a sampler proposes.

A sampler proposes outer designs. All of their legal inner designs are evaluated in bulk, and the nondominated ones, the
winners, represent the outer design. One of them, the representative, becomes the trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.rules.rules import WorkloadRules
from dse.fronts import Box, Undominated, as_costs, most_dominating, non_dominated
from dse.pricing.evaluation import evaluate
from dse.pricing.workers import Jobs
from dse.searching.samplers.screening_sampler import corner
from dse.spaces.exact_parameters import OuterDesigns
from dse.spaces.space import Batch, Params, Space
from dse.storage.trial_columns import TrialColumns

#: Trial attribute: the winners other than the representative, their inner parameters and their values.
WINNERS: Final = "winners"
#: Most winners that a trial keeps in addition to the representative. [-]
MOST_WINNERS: Final = 64


@dataclass(frozen=True)
class WholeDesign:
    """The design of a trial, and the winners found with it."""

    params: Params
    winners: list[dict[str, Any]] = field(default_factory=list)  #: the others, as the trial keeps them
    evaluated: int = 0  #: inner designs


@dataclass(frozen=True, slots=True)
class Candidates:
    """Inner designs of one outer design."""

    designs: Batch
    costs: FloatArray  #: (designs, objectives), less is better, NaN where infeasible [the unit of each]
    violations: FloatArray  #: (designs,) of limits [-]

    def joined(self, other: Candidates) -> Candidates:
        """Designs of both together."""
        return Candidates(
            {name: np.concatenate([values, other.designs[name]]) for name, values in self.designs.items()},
            np.concatenate([self.costs, other.costs]),
            np.concatenate([self.violations, other.violations]),
        )

    def best(self) -> Candidates:
        """Designs that none beats, of equal costs the first; where none is feasible, the nearest to it."""
        rows = np.flatnonzero(non_dominated(self.costs))
        rows = rows[np.unique(self.costs[rows], axis=0, return_index=True)[1]]
        return self.take(rows if rows.size else np.argsort(self.violations, kind="stable")[:1])

    def take(self, rows: IntArray | slice) -> Candidates:
        """Some of the designs."""
        designs = {name: values[rows] for name, values in self.designs.items()}
        return Candidates(designs, self.costs[rows], self.violations[rows])


class InnerSearch:
    """Finds the best inner designs of outer ones, and remembers those of a study."""

    def __init__(self, space: Space, rules: WorkloadRules, box: Box, batch_size: int, concurrency: int) -> None:
        self.space = space
        self.rules = rules
        self.box = box
        self.batch_size = batch_size
        self.concurrency = concurrency
        #: Costs of the front before the first batch, after it, and so on; old ones are forgotten.
        self._fronts = {-1: np.empty((0, len(space.objectives)))}
        self._tail: list[FloatArray] = []  # costs that each trial of the batch in progress has found

    def learn(self, fronts: Sequence[FloatArray]) -> None:
        """Record the winners of some trials: their values, (winners, objectives) each."""
        self._tail += [as_costs(values, self.space.directions) for values in fronts]
        while len(self._tail) >= self.batch_size:
            last, front = max(self._fronts.items())
            costs = np.unique(np.concatenate([front, *self._tail[: self.batch_size]]), axis=0)
            self._fronts[last + 1], self._tail = costs[non_dominated(costs)], self._tail[self.batch_size :]
            self._fronts.pop(last - self.concurrency, None)

    def whole(self, proposals: Sequence[Params], jobs: Jobs, *, base: int, begun: bool) -> list[WholeDesign]:
        """The designs that some outer ones become, one after the other: each counts for those after it."""
        # The same boxes wherever a batch was interrupted, so that sums round alike.
        front = self._fronts[base]
        left = Undominated(self.box.reference, front)
        for cost in np.concatenate([front[:0], *(self._tail if begun else ())]):
            left.add(cost)
        candidates, evaluated = self._candidates(proposals, jobs)
        pairs = zip(candidates, evaluated.tolist(), strict=True)
        return [self._represented(of_proposal, left, n) for of_proposal, n in pairs]

    def _candidates(self, proposals: Sequence[Params], jobs: Jobs) -> tuple[list[Candidates], IntArray]:
        """The best inner designs of each outer one, and the number of evaluated designs."""
        outer = self.space.outer
        assert isinstance(outer, OuterDesigns)
        sampled = outer.space.parameters
        columns = {p.name: np.array([p.code(design[p.name]) for design in proposals]) for p in sampled}
        best: dict[int, Candidates] = {}
        evaluated = np.zeros(len(proposals), dtype=np.intp)
        for owner, designs in outer.inner(columns, len(proposals)):
            evaluation = evaluate(self.space, designs, rules=self.rules, jobs=jobs)
            costs = as_costs(evaluation.values, self.space.directions)
            costs[~evaluation.feasible] = np.nan
            missing = np.where(np.isfinite(evaluation.values).all(axis=1), 0.0, np.inf)
            violations = np.maximum(evaluation.violations, 0.0).sum(axis=1) + missing
            block = Candidates(designs, costs, violations)
            owners, starts, counts = np.unique(owner, return_index=True, return_counts=True)
            evaluated[owners] += counts
            for one, start, count in zip(owners.tolist(), starts.tolist(), counts.tolist(), strict=True):
                best_of_block = block.take(slice(start, start + count)).best()
                best[one] = best[one].joined(best_of_block).best() if one in best else best_of_block
        return [best[one] for one in range(len(proposals))], evaluated

    def _represented(self, candidates: Candidates, left: Undominated, evaluated: int) -> WholeDesign:
        """The design that adds most to the study's hypervolume, and the others of its front."""
        if np.isnan(candidates.costs).any():
            [params] = self.space.decode(candidates.designs)
            return WholeDesign(params, [], evaluated)
        gains = left.gains(candidates.costs)
        nearest = self.box.scaled(candidates.costs).sum(axis=1).argmin()  # where none adds anything
        first = int(gains.argmax() if gains.max() > 0 else nearest)
        others = np.delete(np.arange(len(gains)), first)
        if others.size > MOST_WINNERS:
            end, taken = corner(candidates.costs), candidates.costs[[first]]
            others = np.sort(others[most_dominating(candidates.costs[others], MOST_WINNERS, end, taken)])
        kept = candidates.take(np.append(first, others))
        for cost in kept.costs:
            left.add(cost)
        params, *rest = self.space.decode(kept.designs)
        values = as_costs(kept.costs[1:], self.space.directions).tolist()  # turned twice is as it was
        keys, names = [o.key for o in self.space.objectives], [p.name for p in self.space.inner]
        winners = [
            {"params": {name: design[name] for name in names}, "values": dict(zip(keys, costs, strict=True))}
            for design, costs in zip(rest, values, strict=True)
        ]
        return WholeDesign(params, winners, evaluated)


def winner_values(
    keys: Sequence[str], columns: TrialColumns, winners: Mapping[int, Sequence[Mapping[str, Any]]]
) -> list[FloatArray]:
    """Values of all that finished trials have found, (winners, objectives) each, the representative first."""
    others = [[[winner["values"][key] for key in keys] for winner in winners.get(i, ())] for i in columns.ids.tolist()]
    rows = zip(columns.objectives, columns.feasible.tolist(), others, strict=True)
    return [np.array([values, *rest] if feasible else []).reshape(-1, len(keys)) for values, feasible, rest in rows]
