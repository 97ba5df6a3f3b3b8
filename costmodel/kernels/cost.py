"""Time and energy of some kernels and their collectives, as one table that adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.columns import Columns, FloatArray, column
from costmodel.machine.system import System


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelCost(Columns):
    """Time and energy of some kernels and their tensor-parallel collectives; (points,) each."""

    time: FloatArray = column("s", 0)
    tp_time: FloatArray = column("s", 0)
    compute_energy: FloatArray = column("J", 0)
    memory_energy: FloatArray = column("J", 0)
    link_energy: FloatArray = column("J", 0)
    launches: FloatArray = column("-", 0)
    memory_bound_time: FloatArray = column("s", 0)  #: of it in kernels that wait for a memory level
    launch_bound_time: FloatArray = column("s", 0)  #: of it waiting for the host to launch kernels

    def __add__(self, other: KernelCost) -> KernelCost:
        mine, others = self.columns(), other.columns()
        return KernelCost(**{name: mine[name] + others[name] for name in mine})

    def times(self, count: FloatArray | float) -> KernelCost:
        """The same kernels, `count` times."""
        return KernelCost(**{name: values * count for name, values in self.columns().items()})

    @property
    def total_time(self) -> FloatArray:
        """Kernels and exposed collectives. [s]"""
        return self.time + self.tp_time


def traffic_energy(moved: Sequence[FloatArray], system: System) -> FloatArray:
    """Energy of bytes moved at each memory level, nearest first. [J]"""
    energy = moved[0] * system.memory[0].energy
    for level, level_bytes in zip(system.memory[1:], moved[1:], strict=True):
        energy = energy + level_bytes * level.energy
    return energy


def link_energy(bytes_sent: Sequence[FloatArray], system: System) -> FloatArray:
    """Energy of bytes that one rank sends over each tier. [J]"""
    energy = bytes_sent[0] * system.network[0].energy
    for tier, sent in zip(system.network[1:], bytes_sent[1:], strict=True):
        energy = energy + sent * tier.energy
    return energy
