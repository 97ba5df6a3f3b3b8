"""Spaces of the benchmark, and what a sampler sees of one: numbers of options in, costs out."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from time import process_time
from typing import Any, Final

import numpy as np
import yaml

from costmodel.columns import FloatArray, IntArray
from costmodel.rules.registry import NATIVE
from dse.fronts import as_costs
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate
from dse.spaces.lattice import Lattice
from dse.spaces.question import Question, planned_space
from dse.spaces.space import Space

#: Name -> what the space is made of.
SPACES: Final[Mapping[str, Mapping[str, Any]]] = yaml.safe_load(Path(__file__).with_name("spaces.yaml").read_text())


def space_of(name: str) -> Space:
    """The space of that name."""
    entry = SPACES[name]
    space = planned_space(Question(**entry["plan"])).space if "plan" in entry else Space.load(entry["space"])
    pins = {
        parameter.name: parameter.value(float(parameter.options[0])) if value == "first" else value
        for pattern, value in entry.get("set", {}).items()
        for parameter in space.parameters
        if fnmatchcase(parameter.name, pattern) and parameter.options is not None
    }
    space = space.pinned(pins) if pins else space
    if "open" in entry:
        space = space.opened(entry["open"])
    if "objectives" in entry:
        space = space.with_objectives(entry["objectives"])
    return space


def profile_of(name: str) -> str:
    """Name of the rules that evaluate the space."""
    return str(SPACES[name].get("profile", NATIVE))


class Spent(Exception):
    """All evaluations of a run are spent."""


class Problem:
    """A space as a sampler sees it, and the record of what the sampler evaluated.

    `sizes` are the numbers of options of the parameters, `names` their names, `ordered` tells numbers from words;
    `objectives` is the number of costs.
    """

    def __init__(self, name: str, budget: int) -> None:
        self.space = space_of(name)
        self.profile = profile_of(name)
        self.budget = budget
        self.lattice = Lattice(self.space)
        self.names = [parameter.name for parameter in self.space.parameters]
        self.sizes = self.lattice.sizes
        self.ordered = [not (parameter.words or parameter.boolean) for parameter in self.space.parameters]
        self.objectives = len(self.space.objectives)
        self.costs = np.zeros((0, self.objectives))
        self.evaluations = 0
        self.started = process_time()
        self._rules = rules_for(self.space, self.profile)

    def evaluate(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Costs of designs and how far each breaks the limits, (designs, objectives) and (designs,).

        `rows` are numbers of options, (designs, parameters). Less is better; a violation of 0 is a feasible design. A
        design that rules forbid costs infinity and breaks the limits by 1 a rule. Each counts as one evaluation.

        Raises `Spent` once `budget` designs are evaluated.
        """
        if len(self.costs) >= self.budget:
            raise Spent
        rows = np.atleast_2d(rows)[: self.budget - len(self.costs)]
        places = np.asarray(rows, dtype=np.float64)
        costs = np.full((len(rows), self.objectives), np.inf)
        violations = np.ones(len(rows))
        legal = np.flatnonzero(self.lattice.legal(places))
        if legal.size:
            found = evaluate(self.space, self.lattice.columns(places[legal]), rules=self._rules)
            directions = [objective.direction for objective in self.space.objectives]
            costs[legal] = as_costs(found.values, directions)
            violations[legal] = np.maximum(found.violations, 0.0).sum(axis=1) + ~found.feasible * 1e-9
        self.record(np.where((violations == 0)[:, None], costs, np.nan))
        return costs, violations

    def record(self, costs: FloatArray) -> None:
        """Add costs of trials to the record, NaN where infeasible."""
        self.costs = np.concatenate([self.costs, costs])
        self.evaluations += len(costs)
