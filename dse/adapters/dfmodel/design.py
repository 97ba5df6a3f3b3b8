"""Designs and machines of this program as set-ups of DFModel, and their evaluation by DFModel's rules.

The parallel groups become dimensions of a network of one to three rings, switches or complete graphs, each with the
bandwidth of the slowest tier that the group spans. `REFUSED` has the designs that no file of DFModel can hold,
`UNSUPPORTED` also those that have no number, each with a value that would do. Designs that share topology, overlap and
execution share one set-up, since DFModel states these once for all.

`--profile dfmodel-gen3` uses these rules; memory and the energy of the work are the native model's. Designs that can
share a set-up are evaluated together, in pieces that fit the cache; within a piece, those with the same groups of fused
kernels. The parts of the iteration go to the columns of the native breakdown, so that searches and reports treat them
alike. Designs without a number get NaN, and `reasons` explains why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, IntArray, column, distinct_rows, per_kernel
from costmodel.errors import DseError
from costmodel.kernels.collectives import subgroups_per_tier
from costmodel.kernels.kernel_tables import total
from costmodel.machine import LinkTier, System, chip_power, chip_price
from costmodel.rules.rules import TRAINING, TRANSFORMER_TOTALS, Rules, Unsupported
from costmodel.steps.breakdown import PARTS, Breakdown, assemble_breakdown, in_chunks
from costmodel.steps.transformer import transformer_step
from costmodel.training.design import MODERN, RECOMPUTE, RECOMPUTE_NONE, DesignPoints, splits_kernels
from costmodel.training.design_table import words
from costmodel.training.model import ModelShape
from costmodel.training.ranks import Group
from costmodel.training.run import Run
from dse.adapters.dfmodel.evaluation import evaluate, layer_runs, loads, within_capacity
from dse.adapters.dfmodel.graph import PERIODIC, DfmodelGraph, kernel_collectives
from dse.adapters.dfmodel.mapping import fastest_groups, sharded_graph, sram_shortage
from dse.adapters.dfmodel.network import port_bandwidths
from dse.adapters.dfmodel.setup import AXES, GENERATIONS, OVERLAPS, ROLES, TOPOLOGIES, Setup

#: Ways to run the kernels of a layer: each alone, or in groups that stream tiles on chip.
EXECUTIONS: Final = ("kernel_by_kernel", "dataflow")

#: Share of a link in the cost and power of the link and its port of a switch: the published set-up has $2 and $24, 52
#: mW and 52 mW for a GB/s [Ko2024]_.
LINK_PRICE_SHARE: Final = 2 / 26
LINK_POWER_SHARE: Final = 1 / 2

#: Topologies by the codes of a design's column.
_TOPOLOGIES: Final = (*TOPOLOGIES,)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DataflowDesign(DesignPoints):
    """Candidate layouts of a transformer with the choices that DFModel adds; (points,) columns. [-]"""

    topology: FloatArray = words(TOPOLOGIES)
    tile_size: FloatArray = column("-", 1)  #: tokens of a tile that streams through a layer
    overlap: FloatArray = words(OVERLAPS)
    execution: FloatArray = words(EXECUTIONS)


DataflowRun = Run[ModelShape, DataflowDesign]


def network_roles(design: DataflowDesign) -> IntArray:
    """Place among the `ROLES` of each design's topology; -1 where groups of several chips have no dimension.

    The first roles count that leave only groups of one chip without a dimension.
    """
    dims = np.array([len(TOPOLOGIES[name]) for name in _TOPOLOGIES])[design.topology.astype(np.intp)]
    choice_numbers = np.full(design.num_points, -1, dtype=np.intp)
    for dim, choices in ROLES.items():
        for number, roles in reversed([*enumerate(choices)]):
            without = [degree for role, degree in _degrees(design).items() if role not in roles]
            fits = (dims == dim) & np.all([np.equal(degree, 1) for degree in without], axis=0)
            choice_numbers = np.where(fits, number, choice_numbers)
    return choice_numbers


#: Designs that no set-up can hold.
REFUSED: Final = (
    Unsupported[DataflowRun](
        "topology",
        lambda run: np.less(network_roles(run.design), 0),
        lambda run, row: (
            f"topology {_TOPOLOGIES[int(run.design.topology[row])]}: too few dimensions for "
            f"tp={run.design.tp[row]:g} pp={run.design.pp[row]:g} dp={run.design.dp[row]:g}; "
            "take one of three, such as sw_sw_sw"
        ),
        "sw_sw_sw",
    ),
    Unsupported[DataflowRun](
        "tile_size",
        lambda run: np.greater(run.model.seq_len % run.design.tile_size, 0),
        lambda run, row: (
            f"tile_size: {run.design.tile_size[row]:g} does not divide seq_len, {run.model.seq_len:g}; take a divisor"
        ),
        "1",
    ),
)
#: Designs that have no number on any machine.
UNSUPPORTED: Final = (
    Unsupported[DataflowRun](
        "recompute",
        lambda run: np.not_equal(run.design.recompute, RECOMPUTE_NONE),
        lambda run, row: (
            f"recompute={RECOMPUTE[int(run.design.recompute[row])]}: each kernel runs once; take recompute=none"
        ),
        "none",
    ),
    Unsupported[DataflowRun](
        "vpp",
        lambda run: np.greater(run.design.vpp, 1),
        lambda run, row: f"vpp={run.design.vpp[row]:g}: a stage is one chunk; take vpp=1",
        "1",
    ),
    *REFUSED,
)


def _degrees(design: DataflowDesign) -> dict[str, FloatArray]:
    """Parallel group -> chips of one."""
    return {"TP": design.tp, "PP": design.pp, "DP": design.dp}


def _shared_columns(design: DataflowDesign) -> dict[str, FloatArray]:
    """Columns in which the designs of a `Setup` must not differ."""
    return {name: getattr(design, name) for name in ("topology", "overlap", "execution")}


def setup_rows(design: DataflowDesign) -> Iterator[IntArray]:
    """Rows of designs that a `Setup` can hold together; those whose topology does not fit are left out."""
    roles = network_roles(design)
    _, group = distinct_rows(roles.astype(np.float64), *_shared_columns(design).values())
    group = np.broadcast_to(group, roles.shape)
    for group_number in range(int(group.max(initial=-1)) + 1):
        yield np.flatnonzero((group == group_number) & (roles >= 0))


def design_setup(run: DataflowRun) -> Setup:
    """Designs on a machine as DFModel describes them; (points,) columns.

    The designs share `topology`, `overlap`, `execution`, and the parallel groups that need a dimension of the network:
    `setup_rows` yields them so. All-reduces come in two halves. [SI units] Raises `DseError` if the designs do not
    share these, their groups do not fit the topology, or tiles do not divide the sequence.

    Every matrix unit is a core. SRAM is all on-chip levels together. Bandwidths are those that are reached; a group has
    the links of the slowest tier that it spans. The price and power of a tier are split between ports of links and of
    switches as in the reference's published set-up, so that topologies differ in price.
    """
    design, system = run.design, run.system
    for gap in REFUSED:
        refused = np.flatnonzero(gap.missing(run))
        if refused.size:
            raise DseError(gap.reason(run, int(refused[0])))
    topology, roles = _shared_network(design)
    links = group_links(design, system)
    setup = Setup(
        topology=topology,
        roles=roles,
        overlap=OVERLAPS[int(design.overlap[0])],
        kernel_by_kernel=bool(design.execution[0] == 0),
        doubled=True,
        link_latency=links["TP"].latency,
        **_dimensions(design, roles, links),
        **_chip(system),
        **_training(run),
    )
    return _with_prices(setup, system, [links[role] for role in roles])


def _dimensions(design: DataflowDesign, roles: Sequence[str], links: Mapping[str, LinkTier]) -> dict[str, Any]:
    """Sizes of the network's dimensions, and bandwidths of their links."""
    degrees, axes = _degrees(design), dict(zip(AXES, roles, strict=False))
    return {
        "num_chips": design.world_size,
        **{axis: degrees[role] for axis, role in axes.items()},
        **{f"{axis}_bandwidth": links[role].rate for axis, role in axes.items()},
    }


def _chip(system: System) -> dict[str, Any]:
    """Cores, rates and memories of a chip."""
    chip, dram = system.chip, system.dram
    return {
        "cores": chip.cores * chip.arrays_per_core,
        "array_width": chip.array_width,
        "array_height": chip.array_height,
        "frequency": chip.clock,
        "utilization": chip.sustained * chip.matrix_efficiency,
        "sram_bytes": sum((level.capacity for level in system.memory[:-1]), start=np.zeros(())),
        "dram_bandwidth": dram.bandwidth * dram.efficiency,
        "dram_bytes": dram.capacity,
    }


def _training(run: DataflowRun) -> dict[str, Any]:
    """The model, the batch, and how a layer streams."""
    model, design = run.model, run.design
    one = np.ones(design.num_points)
    shape = ("hidden_size", "head_size", "num_attention_heads", "seq_len", "num_layers")
    return {
        **{name: getattr(model, name) * one for name in shape},
        "global_batch_size": design.global_batch_size,
        "micro_batch_size": design.micro_batch_size,
        "tile_size": design.tile_size,
        "element_bytes": run.precision.element_bytes * one,
    }


def _shared_network(design: DataflowDesign) -> tuple[str, tuple[str, ...]]:
    """Topology and roles of designs that share them."""
    places = network_roles(design)
    topology = _TOPOLOGIES[int(design.topology[0])]
    for name, values in (*_shared_columns(design).items(), ("groups", places)):
        if np.any(values != values[0]):
            raise DseError(f"designs differ in {name}; make a set-up of those that are alike")
    return topology, ROLES[len(TOPOLOGIES[topology])][int(places[0])]


def group_links(design: DataflowDesign, system: System) -> dict[str, LinkTier]:
    """Parallel group -> the links that join it; groups lie as for collectives: tp, then dp, then pp."""
    ranks = design.ranks
    return {axis.upper(): slowest_tier(ranks.group(axis), system.network) for axis in ranks.sizes}


def slowest_tier(group: Group, network: Sequence[LinkTier]) -> LinkTier:
    """Tier of least bandwidth that a group spans, (points,); the innermost for a group of one. [SI units]

    `network` has the tiers from the inside out.
    """
    subgroups = subgroups_per_tier(group, network)
    reached = [
        np.where(inner > outer, tier.rate, np.inf)
        for tier, inner, outer in zip(network, subgroups[:-1], subgroups[1:], strict=True)
    ]
    slowest = np.argmin(reached, axis=0)
    tables = [tier.columns() for tier in network]
    columns = {name: np.choose(slowest, [table[name] for table in tables]) for name in tables[0]}
    return LinkTier(name="slowest", **columns)


def _with_prices(setup: Setup, system: System, links: Sequence[LinkTier]) -> Setup:
    """The set-up with prices and powers from those of the machine."""
    ports = port_bandwidths(setup)  # of links, of switches
    overhead = system.host.power_overhead
    prices = [tier.price / tier.efficiency for tier in links]
    powers = [tier.energy / tier.efficiency * overhead for tier in links]
    tiers_price = sum(tier.carried * tier.price for tier in system.network)
    tiers_power = sum(tier.carried * tier.energy for tier in system.network)
    drawn: dict[str, Any] = {
        f"{axis}_link_power": LINK_POWER_SHARE * power for axis, power in zip(AXES, powers, strict=False)
    }
    return replace(
        setup,
        accelerator_price=chip_price(system) - tiers_price,
        accelerator_power=chip_power(system) - tiers_power * overhead,
        link_price=LINK_PRICE_SHARE * _mean(prices, ports[0]),
        switch_price=(1 - LINK_PRICE_SHARE) * _mean(prices, ports[1]),
        switch_power=(1 - LINK_POWER_SHARE) * _mean(powers, ports[1]),
        **drawn,
    )


def _mean(values: Sequence[FloatArray], weights: Sequence[FloatArray]) -> FloatArray:
    """Mean over dimensions; 0 where nothing weighs."""
    whole = sum(weights[1:], start=weights[0])
    weighed = sum((v * w for v, w in zip(values, weights, strict=True)), start=np.zeros(()))
    return np.divide(weighed, whole, out=np.zeros_like(whole), where=whole > 0)


#: Designs evaluated at once: their (points, kernels) tables fit into a core's cache.
KERNEL_CHUNK: Final = 2048

#: Columns that are the native model's.
_NATIVE: Final = {*PARTS["peak_memory"], *PARTS["energy_per_step"]} - {"idle_energy"}

#: Parts of the time of an iteration, and price and power of the system. [s], [$], [W]
_PARTS: Final = (
    *("forward_time", "backward_time", "tp_communication_time", "pp_communication_time", "bubble_time"),
    *("dp_communication_time", "memory_bound_time", "system_price", "system_power"),
)


def dataflow_step(run: DataflowRun, *, generation: str) -> Breakdown:
    """Evaluate one optimizer step of each design, as `costmodel.step` does, (points,). [s], [B], [J], [$], [W]

    Times, and price and power of the system, are DFModel's; memory and the energy of the work are the native model's.
    NaN where DFModel has no number (`reasons`). It has no optimizer and no host, so they take no time. `generation` is
    a key of `GENERATIONS`.
    """
    return in_chunks(partial(_dataflow_chunk, generation=generation), run)


def _dataflow_chunk(run: DataflowRun, *, generation: str) -> Breakdown:
    """Evaluate a chunk of designs, whose columns are all of one length."""
    native = transformer_step(run)
    graph, sharding = sharded_graph(run.model, run.precision.element_bytes)
    columns = {name: np.full(run.num_points, np.nan) for name in _PARTS}
    for rows in _pieces(run):
        setup = design_setup(run.take(rows))
        grouped: Iterable[tuple[IntArray, IntArray | None]] = [(np.arange(setup.num_points), None)]
        if not setup.kernel_by_kernel:
            grouped = fastest_groups(run.model, setup, element_bytes=run.precision.element_bytes, generation=generation)
        for designs, groups in grouped:
            part = iteration(graph, setup.take(designs), sharding, generation=generation, groups=groups)
            for name, values in part.items():
                columns[name][rows[designs]] = values
    prices = {name: columns.pop(name) for name in ("system_price", "system_power")}
    breakdown = assemble_breakdown(
        columns | {name: values for name, values in native.columns().items() if name in _NATIVE},
        run.system,
        world_size=native.world_size,
        tokens=run.design.global_batch_size * run.model.seq_len,
        model_flops=native.model_flops,
    )
    return replace(breakdown, **prices)


def _pieces(run: DataflowRun) -> Iterator[IntArray]:
    """Rows that DFModel has numbers for, in pieces that are alike and fit into the cache."""
    known = ~np.any([gap.missing(run) for gap in UNSUPPORTED], axis=0)
    for setup_row in setup_rows(run.design):
        rows = setup_row[known[setup_row]]
        for first in range(0, rows.size, KERNEL_CHUNK):
            yield rows[first : first + KERNEL_CHUNK]


def reasons(run: DataflowRun, *, generation: str) -> list[str]:
    """Why the first of some designs has no number, with a remedy; empty if it has one.

    Kernels that fit the SRAM alone have a number, in groups too: each may be its own.
    """
    gaps = [gap.reason(run, 0) for gap in UNSUPPORTED if gap.missing(run)[0]]
    if gaps:
        return gaps
    setup = design_setup(run.take(np.zeros(1, dtype=np.intp)))
    graph, sharding = sharded_graph(run.model, run.precision.element_bytes)
    short = sram_shortage(loads(graph, setup, sharding, generation))
    return [short] if short else []


def remedies(run: DataflowRun) -> str:
    """Reasons why none of some designs has a number, with the number of designs, and remedies."""
    missing = {gap: gap.missing(run) for gap in UNSUPPORTED}
    counts = {gap.column: rows.sum() for gap, rows in missing.items()}
    pins = {gap.column: gap.pin for gap in UNSUPPORTED if counts[gap.column]}
    too_large = ~np.any([*missing.values()], axis=0)  # rows without a number for another reason: the SRAM
    counts["SRAM"] = too_large.sum()
    larger = too_large & (run.design.tile_size > 1)
    pins |= {"tile_size": "1"} if larger.any() else {}
    wants = ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
    remedy = [" ".join(f"--set {name}={pin}" for name, pin in pins.items())] if pins else []
    remedy += ["more SRAM, or a larger tp"] if np.any(too_large & ~larger) else []
    return f"for {wants}; take {', and '.join(remedy)}"


def iteration(
    graph: DfmodelGraph, setup: Setup, sharding: IntArray, *, generation: str, groups: IntArray | None = None
) -> dict[str, FloatArray]:
    """Parts of an iteration's time; they add up to that of `evaluate`. NaN where tiles exceed the SRAM. [s]

    A group keeps its chip busy for its arithmetic and its DRAM traffic: their sum, or the longer one if they overlap.
    Its communication is the time that the network adds: all of it, or under perfect overlap the time beyond that.
    Gradients' share of it is data-parallel, all other is tensor-parallel. A group is of one direction.
    """
    evaluation = evaluate(graph, setup, sharding, generation=generation, groups=groups)
    compute, memory, network = evaluation.compute_time, evaluation.memory_time, evaluation.network_time
    serial, hidden = setup.overlap == "none", setup.overlap == "perfect"
    busy = compute + memory if serial else np.maximum(compute, memory)
    exposed = np.maximum(network - busy, 0) if hidden else network
    waiting = (memory if serial else np.where(memory > compute, memory, 0)) + evaluation.loading_time
    gradient = _gradient_share(graph, setup, sharding, generation, groups)
    backward = np.zeros(busy.shape[1], dtype=bool)
    backward[np.arange(len(graph)) if groups is None else groups] = graph.backward
    runs, busy = layer_runs(setup, GENERATIONS[generation]), busy + evaluation.loading_time
    held = within_capacity(evaluation.sram_bytes, per_kernel(setup.sram_bytes)).all(axis=-1)
    parts = {
        "forward_time": runs * total(busy[:, ~backward]),
        "backward_time": runs * total(busy[:, backward]),
        "tp_communication_time": runs * total(exposed * (1 - gradient)),
        "pp_communication_time": evaluation.transfer_time,
        "bubble_time": (evaluation.pipeline_factor - 1) * runs * total(busy + exposed),
        "dp_communication_time": runs * total(exposed * gradient),
        "memory_bound_time": runs * total(waiting),
        "system_price": evaluation.price,
        "system_power": evaluation.power,
    }
    return {name: np.where(held, values, np.nan) for name, values in parts.items()}


def _gradient_share(
    graph: DfmodelGraph, setup: Setup, sharding: IntArray, generation: str, groups: IntArray | None
) -> FloatArray:
    """Share of summing gradients in the network's time of each group; (points, groups), or (groups,). [-]"""
    gradient = np.where(kernel_collectives(graph, sharding) == PERIODIC, 1.0, 0.0)
    if groups is None:
        return gradient
    time: FloatArray = loads(graph, setup, sharding, generation).network_time.sum(axis=0)
    within = np.equal.outer(groups, np.arange(groups.max() + 1)).astype(np.float64)
    whole = time @ within
    return np.divide((time * gradient) @ within, whole, out=np.zeros_like(whole), where=whole > 0)


@cache
def rules_of(generation: str) -> tuple[Rules[DataflowDesign], ...]:
    """The rules of one generation."""
    return (
        Rules(
            work=TRAINING,
            design=DataflowDesign,
            cost=partial(dataflow_step, generation=generation),
            products=TRANSFORMER_TOTALS,
            unread=lambda column: splits_kernels(column) or column in MODERN,
            why=partial(reasons, generation=generation),
            what_would_do=remedies,
        ),
    )
