"""Constants of a machine that measurements can tell, within physical bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel import System
from costmodel.columns import FloatArray
from costmodel.machine import Range

#: Kinds of rows in the order in which they are fitted: what one tells is fixed for the next.
KERNELS, COLLECTIVES, STEPS = STAGES = ("kernels", "collectives", "steps")


@dataclass(frozen=True, slots=True)
class Constant:
    """A quantity of a system, and what is known of it before anything is measured. [unit of the quantity]

    It is fitted by its logarithm where it is large against `scale`, and as it is where it is small, so that
    it may become 0.
    """

    name: str
    low: float
    high: float
    scale: float

    def coordinate(self, value: FloatArray | float) -> FloatArray:
        """Coordinate in which a value is fitted. [-]"""
        return np.log1p(np.asarray(value) / self.scale)

    def value(self, coordinate: FloatArray | float) -> FloatArray:
        """The value of a coordinate. [unit of the quantity]"""
        return np.asarray(self.scale * np.expm1(coordinate))

    def is_at_bound(self, value: float) -> bool:
        """True if a value is as low or as high as it may be. [unit of the quantity]"""
        low, at, high = self.coordinate(np.array([self.low, value, self.high]))
        return bool(min(at - low, high - at) < 1e-3 * min(high - low, 1.0))

    def slope(self, value: float) -> float:
        """Change of the value with its coordinate. [unit of the quantity]"""
        return value + self.scale


#: Of a chip, as kernels show it: name -> lowest, highest, scale. [-], [s]
OF_CHIPS: Final = {
    "matrix_efficiency": (0.2, 1.0, 0.1),
    "tile_latency": (0.0, 2e-5, 1e-6),
    "kernel_launch": (0.0, 1e-4, 1e-6),
    "flash_2_efficiency": (0.2, 1.2, 0.1),
    "fp8_efficiency": (0.4, 1.4, 0.1),
    "fp4_efficiency": (0.3, 1.4, 0.1),
}
#: Of a memory level behind the nearest.
OF_LEVELS: Final = {"efficiency": (0.2, 1.0, 0.1)}
#: Of a tier of links. [-], [s], [B]
OF_TIERS: Final = {
    "efficiency": (0.05, 1.0, 0.1),
    "launch": (0.0, 2e-3, 1e-6),
    "latency": (0.0, 1e-3, 1e-6),
    "ramp": (0.0, 1e9, 1e6),
    "own_share": (0.0, 3.0, 0.1),
    "in_switch_rate": (0.2, 1.5, 0.1),
}
#: Of whole steps: what a chip holds for hours, its host and its software. [-], [s]
OF_STEPS: Final = {
    "sustained": (0.2, 1.0, 0.1),
    "software_pointwise_kernels": (0.5, 10.0, 1.0),
    "host_dispatch": (0.0, 1e-3, 1e-5),
    "host_step_overhead": (0.0, 10.0, 1e-2),
    "host_straggler": (0.0, 0.2, 1e-2),
}
#: Kind of rows -> ends of names of constants that steps may tell where there are none of that kind.
STEPS_TOO: Final = {KERNELS: ("matrix_efficiency", "fp8_efficiency"), COLLECTIVES: ("_efficiency", "_latency")}
#: Share of the cores that collectives of replicas can take, and its scale. [-]
CORES_TAKEN: Final = (0.8, 0.05)


def bounded(constant: Constant, allowed: Range) -> Constant:
    """A constant within the values that the reader of system files accepts."""
    return replace(constant, low=max(constant.low, allowed.low), high=min(constant.high, allowed.high))


def candidates(system: System) -> dict[str, list[Constant]]:
    """Constants of a system that rows of each kind may tell, by kind; bounds include what the system has."""
    levels = {f"{level.name}_{name}": at for level in system.memory[1:] for name, at in OF_LEVELS.items()}
    tiers = {f"{tier.name}_{name}": at for tier in system.network for name, at in OF_TIERS.items()}
    cores = system.chip.cores.item()
    most, scale = CORES_TAKEN
    stages = {
        KERNELS: {**OF_CHIPS, **levels},
        COLLECTIVES: tiers,
        STEPS: {**OF_STEPS, "dp_collective_cores": (0.0, most * cores, scale * cores)},
    }
    now, ranges = system.quantities(), system.ranges()
    return {
        stage: [
            bounded(Constant(name, min(low, now[name].item()), max(high, now[name].item()), scale), ranges[name])
            for name, (low, high, scale) in constants_of_stage.items()
        ]
        for stage, constants_of_stage in stages.items()
    }
