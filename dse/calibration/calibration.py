"""Constants of the user's machine from measurements of it: kernels, then collectives, then whole steps.

Kernels fix constants of the chip, collectives those of the links, and whole steps the rest. A stage is given up where
steps are predicted better without it. Only constants that held-out rows support are written: forward selection by
cross-validation keeps a constant if rows of left-out groups are predicted better by more than the standard error. A
constant whose effect is parallel to that of another is reported, and not fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Final

import numpy as np

from costmodel import System
from costmodel.columns import BoolArray, FloatArray, short_repr
from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.framework_file import load_framework
from costmodel.formats.input_files import dump, parse, read_text
from costmodel.formats.system_file import quantity_place, with_constants, written
from dse.calibration.constants import STEPS, STEPS_TOO, Constant, LearnedConstant, candidates, with_learned
from dse.calibration.fit import NO_CHANGE, Fit, Task, fits, slopes_of
from dse.calibration.measurements import STAGE_OF, Measurements, measurements
from dse.validation.comparison import ComparedRow, compared
from dse.validation.expressed import NotExpressed, system_named
from dse.validation.frameworks import defaults_of
from dse.validation.hardware import machine_of
from dse.validation.kernels import kind_of
from dse.validation.table import MeasuredRow

#: Parts that rows are held out in.
FOLDS: Final = 5
#: Standard errors by which held-out rows must be better predicted, and constants move; and by which steps must be
#: better predicted without constants of kernels, to give those up. [-]
BETTER, MOVED, GIVEN_UP = 1.0, 2.0, 2.0
#: Constants that are tried in pairs: those that do best alone. [-]
MOST_PAIRED: Final = 8
#: Share of the effect of a constant on rows that no others can have, below which rows cannot tell them apart. [-]
ALIKE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Selection:
    """Constants that rows of one kind support, with their errors."""

    fit: Fit
    held_out: FloatArray  #: logarithm of predicted over measured time of each row by fits without it [-]
    left_out: Mapping[str, str]  #: constant -> why it is not fitted


def folds(groups: Sequence[str], most: int, seed: int) -> list[BoolArray]:
    """Rows held out together, (rows,) each: whole groups; single rows where groups are fewer than three."""
    names = list(dict.fromkeys(groups))
    keys = groups if len(names) > 2 else [str(number) for number in range(len(groups))]
    names = list(dict.fromkeys(keys))
    order = np.random.default_rng(seed).permutation(len(names))
    fold = {names[number]: turn % most for turn, number in enumerate(order)}
    of_row = np.array([fold[key] for key in keys])
    return [of_row == fold_number for fold_number in sorted(set(fold.values()))]


def selected(
    rows: Measurements, constants: Sequence[Constant], others: Mapping[str, float], *, seed: int = 0
) -> Selection:
    """Constants that rows of one kind determine, and their values.

    `constants` may be fitted, the better known first; `others` are the values of all constants before. [SI units]
    `seed` chooses the rows that are held out together. [-]

    In each round every remaining constant is tried together with those chosen, with each fold of the rows held out, and
    every two where no single one helps. Those with which the held-out rows are predicted best are chosen, if they are
    by more than the standard error of that difference, and if each moves by more than twice its standard error.
    """
    held = folds(rows.groups, FOLDS, seed)
    fit = fits([Task((), np.ones(rows.count, dtype=bool), np.zeros(0))], rows, others)[0]
    state, left, reasons = (fit, fit.ratios), list(constants), dict[str, str]()
    while left:
        why = indistinct(state[0], left, rows, others)
        better, failed = _round(state, [one for one in left if one.name not in why], held, rows, others)
        reasons = failed | why
        if not better:
            break
        best = min(better, key=lambda one: errors_of(better[one][1]).mean())
        state, left = better[best], [one for one in left if one not in best]
    return Selection(*state, {one.name: reasons[one.name] for one in left})


def indistinct(
    fit: Fit, constants: Sequence[Constant], rows: Measurements, others: Mapping[str, float]
) -> dict[str, str]:
    """Constants that rows cannot determine in addition to those already fitted, by name, with the reason.

    `constants` are in order, the better known first; `others` are the values of all constants before. [SI units]

    A constant is determined by the remainder of its column of the Jacobian after projection on the columns of those
    fitted. Of two with parallel remainders, as of two that only act by their product, the first may be fitted.
    """
    slopes = slopes_of([*fit.constants, *constants], rows, {**others, **fit.values})
    known, why = slopes[:, : len(fit.constants)], {}
    usable: dict[str, FloatArray] = {}
    for constant, column in zip(constants, slopes[:, len(fit.constants) :].T, strict=True):
        size = np.linalg.norm(column)
        if np.abs(column).max() < NO_CHANGE:
            why[constant.name] = "no row depends on it"
            continue
        rest = column - known @ np.linalg.lstsq(known, column)[0]
        if np.linalg.norm(rest) < ALIKE * size:
            alike = {one.name: _cosine(column, other) for one, other in zip(fit.constants, known.T, strict=True)}
        else:
            alike = {name: _cosine(rest, other) for name, other in usable.items()}
            alike = {name: cosine for name, cosine in alike.items() if cosine**2 > 1 - ALIKE**2}
        if alike:
            why[constant.name] = f"rows cannot tell it from {max(alike, key=lambda name: alike[name])}"
        else:
            usable[constant.name] = rest
    return why


def _cosine(column: FloatArray, other: FloatArray) -> float:
    """Absolute cosine of the angle between two columns: 1 if they are parallel. [-]"""
    sizes = np.linalg.norm(column) * np.linalg.norm(other)
    return float(abs(column @ other) / sizes) if sizes > 0 else 0.0


#: Constants that are fitted to all rows, and ratios of rows by fits without them.
State = tuple[Fit, FloatArray]


def _round(
    state: State,
    constants: Sequence[Constant],
    held: Sequence[BoolArray],
    rows: Measurements,
    others: Mapping[str, float],
) -> tuple[dict[tuple[Constant, ...], State], dict[str, str]]:
    """Additions that help: single constants, or two where none does alone; and why single ones do not."""
    too_few = "1 row is" if len(held[0]) == 1 else f"{len(held[0])} rows are"
    why = {one.name: f"{too_few} too few to hold some out" for one in constants}
    added = _trials(state[0], [(one,) for one in constants], held, rows, others)
    why |= {extra[0].name: _no_better(state[1], one[1]) for extra, one in added.items()}
    better = {extra: one for extra, one in added.items() if _is_better(state, one, others)}
    if not better:
        singles = sorted(added, key=lambda constant: errors_of(added[constant][1]).mean())[:MOST_PAIRED]
        pairs = [first + second for first, second in combinations(singles, 2)]
        added = _trials(state[0], pairs, held, rows, others)
        better = {extra: one for extra, one in added.items() if _is_better(state, one, others)}
    return better, why


def _trials(
    fit: Fit,
    added: Sequence[tuple[Constant, ...]],
    held: Sequence[BoolArray],
    rows: Measurements,
    others: Mapping[str, float],
) -> dict[tuple[Constant, ...], State]:
    """Constants in addition to those fitted: the fit to all rows, and ratios of rows by fits without them."""
    kept = [np.ones_like(held[0]), *(~out for out in held)]
    added = [extra for extra in added if min(part.sum() for part in kept) >= len(fit.constants) + len(extra)]
    starts = [np.append(fit.coordinates, [one.coordinate(others[one.name]) for one in extra]) for extra in added]
    both = zip(added, starts, strict=True)
    tasks = [Task((*fit.constants, *extra), part, start) for extra, start in both for part in kept]
    if len(held) < 2 or not tasks:
        return {}
    fits_in_turn = iter(fits(tasks, rows, others))
    trials = {extra: [next(fits_in_turn) for _ in kept] for extra in added}
    return {extra: (one[0], np.select(held, [part.ratios for part in one[1:]])) for extra, one in trials.items()}


def _is_better(before: State, after: State, others: Mapping[str, float]) -> bool:
    """True if held-out rows are predicted better, and constants have moved, by more than standard errors."""
    values, errors = after[0].values, after[0].standard_errors
    added = values.keys() - before[0].values.keys()
    moved = all(abs(values[name] - others[name]) > MOVED * errors[name] for name in added)
    return moved and are_closer(after[1], before[1])


def are_closer(ratios: FloatArray, than: FloatArray, *, errors: float = BETTER) -> bool:
    """Returns whether predictions are closer to measurements than others, by more than a number of standard errors.

    `ratios` and `than` are logarithms of predicted over measured times, (rows,), at least two. [-]
    """
    gain = errors_of(than) - errors_of(ratios)
    return bool(gain.mean() > errors * gain.std(ddof=1) / np.sqrt(len(gain)))


def errors_of(ratios: FloatArray) -> FloatArray:
    """Errors of predictions, from logarithms of predicted over measured times. [%]"""
    return 100 * np.abs(np.expm1(ratios))


def _no_better(before: FloatArray, after: FloatArray) -> str:
    """The effect of a constant on held-out rows."""
    off = f"{errors_of(before).mean():.2f} % off, {errors_of(after).mean():.2f} % with it"
    return f"rows held out are no better with it ({off})"


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedStage:
    """Constants fitted to rows of one kind, and how far off these are; ratios are (rows,)."""

    name: str
    kinds: tuple[str, ...]  #: of each row
    constants: tuple[LearnedConstant, ...]
    left_out: Mapping[str, str]  #: constant -> why rows did not tell it
    before: FloatArray  #: logarithm of predicted over measured time [-]
    after: FloatArray  #: ... with the constants that are written [-]
    held_out: FloatArray  #: ... with constants that were fitted without the row; nan where there are none [-]
    source: str = ""  #: of its constants

    @property
    def scale(self) -> tuple[float, float]:
        """Geometric mean of measured over predicted times, with the constants, and its standard error, nan of one row.

        It is the answer where rows determine no constant. [-]
        """
        ratios = -self.after
        mean = float(np.exp(ratios.mean()))
        return mean, mean * float(ratios.std(ddof=1)) / np.sqrt(ratios.size) if ratios.size > 1 else np.nan

    def given_up(self) -> CalibratedStage:
        """Stage without its constants, which whole steps contradict."""
        why = {
            constant.name: "whole steps that are held out are better predicted without it"
            for constant in self.constants
        }
        return replace(self, constants=(), left_out={**self.left_out, **why}, after=self.before, held_out=self.before)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A system whose constants are fitted to measurements."""

    __repr__ = short_repr

    system: System
    text: str  #: of its file
    stages: tuple[CalibratedStage, ...]
    unused: Mapping[str, str] = field(default_factory=dict)  #: id of a row -> why it is not used


def calibrated(
    rows: Sequence[MeasuredRow],
    system: str,
    *,
    framework: str | None = None,
    table: str = "measurements",
    seed: int = 0,
) -> Calibration:
    """Fit constants of a system to measured products, collectives and steps of one machine.

    `system` is a built-in system or a file; `framework` runs the steps whose rows name none; `table` is the source that
    fitted constants state. `seed` chooses the rows that are held out together. [-] Raises `DseError` if the system or
    the framework is unknown, no row can be used, or rows are of several machines.

    Kinds of rows are taken in the order of `STAGES`: constants of one kind are fixed for the next. Within a kind
    constants are chosen one by one, as long as held-out rows are better predicted (`selected`). Errors of held-out rows
    are those of the folds that chose the constants: they are a little low where rows are few.
    """
    quantities = {**defaults_of(load_framework(framework)).quantities} if framework else {}
    rows = [row if row.framework else replace(row, framework=framework or "") for row in rows]
    names = sorted({name for row in rows if (name := _machine(row))})
    if len(names) > 1:
        raise DseError(f"rows of {len(names)} machines ({', '.join(names)}): calibrate one at a time")
    base = system_named(system).with_quantities(quantities)
    evaluated = compared(rows, system)
    used = [one for one in evaluated if _is_used(one)]
    other_type = "a type of row that constants are fitted to (this is {})"
    unused = {one.row.id: one.why_not or other_type.format(one.row.row_type) for one in evaluated if not _is_used(one)}
    if not used:
        reason = Counter(unused.values()).most_common(1)
        raise DseError(f"{table}: no row to fit" + (f"; most lack {reason[0][0]}" if reason else ""))
    known = {constant.name: base.quantities()[constant.name].item() for constant in chain(*candidates(base).values())}
    stages = _stages(measurements(used, system, base), candidates(base), known, table, seed)
    text = system_text(system, base, stages, table, dict.fromkeys(quantities, framework or ""))
    return Calibration(base.with_quantities(_fitted(stages)), text, tuple(stages), unused)


def _machine(row: MeasuredRow) -> str:
    """The built-in system of a row's hardware; "" if there is none."""
    try:
        return machine_of(row).name
    except NotExpressed:
        return ""


def _is_used(one: ComparedRow) -> bool:
    """True if a row has a measured and a predicted time, and is of a type that is fitted."""
    return one.row.row_type in STAGE_OF and one.measured_s > 0 and 0 < one.predicted_s < np.inf


def _stages(
    measured: Mapping[str, Measurements],
    constants: Mapping[str, Sequence[Constant]],
    known: Mapping[str, float],
    table: str,
    seed: int,
) -> list[CalibratedStage]:
    """Fits of each kind of rows in turn; one is given up if steps are better predicted without it."""
    stages: list[CalibratedStage] = []
    for name, rows in measured.items():
        values, candidates_left = {**known, **_fitted(stages)}, [*constants[name]]
        for kind, ends in STEPS_TOO.items() if name == STEPS else ():
            candidates_left += [one for one in constants[kind] if kind not in measured and one.name.endswith(ends)]
        selection = selected(rows, candidates_left, values, seed=seed)
        for index, stage in enumerate(stages if name == STEPS else []):
            if not stage.constants:
                continue
            without = [*stages[:index], stage.given_up(), *stages[index + 1 :]]
            others = {**known, **_fitted(without)}
            again = selected(rows, candidates_left, others, seed=seed)
            if are_closer(again.held_out, selection.held_out, errors=GIVEN_UP):
                stages, values, selection = without, others, again
        stages.append(_stage(name, rows, selection, known, values, table))
    return stages


def _fitted(stages: Sequence[CalibratedStage]) -> dict[str, float]:
    """Constants that are fitted so far. [SI units]"""
    return {constant.name: constant.after for stage in stages for constant in stage.constants}


def _stage(
    name: str,
    rows: Measurements,
    selection: Selection,
    known: Mapping[str, float],
    values: Mapping[str, float],
    table: str,
) -> CalibratedStage:
    """Fit of rows of one kind, given the known values and the constants of kinds before."""
    fitted = calibrated_constants(selection.fit, rows.system.with_quantities(known))
    now = {**values, **{constant.name: constant.after for constant in fitted}}
    before, after = (rows.log_ratios({name: np.array([value]) for name, value in of.items()})[0] for of in (known, now))
    errors = (errors_of(ratios).mean() for ratios in (before, after, selection.held_out))
    off = "mean error {:.1f} % before, {:.1f} % after, {:.1f} % of rows held out".format(*errors)
    return CalibratedStage(
        name=name,
        kinds=tuple(kind_of(row) if row.is_kernel else "step" for row in rows.rows),
        constants=tuple(fitted),
        left_out=selection.left_out,
        before=before,
        after=after,
        held_out=selection.held_out,
        source=f"dse calibrate, {rows.count} rows of {name} in {table}: {off}",
    )


def calibrated_constants(fit: Fit, system: System) -> list[LearnedConstant]:
    """Constants of a fit as a file states them, and those of the system before."""
    values, errors = fit.values, fit.standard_errors
    return [constant.learned(system, values[constant.name], errors[constant.name]) for constant in fit.constants]


def system_text(
    name: str, base: System, stages: Sequence[CalibratedStage], table: str, of_framework: Mapping[str, str]
) -> str:
    """The file of a system with constants as they were fitted, and those of the framework of its steps."""
    units, quantities = base.units(), base.quantities()
    derived = {
        quantity_place(base, quantity): {
            "value": written(quantities[quantity].item(), units[quantity]),
            "kind": "derived",
            "source": f"the framework {framework}",
        }
        for quantity, framework in of_framework.items()
    }
    _, path, section = shipped.opened(name, "systems")
    text = read_text(path)
    text = dump(section.data) if shipped.BASE in parse(text, name) else text
    about = f"{base.name} calibrated to {table}"
    learned = ((constant, stage.source) for stage in stages for constant in stage.constants)
    return with_learned(with_constants(text, name, derived, about), base, learned, about)
