"""Costs of one micro-batch on one rank, by part of the model and direction.

This is the expensive half of a step, and it depends on the columns of `RankShape` alone: rows that differ are
evaluated, and each design gets the costs of its row. Parts are a layer of each kind, the embedding, the head, and
multi-token prediction. The cost of a part in one direction is a sum of

- matrix products and kernels without reuse, from two tables with a column for each kernel (`CostTable`),
- fused attention cores, with the keys and values that ranks of a shared sequence exchange,
- exchanges of tensor and expert parallelism, less the time that kernels hide, and
- the wait for the host, where it launches kernels more slowly than the chip runs them.

A layer that recomputes runs rows of its forward pass again on the way back. For example, a layer of GPT-3 has ten
rows, and selective recomputation repeats one of them, the attention core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce
from typing import Final, Self

import numpy as np

from costmodel.columns import EACH_ITS_OWN, BoolArray, FloatArray, IntArray, UniqueRows, concatenated, per_kernel, taken
from costmodel.kernels.collectives import exposed_time
from costmodel.kernels.kernel_cost import (
    ENERGIES,
    TIMES,
    Item,
    Items,
    KernelCost,
    added,
    either,
    pointwise_time,
    quantities_of,
    traffic_energy,
)
from costmodel.kernels.kernel_tables import (
    Gemms,
    KernelSums,
    Label,
    Part,
    Pointwise,
    casts,
    every_part,
    some_narrow,
    total,
    transformer_gemms,
    transformer_pointwise,
)
from costmodel.kernels.products import GemmCost, fused_attention, products_cost
from costmodel.machine import System
from costmodel.steps.micro_batch.exchanges import (
    Exchanges,
    adapter_collectives,
    context_parallel,
    expert_messages,
    state_passing,
    tensor_parallel,
)
from costmodel.training.blocks import MODULES, Edge, LayerModule, recompute_groups
from costmodel.training.design import FULL_ITERATION, LAYER_GRAPHS, RECOMPUTE_FULL
from costmodel.training.kernel_kind import Kernel
from costmodel.training.run import RankRun, RankShape, some_adapters

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

    Kernels are launched ahead, so that only their sum counts; launches that block add to the busy time.
    """
    dispatching, blocking = launches * system.host.dispatch, system.software.blocking_launches
    ahead = np.maximum(dispatching - busy, 0.0)
    return ahead + blocking * (dispatching - ahead) if blocking.any() else ahead


def launches_of_experts(run: RankRun, part: Part, table: CostTable, exchange: FloatArray) -> list[FloatArray]:
    """Launches of routed experts forward and backward, and of the `exchange` of their tokens, (points,). [-]"""
    experts = {kernel.name for kernel in part.kernels if MODULES[-1].has(kernel) and kernel.kind.name != "router"}
    if not experts or not (run.design.cuda_graphs == LAYER_GRAPHS).any():
        return [np.zeros(1), np.zeros(1)]
    return [table.cost(part.name, way, lambda label: label.kernel in experts).launches + exchange for way in DIRECTIONS]


def with_launch_overhead(
    cost: KernelCost, system: System, graphs: FloatArray | None = None, experts: FloatArray | None = None
) -> KernelCost:
    """Kernels no faster than the host can launch them, or the CUDA graphs that hold them. [s]

    `graphs` are codes of `cuda_graphs`, (points,); `experts` are launches of routed experts, which a graph of a layer
    leaves out, None for embedding and head. [-]
    """
    if graphs is not None and graphs.any():
        of_layer = cost.launches if experts is None else np.minimum(1.0 + experts, cost.launches)
        kept = np.where(graphs == LAYER_GRAPHS, of_layer, np.where(graphs == FULL_ITERATION, 0.0, cost.launches))
        cost = replace(cost, launches=kept)
    waiting = launch_wait(cost.launches, cost.total_time, system)
    return cost + KernelCost(time=waiting, launch_bound_time=waiting)


def costs_of_points(cost: KernelCost, unique: UniqueRows) -> KernelCost:
    """Costs of unique rows, for each point those of its row; columns that are 0 for all stay 0. [s], [J]"""
    if unique.places is None:
        return cost
    return cost.map(lambda values: unique.of_points(values) if values.ndim else values)


@dataclass(frozen=True, eq=False)
class CostTable:
    """Both kernel tables with their costs, to be summed by part and pass; equal rows are in them once."""

    gemms: Gemms
    gemm_costs: GemmCost
    pointwise: Pointwise
    pointwise_times: FloatArray
    pointwise_memory_bound: BoolArray
    system: System
    unique: UniqueRows = EACH_ITS_OWN  #: the row of each point
    times_alone: bool = False  #: whether energies, and the time that waits for memories, are left out
    itemized: bool = False  #: whether costs have the kernels that they are of as items

    def cost(self, part: str, direction: str, among: Callable[[Label], bool] | None = None) -> KernelCost:
        """Sum over the kernels of a part in one direction, or over some of them."""
        dense, thin = (
            np.concatenate([table.select(of_pass, part, among) for of_pass in DIRECTIONS[direction]])
            for table in (self.gemms, self.pointwise)
        )
        if self.times_alone:
            launches = total(self.gemms.count, places=dense) + total(*self._launched, places=thin)
            return costs_of_points(KernelCost(time=self._time(dense, thin), launches=launches), self.unique)
        products, others = self._sums_of_gemms.over(dense), self._sums_of_pointwise.over(thin)
        moved = [products[level.name] for level in self.system.memory]
        moved[-1] = moved[-1] + others["moved"]
        cost = KernelCost(
            time=products["time"] + others["time"],
            memory_bound_time=products["waiting"] + others["waiting"],
            compute_energy=(products["work"] + others["work"]) * self.system.chip.flop_energy,
            memory_energy=traffic_energy(moved, self.system.memory),
            launches=products["launches"] + others["launches"],
            items=self._items(dense, thin) if self.itemized else {},
        )
        return costs_of_points(cost, self.unique)

    @cached_property
    def _repeated(self) -> list[FloatArray]:
        """Factors of the kernels that run for each that is not a product. [-]"""
        count = self.pointwise.count
        return [count, np.broadcast_to(per_kernel(self.system.software.pointwise_kernels), count.shape)]

    @cached_property
    def _launched(self) -> list[FloatArray]:
        """Factors of the launches of kernels that are not products. [-]

        Casts for the experts of a rank are launched one by one, each at `Software.expert_casts` of a launch.
        """
        others, work = self.pointwise, self.system.software.expert_casts
        experts = {(row.part, row.kernel): n for n, row in enumerate(self.gemms.labels) if row.runs == "grouped"}
        if not (experts and work.any()):
            return self._repeated
        casts = [experts.get((row.part, row.kernel), -1) if row.runs == "casting" else -1 for row in others.labels]
        further = per_kernel(work) * np.maximum(self.gemms.batch[..., casts] - 1, 0.0)
        return [*self._repeated, 1 + np.where(np.array(casts) >= 0, further, 0.0)]

    @cached_property
    def _sums_of_gemms(self) -> KernelSums:
        """Times, work and traffic of the products."""
        count, costs = self.gemms.count, self.gemm_costs
        waiting = np.where(costs.memory_bound, costs.time, 0.0)
        values = {"time": costs.time, "work": costs.work, "waiting": waiting}
        values |= {level.name: moved for level, moved in zip(self.system.memory, costs.traffic, strict=True)}
        return KernelSums({"launches": [count], **{name: [count, value] for name, value in values.items()}})

    @cached_property
    def _sums_of_pointwise(self) -> KernelSums:
        """Times, work and traffic of the other kernels."""
        kernels, times = self.pointwise, self.pointwise_times
        return KernelSums(
            {
                "time": [times],
                "waiting": [np.where(self.pointwise_memory_bound, times, 0.0)],
                "work": [kernels.count, kernels.flops],
                "launches": self._launched,
                "moved": [*self._repeated, kernels.bytes_moved],
            }
        )

    def _items(self, dense: IntArray, thin: IntArray) -> Items:
        """Time, work and traffic of each kernel."""
        items: Items = {}
        repeated, launches = (reduce(np.multiply, factors) for factors in (self._repeated, self._launched))
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
            table, label, run = self.pointwise, self.pointwise.labels[number], repeated[..., number]
            of_kernel = kernel_items(
                item_of(label, "pointwise"),
                self.system,
                time=self.pointwise_times[..., number],
                waiting=self.pointwise_memory_bound[..., number],
                flops=table.count[..., number] * table.flops[..., number],
                traffic=[*[0.0 * run] * (len(self.system.memory) - 1), run * table.bytes_moved[..., number]],
                launches=launches[..., number],
            )
            items = added(items, of_kernel)
        return items

    def pass_time(self, part: str, of_pass: str) -> FloatArray:
        """Time of the kernels of a part in one pass. [s]"""
        return self.unique.of_points(self._time(*(one.select(of_pass, part) for one in (self.gemms, self.pointwise))))

    def kernels_time(self, part: Part, kernels: Collection[str], of_pass: str) -> FloatArray:
        """Time of some rows of a part's blocks in one pass. [s]"""
        dense, thin = (
            table.select(of_pass, among=lambda label: label.kernel in kernels and label.part in (part.name, part.core))
            for table in (self.gemms, self.pointwise)
        )
        return self.unique.of_points(self._time(dense, thin))

    def _time(self, dense: Sequence[int] | IntArray, thin: Sequence[int] | IntArray) -> FloatArray:
        """Time of some products and some other kernels of each row, by their places. [s]"""
        products = total(self.gemms.count, self.gemm_costs.time, places=dense)
        return products + total(self.pointwise_times, places=thin)


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

    A row that belongs to several modules runs again once. Modules are those of Megatron-LM's `recompute_modules`; the
    first is that of [Korthikanti2022]_.
    """
    shape, again = run.design, KernelCost()
    for modules, kernels in recompute_groups(part.kernels).items():
        repeated = shape.recomputes(modules)
        if repeated.any():
            cost = module_cost(run, part, modules, kernels, table, core, exchanges)
            again += either(repeated, cost, KernelCost())
    selected = with_launch_overhead(again, run.system, shape.cuda_graphs, np.zeros(1)) if again.present() else again
    return either(shape.recompute == RECOMPUTE_FULL, forward, selected)


def module_cost(
    run: RankRun,
    part: Part,
    modules: Sequence[LayerModule],
    kernels: Sequence[Kernel],
    table: CostTable,
    core: KernelCost,
    exchanges: Exchanges,
) -> KernelCost:
    """The forward pass of some rows of a layer, with the collectives that they need."""
    names = {kernel.name for kernel in kernels if not kernel.is_core}
    pieces = {piece for module in modules for piece in module.pieces}
    cost = core if any(kernel.is_core for kernel in kernels) else KernelCost()
    if names:
        cost = cost + table.cost(part.name, "forward", lambda label: label.kernel in names or label.name in pieces)
        edges = own_edges(part, names)
        cost = cost + tensor_parallel(run, edges, partial(table.kernels_time, part), exchanges)[0]
    if any(kernel.kind.exchanged.tokens for kernel in kernels):
        cost = cost + exchanges.of_experts
    return cost


def own_edges(part: Part, names: Collection[str]) -> list[Edge]:
    """Edges to or from the products of some rows; collectives are shared only among these."""
    edges = [edge for edge in part.edges if (product := product_of(edge)) and product.name in names]
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


#: Quantities of a system that kernel tables read: whether formats need transposed copies, and passes of adapters.
TABLES_READ: Final = ("mx_speedup", *(f"software_{of}_passes" for of in ("adapter", "expert_bias", "expert_clamp")))


@lru_cache(maxsize=8)
def quantities_read(system: System) -> frozenset[str]:
    """Quantities of a system that `micro_batches` reads."""
    names = {*system.units()}
    farthest = {f"{system.dram.name}_capacity"} if len(system.memory) > 1 else set()
    return frozenset(names - farthest - {name for name in names if name.endswith("_price")} - {*NOT_READ})


@lru_cache(maxsize=8)
def quantities_of_kernels(system: System) -> frozenset[str]:
    """Quantities of machines that kernels read: of chips and their memories, not of links or hosts."""
    others = ("host_", *(f"{tier.name}_" for tier in system.network))
    cores = ("tp_collective", "cp_collective", "ep_collective", "dp_collective", "collective")
    return frozenset(name for name in quantities_read(system) if not name.startswith((*others, *cores)))


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """One micro-batch on one rank: in a layer of each kind, embedding, head, multi-token prediction."""

    forward: tuple[KernelCost, ...]
    backward: tuple[KernelCost, ...]
    again: tuple[KernelCost, ...]  #: recomputation in the backward pass, only of layers
    weight: tuple[KernelCost, ...]  #: time of the kernels of `backward` that make gradients of weights

    @cached_property
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

    def windows(self) -> Self:
        """Passes with the time alone that data-parallel communication can overlap with."""
        return type(self)(*(tuple(KernelCost(time=cost.window) for cost in costs) for costs in self.passes))

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
    return taken(MicroBatch.joined(pieces), np.argsort(order))


def micro_batch(run: RankRun, kernels: TimedKernels) -> MicroBatch:
    """Kernels, collectives and waiting for the host: forward, backward, and again."""
    unique, parts, graphs = kernels.unique, every_part(run.model), run.design.cuda_graphs
    table = replace(kernels.table, unique=kernels.table.unique.behind(unique))  # of the points
    costs, again = [], []
    exchanges, beside = Exchanges(kernels.run), Exchanges(run)
    weights = [KernelCost(time=table.pass_time(part.name, "weight_gradient")) for part in parts]
    fused = {core: costs_of_points(cost, unique) for core, cost in kernels.cores.items()}
    for part in parts:
        times = partial(kernels.table.kernels_time, part)
        changes = tensor_parallel(kernels.run, part.edges, times, exchanges)
        if some_adapters(run):
            of_adapters = adapter_collectives(kernels.run, part)
            changes = changes[0] + of_adapters[0], changes[1] + of_adapters[1]
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
        experts = launches_of_experts(run, part, table, beside.of_experts.launches) if part.layer else [None, None]
        launching = zip(both, experts, strict=True)
        forward, backward = (with_launch_overhead(cost, run.system, graphs, launched) for cost, launched in launching)
        costs.append((forward, backward))
        again += [recomputed(run, part, table, forward, inside, beside) for inside in core[:1]]
    forwards, backwards = ([cost[direction] for cost in costs] for direction in (0, 1))
    if (run.design.reference_model > 0).any():
        forwards = [cost * (1 + run.design.reference_model) for cost in forwards]
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
    core = sum((fused[k, direction] for k in part.kernels if k.is_core), start=table.cost(part.core, direction))
    if (run.design.cp > 1).any():
        rings = [
            (sized := run.of_kernel(kernel), of(sized.model) * (run.design.tp if kernel.kind.exchanged.whole else 1.0))
            for kernel in part.kernels
            if (of := kernel.kind.exchanged.keys_values)
        ]
        sizes = [sized.key_tokens * features for sized, features in rings]
        for (sized, features), size in zip(rings, sizes, strict=True):  # hidden by its share of the core
            core = core + context_parallel(sized, features, core.time * (size / sum(sizes)), direction)
    return core


def passed_states(run: RankRun, part: Part) -> KernelCost:
    """States of a layer's linear mixers, which ranks that share the sequence pass on; either direction."""
    exchanged = [(run.model.of_kernel(kernel), kernel.kind.exchanged.state) for kernel in part.kernels]
    states = [state_of(model, run.precision.element_bytes) for model, state_of in exchanged if state_of]
    return sum((state_passing(run, state) for state in states), start=KernelCost())


def expert_exchange(run: RankRun, part: Part, table: CostTable, exchange: KernelCost) -> list[KernelCost]:
    """Exchanges of a layer with experts forward and backward, less the part that the shared expert hides."""
    costs = []
    shared = [k.name for k in part.kernels if {"shared_up", "shared_ffn"} & {k.reads, k.makes}]
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
