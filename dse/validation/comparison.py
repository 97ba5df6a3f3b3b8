"""Comparison of every row of a table of measurements with the prediction of the cost model.

All rows of one model and machine are evaluated in one call. A row that cannot be expressed keeps its reason, and no
number is printed for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from costmodel import DseError, System
from costmodel.columns import short_repr
from dse.predictions import DOES_NOT_FIT, EVIDENCE, TIGHT, Interval, interval, peak_spread
from dse.validation.expressed import Expressed, breakdowns, system_named
from dse.validation.kernels import kernel_times, measured_kernel_time
from dse.validation.rows import expressed_row, measured_time
from dse.validation.table import WORDS, MeasuredRow

#: Passes of one layer and its exchanges.
OF_LAYERS: Final = ("forward_time", "backward_time", "recompute_time", "tp_communication_time")

#: Columns that do not make two runs of one sweep different layouts: settings of the software.
NOT_LAYOUT: Final = ("precision", "attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """A row and its predictions; nan where the model has none."""

    __repr__ = short_repr

    row: MeasuredRow
    measured_s: float = math.nan
    predicted_s: float = math.nan
    low_s: float = math.nan  #: interval that holds the time nine times of ten
    high_s: float = math.nan
    evidence: str = ""  #: runs that support the prediction
    measured_bytes: float = math.nan  #: infinite for a run that did not fit
    predicted_bytes: float = math.nan  #: of the memory that the measured figure counts
    system: str = ""
    framework: str = ""  #: with its release
    verdict: str = ""  #: whether it fits in the chip's memory, a word of `VERDICTS`
    #: Model, ranks, tokens of a sequence, sequences: values common to the runs of a sweep.
    sweep: tuple[str | float, ...] = ()
    layout: tuple[tuple[str, str | float], ...] = ()
    assumed: Mapping[str, Any] = field(default_factory=dict)  #: settings that the row does not state
    why_not: str = ""  #: reason why it cannot be evaluated
    #: The run of a row, and its breakdown by column, if the cost model evaluates it. [SI units]
    evaluated: tuple[Expressed, Mapping[str, float]] | None = None

    @property
    def expressed(self) -> bool:
        """True if the model has a prediction for the row."""
        return not self.why_not

    @property
    def is_step(self) -> bool:
        """True if a row is a step or a layer with a predicted and a measured time."""
        return not self.row.is_kernel and self.predicted_s > 0

    @property
    def error(self) -> float:
        """Error of the predicted time, relative to the measured one. [-]"""
        return self.predicted_s / self.measured_s - 1

    @property
    def memory_error(self) -> float:
        """Error of the predicted memory, relative to a measured one that did fit. [-]"""
        if not 0 < self.measured_bytes < math.inf:
            return math.nan
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def did_not_fit(self) -> bool:
        """True if a row is evaluated, and its run was out of memory."""
        return self.expressed and math.isinf(self.measured_bytes)

    @property
    def said_not_to_fit(self) -> bool:
        """True if the model predicts that the run is out of memory."""
        return self.verdict == DOES_NOT_FIT

    @property
    def is_tight(self) -> bool:
        """True if the error of predicted peaks is larger than the room that is left, or lacks."""
        return self.verdict == TIGHT

    @property
    def ran(self) -> bool:
        """True if a row is a whole run that is evaluated, and that fitted in memory."""
        if self.row.row_type == "memory":
            of_a_part = self.row.mem_kind == "" or "per GPU" in self.row.mem_kind  # computed, not the peak of a run
            return self.expressed and self.measured_bytes < math.inf and not of_a_part
        return self.is_step and self.row.row_type == "train_step" and not self.did_not_fit


def compared(rows: Sequence[MeasuredRow], system: str | None = None) -> list[ComparedRow]:
    """Rows with predictions, on the system that each names, or all on `system`; in the order given.

    Raises `DseError` if that system does not load.
    """
    if system is not None:
        system_named(system)
    by_row = {id(row): ComparedRow(row=row, why_not=row.mistake) for row in rows}
    kernels = [row for row in rows if row.is_kernel and not row.mistake]
    for row, time in zip(kernels, kernel_times(kernels, system), strict=True):
        by_row[id(row)] = _kernel(row, time)
    runs: dict[int, Expressed] = {}
    for row in rows:
        if not row.is_kernel and not row.mistake:
            try:
                runs[id(row)] = expressed_row(row, system)
            except DseError as error:
                by_row[id(row)] = ComparedRow(row=row, why_not=str(error))
    expressed = [row for row in rows if id(row) in runs]
    for one in _runs(expressed, [runs[id(row)] for row in expressed], own_hardware=system is None):
        by_row[id(one.row)] = one
    return [by_row[id(row)] for row in rows]


def _kernel(row: MeasuredRow, time: float | DseError) -> ComparedRow:
    """A kernel with its predicted time."""
    try:
        measured = measured_kernel_time(row)
    except DseError as error:
        return ComparedRow(row=row, why_not=str(error))
    if isinstance(time, DseError):
        return ComparedRow(row=row, measured_s=measured, why_not=str(time))
    return ComparedRow(row=row, measured_s=measured, predicted_s=time)


def _runs(rows: Sequence[MeasuredRow], runs: Sequence[Expressed], *, own_hardware: bool) -> list[ComparedRow]:
    """Runs evaluated together: steps, memory, and the difference that a second layer makes."""
    single = [number for number, row in enumerate(rows) if row.row_type == "layer_time"]
    alone = [(runs[number], count) for number in single for count in (1.0, 2.0)]
    layers = [replace(run, model=replace(run.model, num_layers=count)) for run, count in alone]
    evaluated = breakdowns([*runs, *layers])
    compared_rows = []
    for number, (row, run) in enumerate(zip(rows, runs, strict=True)):
        costs = [evaluated[number]]
        if number in single:
            start = len(runs) + 2 * single.index(number)
            costs = evaluated[start : start + 2]
        wrong = [cost for cost in costs if isinstance(cost, DseError)]
        if wrong:
            compared_rows.append(ComparedRow(row=row, why_not=str(wrong[0])))
        else:
            known = [cost for cost in costs if not isinstance(cost, DseError)]
            compared_rows.append(_run(row, run, known, own_hardware=own_hardware))
    return compared_rows


def _run(row: MeasuredRow, run: Expressed, costs: Sequence[Mapping[str, float]], *, own_hardware: bool) -> ComparedRow:
    """A run with its predicted time and memory: the one place where a prediction comes to its row."""
    one = _memory(row, run, costs[0], own_hardware=own_hardware)
    if row.row_type == "memory":
        return one if math.isfinite(one.predicted_bytes) else replace(one, why_not="its memory")
    try:
        measured = measured_time(row, run)
    except DseError as error:
        return replace(one, why_not=str(error))
    ends: dict[str, Any] = {}
    if row.row_type == "train_step":
        interval, time = run_interval(run), costs[0]["step_time"]
        ends = {"low_s": time * float(interval.low[0]), "high_s": time * float(interval.high[0])}
        ends["evidence"] = EVIDENCE[interval.evidence[0]]
    return replace(
        one,
        measured_s=measured,
        predicted_s=layer_time(costs) if row.row_type == "layer_time" else costs[0]["step_time"],
        **ends,
        sweep=(run.model.name, run.ranks, run.model.seq_len, run.sequences),
        layout=tuple(sorted((name, value) for name, value in run.columns.items() if name not in NOT_LAYOUT)),
    )


def run_interval(run: Expressed) -> Interval:
    """The interval of a run's step, by its software and its place among measured ones."""
    return interval(run.framework.name, run.machine.system, run.model, run.design().columns())


def layer_time(costs: Sequence[Mapping[str, float]]) -> float:
    """Both passes of one layer: step time of a model of two layers less that of a model of one. [s]"""
    one, two = (math.fsum(cost[part] for part in OF_LAYERS) for cost in costs)
    return two - one


def _memory(row: MeasuredRow, run: Expressed, cost: Mapping[str, float], *, own_hardware: bool) -> ComparedRow:
    """A run with measured and predicted memory, and whether it fits. [B]"""
    stated = row.hw_mem_gb if own_hardware else 0.0
    spread = peak_spread(run.framework.name)
    return ComparedRow(
        row=row,
        system=run.machine.name,
        framework=run.framework.name,
        assumed=run.assumed,
        evaluated=(run, cost),
        measured_bytes=measured_memory(row),
        predicted_bytes=counted_memory(row, run, cost) if row.mem_gb else math.nan,
        verdict=spread.verdict(cost["peak_memory"], usable_memory(run.machine.system, stated)),
    )


#: Sizes of memory that differ by more are those of another chip: they are stated in GB or in GiB. [-]
OTHER_MEMORY: Final = 0.1


def counted_memory(row: MeasuredRow, run: Expressed, cost: Mapping[str, float]) -> float:
    """The part of a predicted memory that a row's figure counts. [B]"""
    kind = row.mem_kind.split("(")[0]
    parts = next((parts for word, parts in WORDS["memory"].items() if word in kind), ("peak_memory",))
    counted = math.fsum(cost[part] for part in parts)
    held = run.machine.quantities.get("software_fragmentation", 0.0) if "reserved" in kind else 0.0
    return counted * (1 + held)


def usable_memory(system: System, stated: float) -> float:
    """Memory of a chip that runs may use: the system's, unless a row states the size of another one. [B]

    The capacity of a system is the usable one, a little below the size by which memory is sold. `stated` is the size
    that the row states, 0 for none. [GB]
    """
    known = system.dram.capacity.item(), system.dram.sold_capacity.item()
    other = stated and all(abs(stated * 1e9 - size) > OTHER_MEMORY * size for size in known)
    return stated * 1e9 if other else known[0]


def measured_memory(row: MeasuredRow) -> float:
    """Memory of a row; infinite for a run that did not fit, nan where it says nothing. [B]"""
    if row.mem_gb.startswith(">") or row.mem_kind.startswith("OOM"):
        return math.inf
    return float(row.mem_gb) * (2.0**30 if "GiB" in row.mem_kind else 1e9) if row.mem_gb else math.nan
