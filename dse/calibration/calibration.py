"""Constants of the user's machine from measurements of it: kernels, then collectives, then whole steps.

Kernels fix constants of the chip, collectives those of the links, and whole steps the rest. Only constants that rows
support are written: those that their posterior moves, if rows of left-out groups are predicted better by more than two
standard errors. A constant whose error is that of another is reported, and keeps its value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
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
from dse.calibration.measurements import STAGE_OF, Fit, Measurements, measurements
from dse.calibration.posterior import not_learned, posteriors
from dse.validation.comparison import ComparedRow, compared
from dse.validation.expressed import NotExpressed, defaults_of, machine_of, system_named
from dse.validation.kernels import kind_of
from dse.validation.table import MeasuredRow

#: Parts that rows are held out in.
FOLDS: Final = 5
#: Standard errors by which held-out rows must be better predicted with constants. [-]
BETTER: Final = 2.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Constants that rows of one kind support, with their errors."""

    posterior: Fit
    held_out: FloatArray  #: logarithm of predicted over measured time of each row, from the other rows [-]
    left_out: Mapping[str, str]  #: constant -> why it keeps its value


def folds(groups: Sequence[str], most: int) -> list[BoolArray]:
    """Rows held out together, (rows,) each: whole groups; single rows where groups are fewer than three."""
    names = list(dict.fromkeys(groups))
    keys = groups if len(names) > 2 else [str(number) for number in range(len(groups))]
    names = list(dict.fromkeys(keys))
    order = np.random.default_rng(0).permutation(len(names))
    fold = {names[number]: turn % most for turn, number in enumerate(order)}
    of_row = np.array([fold[key] for key in keys])
    return [of_row == fold_number for fold_number in sorted(set(fold.values()))]


def selected(rows: Measurements, constants: Sequence[Constant], others: Mapping[str, float]) -> Selection:
    """Constants that rows of one kind determine, and their values.

    `constants` may move, the better known first; `others` are the values of all constants before. [SI units]

    Constants that rows say too little of are left out in turn. The others keep their built-in values too unless rows
    that are held out are better predicted by the posterior of the other rows, by more than two standard errors.
    """
    held, every = folds(rows.groups, FOLDS), np.ones(rows.count, dtype=bool)
    [before] = posteriors((), [every], rows, others)
    if len(held) < 2:
        too_few = "1 row is too few to hold some out"
        return Selection(before, before.ratios, {one.name: too_few for one in constants})
    why, left = dict[str, str](), tuple(constants)
    [posterior] = posteriors(left, [every], rows, others)
    while left and (unlearned := not_learned(posterior, others)):
        why, left = {**why, **unlearned}, tuple(one for one in left if one.name not in unlearned)
        [posterior] = posteriors(left, [every], rows, others, posterior.values)
    of_others = posteriors(left, [~out for out in held], rows, others, posterior.values)
    held_out = np.select(held, [one.ratios for one in of_others])
    gain = errors_of(before.ratios) - errors_of(held_out)
    if gain.mean() > BETTER * gain.std(ddof=1) / np.sqrt(gain.size):
        return Selection(posterior, held_out, why)
    off = f"{errors_of(before.ratios).mean():.2f} % off, {errors_of(held_out).mean():.2f} % with it"
    why |= {one.name: f"rows held out are no better with it ({off})" for one in left}
    return Selection(before, before.ratios, why)


def errors_of(ratios: FloatArray) -> FloatArray:
    """Errors of predictions, from logarithms of predicted over measured times. [%]"""
    return 100 * np.abs(np.expm1(ratios))


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


@dataclass(frozen=True, slots=True)
class Calibration:
    """A system whose constants are fitted to measurements."""

    __repr__ = short_repr

    system: System
    text: str  #: of its file
    stages: tuple[CalibratedStage, ...]
    unused: Mapping[str, str] = field(default_factory=dict)  #: id of a row -> why it is not used


def calibrated(
    rows: Sequence[MeasuredRow], system: str, *, framework: str | None = None, table: str = "measurements"
) -> Calibration:
    """Fit constants of a system to measured products, collectives and steps of one machine.

    `system` is a built-in system or a file; `framework` runs the steps whose rows name none; `table` is the source that
    fitted constants state. Raises `DseError` if the system or the framework is unknown, no row can be used, or rows are
    of several machines.

    Kinds of rows are taken in the order of `STAGES`: constants of one kind are fixed for the next. Within a kind
    `selected` chooses them on all rows: errors of held-out rows are a little low where rows are few.
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
    stages = _stages(measurements(used, system, base), candidates(base), known, table)
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
) -> list[CalibratedStage]:
    """Fits of each kind of rows in turn, given the `known` values and the constants of kinds before. [SI units]"""
    stages: list[CalibratedStage] = []
    for name, rows in measured.items():
        values, candidates_left = {**known, **_fitted(stages)}, [*constants[name]]
        for kind, ends in STEPS_TOO.items() if name == STEPS else ():
            candidates_left += [one for one in constants[kind] if kind not in measured and one.name.endswith(ends)]
        selection = selected(rows, candidates_left, values)
        fitted = calibrated_constants(selection.posterior, rows.system.with_quantities(known))
        now = {**values, **{constant.name: constant.after for constant in fitted}}
        before, after = (
            rows.log_ratios({name: np.array([value]) for name, value in constants_of.items()})[0]
            for constants_of in (known, now)
        )
        errors = (errors_of(ratios).mean() for ratios in (before, after, selection.held_out))
        off = "mean error {:.1f} % before, {:.1f} % after, {:.1f} % of rows held out".format(*errors)
        stage = CalibratedStage(
            name=name,
            kinds=tuple(kind_of(row) if row.is_kernel else "step" for row in rows.rows),
            constants=tuple(fitted),
            left_out=selection.left_out,
            before=before,
            after=after,
            held_out=selection.held_out,
            source=f"dse calibrate, {rows.count} rows of {name} in {table}: {off}",
        )
        stages.append(stage)
    return stages


def _fitted(stages: Sequence[CalibratedStage]) -> dict[str, float]:
    """Constants that are fitted so far. [SI units]"""
    return {constant.name: constant.after for stage in stages for constant in stage.constants}


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
