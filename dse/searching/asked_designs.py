"""Designs that a user asks for: the nearest one that works, and those that a search starts from.

The nearest design keeps what was asked for, changed as little as its limits need. A search starts from named designs,
from what an expert would take, and from another study's front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError, ParameterError
from costmodel.rules.rules import WorkloadRules
from dse.fronts import Box, as_costs, most_dominating
from dse.pricing.evaluation import evaluate, evaluate_unique
from dse.searching.study import BaseStudy
from dse.spaces.legal import LISTED
from dse.spaces.space import Batch, Params, Space

#: Designs that are priced at a time, and drawn at random where a space is too large to list.
BLOCK: Final = 1 << 16
DRAWN: Final = 1 << 18
#: Random designs that are moved to the values asked for, there.
NEAR: Final = 512


@dataclass(frozen=True, slots=True)
class FittedDesign:
    """A design that keeps all limits, and what it took."""

    params: Params
    changed: Mapping[str, tuple[Any, Any]]  #: of what was named: as asked, and as it is
    broken: Mapping[str, float]  #: limits that what was asked breaks at best, and by how much [unit of each]
    exhaustive: bool  #: whether every legal design was looked at


@dataclass(frozen=True, slots=True)
class _Nearest:
    """The best design so far, by how far it is and its cost."""

    key: tuple[float, ...]
    params: Params


def nearest_feasible(space: Space, named: Mapping[str, Any], rules: WorkloadRules) -> FittedDesign | None:
    """The feasible design nearest to some values: fewest of them changed, by few options, then the best.

    None where no design keeps all limits, of all or of the many that were looked at.
    """
    best: _Nearest | None = None
    margins = np.full(len(space.limits), -np.inf)
    for designs in _blocks(space, named):
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
        costs = as_costs(evaluation.values[rows], [o.direction for o in space.objectives])
        order = np.lexsort([*costs.T[::-1], steps[rows], changes[rows]])
        row, first = rows[order[0]], costs[order[0]]
        key = (float(changes[row]), float(steps[row]), *first.tolist())
        if best is None or key < best.key:
            [params] = space.decode({name: values[[row]] for name, values in designs.items()})
            best = _Nearest(key, params)
    if best is None:
        return None
    changed = {n: (value, best.params[n]) for n, value in named.items() if best.params[n] != value}
    asked = np.isfinite(margins).any()
    broken = {limit.name: float(m) for limit, m in zip(space.limits, margins, strict=True) if asked and m < 0}
    return FittedDesign(best.params, changed, broken if changed else {}, space.legal.count <= LISTED)


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
            span = (parameter.high or 0.0) - (parameter.low or 0.0)
            steps += np.abs(designs[name] - code) / span
        elif parameter.words or parameter.boolean:
            steps += moved
        else:
            ordered = np.sort(options)
            places = np.arange(ordered.size)
            steps += np.abs(np.interp(designs[name], ordered, places) - np.interp(code, ordered, places))
    return changes, steps


def _blocks(space: Space, named: Mapping[str, Any]) -> Iterator[Batch]:
    """Legal designs by the block: all of them, or those nearest to the values, and many at random."""
    if space.legal.count <= LISTED:
        yield from space.legal.enumerate(BLOCK)
        return
    rng = np.random.default_rng(0)
    drawn = [space.legal.random(BLOCK, rng) for _ in range(DRAWN // BLOCK)]
    yield from drawn
    others = space.decode({name: values[:NEAR] for name, values in drawn[0].items()})
    near = [space.legal.nearest({**other, **_asked_options(space, named)}, rng) for other in others]
    yield space.encode(near)


def _asked_options(space: Space, named: Mapping[str, Any]) -> Params:
    """The values asked for, or the options nearest to them."""
    nearest: Params = {}
    for name, value in named.items():
        parameter = space.by_name[name]
        options, code = parameter.options, parameter.code(value)
        if options is not None:
            code = float(options[int(np.abs(options - code).argmin())])
        nearest[name] = parameter.value(code)
    return nearest


#: What asks for `expert_design`.
EXPERT: Final = "expert"
#: Switches that save memory and cost next to no time.
THRIFTY: Final = {"sequence_parallel": True, "distributed_optimizer": True}
#: Most designs that are taken from another study.
MOST_TAKEN: Final = 20
#: Designs that are tried to complete one of them.
COMPLETIONS: Final = 64


def named_starts(space: Space, texts: Sequence[str], rules: WorkloadRules) -> dict[str, Params]:
    """Designs by name, from texts such as ``tp=8,pp=16``, or ``expert``.

    Raises `DseError` if a text is neither, or a value is none of the space's.
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
                params = space.completed(values)
                if values.items() <= params.items():
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

    What that study did not choose is completed so that the designs are feasible here, if possible.

    Raises `DseError` if the study has no feasible design, or shares no parameter with the space.
    """
    front = study.table.front()
    if not len(front):
        raise DseError(f"study {study.name!r}: has found nothing feasible to start from")
    corner = Box.around(front.costs).reference
    rows = most_dominating(front.costs, MOST_TAKEN, corner + 0.1 * np.abs(corner))
    starts = {}
    taken = front.take(rows)
    for trial, winner in zip(taken.trials, taken.winners.tolist(), strict=True):
        shared = {name: value for name, value in trial.params.items() if name in space.by_name}
        if not shared:
            raise DseError(f"study {study.name!r}: shares no parameter with space {space.name}")
        name = f"{study.name}_{trial.number}" + (f"_{winner}" if winner else "")
        starts[name] = best_completion(space, shared, rules)
    return starts


def best_completion(space: Space, values: Params, rules: WorkloadRules) -> Params:
    """Feasible design that is best in the first objective, of some legal ones near some values.

    What the values leave open is drawn at random; where none is feasible, it is the least violating one.
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
