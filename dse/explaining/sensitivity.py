"""How much a step follows each parameter and each quantity of the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from dse.explaining.explanation import Explanation
from dse.explaining.neighbours import Neighbour, neighbours
from dse.pricing.evaluation import machine
from dse.pricing.space_rules import rules_for

#: Change of a quantity up and down, of which the central difference is taken. [-]
STEP: Final = 0.01
#: Elasticities below this are of quantities that do not matter. [-]
LEAST: Final = 1e-6
#: Endings of quantities that say how a machine is built: a hundredth more of them is no machine.
COUNTED: Final = (
    *("_size", "_used", "_in_switch", "_torus_x", "_torus_y", "_torus_z", "_torus_wrap"),
    *("array_height", "array_width", "arrays_per_core"),
)


@dataclass(frozen=True)
class Elasticity:
    """What one per cent more of a quantity does to the step time."""

    quantity: str
    unit: str  #: SI
    value: float  #: of the design's machine [unit]
    elasticity: float  #: per cent of step time per per cent of the quantity [-]


@dataclass(frozen=True)
class Sensitivity:
    """A design, what single steps of its parameters change, and what its hardware is worth."""

    explanation: Explanation
    parameters: tuple[Neighbour, ...]  #: of one changed parameter each, the largest change of step time first
    elasticities: tuple[Elasticity, ...]  #: the largest first; those that do not matter are left out
    without: int  #: quantities that do not matter to the step time [-]

    def change(self, neighbour: Neighbour) -> float:
        """Change of the step time, as a share of the design's. [-]"""
        return neighbour.step_time_change / self.explanation.step_time

    def records(self) -> list[dict[str, Any]]:
        """A row for each parameter's step and each quantity, as CSV has them."""
        steps = [
            {"kind": "parameter", "name": name, "from": old, "to": new, "change": self.change(neighbour),
             "feasible": neighbour.feasible}
            for neighbour in self.parameters
            for name, (old, new) in neighbour.changes.items()
        ]  # fmt: skip
        return steps + [
            {"kind": "quantity", "name": e.quantity, "unit": e.unit, "from": e.value,
             "elasticity": e.elasticity}
            for e in self.elasticities
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Sensitivities as one JSON object: ``parameters`` and ``elasticities``."""
        own = self.explanation
        return {
            **({"trial": own.trial} if own.trial is not None else {}),
            "profile": own.profile,
            "params": own.params,
            "step_time_s": own.step_time,
            "parameters": [each.to_json() for each in self.parameters],
            "elasticities": [
                {"quantity": e.quantity, "unit": e.unit, "value": e.value, "elasticity": e.elasticity}
                for e in self.elasticities
            ],
        }


def sensitivity(explanation: Explanation) -> Sensitivity:
    """Effects of a step of each parameter up and down, and elasticities of quantities of the hardware.

    Raises
    ------
    DseError
        If the profile does not know such designs.
    """
    steps = [each for each in neighbours(explanation) if len(each.changes) == 1]
    largest: dict[str, float] = {}
    for each in steps:
        name = next(iter(each.changes))
        largest[name] = max(largest.get(name, 0.0), abs(each.step_time_change))
    order = {name: place for place, name in enumerate(sorted(largest, key=lambda name: -largest[name]))}
    steps.sort(key=lambda each: (order[next(iter(each.changes))], each.step_time_change))
    found = elasticities(explanation)
    matter = sorted((e for e in found if abs(e.elasticity) > LEAST), key=lambda e: -abs(e.elasticity))
    return Sensitivity(explanation, tuple(steps), tuple(matter), len(found) - len(matter))


def elasticities(explanation: Explanation) -> list[Elasticity]:
    """Elasticities of the positive quantities of the design's machine, by central differences.

    All are priced in one batch: two designs for each quantity, a hundredth more and less of it, all others as
    they are; d log(step time) / d log(quantity). Quantities that count what a machine is built of are left
    out, and so are those without a number.
    """
    space, own = explanation.space, explanation.system
    values = {
        name: float(value)
        for name, value in own.quantities().items()
        if np.isfinite(value) and value > 0 and not name.endswith(COUNTED)
    }
    points, units = 2 * len(values), own.units()
    columns = {n: np.repeat(codes, points) for n, codes in space.encode([explanation.params]).items()}
    known = space.known_values(columns)
    swept = machine(space, known).with_quantities(
        {name: value * factors(place, points) for place, (name, value) in enumerate(values.items())}
    )
    time = rules_for(space, explanation.profile).step(swept, known).time
    slopes = np.log(time[::2] / time[1::2]) / np.log((1 + STEP) / (1 - STEP))
    return [
        Elasticity(name, units[name], value, float(slope))
        for (name, value), slope in zip(values.items(), slopes, strict=True)
    ]


def factors(place: int, points: int) -> FloatArray:
    """1 everywhere but at one quantity's two points, a step above and one below. [-]

    >>> factors(1, 4).tolist()
    [1.0, 1.0, 1.01, 0.99]
    """
    found = np.ones(points)
    found[2 * place : 2 * place + 2] = 1 + STEP, 1 - STEP
    return found
