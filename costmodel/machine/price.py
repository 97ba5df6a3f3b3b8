"""Dollars and watts of a system, from the unit costs of its parts."""

from __future__ import annotations

import numpy as np

from costmodel.columns import FloatArray
from costmodel.machine.system import System


def die_area(system: System) -> FloatArray:
    """Area of the chip's logic die. [m2]

    A fixed part, the matrix units by their multiply-adds, and the on-die memories by their capacity.
    """
    chip = system.chip
    multiply_adds = chip.cores * chip.arrays_per_core * chip.array_height * chip.array_width
    area = chip.fixed_area + chip.array_area * multiply_adds
    for level in system.memory[:-1]:
        area = area + chip.sram_area * level.capacity
    return area


def die_yield(system: System) -> FloatArray:
    """Share of dies without a fault: negative binomial, for faults in clusters [Cunningham1990]_. [-]

    ``(1 + area * defect_density / defect_clustering) ** -defect_clustering``; Poisson's for no clusters.
    """
    chip = system.chip
    faults = die_area(system) * chip.defect_density / chip.defect_clustering
    return np.asarray((1 + faults) ** -chip.defect_clustering)


def chip_price(system: System) -> FloatArray:
    """Price of one chip with its memory, its links, and its share of host and switches. [$]

    Good dies pay for bad ones. Memory is paid by capacity and by bandwidth, links by bandwidth, supplies and
    cooling by the power that `chip_power` provisions.
    """
    die = die_area(system) * system.chip.area_price / die_yield(system)
    price = system.chip.base_price + die + system.host.price
    for level in system.memory:
        price = price + level.capacity * level.price + level.bandwidth * level.bandwidth_price
    for tier in system.network:
        price = price + tier.carried * tier.price
    return price + chip_power(system) * system.host.power_price


def chip_power(system: System) -> FloatArray:
    """Power to provision for one chip and its share of the host, everything busy at once. [W]

    Idle power, arithmetic at the sustained peak and its voltage, and every memory level and link at its bandwidth.
    """
    chip = system.chip
    power = chip.idle_power + chip.matrix_flop_rate * chip.flop_energy + system.host.power
    for level in system.memory:
        power = power + level.bandwidth * level.energy
    for tier in system.network:
        power = power + tier.carried * tier.energy
    return power * system.host.power_overhead
