"""Sensitivity of the step time to each parameter and each quantity of the hardware."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from costmodel.columns import short_repr
from dse.explaining.explanation import Explanation
from dse.explaining.neighbours import Neighbour, neighbours
from dse.pricing.space_rules import machine, rules_for

#: Change of a quantity up and down, of which the central difference is taken. [-]
STEP: Final = 0.01
#: Elasticities below this are of quantities that do not matter. [-]
LEAST: Final = 1e-6
#: Endings of quantities that describe the topology of a machine: they are left out.
TOPOLOGY: Final = ("_size", "_used", "_in_switch", "_torus_x", "_torus_y", "_torus_z", "_torus_wrap")
#: Memory that tiles fit into. The step time jumps where it holds the next tile, so that it is doubled.
TILED: Final = "sram_capacity"
#: Endings of quantities that count parts of a chip, and that memory: a hundredth more of them is no chip, and the
#: change of the step time is a jump of roundings.
COUNTED: Final = ("cores", "array_height", "array_width", "arrays_per_core", "vector_lanes", TILED)


@dataclass(frozen=True)
class Elasticity:
    """Change of the step time for one per cent more of a quantity."""

    quantity: str
    unit: str  #: SI
    value: float  #: of the design's machine [unit]
    elasticity: float  #: per cent of step time per per cent of the quantity [-]


@dataclass(frozen=True)
class CountStep:
    """Change of the step time where a chip has more of a part."""

    quantity: str
    unit: str  #: SI
    value: float  #: of the design's machine [unit]
    larger: float  #: next value that a chip would have [unit]
    change: float  #: share of the step time [-]


@dataclass(frozen=True)
class Sensitivity:
    """A design, what single steps of its parameters change, and what its hardware is worth."""

    __repr__ = short_repr

    explanation: Explanation
    parameters: tuple[Neighbour, ...]  #: of one changed parameter each, the largest change of step time first
    elasticities: tuple[Elasticity, ...]  #: the largest first; those that do not matter are left out
    counts: tuple[CountStep, ...]  #: parts of a chip, the largest change first
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
        counts = [
            {"kind": "count", "name": e.quantity, "from": e.value, "to": e.larger, "change": e.change}
            for e in self.counts
        ]
        return steps + counts + [
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
            "counts": [asdict(count) for count in self.counts],
            "elasticities": [asdict(each) for each in self.elasticities],
        }


def sensitivity(explanation: Explanation) -> Sensitivity:
    """Effects of a step of each parameter up and down, and elasticities of quantities of the hardware.

    Raises `DseError` if the profile does not know such designs.
    """
    steps = [each for each in neighbours(explanation) if len(each.changes) == 1]
    largest: dict[str, float] = {}
    for each in steps:
        name = next(iter(each.changes))
        largest[name] = max(largest.get(name, 0.0), abs(each.step_time_change))
    order = {name: place for place, name in enumerate(sorted(largest, key=lambda name: -largest[name]))}
    steps.sort(key=lambda each: (order[next(iter(each.changes))], each.step_time_change))
    counts, found = quantity_steps(explanation)
    matter = sorted((e for e in found if abs(e.elasticity) > LEAST), key=lambda e: -abs(e.elasticity))
    moving = sorted((e for e in counts if abs(e.change) > LEAST), key=lambda e: -abs(e.change))
    without = len(found) + len(counts) - len(matter) - len(moving)
    return Sensitivity(explanation, tuple(steps), tuple(matter), tuple(moving), without)


def next_count(name: str, value: float) -> float:
    """The next larger number of parts of a chip: by the largest power of two that divides it; memory doubles. [-]

    >>> [next_count("cores", value) for value in (16.0, 108.0, 132.0, 160.0)], next_count("sram_capacity", 24e6)
    ([32.0, 112.0, 136.0, 192.0], 48000000.0)
    """
    whole = int(value)
    if name.endswith(TILED):
        return 2 * value
    return float(whole + (whole & -whole))


def quantity_steps(explanation: Explanation) -> tuple[list[CountStep], list[Elasticity]]:
    """Steps of the counts of the design's machine, and elasticities of its other positive quantities.

    All are evaluated in one batch, each with all others as they are. An elasticity is a central difference, d log(step
    time) / d log(quantity), of a hundredth more and less. A count takes its next larger value, unless it is a parameter
    of the space, which `neighbours` step. Quantities without a number and those of the topology are left out.
    """
    space, own = explanation.space, explanation.system
    values = {
        name: float(value)
        for name, value in own.quantities().items()
        if np.isfinite(value) and value > 0 and not name.endswith(TOPOLOGY)
    }
    counted = [name for name in values if name.endswith(COUNTED)]
    smooth = [name for name in values if name not in counted]
    counted = [name for name in counted if name not in space.by_name and values[name] >= 1]
    ratios = [(name, next_count(name, values[name]) / values[name]) for name in counted]
    ratios += [(name, factor) for name in smooth for factor in (1 + STEP, 1 - STEP)]
    points, units = 1 + len(ratios), own.units()
    swept = {name: np.full(points, values[name]) for name, _ in ratios}
    for place, (name, ratio) in enumerate(ratios, start=1):
        swept[name][place] *= ratio
    columns = {n: np.repeat(codes, points) for n, codes in space.encode([explanation.params]).items()}
    known = space.known_values(columns)
    system = machine(space, known).with_quantities(swept)
    time = rules_for(space, explanation.profile).step(system, known).time
    first = 1 + len(counted)
    slopes = np.log(time[first::2] / time[first + 1 :: 2]) / np.log((1 + STEP) / (1 - STEP))
    changes = time[1:first] / time[0] - 1
    return (
        [
            CountStep(name, units[name], values[name], next_count(name, values[name]), float(change))
            for name, change in zip(counted, changes, strict=True)
        ],
        [Elasticity(name, units[name], values[name], float(slope)) for name, slope in zip(smooth, slopes, strict=True)],
    )
