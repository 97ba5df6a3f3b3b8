"""Designs that a search starts from: named ones, an expert's choice, and another study's front."""

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

#: Word for `expert_design`.
EXPERT: Final = "expert"
#: Switches that save memory and cost next to no time.
THRIFTY: Final = {"sequence_parallel": True, "distributed_optimizer": True}
#: Most designs that are taken from another study.
MOST_TAKEN: Final = 20
#: Designs that are tried to complete one of them.
COMPLETIONS: Final = 64


def named_starts(space: Space, texts: Sequence[str], rules: WorkloadRules) -> dict[str, Params]:
    """Designs by name, from texts such as ``tp=8,pp=16``, or ``expert``.

    Raises `DseError` for other texts, and for values that the space does not have.
    """
    starts: dict[str, Params] = {}
    for number, text in enumerate(texts, start=1):
        if text == EXPERT:
            starts[EXPERT] = expert_design(space, rules)
            continue
        pairs = [part.partition("=") for part in text.replace(",", " ").split()]
        if not pairs or not all(name and sign and value for name, sign, value in pairs):
            raise ParameterError(f"{{start}} {text!r}: expected NAME=VALUE,... or {EXPERT}")
        values: Params = {name: value for name, _, value in pairs}
        starts[f"start_{number}"] = {
            name: space.by_name[name].accepted(space.in_file(name, value)) if name in space.by_name else value
            for name, value in values.items()
        }
    return starts


def expert_design(space: Space, rules: WorkloadRules) -> Params:
    """The design that rules of thumb give [Narayanan2021]_.

    Tensor parallelism within a node and as wide as it goes, the shortest pipeline that fits, the smallest
    micro-batches, and recomputation only where nothing fits without.

    Raises `DseError` if the space has no legal design.
    """
    wanted: list[Params] = []
    for again in ("none", "selective", "full") if "recompute" in space.by_name else ("none",):
        for pp in _options(space, "pp") or [1]:
            for tp in reversed(_options(space, "tp") or [1]):
                design = {**THRIFTY, "tp": tp, "pp": pp, "recompute": again}
                values = {name: value for name, value in design.items() if name in space.by_name}
                if values.items() <= (params := space.completed(values)).items():
                    wanted.append(params)
    if not wanted:
        return space.completed({})
    fits = evaluate(space, space.encode(wanted), rules=rules).feasible
    return wanted[int(fits.argmax())]


def _options(space: Space, name: str) -> list[float]:
    """Options of a count that the space chooses, in rising order; none where it does not."""
    options = space.by_name[name].options if name in space.by_name else None
    return [] if options is None else sorted(options.tolist())


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
