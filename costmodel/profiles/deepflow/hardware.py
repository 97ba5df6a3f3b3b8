"""The machine that a power budget buys, and what a kernel takes on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import Columns, FloatArray, column
from costmodel.kernels.output_tiles import tile_edge
from costmodel.profiles.deepflow.configuration import Configuration

#: Latency of the memory, charged once per memory-bound kernel. [s]
MEMORY_LATENCY = 50e-9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Hardware(Columns):
    """One device; (points,) columns. Rates are those that the model uses, after derating."""

    flop_rate: FloatArray = column("FLOP/s")
    dram_bandwidth: FloatArray = column("B/s")
    dram_capacity: FloatArray = column("B")
    l2_bandwidth: FloatArray = column("B/s")
    l2_capacity: FloatArray = column("B")
    shared_memory_capacity: FloatArray = column("B")
    link_bandwidth: FloatArray = column("B/s")
    l2_tile: FloatArray = column("-")
    shared_memory_tile: FloatArray = column("-")

    @property
    def inflection(self) -> FloatArray:
        """Intensity from which a kernel is bound by arithmetic; rule RF1. [FLOP/B]"""
        return self.flop_rate / self.dram_bandwidth


def hardware(config: Configuration) -> Hardware:
    """Rules HW1 to HW7 and TL1: each block's rate is its share of the power over the energy of one unit.

    Parameters
    ----------
    config : Configuration
        Power, energies, banks; (points,) columns.

    Returns
    -------
    hardware : Hardware
        (points,) columns. [FLOP/s], [B/s], [B], [elements]

    Notes
    -----
    Capacities come from the bandwidth before derating, in fractions of a bank.
    """

    def share(part: str) -> FloatArray:
        fraction: FloatArray = getattr(config, f"{part}_fraction")
        return fraction * config.tdp

    dram_bandwidth = share("dram") / config.dram_energy
    l2_bandwidth = share("l2") / config.l2_energy
    l2_capacity = banked(l2_bandwidth, config.bank_capacity, config.bank_bandwidth)
    shared_bandwidth = share("shared_memory") / config.shared_memory_energy
    shared_capacity = banked(shared_bandwidth, config.bank_capacity, config.bank_bandwidth)
    links = number_of_links(config)
    per_link = share("link") / np.maximum(links, 1.0)
    return Hardware(
        flop_rate=share("core") / config.flop_energy * config.core_derate,
        dram_bandwidth=dram_bandwidth * config.dram_derate,
        dram_capacity=banked(dram_bandwidth, config.stack_capacity, config.stack_bandwidth),
        l2_bandwidth=l2_bandwidth,
        l2_capacity=l2_capacity,
        shared_memory_capacity=shared_capacity,
        link_bandwidth=np.where(links > 0, per_link / config.link_energy, 0.0),
        l2_tile=tile_edge(l2_capacity, config.element_bytes),
        shared_memory_tile=tile_edge(shared_capacity, config.element_bytes),
    )


def banked(bandwidth: FloatArray, bank_capacity: FloatArray, bank_bandwidth: FloatArray) -> FloatArray:
    """Capacity of the banks, in fractions of one, that give a bandwidth. [B]"""
    return bandwidth / bank_bandwidth * bank_capacity


def number_of_links(config: Configuration) -> FloatArray:
    """Links of a mesh that share the power for links; 0 elsewhere, and where nothing is split. [-]"""
    by_kernel = np.zeros(1, dtype=bool)
    for part in ("hidden", "softmax", "projection", "embedding"):
        split = config.split(part)
        by_kernel = by_kernel | (split.dim1 > 1) | (split.dim2 > 1)
    groups = (config.dp > 1) + 1.0 * (config.lp > 1) + by_kernel
    h1 = config.hidden_dim1
    links = np.where(groups < 3, groups * config.dp * h1, 3 * config.dp * h1 * config.lp)
    return np.where(config.mesh > 0, links, 0.0)


def roofline(
    flops: FloatArray, dram_bytes: FloatArray, machine: Hardware, *, l2_bytes: FloatArray | float = 0.0
) -> FloatArray:
    """Time of one kernel by rule RF3; arrays that broadcast against the machine's columns. [s]

    Parameters
    ----------
    flops : array
        Work. [FLOP]
    dram_bytes, l2_bytes : array
        Traffic. [B]
    machine : Hardware
        Columns that broadcast against `flops`.

    Returns
    -------
    time : array
        [s]

    Notes
    -----
    Differs from the native roofline, the slowest level: below the inflection the levels add up with one
    latency, and from there on arithmetic counts alone, even where the second level takes longer.
    """
    from_l2 = np.where(machine.l2_bandwidth > 0, l2_bytes / machine.l2_bandwidth, 0.0)
    moving = dram_bytes / machine.dram_bandwidth + MEMORY_LATENCY + from_l2
    return np.where(flops / dram_bytes < machine.inflection, moving, flops / machine.flop_rate)
