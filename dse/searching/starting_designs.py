"""Designs that a search starts from: named ones, and another study's front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodel.errors import DseError, ParameterError
from costmodel.rules.rules import WorkloadRules
from dse.fronts import Box, as_costs, most_dominating
from dse.pricing.evaluation import evaluate
from dse.searching.study import BaseStudy
from dse.spaces.space import Params, Space

#: Most designs that are taken from another study.
MOST_TAKEN: Final = 20
#: Designs that are tried to complete one of them.
COMPLETIONS: Final = 64


def named_starts(space: Space, texts: Sequence[str]) -> dict[str, Params]:
    """Designs by name, from texts such as ``tp=8,pp=16``.

    Raises `DseError` for other texts, and for values that the space does not have.
    """
    starts: dict[str, Params] = {}
    for number, text in enumerate(texts, start=1):
        pairs = [part.partition("=") for part in text.replace(",", " ").split()]
        if not pairs or not all(name and sign and value for name, sign, value in pairs):
            raise ParameterError(f"{{start}} {text!r}: expected NAME=VALUE,...")
        values: Params = {name: value for name, _, value in pairs}
        starts[f"start_{number}"] = {
            name: space.by_name[name].accepted(space.in_file(name, value)) if name in space.by_name else value
            for name, value in values.items()
        }
    return starts


def front_designs(study: BaseStudy, space: Space, rules: WorkloadRules) -> dict[str, Params]:
    """The designs of another study's front that dominate most, as the nearest legal ones of a space.

    Values that the other study did not choose are completed so that the designs are feasible here, if possible.

    Raises `DseError` if the study has no feasible design, or shares no parameter with the space.
    """
    front = study.table.front()
    if not len(front):
        raise DseError(f"study {study.name!r}: has no feasible design to start from")
    corner = Box.around(front.costs).reference
    taken = front.take(most_dominating(front.costs, MOST_TAKEN, corner + 0.1 * np.abs(corner)))
    starts = {}
    for trial, winner in zip(taken.trials, taken.winners.tolist(), strict=True):
        shared = {name: value for name, value in trial.params.items() if name in space.by_name}
        if not shared:
            raise DseError(f"study {study.name!r}: shares no parameter with space {space.name}")
        name = f"{study.name}_{trial.number}" + (f"_{winner}" if winner else "")
        starts[name] = best_completion(space, shared, rules)
    return starts


def best_completion(space: Space, values: Params, rules: WorkloadRules) -> Params:
    """Feasible design that is best in the first objective, of some legal ones near some values.

    Open values are drawn at random; where none is feasible, it is the least violating one.
    """
    rng, legal = np.random.default_rng(0), space.legal
    tried = [space.completed(values)]
    if values.keys() != tried[0].keys():
        others = space.decode(legal.random(COMPLETIONS, rng))
        tried += [legal.nearest({**other, **values}, rng) for other in others]
    evaluation = evaluate(space, space.encode(tried), rules=rules)
    costs = as_costs(evaluation.values[:, :1], [space.objectives[0].direction])[:, 0]
    violations = np.maximum(evaluation.violations, 0.0).sum(axis=1)
    return tried[int(np.lexsort((costs, violations))[0])]
