"""Constants at some values and the slopes of measured rows there: many sets of constants are evaluated together.

A row counts by the logarithm of its predicted over its measured time. One call of the cost model evaluates all sets, so
that a Jacobian costs little more than one evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from dse.calibration.constants import Constant
from dse.calibration.measurements import EvaluatedRows

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
