"""Stages that the steps of all workloads share: evaluation in chunks, and adding the parts up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from costmodel.columns import FloatArray, IntArray, concatenated, in_rows
from costmodel.kernels.collectives import held_ranks
from costmodel.machine.system import System, chip_power, chip_price
from costmodel.steps.result.breakdown import BOUNDS, PARTS, Breakdown
from costmodel.training.run import AnyShape, AnyTable, Run, TransformerRun

#: Designs that are evaluated at once: enough to drown Python's overhead, and no more, to bound memory.
CHUNK = 16384

#: The same where designs share axes of machines: many numbers are of fewer combinations.
CELLS = 131072


def in_chunks(
    chunk: Callable[[Run[AnyShape, AnyTable]], Breakdown],
    run: Run[AnyShape, AnyTable],
    grouping: Callable[[AnyTable], Sequence[FloatArray]] | None = None,
) -> Breakdown:
    """Evaluate designs a chunk at a time, so that memory does not grow with their number.

    Designs that agree in the columns that `grouping` gives, the first of them most of all, stand in one
    chunk, where stages evaluate once what they have in common.
    """
    points = run.num_points
    run = run.of(run.design.map(lambda values: np.broadcast_to(values, (points,))))
    axes = run.axes
    size = max(CELLS // math.prod(axes), 1) if axes else CHUNK
    if points <= size:
        return chunk(run)
    order = None if grouping is None else like_rows(grouping(run.design), first_apart=True)
    pieces = (slice(start, start + size) for start in range(0, points, size))
    rows = pieces if order is None else (order[piece] for piece in pieces)
    costs = ((points_in, chunk(run.take(points_in))) for points_in in rows)
    if not axes:
        return in_rows(costs, points)
    joined = concatenated([points_in for _, points_in in costs])  # columns keep the axes that they depend on alone
    return joined if order is None else joined.take(np.argsort(order))


def schedules_apart(chunk: Callable[[TransformerRun], Breakdown], run: TransformerRun) -> Breakdown | None:
    """A chunk whose 1F1B pipelines are evaluated apart from others, of which every stage is looked at.

    Nothing where all are of a kind already.
    """
    in_turn = run.design.is_1f1b
    if in_turn.all() or not in_turn.any():
        return None
    kinds = [np.flatnonzero(in_turn), np.flatnonzero(~in_turn)]
    return in_rows(((rows, chunk(run.take(rows))) for rows in kinds), (*run.axes, in_turn.size))


def like_rows(columns: Sequence[FloatArray], *, first_apart: bool = False) -> IntArray | None:
    """An order of rows in which equal ones stand together; None where any chunk has many of each anyway.

    With `first_apart` rows that differ in the first column are set apart even then.
    """
    varying = [values for values in columns if (values != values[0]).any()]
    many = math.prod(np.unique(values[:CHUNK]).size for values in varying) > CHUNK / 8
    if not varying or not (many or (first_apart and varying[0] is columns[0])):
        return None
    codes, count = np.zeros(varying[0].size, dtype=np.int64), 1
    for values in varying:
        levels = np.unique(values)
        count *= levels.size
        if count > 2**62:
            break
        codes = codes * levels.size + np.searchsorted(levels, values)
    return np.argsort(codes, kind="stable")


def host_time(system: System, world_size: FloatArray, computing: FloatArray) -> FloatArray:
    """Time of a step outside of the chips, and of waiting for the slowest node. [s]"""
    nodes = np.maximum(world_size / held_ranks(system.network)[0], 1.0)
    return system.host.step_overhead + system.host.straggler * np.log2(nodes) * computing


def assemble_breakdown(
    parts: Mapping[str, FloatArray],
    system: System,
    *,
    world_size: FloatArray,
    tokens: FloatArray,
    model_flops: FloatArray,
) -> Breakdown:
    """The table of a step from its parts.

    Parameters
    ----------
    parts : mapping of (points,) arrays
        Columns that `PARTS` and `BOUNDS` name, but for `idle_energy`; those left out are 0. [s], [B], [J]
    system : System
        Machine.
    world_size : (points,) array
        Chips. [-]
    tokens, model_flops : (points,) array
        Of a step. [-], [FLOP]
    """
    zero = np.zeros_like(world_size)
    names = [name for names in (*PARTS.values(), BOUNDS) for name in names]
    columns = {name: zero + parts[name] if name in parts else zero for name in names}

    def sum_of(total: str) -> FloatArray:
        first, *others = (columns[name] for name in PARTS[total])
        for values in others:
            first = first + values
        return first

    step_time = sum_of("step_time")
    columns["idle_energy"] = world_size * step_time * (system.chip.idle_power + system.host.power)
    energy = sum_of("energy_per_step")
    return Breakdown(
        **columns,
        step_time=step_time,
        peak_memory=sum_of("peak_memory"),
        energy_per_step=energy,
        tokens_per_second=tokens / step_time,
        tokens_per_second_per_gpu=tokens / (step_time * world_size),
        model_flops=model_flops,
        mfu=model_flops / (step_time * world_size * system.chip.peak_flop_rate),
        world_size=world_size,
        system_price=world_size * chip_price(system),
        system_power=world_size * chip_power(system),
        average_power=energy / step_time * system.host.power_overhead,
    )
