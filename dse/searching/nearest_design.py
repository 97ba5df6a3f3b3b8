"""The nearest feasible design: the design that a user gives, changed as little as the limits need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.rules.rules import WorkloadRules
from dse.fronts import as_costs
from dse.pricing.evaluated import FittedDesign
from dse.pricing.evaluation import evaluate_unique
from dse.spaces.legal import LISTED
from dse.spaces.space import Batch, Params, Space

#: Designs that are evaluated at a time, and drawn at random where a space is too large to list.
BLOCK: Final = 1 << 16
DRAWN: Final = 1 << 18
#: Random designs that are moved to the values asked for, there.
NEAR: Final = 512


def nearest_feasible(space: Space, named: Mapping[str, Any], rules: WorkloadRules) -> FittedDesign | None:
    """The feasible design nearest to some values: fewest of them changed, by few options, then the best.

    None where no design is feasible, of all or of the many that were evaluated.
    """
    nearest, params = (math.inf,), Params()  # distance and costs of the best design so far
    margins = np.full(len(space.limits), -np.inf)
    for designs in chain(blocks(space), _near(space, named)):
        evaluation = evaluate_unique(space, designs, rules)
        changes, steps = distances(space, named, designs)
        as_asked = np.flatnonzero(changes == 0)
        if as_asked.size and space.limits:
            violations = np.maximum(evaluation.violations[as_asked], 0).sum(axis=1)
            worst = int(as_asked[violations.argmin()])
            margins = np.maximum(margins, evaluation.margins[worst])
        rows = np.flatnonzero(evaluation.feasible)
        if not rows.size:
            continue
        costs = as_costs(evaluation.values[rows], space.directions)
        order = np.lexsort([*costs.T[::-1], steps[rows], changes[rows]])
        row, first = rows[order[0]], costs[order[0]]
        key = (float(changes[row]), float(steps[row]), *first.tolist())
        if key < nearest:
            nearest, [params] = key, space.decode({name: values[[row]] for name, values in designs.items()})
    if not params:
        return None
    changed = {n: (value, params[n]) for n, value in named.items() if params[n] != value}
    asked = np.isfinite(margins).any()
    broken = {limit.name: float(m) for limit, m in zip(space.limits, margins, strict=True) if asked and m < 0}
    return FittedDesign(params, changed, broken if changed else {}, space.legal.count <= LISTED)


def distances(space: Space, named: Mapping[str, Any], designs: Batch) -> tuple[FloatArray, FloatArray]:
    """Number of requested values that designs change, and of options moved in all; (points,) each. [-]"""
    points = next(iter(designs.values())).size
    changes, steps = np.zeros(points), np.zeros(points)
    for name, value in named.items():
        parameter = space.by_name[name]
        code, options = parameter.code(value), parameter.options
        moved = ~np.isclose(designs[name], code, rtol=1e-12, atol=0)
        changes += moved
        if options is None:
            low, high = parameter.ends
            steps += np.abs(designs[name] - code) / (high - low)
        elif parameter.words or parameter.boolean:
            steps += moved
        else:
            ordered = np.sort(options)
            places = np.arange(ordered.size)
            steps += np.abs(np.interp(designs[name], ordered, places) - np.interp(code, ordered, places))
    return changes, steps


def blocks(space: Space) -> Iterator[Batch]:
    """Legal designs by the block: all, or many random ones where there are too many."""
    rng = np.random.default_rng(0)
    drawn = (space.legal.random(BLOCK, rng) for _ in range(DRAWN // BLOCK))
    return space.legal.enumerate(BLOCK) if space.legal.count <= LISTED else drawn


def _near(space: Space, named: Mapping[str, Any]) -> Iterator[Batch]:
    """Legal designs nearest to the values, the other values at random, where not all are listed."""
    if space.legal.count > LISTED:
        rng = np.random.default_rng(0)
        others = space.decode(space.legal.random(NEAR, rng))
        yield space.encode([space.legal.nearest({**other, **_options(space, named)}, rng) for other in others])


def _options(space: Space, named: Mapping[str, Any]) -> Params:
    """The values asked for, or the options nearest to them."""
    nearest: Params = {}
    for name, value in named.items():
        parameter = space.by_name[name]
        options, code = parameter.options, parameter.code(value)
        if options is not None:
            code = float(options[int(np.abs(options - code).argmin())])
        nearest[name] = parameter.value(code)
    return nearest
