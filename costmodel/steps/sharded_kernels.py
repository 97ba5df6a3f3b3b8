"""Kernels of a micro-batch, timed once with each of their shardings, and micro-batches made up of them.

The solver compares many assignments of shardings that share most kernels. So each kernel is timed once with each of its
options, and a micro-batch of any assignment picks its kernels from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from costmodel.columns import EACH_ITS_OWN, AnyArray, BoolArray, FloatArray, IntArray, UniqueRows
from costmodel.kernels.kernel_cost import KernelCost, pointwise_time
from costmodel.kernels.kernel_tables import (
    BIAS_GRADIENTS,
    Label,
    Pointwise,
    bias_gradient_row,
    biased,
    every_part,
    transformer_gemms,
)
from costmodel.kernels.products import joined_costs, kernels_of, products_cost
from costmodel.steps.micro_batch.micro_batch import (
    CostTable,
    MicroBatch,
    TimedKernels,
    costs_of_points,
    fused_cores,
    micro_batch,
    of_chips,
    pointwise_kernels,
)
from costmodel.training.blocks import EMBEDDING
from costmodel.training.kernel_kind import Kernel
from costmodel.training.run import RankRun


def with_options(run: RankRun, places: Mapping[str, int]) -> RankRun:
    """A run with some kernels split by their option at a place, the others by their first."""
    assignments = run.design.assignments
    number = assignments.numbers({name: at for name, at in places.items() if name in assignments.options})
    return run.with_shape(replace(run.design, assignment=number[np.newaxis]))


def followed(run: RankRun, kernel: Kernel) -> Kernel | None:
    """The kernel whose option decides the split of a kernel: itself, or the one that writes the residual stream, if
    any."""
    if kernel.name in run.design.assignments.options:
        return kernel
    stream = run.design.stream
    follows = kernel.is_whole or kernel.kind == EMBEDDING.kernels[0].kind
    return stream if follows and stream.name in run.design.assignments.options else None


@dataclass(frozen=True)
class OptionTables:
    """Kernels of some runs, each timed with each of its options once.

    No kernel's time depends on the split of others, except the one that reduces the gradients of all biases of a layer:
    values that depend on an assignment are chosen among these times, column by column.
    """

    run: RankRun  #: (points,); its own assignments do not matter
    tables: tuple[CostTable, ...]  #: with all kernels at their first option, then their second ...
    cores: Mapping[tuple[Kernel, str], KernelCost]  #: fused attention

    @classmethod
    def of(cls, run: RankRun) -> Self:
        """Tables of the kernels of a run, one for each option."""
        kernels = run.with_shape(run.design.of_kernels)
        unique = UniqueRows.of(*kernels.columns())
        chips, chip_rows = of_chips(unique.take(kernels))
        chip_rows = chip_rows.behind(unique)
        return cls(run, tuple(_tables(chips, chip_rows)), fused_cores(chips, chip_rows))

    def take(self, rows: IntArray) -> Self:
        """The tables of some of the points."""
        tables = [replace(table, unique=table.unique.at(rows)) for table in self.tables]
        unique = UniqueRows(rows, rows)
        cores = {key: costs_of_points(cost, unique) for key, cost in self.cores.items()}
        return type(self)(self.run.take(rows), tuple(tables), cores)

    def micro_batches(self, numbers: FloatArray, *, times_alone: bool = False) -> MicroBatch:
        """Costs of one micro-batch with each of some assignments, (assignments, points). [s], [J]

        Numbers are those that `micro_batches` has for the same designs. Energies of
        kernels, and how long they wait for memories, may be left out.
        """
        run = self.run.with_shape(replace(self.run.design, assignment=numbers))
        kernels = run.with_shape(run.design.of_kernels)
        return micro_batch(
            run, TimedKernels(kernels, _Chosen(self.tables, kernels, times_alone).table, self.cores, EACH_ITS_OWN)
        )


def _tables(chips: RankRun, unique: UniqueRows) -> list[CostTable]:
    """Costs with all kernels at their first option, then their second ...; equal products are timed once."""
    assignments = chips.design.assignments
    most = max((len(products_of_run) for products_of_run in assignments.options.values()), default=1)
    every = assignments.options.items()
    runs = [with_options(chips, {name: min(i, len(options) - 1) for name, options in every}) for i in range(most)]
    products = [transformer_gemms(run).present() for run in runs]
    labels, wide = products[0].labels, products[0]
    columns, placed = np.arange(len(labels)), []
    kernels = _kernels(chips)
    leaders = [followed(chips, kernels[label.kernel]) for label in labels]  # whose options they have
    for number, gemms in enumerate(products):
        if number:
            split = np.flatnonzero([leader is not None and len(leader.kind.shardings) > number for leader in leaders])
            columns = columns.copy()
            columns[split] = len(wide.labels) + np.arange(split.size)
            wide = wide.beside(gemms.take_kernels(split))
        placed.append(columns)
    costs = products_cost(chips, wide)
    tables = []
    for run, gemms, products_of_run in zip(runs, products, placed, strict=True):
        thin = pointwise_kernels(run)
        times = pointwise_time(thin, chips.system)
        tables.append(CostTable(gemms, kernels_of(costs, products_of_run), thin, *times, chips.system, unique))
    return tables


def _kernels(run: RankRun) -> dict[str, Kernel]:
    """Every kernel of a model by its name."""
    return {kernel.name: kernel for part in every_part(run.model) for kernel in part.kernels}


@dataclass(frozen=True)
class _Chosen:
    """Costs of kernels that are split as some assignments say, picked from the tables of all options."""

    tables: Sequence[CostTable]
    run: RankRun  #: with the assignments, (assignments, points)
    times_alone: bool

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """Every kernel of the model by its name."""
        return _kernels(self.run)

    @cached_property
    def splits(self) -> dict[str, list[BoolArray]]:
        """Kernel with a choice -> where it takes its second option, its third ...; (assignments, points)."""
        design = self.run.design
        return {
            name: [design.place(self.kernels[name]) == option for option in range(1, len(options))]
            for name, options in design.assignments.options.items()
        }

    @property
    def table(self) -> CostTable:
        """A row for each assignment and point: (assignments, points, kernels) arrays."""
        first, tables = self.tables[0], self.tables
        dense, thin = first.gemms.labels, first.pointwise.labels
        chosen_table = replace(
            first,
            gemms=replace(
                first.gemms, count=self._of_first(first.gemms.count), batch=self._of_first(first.gemms.batch)
            ),
            gemm_costs=joined_costs(
                [table.gemm_costs for table in tables],
                lambda name, values: self._of(dense, values, read=name == "time"),
            ),
            pointwise=replace(
                first.pointwise,
                count=self._of_first(first.pointwise.count),
                bytes_moved=self._of(thin, [table.pointwise.bytes_moved for table in tables]),
                flops=self._of(thin, [table.pointwise.flops for table in tables]),
            ),
            pointwise_times=self._of(thin, [table.pointwise_times for table in tables], read=True),
            pointwise_memory_bound=self._of(thin, [table.pointwise_memory_bound for table in tables]),
            system=self.run.system,
            unique=EACH_ITS_OWN,
            times_alone=self.times_alone,
        )
        self._put_bias_gradients(chosen_table)
        return chosen_table

    def _points(self, values: AnyArray) -> AnyArray:
        """Rows of the tables as points."""
        places = self.tables[0].unique.places
        return values if places is None else values[places]

    def _of_first(self, values: FloatArray) -> FloatArray:
        """A table that no assignment changes, (points, kernels), as (assignments, points, kernels)."""
        first = self._points(values)
        return np.broadcast_to(first, (*self.run.axes, *first.shape))

    def _of(self, labels: Sequence[Label], values: Sequence[AnyArray], *, read: bool = False) -> AnyArray:
        """Entries of labelled kernels, each from the table of the option that it follows.

        With times alone, columns that are not read for them are left unchanged.
        """
        if self.times_alone and not read:
            return values[0]
        lines: Any = np.empty((len(labels), *self.run.axes, self.run.num_points), dtype=values[0].dtype)
        for number, (line, label) in enumerate(zip(lines, labels, strict=True)):
            line[:] = self._points(values[0][:, number])
            kernel = self.kernels.get(label.kernel)
            leader = followed(self.run, kernel) if kernel else None
            for other, where in zip(values[1:], self.splits[leader.name] if leader else (), strict=False):
                np.copyto(line, self._points(other[:, number]), where=where)
        return np.moveaxis(lines, 0, -1)

    def _put_bias_gradients(self, table: CostTable) -> None:
        """Put the times of the kernels in their place whose work depends on several kernels' options."""
        parts = {part.name: part for part in every_part(self.run.model)}
        labels = table.pointwise.labels
        places = [number for number, label in enumerate(labels) if label.name == BIAS_GRADIENTS]
        if not places:
            return
        every, points = self.run.on_one_axis()
        rows = []
        for number in places:
            part = parts[labels[number].part]
            if part.layer:
                rows.append(bias_gradient_row(every, part.layer, biased(every, part.layer), part.name))
        kernels = Pointwise.of_rows(rows, element_bytes=every.precision.element_bytes)
        times, bound = pointwise_time(kernels, every.system)
        table.pointwise_times[..., places] = times[points]
        if not self.times_alone:
            table.pointwise.bytes_moved[..., places] = kernels.bytes_moved[points]
            table.pointwise.flops[..., places] = kernels.flops[points]
            table.pointwise_memory_bound[..., places] = bound[points]
