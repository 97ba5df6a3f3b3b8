"""Which parameters matter for each objective: over the trials of a study, and over its space."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from costmodel.columns import FloatArray, short_repr
from costmodel.errors import DseError
from dse.fronts import as_costs
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate
from dse.searching.trials.trial_table import TrialTable
from dse.spaces.space import Space

#: Fewest feasible trials that say something, and share of them that are the best ones. [-]
FEWEST, BEST = 20, 0.1
#: Random legal designs that are evaluated, and groups of the values of a range.
DRAWN, GROUPS = 4096, 10
#: Optuna says nothing of the studies that are made for its evaluators.
QUIET: Final = optuna.logging.WARNING


@dataclass(frozen=True)
class Importance:
    """For each objective and parameter two shares; rows are objectives, columns the parameters that vary."""

    __repr__ = short_repr

    space: Space
    parameters: tuple[str, ...]
    trials: FloatArray  #: (objectives, parameters): how far the best trials agree in a parameter; adds up to 1 [-]
    designs: FloatArray  #: (objectives, parameters) of the variance that a parameter alone explains [-]
    n_trials: int

    def to_json(self) -> dict[str, Any]:
        """Importances as one JSON object: objective -> parameter -> both shares."""
        return {
            "n_trials": self.n_trials,
            "n_designs": DRAWN,
            "objectives": {
                objective.key: {
                    name: {"trials": float(self.trials[row, at]), "space": float(self.designs[row, at])}
                    for at, name in enumerate(self.parameters)
                }
                for row, objective in enumerate(self.space.objectives)
            },
        }


def importance(space: Space, table: TrialTable, profile: str) -> Importance:
    """Importances of the parameters of a space that vary.

    Of the feasible trials of `table` by PED-ANOVA [Watanabe2023]_: how much further the best tenth of them is from all
    others in a parameter; trials are where the sampler went. Of random legal designs the correlation ratio: the share
    of the variance of an objective's logarithm that the parameter alone explains; `profile` evaluates them. [-]

    Raises `DseError` if fewer than `FEWEST` trials are feasible.
    """
    feasible = table.take(np.flatnonzero(table.feasible))
    if len(feasible) < FEWEST:
        raise DseError(f"importance: {len(feasible)} feasible trials; needs at least {FEWEST}")
    names = [p.name for p in space.parameters if p.options is None or p.options.size > 1]
    columns = space.legal.random(DRAWN, np.random.default_rng(0))
    evaluation = evaluate(space, columns, rules=rules_for(space, profile))
    groups = [grouped(columns[name]) for name in names]
    trials = best_shares(feasible.trials, as_costs(feasible.values, space.directions), names)
    designs = [[explained_share(values, group) for group in groups] for values in evaluation.values.T]
    return Importance(space, tuple(names), np.array(trials), np.array(designs), len(feasible))


def best_shares(
    trials: Sequence[optuna.trial.FrozenTrial], costs: FloatArray, names: Sequence[str]
) -> list[list[float]]:
    """PED-ANOVA of trials for objectives to be minimized, (trials, objectives); 0 where all trials are equal. [-]"""
    before, evaluator = optuna.logging.get_verbosity(), PedAnovaImportanceEvaluator(target_quantile=BEST)
    optuna.logging.set_verbosity(QUIET)
    try:
        study = optuna.create_study(directions=["minimize"] * costs.shape[1])
        study.add_trials(
            optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, values=values)
            for trial, values in zip(trials, costs.tolist(), strict=True)
        )
        for copied, trial in zip(study.get_trials(deepcopy=False), trials, strict=True):
            copied.distributions = trial.distributions  # copies are compared choice by choice, the shared ones are not
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # low is better, and some are all equal
            targets = (partial(lambda at, trial: float(trial.values[at]), at) for at in range(costs.shape[1]))
            shares = [get_param_importances(study, evaluator=evaluator, target=target) for target in targets]
    finally:
        optuna.logging.set_verbosity(before)
    return [
        [share.get(name, 0.0) * varies for name in names]
        for share, varies in zip(shares, np.ptp(costs, axis=0) > 0, strict=True)
    ]


def grouped(values: FloatArray) -> FloatArray:
    """Group of each design: its value, or the tenth it is in where there are too many. [-]"""
    levels, groups = np.unique(values, return_inverse=True)
    if levels.size <= values.size / 100:
        return groups.astype(np.float64)
    edges = np.quantile(values, np.arange(1, GROUPS) / GROUPS)
    return np.searchsorted(edges, values, side="right").astype(np.float64)


def explained_share(values: FloatArray, groups: FloatArray) -> float:
    """Correlation ratio: variance of group means over all variance, of logarithms where they exist. [-]

    >>> explained_share(np.array([1.0, 1.0, 4.0, 4.0]), np.array([0.0, 0.0, 1.0, 1.0]))
    1.0
    >>> explained_share(np.array([1.0, 4.0, 1.0, 4.0]), np.array([0.0, 0.0, 1.0, 1.0]))
    0.0
    """
    known = np.isfinite(values)
    known_values, level_of = values[known], np.unique(groups[known], return_inverse=True)[1]
    if known_values.size and (known_values > 0).all():
        known_values = np.log(known_values)
    if not known_values.size or not known_values.var():
        return 0.0
    counts = np.bincount(level_of)
    means = np.bincount(level_of, weights=known_values) / counts
    return float((counts * (means - known_values.mean()) ** 2).sum() / known_values.size / known_values.var())
