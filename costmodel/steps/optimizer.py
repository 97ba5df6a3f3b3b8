"""The optimizer's part of a step: the usual update, and updates of states that are narrow, orthogonal, or on hosts."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from costmodel.columns import FloatArray, in_line
from costmodel.kernels.collectives import collective
from costmodel.kernels.kernel_cost import Item, KernelCost, traffic_energy
from costmodel.kernels.kernel_tables import (
    ORTHOGONAL_BYTES,
    WeightMatrix,
    optimizer_work,
    orthogonal_products,
    weight_matrices,
)
from costmodel.kernels.kernel_tables import total as sum_of_kernels
from costmodel.kernels.products import gemm_cost
from costmodel.machine import System
from costmodel.steps.parameter_states import is_orthogonal, moment_bytes, owned_matrices, state_shards
from costmodel.steps.pipeline.pipeline_step import host_transfer_time
from costmodel.steps.pipeline.stages import Stage
from costmodel.training.precision import ADAM, FULL_BYTES, MUON
from costmodel.training.ranks import Group
from costmodel.training.run import TransformerRun, gradient_bytes


def optimizer_step(
    owned: FloatArray,
    system: System,
    everyone: Group,
    *,
    update: KernelCost | None = None,
    moved: FloatArray | float = 0.0,
) -> KernelCost:
    """Gradient clipping, with the all-reduce of its norm over all ranks, and the update of owned weights.

    `owned` are the parameters that a rank updates, (points,) [-]; `everyone` are all ranks. `update` replaces the
    update by Adam in full precision. `moved` is the traffic of copies of gradients, and of setting them to zero. [B]
    """
    dram, norm = system.dram, collective("all_reduce", 4.0 * np.ones_like(owned), everyone, system.network)
    busy = moved / (dram.bandwidth * dram.efficiency)
    parts = {
        "clipping of gradients": weight_kernel("gradclip", owned, system),
        "update of weights": weight_kernel("apply_grad", owned, system) if update is None else update,
        "copies of gradients": KernelCost(time=busy, memory_energy=moved * dram.energy),
        "all_reduce of the norm": KernelCost(time=norm.time),
    }
    items = {Item("time", "optimizer_time", name=name): part.time for name, part in parts.items()}
    return replace(sum(parts.values(), start=KernelCost()), items=items)


def weight_kernel(kernel: str, weights: FloatArray, system: System, accesses: FloatArray | None = None) -> KernelCost:
    """The table of a kernel of `OPTIMIZER_KERNELS`; parameters as for `optimizer_work`."""
    dram, chip = system.dram, system.chip
    flops, moved = optimizer_work(kernel, weights, element_bytes=4.0, accesses=accesses)
    busy = np.maximum(flops / chip.vector_flop_rate, moved / (dram.bandwidth * dram.efficiency))
    return KernelCost(
        time=busy + chip.kernel_launch, compute_energy=flops * chip.flop_energy, memory_energy=moved * dram.energy
    )


def state_update(run: TransformerRun, stage: Stage, plain: FloatArray, matrices: FloatArray) -> KernelCost | None:
    """Update of the states that a rank owns; None where all are of full precision on chips, by Adam. [s], [J]

    `plain` and `matrices` are its `owned_parameters`, (points,). [-]

    Gradients go down to the host, weights come up behind its update; the chip updates its own share
    meanwhile. Orthogonal updates are made on the chip: momentum comes up for them, and they go down.
    """
    design, moments = run.design, moment_bytes(run.design)
    orthogonal, on_host = is_orthogonal(design), design.offload_optimizer
    if not (orthogonal.any() or (moments < FULL_BYTES).any() or (on_host > 0).any()):
        return None
    update = weight_kernel("apply_grad", (1 - on_host) * plain, run.system, ADAM.accesses(moments))
    accesses = ADAM.accesses(moments) * plain
    if orthogonal.any():
        of_matrices = weight_kernel("apply_grad", (1 - on_host) * matrices, run.system, MUON.accesses(moments))
        update += of_matrices * np.where(orthogonal, 1.0, 0.0)
        accesses = accesses + MUON.accesses(moments) * matrices
    if (on_host > 0).any():
        crossing = (gradient_bytes(run) + run.precision.element_bytes) * (plain + matrices)
        crossing = np.where(run.system.software.offloaded_shards > 0, 0.0, crossing + 2 * ORTHOGONAL_BYTES * matrices)
        rate = np.minimum(run.system.host.memory_bandwidth, run.system.software.host_update_bandwidth)
        hosts = on_host * FULL_BYTES * accesses / rate + host_transfer_time(on_host * crossing, run.system)
        update += KernelCost(time=np.maximum(hosts - update.time, 0.0))
    return update + orthogonal_updates(run, stage) if orthogonal.any() else update


def orthogonal_updates(run: TransformerRun, stage: Stage) -> KernelCost:
    """Newton-Schulz iterations of the matrices that the fullest owner has; nothing for other optimizers.

    Each rank of a tensor-parallel group gathers whole matrices and works on all of them, as Megatron-LM's
    mode "duplicated" does; it keeps its share. The fullest owner sets the time, the mean of all the energy.
    """
    design, total = run.design, KernelCost()
    matrices = weight_matrices(run.model)
    owned = owned_matrices(run, stage, matrices)
    once = iteration_costs(matrices, run.system)
    happens = np.where(is_orthogonal(design), 1.0, 0.0)
    for matrix, (held, fullest), cost in zip(matrices, owned, once, strict=True):
        if not matrix.whole:
            group = Group.of_neighbours(design.etp if matrix.of_experts else design.tp)
            message = matrix.size * ORTHOGONAL_BYTES * np.ones_like(fullest)
            gathered = collective("all_gather", message, group, run.system.network)
            energy = traffic_energy(gathered.bytes_sent, run.system.network)
            cost = cost + KernelCost(time=gathered.time, link_energy=energy)
        mean = held / state_shards(design, "optimizer", of_experts=matrix.of_experts)
        total += replace(cost * (happens * mean), time=happens * fullest * cost.time)
    return total


def iteration_costs(matrices: list[WeightMatrix], system: System) -> list[KernelCost]:
    """All Newton-Schulz steps of one of each of some matrices; columns of one value, or one per machine."""
    shape = np.broadcast_shapes((1,), *(values.shape for values in system.quantities().values()))
    gemms, machines = (
        orthogonal_products(matrices).repeated(math.prod(shape)),
        system.map(partial(in_line, shape=shape)),
    )
    cost, steps = gemm_cost(gemms, machines, element_bytes=ORTHOGONAL_BYTES), MUON.newton_schulz_steps
    costs = []
    for number in range(len(matrices)):
        three = slice(3 * number, 3 * number + 3)
        values = (cost.time, cost.flops, *cost.traffic)
        time, flops, *moved = (sum_of_kernels(of_kernels[:, three]).reshape(shape) for of_kernels in values)
        costs.append(
            KernelCost(
                time=steps * time,
                compute_energy=steps * flops * system.chip.flop_energy,
                memory_energy=steps * traffic_energy(moved, system.memory),
            )
        )
    return costs
