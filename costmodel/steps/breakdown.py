"""The table that a step returns: where its time, memory, energy and money go; and how all workloads fill it.

`Breakdown` declares each column with its unit and the total that it is part of. Steps evaluate designs in chunks, so
that memory does not grow with their number, and `assemble_breakdown` adds the parts up. Items are the summands of a
column: kernels, exchanges and waiting on the slowest stage. A run of many steps is interrupted by failures, and saves
checkpoints: the share of its time that is useful follows from the mean time between failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np

from costmodel.columns import Columns, FloatArray, IntArray, column, concatenated, grouped, in_rows, layout_of
from costmodel.kernels.collectives import held_ranks
from costmodel.kernels.kernel_cost import Item, Items, KernelCost, labelled
from costmodel.kernels.kernel_tables import every_part
from costmodel.machine import System, chip_power, chip_price
from costmodel.training.run import AnyShape, AnyTable, Run, TransformerRun

if TYPE_CHECKING:
    import pandas as pd

#: SI unit -> ending of a column's name in tables and JSON.
UNIT_SUFFIX = {"s": "_s", "B": "_bytes", "J": "_j", "W": "_w", "$": "_usd", "kg": "_kg", "FLOP": "", "1/s": "", "-": ""}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ResultTable(Columns):
    """Results of a kind of work for each design; the first column is its time, such as that of a step.

    Every column has shape (points,). A column that declares a total, as ``of="step_time"``, is a part of it:
    the parts of a total add up to it.
    """

    @classmethod
    def totals(cls) -> dict[str, tuple[str, ...]]:
        """Total -> the parts that add up to it, in their order."""
        parts = grouped((member.metadata.get("of"), member.name) for member in fields(cls))
        return {total: tuple(names) for total, names in parts.items() if total}

    @classmethod
    def key(cls, name: str) -> str:
        """A column's name in tables and JSON, ending in its unit."""
        return name + UNIT_SUFFIX[layout_of(cls).units[name]]

    @property
    def time(self) -> FloatArray:
        """The time that the work is about: of a step, of a token. [s]"""
        return np.asarray(getattr(self, next(iter(layout_of(type(self)).units))))

    @property
    def memory(self) -> FloatArray:
        """Memory of a device at its fullest moment; zeros for work that states none. [B]"""
        return self.columns().get("peak_memory", np.zeros(len(self.time)))

    def by_key(self) -> dict[str, FloatArray]:
        """Columns by their names in tables and JSON. [the unit that each ends in]"""
        return {self.key(name): values for name, values in self.columns().items()}

    def to_frame(self) -> pd.DataFrame:
        """The table in pandas, column names with their units: ``step_time_s``, ``peak_memory_bytes``."""
        import pandas as pd

        return pd.DataFrame(self.by_key())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Breakdown(ResultTable):
    """One optimizer step of each design; every column has shape (points,).

    Of the forward, backward and recompute times, `memory_bound_time` is spent in kernels that wait for a memory level,
    and `launch_bound_time` waiting for the host to launch kernels; the rest is arithmetic.
    """

    step_time: FloatArray = column("s")
    forward_time: FloatArray = column("s", of="step_time")
    backward_time: FloatArray = column("s", of="step_time")
    recompute_time: FloatArray = column("s", of="step_time")
    tp_communication_time: FloatArray = column("s", of="step_time")
    cp_communication_time: FloatArray = column("s", of="step_time")
    ep_communication_time: FloatArray = column("s", of="step_time")
    offload_time: FloatArray = column("s", of="step_time")
    pp_communication_time: FloatArray = column("s", of="step_time")
    bubble_time: FloatArray = column("s", of="step_time")
    dp_communication_time: FloatArray = column("s", of="step_time")
    optimizer_time: FloatArray = column("s", of="step_time")
    host_time: FloatArray = column("s", of="step_time")

    peak_memory: FloatArray = column("B")
    weights_memory: FloatArray = column("B", of="peak_memory")
    gradients_memory: FloatArray = column("B", of="peak_memory")
    optimizer_memory: FloatArray = column("B", of="peak_memory")
    activations_memory: FloatArray = column("B", of="peak_memory")
    buffers_memory: FloatArray = column("B", of="peak_memory")
    reserved_memory: FloatArray = column("B", of="peak_memory")

    energy_per_step: FloatArray = column("J")
    compute_energy: FloatArray = column("J", of="energy_per_step")
    memory_energy: FloatArray = column("J", of="energy_per_step")
    link_energy: FloatArray = column("J", of="energy_per_step")
    idle_energy: FloatArray = column("J", of="energy_per_step")

    memory_bound_time: FloatArray = column("s")
    launch_bound_time: FloatArray = column("s")
    tokens_per_second: FloatArray = column("1/s")
    tokens_per_second_per_gpu: FloatArray = column("1/s")
    model_flops: FloatArray = column("FLOP")
    mfu: FloatArray = column("-")
    world_size: FloatArray = column("-")
    system_price: FloatArray = column("$")
    system_power: FloatArray = column("W")
    average_power: FloatArray = column("W")


#: Total -> the parts that add up to it.
PARTS: dict[str, tuple[str, ...]] = Breakdown.totals()

#: Times that are parts of forward, backward and recompute time together.
BOUNDS = ("memory_bound_time", "launch_bound_time")


def with_unit_suffix(name: str) -> str:
    """A breakdown column's name in tables and JSON, ending in its unit.

    >>> [with_unit_suffix(name) for name in ("step_time", "peak_memory", "mfu", "tokens_per_second")]
    ['step_time_s', 'peak_memory_bytes', 'mfu', 'tokens_per_second']
    """
    return Breakdown.key(name)


#: Passes over a stage, by the column of a breakdown that has their kernels.
PASS_COLUMNS: Final = ("forward_time", "backward_time", "recompute_time")

#: Breakdown column -> column of a `KernelCost` that it is the sum of; no items of passes are of it.
WITHOUT_ITEMS: Final = {"ep_communication_time": "ep_time", "offload_time": "offload_time"}
#: Name of the time that kernels wait for their host.
LAUNCHES: Final = "waiting for launches"


def schedule_items(
    run: TransformerRun, passes: Sequence[Sequence[KernelCost]], counts: Sequence[Sequence[FloatArray]]
) -> Items:
    """Items of all micro-batches of a step on the slowest stage. [s], [FLOP], [B], [-]

    `passes` are forward, backward and recomputation of one micro-batch, each by part of the model, (points,) [s];
    `counts` say how often each part is on the stage, for each pass. [-] Kernels belong to the column of their pass,
    exchanges to their own.
    """
    items: dict[Item, FloatArray] = {}
    steps, names = run.design.gradient_accumulation_steps, [part.name for part in every_part(run.model)]
    for total, costs, of_stage in zip(PASS_COLUMNS, passes, counts, strict=True):
        for part, cost, count in zip(names, costs, of_stage, strict=False):
            whole, of_pass = cost * (count * steps), total.removesuffix("_time")
            items[Item("time", total, part, name=LAUNCHES)] = whole.launch_bound_time
            for name, other_column in WITHOUT_ITEMS.items():
                items[Item("time", name, part, of_pass)] = getattr(whole, other_column)
            kernels = {item: values for item, values in whole.items.items() if not item.column}
            items |= labelled(kernels, column=total, part=part)
            exchanges = {item: values for item, values in whole.items.items() if item.column}
            items |= labelled(exchanges, part=part, of_pass=of_pass)
    return items


#: Designs that are evaluated at once: enough to drown Python's overhead, and no more, to bound memory.
CHUNK = 16384

#: `CHUNK` where designs share axes of machines: many numbers are of fewer combinations.
CELLS = 131072


def in_chunks(
    chunk: Callable[[Run[AnyShape, AnyTable]], Breakdown],
    run: Run[AnyShape, AnyTable],
    grouping: Callable[[AnyTable], Sequence[FloatArray]] | None = None,
) -> Breakdown:
    """Evaluate designs a chunk at a time, so that memory does not grow with their number.

    Designs that agree in the columns that `grouping` gives, the first of them most of all, are in one chunk, where
    stages evaluate common parts once.
    """
    points = run.num_points
    run = run.of(run.design.map(lambda v: v if v.shape == (points,) else np.broadcast_to(v, (points,))))
    axes = run.axes
    size = max(CELLS // math.prod(axes), 1) if axes else CHUNK
    if points <= size:
        return chunk(run)
    run = run.of(run.design.map(lambda v: v if (v != v[0]).any() else np.broadcast_to(v[0], (points,))))
    order = None if grouping is None else like_rows(grouping(run.design), first_apart=True)
    pieces = (slice(start, start + size) for start in range(0, points, size))
    rows = pieces if order is None else (order[piece] for piece in pieces)
    costs = ((points_in, chunk(run.take(points_in))) for points_in in rows)
    if not axes:
        return in_rows(costs, points)
    joined = concatenated([points_in for _, points_in in costs])  # columns keep the axes that they depend on alone
    return joined if order is None else joined.take(np.argsort(order))


def schedules_apart(chunk: Callable[[TransformerRun], Breakdown], run: TransformerRun) -> Breakdown | None:
    """A chunk whose 1F1B pipelines are evaluated separately from others, which examine every stage.

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
    parts: Mapping[str, FloatArray], system: System, *, world_size: FloatArray, tokens: FloatArray,
    model_flops: FloatArray,
) -> Breakdown:  # fmt: skip
    """The table of a step of `world_size` chips from its parts.

    `parts` are columns that `PARTS` and `BOUNDS` name, (points,) each, except `idle_energy`; those left out are 0. [s],
    [B], [J] `tokens` [-] and `model_flops` [FLOP] are those of a step, (points,).
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


def daly_interval(checkpoint_time: FloatArray, mtbf: FloatArray) -> FloatArray:
    """Useful time between checkpoints that loses least, also where failures are frequent [Daly2006]_; (points,). [s]

    Arguments are those of `daly_goodput`. Equation 37 there, a series for where the goodput is highest: within 0.02 %
    of the best while a checkpoint takes no longer than the mean time between failures, within 0.15 % always. Its first
    factor is the interval to first order [Young1974]_.
    """
    share = np.minimum(checkpoint_time / (2 * mtbf), 1.0)
    higher_order = 1 + np.sqrt(share) / 3 + share / 9
    interval = np.sqrt(2 * checkpoint_time * mtbf) * higher_order - checkpoint_time
    return np.asarray(np.where(checkpoint_time < 2 * mtbf, interval, mtbf))


def daly_goodput(
    interval: FloatArray, checkpoint_time: FloatArray, restart_time: FloatArray, mtbf: FloatArray
) -> FloatArray:
    """Share of wall-clock time that is useful training: not saved, waited for, or done again [Daly2006]_. [-]

    `interval` is the useful time between two checkpoints, `checkpoint_time` that for which training stands still for
    one. From a failure to the first new step it takes `restart_time`: detection, another node, reading the checkpoint.
    `mtbf` is the mean time between failures of the whole machine. All are (points,). [s]

    Equation 20 there: failures come at random, at a constant rate, also while a checkpoint is written and
    while a restart is under way; each costs all that was done since the last checkpoint, and a restart. No
    time between checkpoints that take none is the limit of short intervals.
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        useful = interval / mtbf / np.expm1((interval + checkpoint_time) / mtbf)
    useful = np.where((interval == 0) & (np.asarray(checkpoint_time) == 0), 1.0, useful)
    return np.asarray(useful * np.exp(-restart_time / mtbf))
