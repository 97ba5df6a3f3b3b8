"""Constants of a machine after measurements: a normal distribution, conditioned on the times of rows.

`conditioned` is the update that `dse calibrate` and `dse tune` share. Before any measurement the coordinate of a
constant is normal around the built-in value, and its range is two standard deviations to each side. The errors that
rows have beyond the constants are normal too; their deviation follows from the rows (`pooled_noise`). Times depend on
constants almost linearly in their coordinates, so that a few updates at the latest values give the posterior (an
iterated extended Kalman filter). Errors are relative, as they are printed, and an outlier counts by its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.calibration.constants import Constant
from dse.calibration.measurements import (
    FIRST_RADIUS,
    MOST_STEPS,
    NO_CHANGE,
    OUTLYING,
    EvaluatedRows,
    Fit,
    Task,
    evaluated,
)

#: Standard deviation of log step times of one design, unless repeats give another value; its weight, in runs. [-]
NOISE, PRIOR_REPEATS = 0.05, 4
#: Steps of coordinates below which updates are done, the share of a value. [-]
CONVERGED: Final = 5e-3
#: Updates that go all the way to the new values; later ones go half as far each, where times are not smooth. [-]
WHOLE_STEPS: Final = 5
#: Share of the deviation of a constant below which rows must bring it; cosine of two effects that rows see as one. [-]
LEARNED, ALIKE = 0.9, 0.995


def conditioned(
    prior: FloatArray, rows: Sequence[int] | IntArray, surprise: FloatArray, noise: FloatArray | float
) -> tuple[FloatArray, FloatArray, float]:
    """Change of the mean, and the covariance, of a normal distribution after noisy values of some of its entries.

    The third value is the squared size of the surprise, in standard deviations: about the number of its entries.

    >>> change, left, size = conditioned(np.array([[1.0, 0.8], [0.8, 1.0]]), [0], np.array([2.0]), 1e-9)
    >>> change.round(3).tolist(), left.round(3).tolist(), round(size, 3)
    ([2.0, 1.6], [[0.0, 0.0], [0.0, 0.36]], 4.0)
    """
    rows = np.asarray(rows, dtype=np.intp)
    weights = np.linalg.inv(prior[np.ix_(rows, rows)] + np.square(noise) * np.eye(len(rows)))
    across = prior[:, rows] @ weights
    return across @ surprise, prior - across @ prior[rows], float(surprise @ weights @ surprise)


def pooled_noise(squares: float, degrees: float, usual: float = NOISE) -> float:
    """Standard deviation of repeats with a sum of squares and degrees of freedom, and of the usual one. [-]"""
    return float(np.sqrt((squares + PRIOR_REPEATS * usual**2) / (degrees + PRIOR_REPEATS)))


def are_learned(change: FloatArray, left: FloatArray, before: FloatArray) -> BoolArray:
    """Constants that moved by more than their deviation after rows, which is smaller than that before; (constants,)."""
    return np.asarray((left < LEARNED * before) & (np.abs(change) > left))


def not_learned(fit: Fit, others: Mapping[str, float]) -> dict[str, str]:
    """Constants of a posterior that rows say too little of, with the reason; one alone that may belong to others.

    `others` are the values of all constants before. [SI units]
    """
    names = [one.name for one in fit.constants]
    before, left = np.array([one.deviation for one in fit.constants]), np.sqrt(np.diag(fit.covariance))
    change = fit.coordinates - np.array([one.coordinate(others[one.name]) for one in fit.constants])
    idle = np.abs(fit.slopes).max(axis=0, initial=0.0) < NO_CHANGE
    if (idle | (left > LEARNED * before)).any():
        why = np.where(idle, "no row depends on it", np.where(left > LEARNED * before, "rows say too little of it", ""))
        return {name: str(reason) for name, reason in zip(names, why, strict=True) if reason}
    effects = fit.slopes[fit.fitted] / np.linalg.norm(fit.slopes[fit.fitted], axis=0)
    if alike := np.argwhere(np.tril(np.abs(effects.T @ effects) > ALIKE, -1)).tolist():
        last, first = alike[-1]
        return {names[last]: f"rows cannot tell it from {names[first]}"}
    if are_learned(change, left, before).all():
        return {}
    return {names[np.argmin(np.abs(change) / left)]: "it moves by less than its standard error"}


def posteriors(
    constants: Sequence[Constant],
    parts: Sequence[BoolArray],
    rows: EvaluatedRows,
    others: Mapping[str, float],
    nearby: Mapping[str, float] | None = None,
) -> list[Fit]:
    """Posteriors of constants given each of some parts of rows, (rows,) each; all are evaluated together.

    `others` are the values of all constants before, `nearby` some where updates begin. [SI units]
    """
    before, begin = (
        np.array([float(constant.coordinate(values[constant.name])) for constant in constants])
        for values in (others, nearby or others)
    )
    at, noise = [begin] * len(parts), [NOISE] * len(parts)
    for number in range(MOST_STEPS):
        tasks = [Task(tuple(constants), part, one) for part, one in zip(parts, at, strict=True)]
        fits = evaluated(tasks, rows, others)
        updates = [_updated(fit, before, deviation) for fit, deviation in zip(fits, noise, strict=True)]
        noise = [update.noise for update in updates]
        steps = [
            np.clip(update.coordinates - fit.coordinates, -FIRST_RADIUS, FIRST_RADIUS)
            for update, fit in zip(updates, fits, strict=True)
        ]
        if max(np.abs(step).max(initial=0.0) for step in steps) < CONVERGED:
            break
        share = 0.5 ** max(number + 1 - WHOLE_STEPS, 0)
        at = [one + share * step for one, step in zip(at, steps, strict=True)]
    return [replace(update, coordinates=fit.coordinates) for update, fit in zip(updates, fits, strict=True)]


def _updated(fit: Fit, before: FloatArray, noise: float) -> Fit:
    """The posterior if relative errors were linear in the coordinates; `before` is the mean before measurements.

    Coordinates beyond a bound are conditioned on the bound, so that the others follow.
    """
    count, ratios = before.size, fit.ratios[fit.fitted]
    errors, slopes = np.expm1(ratios), np.exp(ratios)[:, np.newaxis] * fit.slopes[fit.fitted]
    weights = 1 / np.sqrt(1 + (errors / OUTLYING) ** 2)
    spreads = np.array([constant.deviation for constant in fit.constants])
    entries = np.vstack([np.eye(count), slopes]) * spreads
    surprise = slopes @ (fit.coordinates - before) - errors
    rows = range(count, count + errors.size)
    change, covariance, size = conditioned(entries @ entries.T, rows, surprise, noise / np.sqrt(weights))
    mean, covariance = before + change[:count], covariance[:count, :count]
    low, high = np.array([one.coordinate([one.low, one.high]) for one in fit.constants]).reshape(-1, 2).T
    outside = np.flatnonzero((mean < low) | (mean > high))
    follow, *_ = conditioned(covariance, outside, np.clip(mean, low, high)[outside] - mean[outside], CONVERGED)
    noise = pooled_noise(noise**2 * size, errors.size)
    coordinates = np.clip(mean + follow, low, high)
    return replace(fit, coordinates=coordinates, covariance=covariance, noise=noise)
