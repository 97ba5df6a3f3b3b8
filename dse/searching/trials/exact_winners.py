"""Winners of the inner searches of trials, as rows and as trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import chain
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate, kernel_choices
from dse.searching.samplers.exact_search import WINNERS, winner_values
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED
from dse.searching.trials.trial_attributes import trial_attributes
from dse.spaces.space import Space
from dse.storage.optuna_store import Store, StoredStudy
from dse.storage.trial_columns import TrialColumns


def stored_winners(
    store: Store, stored: StoredStudy, keys: Sequence[str], *, first: int = 0
) -> dict[int, list[dict[str, Any]]]:
    """Identity -> the winners of each finished trial of a number and later that has some, with some values.

    Raises `DseError` if they are something else.
    """
    with store.reading(stored.study_id):
        winners = store.attribute(stored, WINNERS, first=first)
        for winner in chain(*winners.values()):
            winner["params"].keys()
            math.fsum(winner["values"][key] for key in keys)
    return winners


def winner_columns(
    keys: Sequence[str], columns: TrialColumns, winners: Mapping[int, Sequence[Mapping[str, Any]]]
) -> TrialColumns:
    """Finished trials with a row for each of their winners; arguments are those of `winner_values`."""
    of_trials = winner_values(keys, columns, winners)
    counts = np.array([max(1, len(values)) for values in of_trials], dtype=np.intp)
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
    every = columns.take(rows)
    values = every.objectives.copy()
    values[every.feasible] = np.concatenate([values[:0], *of_trials])
    return TrialColumns(every.ids, every.numbers, values, every.feasible, places)


def winner_trials(
    space: Space, profile: str, trials: Sequence[FrozenTrial], places: Sequence[int]
) -> list[FrozenTrial]:
    """Trials as if one of their winners were the trial, with all that pricing says of it."""
    chosen = list(trials)
    rows = [row for row, number in enumerate(places) if number]
    if not rows:
        return chosen
    winners = [trials[row].user_attrs[WINNERS][places[row] - 1] for row in rows]
    designs = [{**trials[row].params, **winner["params"]} for row, winner in zip(rows, winners, strict=True)]
    evaluation = evaluate(space, space.encode(designs), rules=rules_for(space, profile))
    attributes = trial_attributes(space, evaluation)
    choices = kernel_choices(space, space.encode(designs))
    designs = [{**design, **kernels} for design, kernels in zip(designs, choices, strict=True)]
    for row, winner, params, own_attributes in zip(rows, winners, designs, attributes, strict=True):
        trial = copy(trials[row])
        trial.params, trial.values = params, list(winner["values"].values())
        trial.user_attrs = {**own_attributes, DESIGNS_PRICED: trials[row].user_attrs[DESIGNS_PRICED]}
        chosen[row] = trial
    return chosen
