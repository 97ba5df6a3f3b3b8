"""Robust least squares of many sets of constants at once: all are evaluated together, each takes its own steps.

Gauss-Newton steps on logarithms of predicted over measured time, with a soft L1 loss for outliers. One call of the cost
model evaluates all sets, so that a Jacobian costs little more than one evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from scipy.optimize import least_squares

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
#: Steps below which a fit is done, and the most that it takes. [-]
CONVERGED, MOST_STEPS = 1e-3, 15


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants, as far as they are fitted to some rows; arrays of coordinates are (constants,)."""

    constants: tuple[Constant, ...]
    fitted: BoolArray  #: rows that count, (rows,)
    coordinates: FloatArray  #: [-]
    ratios: FloatArray  #: logarithm of predicted over measured time of every row [-]
    slopes: FloatArray  #: of the ratios by the coordinates, (rows, constants) [-]
    radius: float = FIRST_RADIUS  #: of the box that the next step stays in; 0: it is done [-]
    #: Of the coordinates; none: it follows from the scatter of the rows. [-]
    covariance: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    noise: float = 0.0  #: of rows in addition to the constants, as a share of their times [-]

    @property
    def values(self) -> dict[str, float]:
        """Fitted values by name of quantity. [SI units]"""
        return {
            constant.name: constant.value(at).item()
            for constant, at in zip(self.constants, self.coordinates, strict=True)
        }

    @property
    def loss(self) -> float:
        """Loss that a fit minimizes: sum of squares, of outlying rows of sizes. [-]"""
        return float(np.sum(np.sqrt(1 + (self.ratios[self.fitted] / OUTLYING) ** 2) - 1))

    @property
    def standard_errors(self) -> dict[str, float]:
        """Standard errors of the values, by name. [SI units]"""
        covariance = self.covariance if self.covariance.size else self._scatter()
        errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        return {
            constant.name: abs(constant.slope(constant.value(at).item())) * float(error)
            for constant, at, error in zip(self.constants, self.coordinates, errors, strict=True)
        }

    def _scatter(self) -> FloatArray:
        """Covariance of the coordinates from the scatter of the rows, less the constants fitted, by robust weights."""
        rows, ratios = self.slopes[self.fitted], self.ratios[self.fitted]
        weights = 1 / np.sqrt(1 + (ratios / OUTLYING) ** 2)
        free = max(len(ratios) - len(self.constants), 1)
        scatter = np.sum(weights * ratios**2) / free
        spread: FloatArray = np.linalg.pinv(rows.T @ (weights[:, np.newaxis] * rows)) * scatter
        return spread


@dataclass(frozen=True, slots=True)
class Task:
    """Constants to be fitted to some rows, and where to begin."""

    constants: tuple[Constant, ...]
    fitted: BoolArray  #: rows that count, (rows,)
    start: FloatArray  #: coordinates, (constants,) [-]


def fits(tasks: Sequence[Task], rows: EvaluatedRows, others: Mapping[str, float]) -> list[Fit]:
    """Fits of several sets of constants, or of one set to several choices of rows.

    `others` are the values of constants that are not fitted. [SI units]

    Gauss-Newton steps within boxes: each fit takes the step that is best if ratios were linear in the
    coordinates, by robust least squares within bounds; the box grows after a step that lowers the loss, and
    shrinks after one that does not.
    """
    steps_tried = evaluated(tasks, rows, others)
    for _ in range(MOST_STEPS):
        steps = {index: _step(fit) for index, fit in enumerate(steps_tried) if fit.radius > 0}
        moved = {task_number: step for task_number, step in steps.items() if np.abs(step).max() > CONVERGED}
        for task_number in steps.keys() - moved.keys():
            steps_tried[task_number] = replace(steps_tried[task_number], radius=0.0)
        if not moved:
            break
        before = [steps_tried[task_number] for task_number in moved]
        points = [
            Task(fit.constants, fit.fitted, fit.coordinates + step)
            for fit, step in zip(before, moved.values(), strict=True)
        ]
        tried = evaluated(points, rows, others)
        for (task_number, step), fit in zip(moved.items(), tried, strict=True):
            if fit.loss < steps_tried[task_number].loss:
                steps_tried[task_number] = replace(fit, radius=2 * steps_tried[task_number].radius)
            else:
                steps_tried[task_number] = replace(steps_tried[task_number], radius=float(np.abs(step).max()) / 4)
    return steps_tried


def _step(fit: Fit) -> FloatArray:
    """The best step of the coordinates within the box, were ratios linear in them; (constants,). [-]"""
    if not fit.constants:
        return np.zeros(1)
    slopes, ratios = fit.slopes[fit.fitted], fit.ratios[fit.fitted]
    low = np.array([constant.coordinate(constant.low) for constant in fit.constants]) - fit.coordinates
    high = np.array([constant.coordinate(constant.high) for constant in fit.constants]) - fit.coordinates
    low, high = np.maximum(low, -fit.radius), np.minimum(high, fit.radius)
    solved = least_squares(
        lambda step: ratios + slopes @ step,
        (low + high) / 2,
        jac=lambda step: slopes,
        bounds=(low - 1e-12, high + 1e-12),
        loss="soft_l1",
        f_scale=OUTLYING,
    )
    step: FloatArray = np.clip(solved.x, low, high)
    return step


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
