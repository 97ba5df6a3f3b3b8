"""Constants of one's own machine from measurements of it: kernels, then collectives, then whole steps.

Kernels fix constants of the chip, collectives those of the links, and whole steps the rest. A stage is given up where
steps are predicted better without it. Only constants that held-out rows support are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from costmodel import System
from costmodel.columns import FloatArray, short_repr
from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.framework_file import load_framework
from costmodel.formats.input_files import dump, parse, read_text
from costmodel.formats.quantity import si_value
from costmodel.formats.system_file import quantity_place, with_constants, written
from dse.calibration.fit import Fit
from dse.calibration.measurements import STAGE_OF, STEPS, STEPS_TOO, Constant, Measurements, candidates, measurements
from dse.calibration.selection import GIVEN_UP, Selection, are_closer, selected
from dse.validation.comparison import ComparedRow, compared
from dse.validation.expressed import NotExpressed, system_named
from dse.validation.frameworks import defaults_of
from dse.validation.hardware import machine_of
from dse.validation.kernels import kind_of
from dse.validation.table import MeasuredRow


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedConstant:
    """A constant fitted to rows, in the unit of its quantity. [SI units]"""

    name: str
    unit: str
    before: float
    after: float  #: to the digits that are written
    standard_error: float
    at_bound: bool  #: whether it is as low or as high as it may be


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedStage:
    """Constants fitted to rows of one kind, and how far off these are; ratios are (rows,)."""

    name: str
    kinds: tuple[str, ...]  #: of each row
    constants: tuple[CalibratedConstant, ...]
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

    Kinds of rows are taken in the order of `STAGES`: what one tells is fixed for the next. Within a kind
    constants are chosen one by one, as long as rows held out are better predicted (`selected`). Errors of
    rows held out are those of the folds that chose the constants: they are a little low where rows are few.
    """
    rows, quantities = _of_software(rows, framework)
    names = sorted({name for row in rows if (name := _machine(row))})
    if len(names) > 1:
        raise DseError(f"rows of {len(names)} machines ({', '.join(names)}): calibrate one at a time")
    base = system_named(system).with_quantities(quantities)
    priced = compared(rows, system)
    used = [one for one in priced if _is_used(one)]
    other_type = "a type of row that constants are fitted to (this is {})"
    unused = {one.row.id: one.why_not or other_type.format(one.row.row_type) for one in priced if not _is_used(one)}
    if not used:
        reason = Counter(unused.values()).most_common(1)
        raise DseError(f"{table}: no row to fit" + (f"; most lack {reason[0][0]}" if reason else ""))
    known = {constant.name: base.quantities()[constant.name].item() for constant in chain(*candidates(base).values())}
    stages = _stages(measurements(used, system, base), candidates(base), known, table, seed)
    text = system_text(system, base, stages, table, dict.fromkeys(quantities, framework or ""))
    return Calibration(base.with_quantities(_fitted(stages)), text, tuple(stages), unused)


def _of_software(rows: Sequence[MeasuredRow], framework: str | None) -> tuple[list[MeasuredRow], dict[str, float]]:
    """Rows with a framework where their software is not known, and what it says of machines. [SI units]"""
    if framework is None:
        return [*rows], {}
    named = [row if row.framework else replace(row, framework=framework) for row in rows]
    return named, {**defaults_of(load_framework(framework)).quantities}


def _machine(row: MeasuredRow) -> str:
    """The shipped system that a row's hardware stands for; nothing where there is none."""
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
    """Fit of rows of one kind, beside what was known and the constants of kinds before."""
    fitted = calibrated_constants(selection.fit, rows.system.with_quantities(known))
    now = {**values, **{constant.name: constant.after for constant in fitted}}
    before, after = (rows.log_ratios({name: np.array([value]) for name, value in of.items()})[0] for of in (known, now))
    errors = (100 * np.abs(np.expm1(ratios)).mean() for ratios in (before, after, selection.held_out))
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


def calibrated_constants(fit: Fit, system: System) -> list[CalibratedConstant]:
    """Constants of a fit as a file states them, and those of the system before."""
    units, known = system.units(), system.quantities()
    fitted = []
    for constant in fit.constants:
        unit = units[constant.name]
        value = si_value(written(fit.values[constant.name], unit), unit)
        fitted.append(
            CalibratedConstant(
                name=constant.name,
                unit=unit,
                before=known[constant.name].item(),
                after=value,
                standard_error=fit.standard_errors[constant.name],
                at_bound=constant.is_at_bound(value),
            )
        )
    return fitted


def system_text(
    name: str, base: System, stages: Sequence[CalibratedStage], table: str, of_framework: Mapping[str, str]
) -> str:
    """The file of a system with constants as they were fitted."""
    constants: dict[tuple[str, ...], dict[str, str]] = {}
    units, quantities = base.units(), base.quantities()
    for quantity, framework in of_framework.items():
        constants[quantity_place(base, quantity)] = {
            "value": written(quantities[quantity].item(), units[quantity]),
            "kind": "derived",
            "source": f"what the framework {framework} says",
        }
    for stage in stages:
        for constant in stage.constants:
            constants[quantity_place(base, constant.name)] = {
                "value": written(constant.after, constant.unit),
                "kind": "fitted",
                "standard_error": written(constant.standard_error, constant.unit),
                "source": stage.source,
            }
    _, path, section = shipped.opened(name, "systems")
    text = read_text(path)
    text = dump(section.data) if shipped.BASE in parse(text, name) else text
    return with_constants(text, name, constants, f"{base.name} calibrated to {table}")
