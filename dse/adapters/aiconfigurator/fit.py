"""Constants of a chip and a kernel library, fitted to the kernel tables of aiconfigurator.

Each kind of kernels has at most 15 constants (`tables.yaml`). Constants of one kind are fixed when the next is
fitted. Only shapes that are not kept apart are fitted (`is_kept_apart`); the file states errors of the others. The
floors and passes of an engine's modules become constants `modules_...`, which no training step reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from costmodel import System
from costmodel.columns import BoolArray, FloatArray
from costmodel.errors import DseError
from dse.adapters.aiconfigurator.tables import KINDS, KernelSample, samples
from dse.adapters.aiconfigurator.times import sample_times
from dse.calibration.calibration import CalibratedStage, Calibration, calibrated_constants, system_text
from dse.calibration.constants import Constant, bounded
from dse.calibration.measurements import FIRST_RADIUS, MOST_STEPS, NO_CHANGE, OUTLYING, Fit, Task, evaluated
from dse.validation.expressed import system_named

#: Compute capability from which softmax may overlap with products: asynchronous matrix instructions of Hopper. [-]
ASYNCHRONOUS: Final = 9.0
#: Fits that begin at other places than the constants of the system, and how far away, as coordinates. [-]
OTHER_STARTS, START_SPREAD = 7, 0.5
#: Rows of current releases that are drawn of each kind, and the fewest that are fitted for each constant. [-]
DRAWN, FEWEST = 20_000, 3
#: Steps of coordinates below which a fit is done. [-]
CONVERGED: Final = 1e-3


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a sample, evaluated for many sets of constants at once."""

    system: System
    sample: KernelSample

    @property
    def count(self) -> int:
        """Number of rows. [-]"""
        return len(self.sample.rows)

    def log_ratios(self, values: Mapping[str, FloatArray]) -> FloatArray:
        """Logarithm of predicted over measured time, (sets, rows); `values` are sets of constants. [-], [SI units]"""
        sets = max((array.size for array in values.values()), default=1)
        varied = {name: np.repeat(array, self.count) for name, array in values.items()}
        tiled = replace(self.sample, rows=pd.concat([self.sample.rows] * sets, ignore_index=True))
        times = sample_times(tiled, self.system.with_quantities(varied if sets > 1 else values))
        ratios: FloatArray = np.log(times / tiled.rows["measured"].to_numpy())
        return ratios.reshape(sets, self.count)


def calibrated_to_tables(folder: Path, system: str, *, library: str = "trtllm", seed: int = 0) -> Calibration:
    """Fit constants of a system to kernel tables of its chip and of one library, kind by kind.

    `seed` chooses the rows and where fits begin. [-] Raises `DseError` without tables of the chip and the library.
    """
    machine, stages = system_named(system), list[CalibratedStage]()
    for sample in samples(folder, system=system, library=library, rows=DRAWN, seed=seed):
        rows = TableRows(machine, fitted_rows(sample))
        if (~rows.sample.rows["kept_apart"]).sum() >= FEWEST:
            stages.append(table_stage(rows, seed))
            machine = machine.with_quantities({one.name: one.after for one in stages[-1].constants})
    if not stages:
        raise DseError(f"{folder}: too few rows of training's sizes on the chip of {system}; expected m, n, k from 512")
    text = system_text(system, system_named(system), stages, "kernel tables of aiconfigurator", {})
    return Calibration(machine, text, tuple(stages))


def fitted_rows(sample: KernelSample) -> KernelSample:
    """Rows of a sample that are fitted: of training's sizes, the current release, and a format's usual kernel."""
    rows = sample.rows[sample.rows["current"]]
    rows = rows[rows["size"].isin(KINDS[sample.kind]["fitted"])]
    if len(rows):
        usual = rows.groupby("format")["kernel"].agg(lambda kernels: kernels.value_counts().index[0])
        rows = rows[rows["kernel"] == rows["format"].map(usual)]
    return replace(sample, rows=rows.reset_index(drop=True))


def table_stage(rows: TableRows, seed: int) -> CalibratedStage:
    """Constants of one kind of kernels, with errors of shapes that are kept apart."""
    kind, known = rows.sample.kind, rows.system.quantities()
    given = ~rows.sample.rows["kept_apart"].to_numpy(dtype=bool)
    constants, start, why = table_constants(rows, int(given.sum()))
    fit = best_fit(rows, constants, start, given, seed)
    slopes = np.abs(fit.slopes[given]).max(axis=0) if constants else np.zeros(0)
    idle = {one.name for one, slope in zip(constants, slopes, strict=True) if slope < NO_CHANGE}
    before = rows.log_ratios({name: known[name].reshape(1) for name in start})[0]
    fitted = [one for one in calibrated_constants(fit, rows.system) if one.name not in idle]
    after = rows.log_ratios({one.name: np.array([one.after]) for one in fitted})[0]
    ratios = np.expm1([before[~given], after[~given]])
    off = 100 * np.median(np.abs(ratios), axis=1) if ratios.size else np.full(2, np.nan)
    releases = " ".join(sorted({*(rows.sample.rows["library"] + " " + rows.sample.rows["release"])}))
    return CalibratedStage(
        name=kind,
        kinds=tuple(f"{kind} {name}" for name in rows.sample.rows["format"]),
        constants=tuple(fitted),
        left_out={**why, **dict.fromkeys(sorted(idle), "no row depends on it")},
        before=before,
        after=after,
        held_out=np.where(given, np.nan, after),
        source=f"dse calibrate --tables, {given.sum():,} shapes of {kind} of aiconfigurator ({releases}): median error "
        f"of {(~given).sum():,} shapes kept apart {off[0]:.1f} % before, {off[1]:.1f} % after",
    )


def table_constants(rows: TableRows, given: int) -> tuple[list[Constant], dict[str, float], dict[str, str]]:
    """Constants of a kind, the values they begin with, and why others are not fitted; `given` rows are fitted. [-]"""
    known, why, ranges = rows.system.quantities(), dict[str, str](), rows.system.ranges()
    constants, start = list[Constant](), dict[str, float]()
    for name, (low, high, scale, usual) in KINDS[rows.sample.kind]["constants"].items():
        if name not in known:
            why[name] = "the system has no such quantity"
        elif name == "exponentials" and rows.system.chip.compute_capability.item() < ASYNCHRONOUS:
            why[name] = "softmax and products take turns on this chip"
        elif (len(constants) + 1) * FEWEST > given:
            why[name] = f"{given} rows are too few for another constant"
        else:
            now = known[name].item()
            constants.append(bounded(Constant(name, low, high, scale), ranges[name]))
            start[name] = float(np.clip(usual if usual and now in (0, np.inf) else now, low, high))
    return constants, start, why


def best_fit(
    rows: TableRows, constants: Sequence[Constant], start: Mapping[str, float], given: BoolArray, seed: int
) -> Fit:
    """The best of several fits that begin at different places; (rows,) `given` are fitted."""
    low, at, high = (
        np.array([float(one.coordinate(value)) for one, value in zip(constants, values, strict=True)])
        for values in ([one.low for one in constants], start.values(), [one.high for one in constants])
    )
    away = np.random.default_rng(seed).uniform(-START_SPREAD, START_SPREAD, (OTHER_STARTS, len(constants)))
    tasks = [Task(tuple(constants), given, np.clip(at + move, low, high)) for move in (np.zeros_like(at), *away)]
    best = min(fits(tasks, rows, start), key=loss)
    return replace(best, covariance=scatter(best))


def fits(tasks: Sequence[Task], rows: TableRows, others: Mapping[str, float]) -> list[Fit]:
    """Fits of constants that begin at several values, by robust least squares within bounds.

    Gauss-Newton steps within boxes: each fit takes the step that is best if ratios were linear in the coordinates. The
    box grows after a step that lowers the loss, and shrinks after one that does not. `others` are the values of all
    constants. [SI units]
    """
    best, radii = evaluated(tasks, rows, others), dict.fromkeys(range(len(tasks)), FIRST_RADIUS)
    for _ in range(MOST_STEPS):
        steps = {number: best_step(best[number], radius) for number, radius in radii.items()}
        steps = {number: step for number, step in steps.items() if np.abs(step).max() > CONVERGED}
        radii = {number: radii[number] for number in steps}
        points = [Task(best[n].constants, best[n].fitted, best[n].coordinates + step) for n, step in steps.items()]
        tried = evaluated(points, rows, others) if points else []
        for (number, step), fit in zip(steps.items(), tried, strict=True):
            is_better = loss(fit) < loss(best[number])
            radii[number] = 2 * radii[number] if is_better else float(np.abs(step).max()) / 4
            best[number] = fit if is_better else best[number]
    return best


def best_step(fit: Fit, radius: float) -> FloatArray:
    """The best step of the coordinates within a box, were ratios linear in them; (constants,). [-]"""
    if not fit.constants:
        return np.zeros(1)
    slopes, ratios = fit.slopes[fit.fitted], fit.ratios[fit.fitted]
    low = np.array([constant.coordinate(constant.low) for constant in fit.constants]) - fit.coordinates
    high = np.array([constant.coordinate(constant.high) for constant in fit.constants]) - fit.coordinates
    low, high = np.maximum(low, -radius), np.minimum(high, radius)
    solved = least_squares(
        lambda step: ratios + slopes @ step,
        (low + high) / 2,
        jac=lambda step: slopes,
        bounds=(low - 1e-12, high + 1e-12),
        loss="soft_l1",
        f_scale=OUTLYING,
    )
    return np.asarray(np.clip(solved.x, low, high))


def loss(fit: Fit) -> float:
    """Loss that a fit minimizes: sum of squares, of outlying rows of sizes. [-]"""
    return float(np.sum(np.sqrt(1 + (fit.ratios[fit.fitted] / OUTLYING) ** 2) - 1))


def scatter(fit: Fit) -> FloatArray:
    """Covariance of the coordinates from the scatter of the rows, less the constants fitted, by robust weights. [-]"""
    rows, ratios = fit.slopes[fit.fitted], fit.ratios[fit.fitted]
    weights = 1 / np.sqrt(1 + (ratios / OUTLYING) ** 2)
    of_rows = np.sum(weights * ratios**2) / max(len(ratios) - len(fit.constants), 1)
    return np.asarray(np.linalg.pinv(rows.T @ (weights[:, np.newaxis] * rows)) * of_rows)
