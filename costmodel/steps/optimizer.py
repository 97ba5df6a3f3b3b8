"""The optimizer's part of a step, whatever the model."""

from __future__ import annotations

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.collectives import collective
from costmodel.kernels.cost import KernelCost
from costmodel.machine.system import System
from costmodel.training.ranks import Group
from costmodel.workload.optimizer import OPTIMIZER_KERNELS, optimizer_work


def optimizer_step(owned: FloatArray, system: System, everyone: Group) -> KernelCost:
    """Gradient clipping, with the all-reduce of its norm over all ranks, and the update of owned weights.

    Parameters
    ----------
    owned : (points,) array
        Parameters that a rank updates. [-]
    system : System
        Machine.
    everyone : Group
        All ranks, (points,).
    """
    dram, chip = system.dram, system.chip
    update = KernelCost()
    for kernel in OPTIMIZER_KERNELS:
        flops, moved = optimizer_work(kernel, owned, element_bytes=4.0)
        busy = np.maximum(flops / chip.vector_flop_rate, moved / (dram.bandwidth * dram.efficiency))
        update += KernelCost(
            time=busy + chip.kernel_launch,
            compute_energy=flops * chip.energy_per_flop,
            memory_energy=moved * dram.energy,
        )
    norm = collective("all_reduce", 4.0 * np.ones_like(owned), everyone, system.network)
    return update + KernelCost(time=norm.time)
