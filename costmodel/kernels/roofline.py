"""Work and traffic to time: the slowest of arithmetic and memory levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.columns import BoolArray, FloatArray, per_kernel
from costmodel.machine.system import MemoryLevel, System
from costmodel.workload.kernel_tables import Pointwise


def slowest_level(traffic: Sequence[FloatArray], levels: Sequence[MemoryLevel], *, repeats: FloatArray) -> FloatArray:
    """Longest of the levels' transfer times, (points, kernels); 0 where there is no level. [s]

    `traffic` has the bytes that each level moves once, `repeats` times. [B], [-]
    """
    time = np.zeros(repeats.shape)
    for moved, level in zip(traffic, levels, strict=False):
        np.maximum(time, repeats * moved / per_kernel(level.bandwidth * level.efficiency), out=time)
    return time


def pointwise_time(kernels: Pointwise, system: System) -> tuple[FloatArray, BoolArray]:
    """Time of kernels that read and write the farthest level once.

    Parameters
    ----------
    kernels : Pointwise
        Bytes and work of each, (points, kernels). [B], [FLOP]
    system : System
        Machine.

    Returns
    -------
    time : (points, kernels) array
        The slower of the vector lanes and the memory, plus the launch; 0 for an absent kernel. [s]
    memory_bound : (points, kernels) array
        Whether the memory is the slower. [-]

    Notes
    -----
    A framework that fuses less runs `Software.pointwise_kernels` in place of each. Rows that are sorted on
    the way move at `Chip.sorting_efficiency` of the rate of others.
    """
    launched = kernels.count * per_kernel(system.software.pointwise_kernels)
    arithmetic = kernels.count * (kernels.flops / per_kernel(system.chip.vector_flop_rate))
    moved, sorts = kernels.bytes_moved, [label.runs == "sorting" for label in kernels.labels]
    if any(sorts):
        moved = moved / np.where(sorts, per_kernel(system.chip.sorting_efficiency), 1.0)
    transfer = slowest_level([moved], [system.dram], repeats=launched)
    busy = np.maximum(arithmetic, transfer)
    return busy + launched * per_kernel(system.chip.kernel_launch), transfer >= arithmetic
