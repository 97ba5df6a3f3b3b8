"""Measured rows of one machine, evaluated for many sets of its constants at once.

Rows of equal model or kernel are one batch. `log_ratios` evaluates a batch for all sets of constants in one call, so
that the slopes of the rows (`evaluated`) cost little more than one evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from costmodel import DesignPoints, ModelShape, System, step
from costmodel.columns import BoolArray, FloatArray, concatenated, grouped
from dse.calibration.constants import COLLECTIVES, KERNELS, STEPS, Constant
from dse.validation.comparison import ComparedRow
from dse.validation.expressed import Expressed, system_named
from dse.validation.kernels import checked_kernel, kernel_machine, times_alone
from dse.validation.rows import expressed_row
from dse.validation.table import MeasuredRow

#: Type of rows -> kind of rows with which they are fitted.
STAGE_OF: Final = {
    "kernel_gemm": KERNELS,
    "kernel_grouped": KERNELS,
    "kernel_stream": KERNELS,
    "kernel_attention": KERNELS,
    "kernel_coll": COLLECTIVES,
    "train_step": STEPS,
}

#: Columns of designs in which runs of one configuration at different sizes differ.
SIZES: Final = ("dp", "gradient_accumulation_steps")


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """Rows that are evaluated together."""

    rows: tuple[ComparedRow, ...]
    groups: tuple[str, ...]  #: of each row: those of one group are one configuration at different sizes
    quantities: Mapping[str, FloatArray]  #: that the rows themselves decide, (rows,) [SI units]
    times: Callable[[System, int], FloatArray]  #: of all rows, repeated that number of times; (copies * rows,) [s]

    def log_ratios(self, system: System, values: Mapping[str, FloatArray]) -> FloatArray:
        """Logarithms of predicted over measured, as those of `Measurements`, of these rows. [-]"""
        sets, rows = max((array.size for array in values.values()), default=1), len(self.rows)
        varied = {name: np.repeat(array, rows) for name, array in values.items()}
        tiled = {name: np.tile(array, sets) for name, array in self.quantities.items()}
        time = self.times(system.with_quantities({**varied, **tiled}), sets)
        measured = np.array([row.measured_s for row in self.rows])
        ratios: FloatArray = np.log(np.broadcast_to(time, (sets * rows,)).reshape(sets, rows) / measured)
        return ratios


class EvaluatedRows(Protocol):
    """Measured rows that can be evaluated for many sets of constants at once."""

    @property
    def count(self) -> int:
        """Number of rows. [-]"""

    def log_ratios(self, values: Mapping[str, FloatArray]) -> FloatArray:
        """Logarithm of predicted over measured time, (sets, rows); `values` are sets of constants. [-], [SI units]"""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Rows of one kind on one machine."""

    system: System
    batches: tuple[MeasuredBatch, ...]

    @property
    def rows(self) -> list[MeasuredRow]:
        """Rows in the order of their groups and ratios."""
        return [one.row for batch in self.batches for one in batch.rows]

    @property
    def count(self) -> int:
        """Number of rows. [-]"""
        return len(self.rows)

    @property
    def groups(self) -> list[str]:
        """Group of each row: one configuration at different sizes."""
        return [group for batch in self.batches for group in batch.groups]

    def log_ratios(self, values: Mapping[str, FloatArray]) -> FloatArray:
        """Logarithm of predicted over measured time, (sets, rows). [-]

        `values` are sets of constants, quantity -> (sets,); others are those of the system. [SI units]
        """
        return np.concatenate([batch.log_ratios(self.system, values) for batch in self.batches], axis=1)


def measurements(rows: Sequence[ComparedRow], name: str, system: System) -> dict[str, Measurements]:
    """Measurements by kind, of rows that were compared on the system of this name.

    `system` evaluates them: that system, or one that differs from it in some constants.
    """
    batches = {stage: _kernels(rows, name, stage) for stage in (KERNELS, COLLECTIVES)} | {STEPS: _steps(rows, name)}
    return {stage: Measurements(system, tuple(known)) for stage, known in batches.items() if known}


def _kernels(rows: Sequence[ComparedRow], name: str, stage: str) -> list[MeasuredBatch]:
    """Single or grouped products in one format, streams and attention of one kind, or collectives of one kind."""
    of_stage = (one for one in rows if STAGE_OF.get(one.row.row_type) == stage)
    rows_of_group = grouped(((one.row.row_type, checked_kernel(one.row)), one) for one in of_stage)
    return [_kernel_batch(row_type, how, rows, name) for (row_type, how), rows in rows_of_group.items()]


def _kernel_batch(row_type: str, how: str, members: Sequence[ComparedRow], name: str) -> MeasuredBatch:
    """Kernels of one kind; those of one weight, or of one group of ranks, are held out together."""
    rows = [one.row for one in members]
    usual = system_named(name).quantities()
    decided = [kernel_machine(row, name).quantities for row in rows]
    names = {quantity for quantities in decided for quantity in quantities}
    return MeasuredBatch(
        tuple(members),
        tuple(f"{row_type} {how} {row.n:g} {row.k:g} {row.n_ranks:g} {row.hidden:g}" for row in rows),
        {name: np.array([quantities.get(name, usual[name].item()) for quantities in decided]) for name in names},
        lambda system, copies: times_alone(row_type, rows * copies, how, system),
    )


def _steps(rows: Sequence[ComparedRow], name: str) -> list[MeasuredBatch]:
    """Steps of one model each."""
    steps = ((one, expressed_row(one.row, name)) for one in rows if STAGE_OF.get(one.row.row_type) == STEPS)
    runs = grouped((run.model, (one, run)) for one, run in steps)
    return [_step_batch(model, *zip(*members, strict=True)) for model, members in runs.items()]


def _step_batch(model: ModelShape, rows: tuple[ComparedRow, ...], runs: tuple[Expressed, ...]) -> MeasuredBatch:
    """Steps of one model."""
    designs = concatenated([run.design() for run in runs])

    def times(system: System, copies: int) -> FloatArray:
        again: DesignPoints = designs.map(lambda values: np.tile(np.broadcast_to(values, len(runs)), copies))
        return step(model, system, again).step_time

    settings = (
        " ".join(f"{key}={value}" for key, value in sorted(run.columns.items()) if key not in SIZES) for run in runs
    )
    return MeasuredBatch(rows, tuple(f"{model.name} {model.seq_len:g} {setting}" for setting in settings), {}, times)


#: Logarithmic ratio from which a row counts by its size instead of its square. [-]
OUTLYING: Final = 0.05
#: Difference of coordinates that derivatives are taken over. [-]
DIFFERENCE: Final = 0.02
#: Largest first step of a coordinate: about a factor of two. [-]
FIRST_RADIUS: Final = 0.7
#: Change of the logarithm of a row's time with a coordinate, below which it does not depend on it. [-]
NO_CHANGE: Final = 2e-3
#: Most steps that a fit takes. [-]
MOST_STEPS: Final = 15


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants, as far as they are fitted to some rows; arrays of coordinates are (constants,)."""

    constants: tuple[Constant, ...]
    fitted: BoolArray  #: rows that count, (rows,)
    coordinates: FloatArray  #: [-]
    ratios: FloatArray  #: logarithm of predicted over measured time of every row [-]
    slopes: FloatArray  #: of the ratios by the coordinates, (rows, constants) [-]
    covariance: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))  #: of the coordinates, once known [-]
    noise: float = 0.0  #: of rows in addition to the constants, as a share of their times [-]

    @property
    def values(self) -> dict[str, float]:
        """Fitted values by name of quantity. [SI units]"""
        return {
            constant.name: constant.value(at).item()
            for constant, at in zip(self.constants, self.coordinates, strict=True)
        }

    @property
    def standard_errors(self) -> dict[str, float]:
        """Standard errors of the values, by name. [SI units]"""
        errors = np.sqrt(np.maximum(np.diag(self.covariance), 0.0))
        return {
            constant.name: abs(constant.slope(constant.value(at).item())) * float(error)
            for constant, at, error in zip(self.constants, self.coordinates, errors, strict=True)
        }


@dataclass(frozen=True, slots=True)
class Task:
    """Constants to be fitted to some rows, and where to begin."""

    constants: tuple[Constant, ...]
    fitted: BoolArray  #: rows that count, (rows,)
    start: FloatArray  #: coordinates, (constants,) [-]


def evaluated(tasks: Sequence[Task], rows: EvaluatedRows, others: Mapping[str, float]) -> list[Fit]:
    """Ratios and their slopes where tasks begin, all evaluated together."""
    names, table, moves = list(others), [], []
    for task in tasks:
        top = np.array([constant.coordinate(constant.high) for constant in task.constants])
        move = np.where(task.start + DIFFERENCE <= top, DIFFERENCE, -DIFFERENCE)
        near = np.vstack([task.start, task.start + np.diag(move)])
        block = np.tile(np.array([others[name] for name in names]), (len(near), 1))
        for column, constant in enumerate(task.constants):
            block[:, names.index(constant.name)] = constant.value(near[:, column])
        table.append(block)
        moves.append(move)
    every = np.concatenate(table)
    ratios = rows.log_ratios({name: every[:, index] for index, name in enumerate(names)})
    evaluated, first = [], 0
    for task, move in zip(tasks, moves, strict=True):
        at, *near_ratios = ratios[first : first + len(move) + 1]
        slopes = (np.reshape(near_ratios, (len(move), at.size)) - at).T / move
        evaluated.append(Fit(task.constants, task.fitted, task.start, at, slopes))
        first += len(move) + 1
    return evaluated
