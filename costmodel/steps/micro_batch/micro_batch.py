"""Costs of one micro-batch on one rank, by part of the model and direction.

This is the expensive half of a step, and it depends on the columns of `RankShape` alone. `step` evaluates
its unique rows and scatters them back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self

import numpy as np

from costmodel.columns import EACH_ITS_OWN, FloatArray, IntArray, UniqueRows, concatenated
from costmodel.kernels.attention import fused_attention
from costmodel.kernels.collectives import exposed_time
from costmodel.kernels.gemm import products_cost
from costmodel.kernels.kernel_cost import (
    ENERGIES,
    TIMES,
    Item,
    Items,
    KernelCost,
    either,
    pointwise_time,
    quantities_of,
    traffic_energy,
)
from costmodel.machine.system import System
from costmodel.steps.micro_batch.exchanges import (
    Exchanges,
    context_parallel,
    expert_messages,
    state_passing,
    tensor_parallel,
)
from costmodel.steps.micro_batch.kernel_sums import (
    DIRECTIONS,
    CostTable,
    costs_of_points,
    kernel_items,
    with_launch_overhead,
)
from costmodel.training.blocks import Edge
from costmodel.training.design import RECOMPUTE_FULL
from costmodel.training.kernel_kind import Kernel
from costmodel.training.recompute_modules import MODULES, RecomputeModule, recompute_groups
from costmodel.training.run import RankRun, RankShape
from costmodel.workload.kernel_tables import Label, Pointwise
from costmodel.workload.transformer import (
    Part,
    casts,
    every_part,
    some_narrow,
    transformer_gemms,
    transformer_pointwise,
)


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


#: Rows whose kernels are evaluated at once: enough to drown the overhead of calls, and few for memory.
KERNEL_CHUNK: Final = 8192


#: Quantities of a chip that passes do not read: its price, its idle power, its capacity.
NOT_READ: Final = (
    *("reserved_memory", "idle_power", "fixed_area", "array_area", "sram_area", "area_price", "base_price"),
    *("defect_density", "defect_clustering"),
    *("host_step_overhead", "host_straggler", "host_power", "host_price", "host_power_overhead"),
    *("host_link_bandwidth", "host_memory_bandwidth"),
)


#: Quantities of a system that kernel tables read: whether formats need transposed copies.
TABLES_READ: Final = ("mx_speedup",)


def quantities_read(system: System) -> set[str]:
    """Quantities of a system that `micro_batches` reads."""
    names = {*system.units()}
    farthest = {f"{system.dram.name}_capacity"} if len(system.memory) > 1 else set()
    return names - farthest - {name for name in names if name.endswith("_price")} - {*NOT_READ}


def quantities_of_kernels(system: System) -> set[str]:
    """Quantities of machines that kernels read: of chips and their memories, not of links or hosts."""
    others = ("host_", *(f"{tier.name}_" for tier in system.network))
    cores = ("tp_collective", "cp_collective", "ep_collective", "dp_collective", "collective")
    return {name for name in quantities_read(system) if not name.startswith((*others, *cores))}


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One micro-batch on one rank: in a layer of each kind, embedding, head, multi-token prediction."""

    forward: tuple[KernelCost, ...]
    backward: tuple[KernelCost, ...]
    again: tuple[KernelCost, ...]  #: recomputation in the backward pass, only of layers
    weight: tuple[KernelCost, ...]  #: time of the kernels of `backward` that make gradients of weights

    @property
    def whole(self) -> list[KernelCost]:
        """All passes of each part: times and energies."""
        every = ([cost.only((*TIMES, *ENERGIES)) for cost in costs] for costs in self.passes[:3])
        forwards, backwards, repeated = every
        both = [forward + backward for forward, backward in zip(forwards, backwards, strict=True)]
        layers = [cost + again for cost, again in zip(both, repeated, strict=False)]
        return [*layers, *both[len(layers) :]]

    @property
    def passes(self) -> tuple[tuple[KernelCost, ...], ...]:
        """All passes, in the order of the fields."""
        return self.forward, self.backward, self.again, self.weight

    def take(self, rows: IntArray | slice) -> Self:
        """The record of some of its points, in every table."""
        return type(self)(*(tuple(cost.take(rows) for cost in costs) for costs in self.passes))

    @classmethod
    def joined(cls, pieces: Sequence[Self]) -> Self:
        """Consecutive pieces, one behind the other."""
        passes = zip(*(piece.passes for piece in pieces), strict=True)
        return cls(*(tuple(map(concatenated, zip(*costs, strict=True))) for costs in passes))


@dataclass(frozen=True, slots=True, eq=False)
class TimedKernels:
    """Kernels of some rows, timed, and the points that go back to each row."""

    run: RankRun  #: inputs of kernels and of the collectives between them; (rows,)
    table: CostTable  #: of the rows
    cores: Mapping[tuple[Kernel, str], KernelCost]  #: fused attention: core, direction -> cost; of the rows
    unique: UniqueRows  #: the row of each point

    @classmethod
    def of(cls, kernels: RankRun, unique: UniqueRows) -> Self:
        """Sums of `kernels`; kernels that chips have in common are timed once."""
        chips, chip_rows = of_chips(kernels)
        return cls(kernels, replace(cost_table(chips), unique=chip_rows), fused_cores(chips, chip_rows), unique)


def micro_batches(run: RankRun) -> MicroBatch:
    """Costs of one micro-batch of each design, in pieces whose kernels fit into a core's cache, (points,). [s], [J]"""
    kernels = run.with_shape(run.design.of_kernels)
    unique = UniqueRows.of(*kernels.columns())
    rows, places = unique.rows, unique.places
    chips = kernels.reading(quantities_of_kernels(run.system)).axes if kernels.axes else ()
    size = max(KERNEL_CHUNK // math.prod(chips), 1)
    if places is None:
        slices = [slice(start, start + size) for start in range(0, rows.size, size)]
        alone = ((run.take(points), TimedKernels.of(kernels.take(points), unique)) for points in slices)
        return MicroBatch.joined([micro_batch(*points) for points in alone])
    if rows.size <= size:
        return micro_batch(run, TimedKernels.of(kernels.take(rows), unique))
    order = np.argsort(places, kind="stable")  # designs with the same kernels stand together
    ends = np.searchsorted(places[order], range(size, rows.size, size))
    pieces = [
        micro_batch(
            run.take(points),
            TimedKernels.of(kernels.take(unique_rows), UniqueRows(unique_rows, places[points] - start)),
        )
        for start, points in zip(range(0, rows.size, size), np.split(order, ends), strict=True)
        for unique_rows in (rows[start : start + size],)
    ]
    return MicroBatch.joined(pieces).take(np.argsort(order))


def micro_batch(run: RankRun, kernels: TimedKernels) -> MicroBatch:
    """Kernels, collectives and waiting for the host: forward, backward, and again."""
    unique, parts = kernels.unique, every_part(run.model)
    table = replace(kernels.table, unique=kernels.table.unique.behind(unique))  # of the points
    costs, again = [], []
    exchanges, beside = Exchanges(kernels.run), Exchanges(run)
    weights = [KernelCost(time=table.pass_time(part.name, "weight_gradient")) for part in parts]
    fused = {core: costs_of_points(cost, unique) for core, cost in kernels.cores.items()}
    for part in parts:
        times = partial(kernels.table.kernels_time, part)
        changes = tensor_parallel(kernels.run, part.edges, times, exchanges)
        collectives = [costs_of_points(cost, unique) for cost in changes]
        both = [table.cost(part.name, d) + cost for d, cost in zip(DIRECTIONS, collectives, strict=True)]
        core: list[KernelCost] = []
        if part.layer:
            core = [core_cost(run, part, table, fused, direction) for direction in DIRECTIONS]
            both = [cost + inside for cost, inside in zip(both, core, strict=True)]
            if (run.design.cp > 1).any():
                both = [cost + passed_states(run, part) for cost in both]
        if any(kernel.kind.exchanged.tokens for kernel in part.kernels):
            exchanged = expert_exchange(run, part, table, beside.of_experts)
            both = [cost + exchange for cost, exchange in zip(both, exchanged, strict=True)]
        forward, backward = (with_launch_overhead(cost, run.system) for cost in both)
        costs.append((forward, backward))
        again += [recomputed(run, part, table, forward, inside, beside) for inside in core[:1]]
    forwards, backwards = ([cost[direction] for cost in costs] for direction in (0, 1))
    if count := run.model.mtp_layers:  # its layers, and heads that are the model's once more
        backwards[-1] = backwards[-1] + again.pop()
        for passes in (forwards, backwards, weights):
            passes[-2:] = [passes[-2] * (1 + count), passes[-1] * count]
    return MicroBatch(*(tuple(passes) for passes in (forwards, backwards, again, weights)))


def fused_cores(chips: RankRun, unique: UniqueRows) -> dict[tuple[Kernel, str], KernelCost]:
    """Core, direction -> cost of the fused attention cores, timed once for points with the same chips."""
    cores = dict.fromkeys(k for part in every_part(chips.model) for k in part.kernels if k.is_core)
    return {(core, d): costs_of_points(fused_cost(chips, core, d), unique) for core in cores for d in DIRECTIONS}


def of_chips(kernels: RankRun) -> tuple[RankRun, UniqueRows]:
    """Rows that differ in the quantities that kernels read of a run, and the row of each point."""
    known = kernels.reading(quantities_of_kernels(kernels.system))
    if known.axes:
        every, places = known.on_one_axis()
        unique = UniqueRows.of(*every.columns())
        return unique.take(every), unique.at(places)
    vary = [sum(values.size > 1 for values in rows.columns()) for rows in (known, kernels)]
    if vary[0] == vary[1]:
        return kernels, EACH_ITS_OWN
    unique = UniqueRows.of(*known.columns())
    return (kernels if unique.places is None else unique.take(known)), unique


def cost_table(run: RankRun) -> CostTable:
    """Every kernel of a micro-batch but the fused attention, with its cost."""
    shapes = run.reading(TABLES_READ)
    unique = UniqueRows.of(*shapes.columns())
    rows = unique.take(shapes)
    gemms, pointwise = transformer_gemms(rows).present(), pointwise_kernels(rows)
    if unique.places is not None:
        gemms, pointwise = gemms.rows(unique.places), pointwise.rows(unique.places)
    return CostTable(
        gemms,
        products_cost(run, gemms),
        pointwise,
        *pointwise_time(pointwise, run.system),
        run.system,
        itemized=run.itemized,
    )


def pointwise_kernels(run: RankRun) -> Pointwise:
    """Every kernel of a micro-batch without reuse, casts of operands included."""
    kernels = transformer_pointwise(run)
    return (kernels.beside(casts(run)) if some_narrow(run) else kernels).present()


def core_cost(
    run: RankRun, part: Part, table: CostTable, fused: Mapping[tuple[Kernel, str], KernelCost], direction: str
) -> KernelCost:
    """The attention cores of a layer, with the exchanges of ranks that share the sequence."""
    core = table.cost(part.core, direction)
    for kernel in part.kernels:
        if kernel.is_core:
            core = core + fused[kernel, direction]
    if (run.design.cp > 1).any():
        for kernel in part.kernels:
            if keys_values := kernel.kind.exchanged.keys_values:
                core = core + context_parallel(run, keys_values(run.model), core.time, direction)
    return core


def passed_states(run: RankRun, part: Part) -> KernelCost:
    """States of a layer's linear mixers, which ranks that share the sequence pass on; either direction."""
    exchanged = [kernel.kind.exchanged.state for kernel in part.kernels]
    states = [state_of(run.model, run.element_bytes) for state_of in exchanged if state_of]
    return sum((state_passing(run, state) for state in states), start=KernelCost())


def expert_exchange(run: RankRun, part: Part, table: CostTable, exchange: KernelCost) -> list[KernelCost]:
    """Exchanges of a layer with experts forward and backward, less the part that the shared expert hides."""
    costs = []
    words = {"shared_up", "shared_ffn"}
    shared = [kernel.name for kernel in part.kernels if words & {kernel.reads, kernel.makes}]
    for passes in DIRECTIONS.values():
        beside = sum(table.kernels_time(part, shared, of_pass) for of_pass in passes)
        hidden = np.where(run.design.overlap_shared_expert > 0, np.minimum(exchange.ep_time, beside), 0.0)
        items: Items = {}
        if run.itemized:
            label = Item(column="ep_communication_time", name="exchange")
            items = {**quantities_of(label, {"hidden": hidden}), **expert_messages(run)}
        exposed = exposed_time(exchange.ep_time, hidden, run.system.chip, "ep")
        costs.append(replace(exchange, ep_time=exposed, items=items))
    return costs


def fused_cost(run: RankRun, kernel: Kernel, direction: str) -> KernelCost:
    """A fused attention core of one layer."""
    cost = fused_attention(run, kernel, direction)
    launches = np.where(run.design.attention > 0, 1.0, 0.0)
    items: Items = {}
    if run.itemized:
        items = kernel_items(
            Item(kind="attention", kernel=kernel.name, name=kernel.name, kernel_pass=direction),
            run.system,
            time=cost.time,
            waiting=cost.memory_bound,
            flops=cost.flops,
            traffic=cost.traffic,
            launches=launches,
        )
    return KernelCost(
        time=cost.time,
        memory_bound_time=np.where(cost.memory_bound, cost.time, 0.0),
        compute_energy=cost.flops * run.system.chip.flop_energy,
        memory_energy=traffic_energy(cost.traffic, run.system.memory),
        launches=launches,
        items=items,
    )
