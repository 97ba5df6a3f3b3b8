"""What one micro-batch costs on one rank, by part of the model and direction.

This is the expensive half of a step, and it depends on few columns of a design: those of `RankShape`. `step`
prices its unique rows and scatters them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import numpy as np

from costmodel.columns import IntArray, concatenated
from costmodel.kernels.attention import fused_attention
from costmodel.kernels.cost import KernelCost, traffic_energy
from costmodel.kernels.gemm import gemm_cost
from costmodel.kernels.roofline import pointwise_time
from costmodel.steps.cost_table import DIRECTIONS, CostTable, with_launch_overhead
from costmodel.steps.tensor_parallel import tensor_parallel
from costmodel.training.run import RankRun
from costmodel.workload.transformer import (
    Part,
    parts_of,
    tile_shares,
    transformer_gemms,
    transformer_pointwise,
)

#: Rows whose kernels are priced at once: (rows, kernels) arrays that fit into a core's cache.
KERNEL_CHUNK: Final = 1536


@dataclass(frozen=True, slots=True, eq=False)
class PartCost:
    """One micro-batch in one part of the model, on one rank; (points,) columns each."""

    forward: KernelCost
    backward: KernelCost
    core: KernelCost | None  #: of the forward pass in the attention core, where the part has one

    def take(self, rows: IntArray | slice) -> Self:
        """Rows of every table."""
        core = self.core.take(rows) if self.core else None
        return type(self)(self.forward.take(rows), self.backward.take(rows), core)

    @classmethod
    def joined(cls, pieces: Sequence[PartCost]) -> PartCost:
        """One table from consecutive pieces of it."""
        cores = [piece.core for piece in pieces if piece.core]
        return cls(
            concatenated([piece.forward for piece in pieces]),
            concatenated([piece.backward for piece in pieces]),
            concatenated(cores) if cores else None,
        )


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One micro-batch on one rank: in a layer of each kind, in the embedding, in the head with its loss."""

    parts: tuple[PartCost, ...]

    @property
    def layers(self) -> tuple[PartCost, ...]:
        """One layer of each kind."""
        return self.parts[:-2]

    @property
    def embedding(self) -> PartCost:
        """The embedding."""
        return self.parts[-2]

    @property
    def head(self) -> PartCost:
        """The last norm, the head and the loss."""
        return self.parts[-1]

    def take(self, rows: IntArray | slice) -> Self:
        """Rows of every table."""
        return type(self)(tuple(part.take(rows) for part in self.parts))


def micro_batches(run: RankRun) -> MicroBatch:
    """`micro_batch` in pieces that fit into a core's cache; parameters and result are the same."""
    points = run.num_points
    chunks = np.split(np.arange(points), range(KERNEL_CHUNK, points, KERNEL_CHUNK))
    pieces = [micro_batch(run.take(rows)).parts for rows in chunks]
    return MicroBatch(tuple(PartCost.joined(part) for part in zip(*pieces, strict=True)))


def micro_batch(run: RankRun) -> MicroBatch:
    """Price one micro-batch of each design.

    Parameters
    ----------
    run : RankRun
        Model, machines and what a rank sees of the designs, (points,).

    Returns
    -------
    costs : MicroBatch
        (points,) columns. [s], [J]
    """
    table = cost_table(run)
    fused = {direction: fused_cost(run, direction) for direction in DIRECTIONS}
    return MicroBatch(tuple(part_cost(run, part, table, fused) for part in parts_of(run.model)))


def part_cost(run: RankRun, part: Part, table: CostTable, fused: Mapping[str, KernelCost]) -> PartCost:
    """One part of the model: its kernels, the collectives between them, and waiting for the host."""
    cores = sum(kernel.kind == "attention" for kernel in part.kernels)
    own = {d: table.cost(part.core, d) + fused[d].times(cores) for d in DIRECTIONS} if cores else {}
    costs = []
    communication = tensor_parallel(run, part.edges, partial(table.kernel_time, part))
    for direction, collectives in zip(DIRECTIONS, communication, strict=True):
        cost = table.cost(part.name, direction) + collectives
        cost = cost + own[direction] if cores else cost
        costs.append(with_launch_overhead(cost, run.system))
    core = with_launch_overhead(own["forward"], run.system) if cores else None
    return PartCost(costs[0], costs[1], core)


def cost_table(run: RankRun) -> CostTable:
    """Every kernel of a micro-batch but the fused attention, with its cost."""
    gemms = transformer_gemms(run).present()
    tiles = tile_shares(run, gemms.labels)
    gemm_costs = gemm_cost(gemms, run.system, element_bytes=run.precision.element_bytes, tiles=tiles)
    pointwise = transformer_pointwise(run).present()
    return CostTable(gemms, gemm_costs, pointwise, *pointwise_time(pointwise, run.system), run.system)


def fused_cost(run: RankRun, direction: str) -> KernelCost:
    """The fused attention core of one layer."""
    cost = fused_attention(run, direction)
    return KernelCost(
        time=cost.time,
        memory_bound_time=np.where(cost.memory_bound, cost.time, 0.0),
        compute_energy=cost.flops * run.system.chip.energy_per_flop,
        memory_energy=traffic_energy(cost.traffic, run.system),
        launches=np.where(run.design.attention > 0, 1.0, 0.0),
    )
