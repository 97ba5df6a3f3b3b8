"""Kernels and collectives of a layer that recomputation repeats in the backward pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.kernel_cost import KernelCost, either
from costmodel.steps.micro_batch.kernel_sums import CostTable, with_launch_overhead
from costmodel.steps.micro_batch.tensor_parallel import Exchanges, tensor_parallel
from costmodel.training.blocks import Edge
from costmodel.training.design import RECOMPUTE_FULL
from costmodel.training.kernel_kind import Kernel
from costmodel.training.recompute_modules import MODULES, RecomputeModule, recompute_groups
from costmodel.training.run import RankRun, RankShape
from costmodel.workload.kernel_tables import Label
from costmodel.workload.transformer import Part


def forward_passes(shape: RankShape, kernel: Kernel | None) -> FloatArray:
    """Runs of the forward pass of a row in a step, or of None for kernels of no module; (points,). [-]"""
    modules = [module for module in MODULES if kernel is not None and module.has(kernel)]
    return np.where((shape.recompute == RECOMPUTE_FULL) | shape.recomputes(modules), 2.0, 1.0)


def recomputed(
    run: RankRun, part: Part, table: CostTable, forward: KernelCost, core: KernelCost, exchanges: Exchanges
) -> KernelCost:
    """Kernels that run again in the backward pass of a layer: all of its forward pass, modules of it, or nothing.

    `forward` is its whole forward pass, waiting for the host included; `core` are its attention cores with the
    exchanges of ranks that share a sequence. [s], [J]

    A row that several modules have runs again once. Modules are those of Megatron-LM's `recompute_modules`,
    of which [Korthikanti2022]_ has the first.
    """
    shape, again = run.design, KernelCost()
    for modules, kernels in recompute_groups(part.kernels).items():
        repeated = shape.recomputes(modules)
        if repeated.any():
            cost = module_cost(run, part, modules, kernels, table, core, exchanges)
            again += either(repeated, cost, KernelCost())
    selected = with_launch_overhead(again, run.system) if again.present() else again
    return either(shape.recompute == RECOMPUTE_FULL, forward, selected)


def module_cost(
    run: RankRun,
    part: Part,
    modules: Sequence[RecomputeModule],
    kernels: Sequence[Kernel],
    table: CostTable,
    core: KernelCost,
    exchanges: Exchanges,
) -> KernelCost:
    """The forward pass of some rows of a layer, with the collectives that they need."""
    names = {kernel.name for kernel in kernels if not kernel.is_core}
    pieces = {piece for module in modules for piece in module.pieces}

    def is_own(label: Label) -> bool:
        return label.kernel in names or label.name in pieces

    cost = core if any(kernel.is_core for kernel in kernels) else KernelCost()
    if names:
        cost = cost + table.cost(part.name, "forward", is_own)
        edges = own_edges(part, names)
        cost = cost + tensor_parallel(run, edges, partial(table.kernels_time, part), exchanges)[0]
    if any(kernel.kind.exchanged.tokens for kernel in kernels):
        cost = cost + exchanges.of_experts
    return cost


def own_edges(part: Part, names: Collection[str]) -> list[Edge]:
    """Edges to or from the products of some rows; collectives are shared among these alone."""
    edges = []
    for edge in part.edges:
        product = product_of(edge)
        if product is not None and product.name in names:
            edges.append(edge)
    return [replace(edge, sharing=tuple(other for other in edge.sharing if other in edges)) for edge in edges]


def product_of(edge: Edge) -> Kernel | None:
    """The product that gathers or reduces the tensor of an edge; other kernels keep their input as they read it."""
    return next((kernel for kernel in (edge.end, edge.start) if kernel.splits_weight), None)
