"""Constants of a machine that measurements and runs can tell, with bounds and uncertainty before any of them.

A constant of a system file is a data sheet's, or fitted to runs of another cluster. `constants.yaml` has the range of
each constant and the spread of its logarithm around the built-in value. `dse calibrate` fits within the ranges, and
`dse tune` draws machines within the spreads. The bounds are never wider than those of the file's reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from costmodel import System
from costmodel.columns import FloatArray
from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import si_value
from costmodel.formats.system_file import quantity_place, with_constants, written
from costmodel.machine import Range
from dse.predictions import FABRIC_SPREAD, NINETY

#: Kinds of rows in the order in which they are fitted: constants of one kind are fixed for the next.
KERNELS, COLLECTIVES, STEPS = STAGES = ("kernels", "collectives", "steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedConstant:
    """A constant that measurements moved away from its built-in value. [unit of the quantity]"""

    name: str
    unit: str
    before: float
    after: float  #: to the digits that are written
    standard_error: float
    at_bound: bool  #: whether it is as low or as high as it may be

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 90 % interval of a constant above 0 whose logarithm is normal. [unit of the quantity]"""
        factor = np.exp(NINETY * self.standard_error / self.after).item()
        return self.after / factor, self.after * factor


@dataclass(frozen=True, slots=True)
class Constant:
    """A quantity of a system, and its range before any measurement. [unit of the quantity]

    It is fitted by its logarithm where it is large against `scale`, and linearly where it is small, as it may be 0.
    """

    name: str
    low: float
    high: float
    scale: float
    spread: float = 0.0  #: standard deviation of its logarithm before any run; 0: runs cannot tell it [-]

    @property
    def deviation(self) -> float:
        """Standard deviation of its coordinate before measurements: a quarter of its range. [-]"""
        return float(self.coordinate(self.high) - self.coordinate(self.low)) / 4

    def coordinate(self, value: ArrayLike) -> FloatArray:
        """Coordinate in which a value is fitted. [-]"""
        return np.log1p(np.asarray(value) / self.scale)

    def value(self, coordinate: FloatArray | float) -> FloatArray:
        """The value of a coordinate. [unit of the quantity]"""
        return np.asarray(self.scale * np.expm1(coordinate))

    def slope(self, value: float) -> float:
        """Change of the value with its coordinate. [unit of the quantity]"""
        return value + self.scale

    def learned(self, system: System, value: float, standard_error: float) -> LearnedConstant:
        """The constant of a system with another value, within its bounds. [unit of the quantity]"""
        unit = system.units()[self.name]
        after = si_value(written(min(max(value, self.low), self.high), unit), unit)
        low, at, high = self.coordinate(np.array([self.low, after, self.high]))
        return LearnedConstant(
            name=self.name,
            unit=unit,
            before=system.quantities()[self.name].item(),
            after=after,
            standard_error=standard_error,
            at_bound=bool(min(at - low, high - at) < 1e-3 * min(high - low, 1.0)),
        )


#: Constants of chips, memory levels, tiers of links and whole steps: lowest, highest, scale, spread.
TABLE: Final[Mapping[str, Mapping[str, Sequence[float]]]] = data_beside(__file__, "constants.yaml")
#: Kind of rows -> ends of names of constants that steps may tell where there are none of that kind.
STEPS_TOO: Final = {KERNELS: ("matrix_efficiency", "fp8_efficiency"), COLLECTIVES: ("_efficiency", "_latency")}
#: Share of the cores that collectives of replicas can take, its scale, and its spread. [-]
CORES_TAKEN: Final = (0.8, 0.05, 0.5)
#: Spreads of links between nodes: rates are nominal, and only lower in practice. [-]
FABRIC: Final = {"efficiency": FABRIC_SPREAD, "latency": 0.7}


def bounded(constant: Constant, allowed: Range) -> Constant:
    """A constant within the values that the reader of system files accepts."""
    return replace(constant, low=max(constant.low, allowed.low), high=min(constant.high, allowed.high))


def candidates(system: System) -> dict[str, list[Constant]]:
    """Constants of a system that rows of each kind may determine, by kind; bounds include the values of the system."""
    levels = {
        f"{level.name}_{name}": at
        for level in system.memory[1:]
        for name, at in TABLE["dram" if level is system.dram else "levels"].items()
    }
    tiers = {f"{tier.name}_{name}": at for tier in system.network for name, at in TABLE["tiers"].items()}
    cores = system.chip.cores.max().item()
    most, scale, spread = CORES_TAKEN
    stages = {
        KERNELS: {**TABLE["chips"], **levels},
        COLLECTIVES: tiers,
        STEPS: {**TABLE["steps"], "dp_collective_cores": (0.0, most * cores, scale * cores, spread)},
    }
    now, ranges = system.quantities(), system.ranges()
    fabric = {f"{tier.name}_{name}": spread for tier in system.network[1:][-1:] for name, spread in FABRIC.items()}
    return {
        stage: [
            bounded(
                Constant(name, min(low, now[name].min()), max(high, now[name].max()), scale, fabric.get(name, spread)),
                ranges[name],
            )
            for name, (low, high, scale, spread) in constants_of_stage.items()
        ]
        for stage, constants_of_stage in stages.items()
    }


def with_learned(text: str, base: System, learned: Iterable[tuple[LearnedConstant, str]], about: str) -> str:
    """The text of a system file with the constants that measurements moved, each with its source.

    `about` is its description. Raises `DseError` if the result does not load.
    """
    constants = {
        quantity_place(base, one.name): {
            "value": written(one.after, one.unit),
            "kind": "fitted",
            "standard_error": written(one.standard_error, one.unit),
            "source": source,
        }
        for one, source in learned
    }
    return with_constants(text, base.name, constants, about)
