"""What one step away from a design would change: designs that are next to it, priced in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from dse.explain.explanation import Explanation
from dse.explain.steps import one_step
from dse.pricing.evaluation import Evaluation, evaluate
from dse.pricing.profiles import rules_for
from dse.spaces.objectives import Constraint
from dse.spaces.space import Params, Space

#: Changes below this share of a total are none: formulas round. [-]
NO_CHANGE: Final = 1e-12


@dataclass(frozen=True)
class Neighbour:
    """A legal design one step away, and what it costs; changes are those from the design itself."""

    changes: Mapping[str, tuple[Any, Any]]  #: parameter -> its value in the design, and here [SI units]
    params: Params
    feasible: bool
    values: Mapping[str, float]  #: objectives, by key [units of the objectives]
    margins: Mapping[str, float]  #: of limits, by key; below 0 where broken [units of the limits]
    step_time: float  #: [s]
    peak_memory: float  #: [B]
    step_time_change: float  #: [s]
    peak_memory_change: float  #: [B]

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "changes": {name: {"from": old, "to": new} for name, (old, new) in self.changes.items()},
            "feasible": self.feasible,
            "step_time_s": self.step_time,
            "peak_memory_bytes": self.peak_memory,
            "step_time_change_s": self.step_time_change,
            "peak_memory_change_bytes": self.peak_memory_change,
            "values": dict(self.values),
            "margins": dict(self.margins),
        }


@dataclass(frozen=True)
class Binding:
    """What keeps a design from being better, and the changes that would make room."""

    limit: Constraint | None  #: the limit that is nearest, or that faster neighbours break
    margin: float  #: of the design [unit of the limit]
    faster: tuple[Neighbour, ...]  #: neighbours that take less time but break it, the fastest first
    levers: tuple[Neighbour, ...]  #: neighbours with a larger margin, the least slow for it first

    def to_json(self) -> dict[str, Any]:
        """As one JSON object; ``levers`` and ``faster`` are neighbours."""
        return {
            "limit": self.limit.name if self.limit else None,
            "margin": self.margin,
            "unit": self.limit.unit if self.limit else "B",
            "faster": [neighbour.to_json() for neighbour in self.faster],
            "levers": [neighbour.to_json() for neighbour in self.levers],
        }


def neighbours(explanation: Explanation) -> tuple[Neighbour, ...]:
    """Legal designs one step from a design, the best of the first objective first.

    They are those of `dse.explain.steps.one_step`.
    """
    space, params = explanation.space, explanation.params
    rules = rules_for(space, explanation.profile)
    columns = one_step(space, params, [*rules.rules.totals.values()])
    evaluation = evaluate(space, columns, rules=rules)
    designs = space.decode(columns)
    table = [
        _neighbour(space, params, design, evaluation, row)
        for row, design in enumerate(designs)
        if row and np.isfinite(evaluation.breakdown.step_time[row])
    ]
    sign = -1.0 if space.objectives[0].direction == "maximize" else 1.0
    key = space.objectives[0].key
    return tuple(sorted(table, key=lambda each: (not each.feasible, sign * each.values[key])))


def _neighbour(space: Space, params: Params, design: Params, evaluation: Evaluation, row: int) -> Neighbour:
    """One row of a batch whose first row is the design itself."""
    time, memory = evaluation.breakdown.step_time, evaluation.breakdown.peak_memory

    def change(values: FloatArray) -> float:
        moved = float(values[row] - values[0])
        return moved if abs(moved) > NO_CHANGE * abs(float(values[0])) else 0.0

    return Neighbour(
        changes={name: (params[name], own) for name, own in design.items() if own != params[name]},
        params=design,
        feasible=bool(evaluation.feasible[row]),
        values={o.key: float(evaluation.values[row, at]) for at, o in enumerate(space.objectives)},
        margins={o.key: float(evaluation.margins[row, at]) for at, o in enumerate(space.limits)},
        step_time=float(time[row]),
        peak_memory=float(memory[row]),
        step_time_change=change(time),
        peak_memory_change=change(memory),
    )


def binding(explanation: Explanation, beside: Sequence[Neighbour]) -> Binding:
    """The limit that binds a design: the one that most faster neighbours break, else the nearest.

    Without limits it is memory as such, of which every neighbour with less is a lever.
    """
    limits, margins = explanation.space.limits, explanation.record["margins"]
    if not limits:
        levers = sorted((n for n in beside if n.peak_memory_change < 0), key=_slowing)
        return Binding(None, float("nan"), (), tuple(levers))
    faster = [each for each in beside if each.step_time_change < 0 and not each.feasible]
    broken = [sum(each.margins[limit.key] < 0 for each in faster) for limit in limits]
    room = [_room(explanation, limit) for limit in limits]
    limit = limits[min(range(len(limits)), key=lambda at: (-broken[at], room[at]))]
    own = float(margins[limit.key])
    levers = sorted((each for each in beside if each.margins[limit.key] > own), key=_slowing)
    breaking = sorted((n for n in faster if n.margins[limit.key] < 0), key=lambda n: n.step_time)
    return Binding(limit, own, tuple(breaking), tuple(levers))


def _room(explanation: Explanation, limit: Constraint) -> float:
    """A margin as a share of its limit, by which limits of different units compare. [-]"""
    columns = explanation.space.encode([explanation.params])
    rules = rules_for(explanation.space, explanation.profile)
    evaluation = evaluate(explanation.space, columns, rules=rules)
    return -float(evaluation.violations[0, explanation.space.limits.index(limit)])


def _slowing(neighbour: Neighbour) -> tuple[float, float]:
    """Order of levers: what they cost in time, then how much memory they free."""
    return neighbour.step_time_change, neighbour.peak_memory_change
