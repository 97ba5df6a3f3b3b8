"""Kernel tables with their costs, summed by part of the model, direction and kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, is_long, of_points, per_kernel
from costmodel.kernels.cost import KernelCost, traffic_energy
from costmodel.kernels.gemm import GemmCost
from costmodel.machine.system import System
from costmodel.workload.kernels import Gemms, Label, Pointwise, total
from costmodel.workload.transformer import Part

#: Direction -> passes over the kernel tables.
DIRECTIONS: Final = {"forward": ("forward",), "backward": ("activation_gradient", "weight_gradient")}


def launch_wait(launches: FloatArray, busy: FloatArray, system: System) -> FloatArray:
    """Time that a rank waits for its host to launch kernels. [s]

    Parameters
    ----------
    launches : (points,) array
        Kernels and collectives. [-]
    busy : (points,) array
        What they take. [s]
    system : System
        Machine, and what its software makes of it.

    Notes
    -----
    Kernels are launched ahead, so that only their sum counts, not the shortest one; launches that block come
    on top of what runs.
    """
    dispatching, blocking = launches * system.host.dispatch, system.software.blocking_launches
    ahead = np.maximum(dispatching - busy, 0.0)
    if not blocking.any():
        return ahead
    return ahead + blocking * (dispatching - ahead)


def with_launch_overhead(cost: KernelCost, system: System) -> KernelCost:
    """The same kernels, no faster than the host can launch them. [s]"""
    waiting = launch_wait(cost.launches, cost.total_time, system)
    slowed = replace(cost, time=cost.time + waiting, launch_bound_time=cost.launch_bound_time + waiting)
    points = waiting.shape[-1:]
    return slowed.map(
        lambda values: (
            np.broadcast_to(values, np.broadcast_shapes(values.shape, points)) if values.ndim else values
        )
    )


def scattered(cost: KernelCost, back: IntArray | None) -> KernelCost:
    """For each point the row that it goes back to, if rows are shared; what is 0 for all stays so."""
    if back is None:
        return cost
    return cost.map(lambda values: _scattered(values, back) if values.ndim else values)


def _scattered(values: FloatArray, back: IntArray) -> FloatArray:
    if is_long(values):
        return of_points(values, back)
    return np.broadcast_to(values, np.broadcast_shapes(values.shape, back.shape))


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """Both kernel tables with their costs, to be summed by part and pass; equal rows stand there once."""

    gemms: Gemms
    gemm_costs: GemmCost
    pointwise: Pointwise
    pointwise_times: FloatArray
    pointwise_memory_bound: BoolArray
    system: System
    back: IntArray | None = None  #: where each point finds its row; None where each has one of its own

    def cost(self, part: str, direction: str, among: Callable[[Label], bool] | None = None) -> KernelCost:
        """Sum over the kernels of a part in one direction, or over some of them."""
        dense, thin = (
            np.concatenate([table.select(of_pass, part, among) for of_pass in DIRECTIONS[direction]])
            for table in (self.gemms, self.pointwise)
        )
        chip, kernels, count, costs = self.system.chip, self.pointwise, self.gemms.count, self.gemm_costs
        of_each = np.broadcast_to(per_kernel(self.system.software.pointwise_kernels), kernels.count.shape)
        launched = kernels.count, of_each
        work = total(count, costs.work, places=dense) + total(kernels.count, kernels.flops, places=thin)
        moved = [total(count, traffic, places=dense) for traffic in costs.traffic]
        moved[-1] = moved[-1] + total(*launched, kernels.bytes_moved, places=thin)
        waiting = total(count, costs.time, places=dense, where=costs.memory_bound)
        cost = KernelCost(
            time=self._time(dense, thin),
            memory_bound_time=waiting
            + total(self.pointwise_times, places=thin, where=self.pointwise_memory_bound),
            compute_energy=work * chip.flop_energy,
            memory_energy=traffic_energy(moved, self.system.memory),
            launches=total(count, places=dense) + total(*launched, places=thin),
        )
        return scattered(cost, self.back)

    def pass_time(self, part: str, of_pass: str) -> FloatArray:
        """Time of the kernels of a part in one pass. [s]"""
        dense, thin = self.gemms.select(of_pass, part), self.pointwise.select(of_pass, part)
        return self._of_points(self._time(dense, thin))

    def kernels_time(self, part: Part, kernels: Collection[str], of_pass: str) -> FloatArray:
        """Time of some rows of a part's blocks in one pass. [s]"""
        dense, thin = (
            [
                place
                for place, label in enumerate(table.labels)
                if label.of_pass == of_pass
                and label.kernel in kernels
                and label.part in (part.name, part.core)
            ]
            for table in (self.gemms, self.pointwise)
        )
        return self._of_points(self._time(dense, thin))

    def _of_points(self, time: FloatArray) -> FloatArray:
        """For each point the time of its row. [s]"""
        return time if self.back is None else _scattered(time, self.back)

    def _time(self, dense: Sequence[int] | IntArray, thin: Sequence[int] | IntArray) -> FloatArray:
        """Of some products and some other kernels of each row, by their places. [s]"""
        products = total(self.gemms.count, self.gemm_costs.time, places=dense)
        return products + total(self.pointwise_times, places=thin)
