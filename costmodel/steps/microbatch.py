"""What one micro-batch costs on one rank, by part of the model and pass.

This is the expensive half of a pricing, and it depends on few columns of a design: `step` prices the
distinct rows and scatters them back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, concatenated
from costmodel.kernels.attention import fused_attention
from costmodel.kernels.gemm import GemmCost, gemm_cost
from costmodel.kernels.roofline import pointwise_time
from costmodel.kernels.work import Work, traffic_energy
from costmodel.machine.system import System
from costmodel.steps.tensor_parallel import tensor_parallel
from costmodel.training.design import HALVINGS, SAMPLE, TILES_TOLD, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import Precision
from costmodel.training.sharding import KERNELS
from costmodel.workload.kernels import Gemms, Pointwise, total
from costmodel.workload.transformer import told_tiles, transformer_gemms, transformer_pointwise


def depends_on(design: DesignPoints) -> list[FloatArray]:
    """Columns of a design that the price of a micro-batch depends on; (points,) each. [-]"""
    names = ["tp", "micro_batch_size", "sequence_parallel", "attention", "sharding", "tiling"]
    if np.any(design.sharding == SAMPLE):
        names += [f"{kernel}_sharding" for kernel in KERNELS]
    if np.any(design.tiling == TILES_TOLD):
        names += HALVINGS
    return [getattr(design, name) for name in names]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MicroBatch:
    """Work of one micro-batch on one rank: of one layer, of the embedding, of the head and loss."""

    layer_forward: Work
    layer_core: Work  #: the attention core's share of the forward pass
    layer_backward: Work
    embedding_forward: Work
    embedding_backward: Work
    head_forward: Work
    head_backward: Work

    def take(self, rows: IntArray) -> Self:
        """Rows of every table."""
        return type(self)(**{name: getattr(self, name).take(rows) for name in self.__slots__})


#: Rows whose kernels are priced at once: (rows, kernels) arrays that fit into a core's cache.
KERNEL_CHUNK = 2048


def micro_batches(
    model: ModelShape, design: DesignPoints, system: System, precision: Precision
) -> MicroBatch:
    """`micro_batch` in pieces that fit into a core's cache; parameters and result are the same."""
    points = design.num_points
    pieces = [
        micro_batch(model, design.take(rows), system.take(rows), precision)
        for rows in np.split(np.arange(points), range(KERNEL_CHUNK, points, KERNEL_CHUNK))
    ]
    return MicroBatch(
        **{name: concatenated([getattr(piece, name) for piece in pieces]) for name in MicroBatch.__slots__}
    )


def micro_batch(model: ModelShape, design: DesignPoints, system: System, precision: Precision) -> MicroBatch:
    """Price one micro-batch of each design.

    Parameters
    ----------
    model, design, system, precision
        What is run, laid out how, on what, in which number format.

    Returns
    -------
    work : MicroBatch
        (points,) columns. [s], [J]
    """
    table = priced_table(model, design, system, precision)
    core = {
        "forward": table.work("core", "forward") + fused_work(model, design, system, precision, "forward"),
        "backward": table.work("core", "backward") + fused_work(model, design, system, precision, "backward"),
    }
    work = {"layer_core": dispatched(core["forward"], system)}
    for part in ("layer", "embedding", "head"):
        communication = tensor_parallel(part, model, design, system, precision, table.kernel_time)
        for direction, collectives in zip(DIRECTIONS, communication, strict=True):
            kernels = table.work(part, direction) + collectives
            if part == "layer":
                kernels += core[direction]
            work[f"{part}_{direction}"] = dispatched(kernels, system)
    return MicroBatch(**work)


def priced_table(
    model: ModelShape, design: DesignPoints, system: System, precision: Precision
) -> PricedTable:
    """Every kernel of a micro-batch but the fused attention, with its price."""
    gemms = transformer_gemms(model, design, precision).present()
    tiles = told_tiles(design, gemms.labels)
    gemm_costs = gemm_cost(gemms, system, element_bytes=precision.element_bytes, tiles=tiles)
    pointwise = transformer_pointwise(model, design, precision).present()
    return PricedTable(gemms, gemm_costs, pointwise, *pointwise_time(pointwise, system), system)


#: Direction -> passes over the kernel tables.
DIRECTIONS = {"forward": ("forward",), "backward": ("activation_gradient", "weight_gradient")}


def dispatched(work: Work, system: System) -> Work:
    """The same work, no faster than the host can launch its kernels. [s]

    Kernels are launched ahead, so that only their sum counts, not the shortest one.
    """
    waiting = np.maximum(work.launches * system.host.dispatch - work.total_time, 0.0)
    slowed = replace(work, time=work.time + waiting, launch_bound_time=work.launch_bound_time + waiting)
    return slowed.map(lambda values: np.broadcast_to(values, waiting.shape))


@dataclass(frozen=True, slots=True)
class PricedTable:
    """Both kernel tables with their prices, to be summed by part and pass."""

    gemms: Gemms
    gemm_costs: GemmCost
    pointwise: Pointwise
    pointwise_times: FloatArray
    pointwise_memory_bound: BoolArray
    system: System

    def work(self, part: str, direction: str) -> Work:
        """Sum over the kernels of a part in one direction."""
        dense = np.concatenate([self.gemms.select(of_pass, part) for of_pass in DIRECTIONS[direction]])
        thin = np.concatenate([self.pointwise.select(of_pass, part) for of_pass in DIRECTIONS[direction]])
        chip, kernels = self.system.chip, self.pointwise
        count = self.gemms.count[:, dense]
        flops = total(count * self.gemm_costs.flops[:, dense]) + total(
            (kernels.count * kernels.flops)[:, thin]
        )
        moved = [total(count * traffic[:, dense]) for traffic in self.gemm_costs.traffic]
        moved[-1] = moved[-1] + total((kernels.count * kernels.bytes_moved)[:, thin])
        products, others = count * self.gemm_costs.time[:, dense], self.pointwise_times[:, thin]
        waiting = total(np.where(self.gemm_costs.memory_bound[:, dense], products, 0.0))
        return Work(
            time=total(products) + total(others),
            memory_bound_time=waiting + total(np.where(self.pointwise_memory_bound[:, thin], others, 0.0)),
            compute_energy=flops * chip.energy_per_flop,
            memory_energy=traffic_energy(moved, self.system),
            launches=total(count) + total(kernels.count[:, thin]),
        )

    def kernel_time(self, name: str, of_pass: str) -> FloatArray:
        """Time of one kernel in one pass. [s]"""
        return self.kernels_time((name,), of_pass)

    def kernels_time(self, names: Collection[str], of_pass: str) -> FloatArray:
        """Time of some kernels in one pass. [s]"""
        dense, thin = (
            [place for place in table.select(of_pass) if table.labels[place].name in names]
            for table in (self.gemms, self.pointwise)
        )
        products = total(self.gemms.count[:, dense] * self.gemm_costs.time[:, dense])
        return products + total(self.pointwise_times[:, thin])


def fused_work(
    model: ModelShape, design: DesignPoints, system: System, precision: Precision, of_pass: str
) -> Work:
    """The fused attention core of one layer, as work."""
    cost = fused_attention(model, design, system, precision, of_pass=of_pass)
    return Work(
        time=cost.time,
        memory_bound_time=np.where(cost.memory_bound, cost.time, 0.0),
        compute_energy=cost.flops * system.chip.energy_per_flop,
        memory_energy=traffic_energy(cost.traffic, system),
        launches=np.where(design.attention > 0, 1.0, 0.0),
    )
