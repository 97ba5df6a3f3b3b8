"""Kernel tables with their costs, summed by part of the model, direction and kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import EACH_ITS_OWN, BoolArray, FloatArray, IntArray, UniqueRows, per_kernel
from costmodel.kernels.gemm import GemmCost
from costmodel.kernels.kernel_cost import Item, Items, KernelCost, added, quantities_of, traffic_energy
from costmodel.machine.system import System
from costmodel.workload.kernel_tables import Gemms, Label, Pointwise, total
from costmodel.workload.transformer import Part

#: Direction -> passes over the kernel tables.
DIRECTIONS: Final = {"forward": ("forward",), "backward": ("activation_gradient", "weight_gradient")}


def kernel_items(
    label: Item,
    system: System,
    *,
    time: FloatArray,
    waiting: BoolArray,
    flops: FloatArray,
    traffic: Sequence[FloatArray],
    launches: FloatArray,
) -> dict[Item, FloatArray]:
    """Quantities of one kernel: its time, the part of it that waits for memory, its work, and bytes by memory level.

    `time` [s], `flops` [FLOP] and `launches` [-] are those of all its launches, (points,); `waiting` marks points that
    wait for a memory level; `traffic` has the bytes through each level, (points,) each. [B]
    """
    moved = {f"{level.name} bytes": quantities for level, quantities in zip(system.memory, traffic, strict=False)}
    waits = np.where(waiting, time, 0.0)
    quantities = {"time": time, "memory bound": waits, "flops": flops, "launches": launches, **moved}
    return quantities_of(label, quantities)


def item_of(label: Label, kind: str) -> Item:
    """Labels of the quantities of a kernel of a table."""
    return Item(kind=kind, kernel=label.kernel or label.name, name=label.name, kernel_pass=label.of_pass)


def launch_wait(launches: FloatArray, busy: FloatArray, system: System) -> FloatArray:
    """Time that a rank waits for its host to launch kernels, (points,). [s]

    `launches` are kernels and collectives [-]; `busy` is their time [s], (points,) each.

    Kernels are launched ahead, so that only their sum counts, not the shortest one; launches that block come
    on top of what runs.
    """
    dispatching, blocking = launches * system.host.dispatch, system.software.blocking_launches
    ahead = np.maximum(dispatching - busy, 0.0)
    if not blocking.any():
        return ahead
    return ahead + blocking * (dispatching - ahead)


def with_launch_overhead(cost: KernelCost, system: System) -> KernelCost:
    """Kernels no faster than the host can launch them. [s]"""
    waiting = launch_wait(cost.launches, cost.total_time, system)
    slowed = {"time": cost.time + waiting, "launch_bound_time": cost.launch_bound_time + waiting}
    columns, points = {**cost.columns(), **slowed}, waiting.shape[-1]
    short = (name for name, values in columns.items() if values.ndim and values.shape[-1] != points)
    broadcast = {name: np.broadcast_to(columns[name], (*columns[name].shape[:-1], points)) for name in short}
    return cost.with_columns({**slowed, **broadcast})


def costs_of_points(cost: KernelCost, unique: UniqueRows) -> KernelCost:
    """Costs of unique rows, for each point those of its row; what is 0 for all stays so. [s], [J]"""
    if unique.places is None:
        return cost
    return cost.map(lambda values: unique.of_points(values) if values.ndim else values)


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """Both kernel tables with their costs, to be summed by part and pass; equal rows are in them once."""

    gemms: Gemms
    gemm_costs: GemmCost
    pointwise: Pointwise
    pointwise_times: FloatArray
    pointwise_memory_bound: BoolArray
    system: System
    unique: UniqueRows = EACH_ITS_OWN  #: the row of each point
    times_alone: bool = False  #: whether energies, and what waits for memories, are left out
    itemized: bool = False  #: whether costs have the kernels that they are of as items

    def cost(self, part: str, direction: str, among: Callable[[Label], bool] | None = None) -> KernelCost:
        """Sum over the kernels of a part in one direction, or over some of them."""
        dense, thin = (
            np.concatenate([table.select(of_pass, part, among) for of_pass in DIRECTIONS[direction]])
            for table in (self.gemms, self.pointwise)
        )
        chip, kernels, count, costs = self.system.chip, self.pointwise, self.gemms.count, self.gemm_costs
        of_each = np.broadcast_to(per_kernel(self.system.software.pointwise_kernels), kernels.count.shape)
        launched = kernels.count, of_each
        time, launches = self._time(dense, thin), total(count, places=dense) + total(*launched, places=thin)
        if self.times_alone:
            return costs_of_points(KernelCost(time=time, launches=launches), self.unique)
        work = total(count, costs.work, places=dense) + total(kernels.count, kernels.flops, places=thin)
        moved = [total(count, traffic, places=dense) for traffic in costs.traffic]
        moved[-1] = moved[-1] + total(*launched, kernels.bytes_moved, places=thin)
        waiting = total(count, costs.time, places=dense, where=costs.memory_bound)
        cost = KernelCost(
            time=time,
            memory_bound_time=waiting + total(self.pointwise_times, places=thin, where=self.pointwise_memory_bound),
            compute_energy=work * chip.flop_energy,
            memory_energy=traffic_energy(moved, self.system.memory),
            launches=launches,
            items=self._items(dense, thin) if self.itemized else {},
        )
        return costs_of_points(cost, self.unique)

    def _items(self, dense: IntArray, thin: IntArray) -> Items:
        """Time, work and traffic of each kernel."""
        items: Items = {}
        for number in dense:
            costs, label = self.gemm_costs, self.gemms.labels[number]
            count = self.gemms.count[..., number]
            of_kernel = kernel_items(
                item_of(label, "product"),
                self.system,
                time=count * costs.time[..., number],
                waiting=costs.memory_bound[..., number],
                flops=count * costs.flops[..., number],
                traffic=[count * moved[..., number] for moved in costs.traffic],
                launches=count,
            )
            items = added(items, of_kernel)
        for number in thin:
            table, label = self.pointwise, self.pointwise.labels[number]
            launched = table.count[..., number] * self.system.software.pointwise_kernels
            of_kernel = kernel_items(
                item_of(label, "pointwise"),
                self.system,
                time=self.pointwise_times[..., number],
                waiting=self.pointwise_memory_bound[..., number],
                flops=table.count[..., number] * table.flops[..., number],
                traffic=[*[0.0 * launched] * (len(self.system.memory) - 1), launched * table.bytes_moved[..., number]],
                launches=launched,
            )
            items = added(items, of_kernel)
        return items

    def pass_time(self, part: str, of_pass: str) -> FloatArray:
        """Time of the kernels of a part in one pass. [s]"""
        dense, thin = self.gemms.select(of_pass, part), self.pointwise.select(of_pass, part)
        return self.unique.of_points(self._time(dense, thin))

    def kernels_time(self, part: Part, kernels: Collection[str], of_pass: str) -> FloatArray:
        """Time of some rows of a part's blocks in one pass. [s]"""
        dense, thin = (
            [
                number
                for number, label in enumerate(table.labels)
                if label.of_pass == of_pass and label.kernel in kernels and label.part in (part.name, part.core)
            ]
            for table in (self.gemms, self.pointwise)
        )
        return self.unique.of_points(self._time(dense, thin))

    def _time(self, dense: Sequence[int] | IntArray, thin: Sequence[int] | IntArray) -> FloatArray:
        """Time of some products and some other kernels of each row, by their places. [s]"""
        products = total(self.gemms.count, self.gemm_costs.time, places=dense)
        return products + total(self.pointwise_times, places=thin)
