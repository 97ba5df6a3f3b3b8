"""Evaluates designs by DFModel's rules; memory and the energy of the work are the native model's.

These are the rules behind `--profile dfmodel-gen3`. Designs that can share a set-up are evaluated together, in pieces
that fit the cache; within a piece, those with the same groups of fused kernels. The parts of the iteration go to the
columns of the native breakdown, so that searches and reports treat them alike. Designs without a number get NaN, and
`reasons` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Final

import numpy as np

from costmodel.columns import FloatArray, IntArray, per_kernel
from costmodel.kernels.kernel_tables import total
from costmodel.rules.rules import TRAINING, TRANSFORMER_TOTALS, Rules
from costmodel.steps.breakdown import PARTS, Breakdown, assemble_breakdown, in_chunks
from costmodel.steps.transformer import transformer_step
from costmodel.training.design import MODERN, splits_kernels
from dse.adapters.dfmodel.design import UNSUPPORTED, DataflowDesign, DataflowRun, design_setup, setup_rows
from dse.adapters.dfmodel.evaluation import evaluate, layer_runs, loads, within_capacity
from dse.adapters.dfmodel.graph import PERIODIC, DfmodelGraph, kernel_collectives
from dse.adapters.dfmodel.mapping import fastest_groups, sharded_graph, sram_shortage
from dse.adapters.dfmodel.setup import GENERATIONS, Setup

#: Designs evaluated at once: their (points, kernels) tables fit into a core's cache.
KERNEL_CHUNK: Final = 2048

#: Columns that are the native model's.
_NATIVE: Final = {*PARTS["peak_memory"], *PARTS["energy_per_step"]} - {"idle_energy"}


#: Where the time of an iteration goes, and what the system costs. [s], [$], [W]
_PARTS: Final = (
    *("forward_time", "backward_time", "tp_communication_time", "pp_communication_time", "bubble_time"),
    *("dp_communication_time", "memory_bound_time", "system_price", "system_power"),
)


def dataflow_step(run: DataflowRun, *, generation: str) -> Breakdown:
    """Evaluate one optimizer step of each design, as `costmodel.step` does, (points,). [s], [B], [J], [$], [W]

    Times, and price and power of the system, are DFModel's; memory and the energy of the work are the native model's.
    NaN where DFModel has no number. `generation` is a key of `GENERATIONS`.

    DFModel knows neither recomputation nor several chunks a stage. It needs a dimension of the network for
    each group of several chips, tiles that divide the sequence, and the SRAM for what a kernel streams.
    It has no optimizer and no host, so they take no time.
    """
    return in_chunks(partial(_dataflow_chunk, generation=generation), run)


def _dataflow_chunk(run: DataflowRun, *, generation: str) -> Breakdown:
    """Evaluate a chunk of designs, whose columns are all of one length."""
    native = transformer_step(run)
    graph, sharding = sharded_graph(run.model, run.precision.element_bytes)
    columns = {name: np.full(run.num_points, np.nan) for name in _PARTS}
    for rows in _pieces(run):
        setup = design_setup(run.take(rows))
        for designs, groups in _grouped(run, setup, generation):
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
    """Rows that DFModel has numbers for, as many as are alike and fit into the cache."""
    known = ~np.any([gap.missing(run) for gap in UNSUPPORTED], axis=0)
    for setup_row in setup_rows(run.design):
        rows = setup_row[known[setup_row]]
        for first in range(0, rows.size, KERNEL_CHUNK):
            yield rows[first : first + KERNEL_CHUNK]


def _grouped(run: DataflowRun, setup: Setup, generation: str) -> Iterable[tuple[IntArray, IntArray | None]]:
    """Rows of a set-up whose kernels are in the same groups, and these; None where each is its own."""
    if setup.kernel_by_kernel:
        return [(np.arange(setup.num_points), None)]
    element_bytes = run.precision.element_bytes
    return fastest_groups(run.model, setup, element_bytes=element_bytes, generation=generation)


def reasons(run: DataflowRun, *, generation: str) -> list[str]:
    """Why the first of some designs has no number, and what would do; nothing where it has one.

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
    too_large = ~np.any([*missing.values()], axis=0)  # what has no number though it could: the SRAM
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

    Arguments are those of `evaluate`; a group is of one direction.

    A group keeps its chip busy for its arithmetic and its DRAM traffic: their sum, or the longer one
    where they overlap. Its communication is what the network adds: all of it, or under perfect overlap
    what it takes beyond that. Gradients' share of it is data-parallel, all other is tensor-parallel.
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
    time = loads(graph, setup, sharding, generation).network_time
    within = np.equal.outer(groups, np.arange(groups.max() + 1)).astype(np.float64)
    whole = time @ within
    return np.divide((time * gradient) @ within, whole, out=np.zeros_like(whole), where=whole > 0)


def _unread(column: str) -> bool:
    """Columns that the reference has no rules for, or settles itself: how kernels are split."""
    return splits_kernels(column) or column in MODERN


@cache
def rules_of(generation: str) -> tuple[Rules[DataflowDesign], ...]:
    """The rules of one generation."""
    return (
        Rules(
            work=TRAINING,
            design=DataflowDesign,
            cost=partial(dataflow_step, generation=generation),
            products=TRANSFORMER_TOTALS,
            unread=_unread,
            why=partial(reasons, generation=generation),
            what_would_do=remedies,
        ),
    )
