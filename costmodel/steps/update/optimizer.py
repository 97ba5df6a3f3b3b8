"""The optimizer's part of a step, whatever the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.collectives import collective
from costmodel.kernels.items import Item
from costmodel.kernels.kernel_cost import KernelCost
from costmodel.machine.system import System
from costmodel.training.ranks import Group
from costmodel.workload.optimizer import optimizer_work


def optimizer_step(
    owned: FloatArray, system: System, everyone: Group, *, update: KernelCost | None = None
) -> KernelCost:
    """Gradient clipping, with the all-reduce of its norm over all ranks, and the update of owned weights.

    Parameters
    ----------
    owned : (points,) array
        Parameters that a rank updates. [-]
    system : System
        Machine.
    everyone : Group
        All ranks, (points,).
    update : KernelCost, optional
        The update, where it is another than that of Adam in full precision.
    """
    clipping = weight_kernel("gradclip", owned, system)
    update = weight_kernel("apply_grad", owned, system) if update is None else update
    norm = collective("all_reduce", 4.0 * np.ones_like(owned), everyone, system.network)
    parts = {
        "clipping of gradients": clipping.time,
        "update of weights": update.time,
        "all_reduce of the norm": norm.time,
    }
    items = {Item("time", "optimizer_time", name=name): time for name, time in parts.items()}
    return replace(clipping + update + KernelCost(time=norm.time), items=items)


def weight_kernel(kernel: str, weights: FloatArray, system: System, accesses: FloatArray | None = None) -> KernelCost:
    """The table of a kernel of `OPTIMIZER_KERNELS`; parameters as for `optimizer_work`."""
    dram, chip = system.dram, system.chip
    flops, moved = optimizer_work(kernel, weights, element_bytes=4.0, accesses=accesses)
    busy = np.maximum(flops / chip.vector_flop_rate, moved / (dram.bandwidth * dram.efficiency))
    return KernelCost(
        time=busy + chip.kernel_launch, compute_energy=flops * chip.flop_energy, memory_energy=moved * dram.energy
    )
