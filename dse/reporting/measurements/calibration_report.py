"""Calibrations as text and as JSON: constants before and after, the rows they rest on, errors held out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from costmodel.columns import FloatArray
from costmodel.formats.quantity import readable
from dse.calibration.calibration import CalibratedStage, Calibration
from dse.calibration.constants import LearnedConstant
from dse.output import counted
from dse.reporting.design_table import columns_of, drawn
from dse.validation.summary import error_record


def calibration_record(calibration: Calibration) -> dict[str, Any]:
    """A calibration as one JSON object. Errors in percent, constants in SI units."""
    return {
        "constants": [
            {
                "name": constant.name,
                "unit": constant.unit,
                "before": constant.before,
                "after": constant.after,
                "standard_error": constant.standard_error,
                "at_bound": constant.at_bound,
                "rows": stage.name,
            }
            for stage in calibration.stages
            for constant in stage.constants
        ],
        "errors": [
            {"rows_of": kind, "rows": len(before), **{
                name: error_record(np.expm1(ratios))
                for name, ratios in (("before", before), ("after", after), ("held_out", held_out))
            }}
            for kind, before, after, held_out in error_rows(calibration.stages)
        ],
        "scales": [
            {"rows_of": stage.name, "rows": len(stage.kinds), "measured_over_predicted": scale, "standard_error": None
             if math.isnan(error) else error}
            for stage in calibration.stages for scale, error in [stage.scale]
        ],
        "left_out": {name: why for stage in calibration.stages for name, why in stage.left_out.items()},
        "unused": dict(calibration.unused),
    }  # fmt: skip


def error_rows(stages: Sequence[CalibratedStage]) -> Iterator[tuple[str, FloatArray, FloatArray, FloatArray]]:
    """Kinds of rows with the ratios of their rows: before, after, held out."""
    for stage in stages:
        for kind in dict.fromkeys(stage.kinds):
            array = np.array([one == kind for one in stage.kinds])
            held_out = stage.held_out[array]
            yield kind, stage.before[array], stage.after[array], held_out[~np.isnan(held_out)]


def calibration_report(calibration: Calibration, width: int) -> list[RenderableType]:
    """Tables of constants and of errors, and the constants that were not fitted."""
    shown: list[RenderableType] = [Text(headline(calibration))]
    unused = Counter(calibration.unused.values())
    constants = [constant_cells(constant, stage) for stage in calibration.stages for constant in stage.constants]
    if constants:
        headings = ("constant", "before", "after", "standard\nerror", "rows")
        shown += [Text(), *drawn(columns_of(headings, constants, (0, 1, 4)))]
    else:
        shown += [Text(), Text("No constant fitted: none lowers the cross-validated error.")]
    scales = [scale_text(stage) for stage in calibration.stages if not stage.constants]
    shown += [Text(), *map(Text, scales)] if scales else []
    errors = [
        (kind, str(len(before)), *(cell for ratios in (before, after, held_out) for cell in error_cells(ratios)))
        for kind, before, after, held_out in error_rows(calibration.stages)
    ]
    figures = (f"{when}\n{what}" for when in ("before", "after", "held out") for what in ("mean", "median"))
    table = columns_of(("rows of", "rows", *figures), errors, (0, 1))
    shown += [Text(), Text("|predicted / measured - 1|"), Text(), *drawn(table)]
    for title, reasons in (
        ("Not fitted", [(name, why) for stage in calibration.stages for name, why in stage.left_out.items()]),
        ("Rows not used, by missing input", [(str(n), why) for why, n in unused.most_common()]),
    ):
        if reasons:
            wide = max(len(name) for name, _ in reasons)
            shown += [Text(), Text(title), Text(), *(Text(f"  {name:{wide}}  {why}") for name, why in reasons)]
    return shown


def scale_text(stage: CalibratedStage) -> str:
    """The time of rows without fitted constants over the predicted one, as a sentence."""
    scale, error = stage.scale
    rows, known = counted(len(stage.kinds), "row"), not math.isnan(error)
    uncertain = f" (standard error {error:.2g}, {rows})" if known else f" ({rows}: the error is unknown)"
    return f"Rows of {stage.name} take {scale:.3g} times as long as predicted{uncertain}."


def headline(calibration: Calibration) -> str:
    """Number of fitted constants and of rows."""
    rows = sum(len(stage.kinds) for stage in calibration.stages)
    constants = sum(len(stage.constants) for stage in calibration.stages)
    return f"{counted(constants, 'constant')} fitted to {counted(rows, 'row')}"


def constant_cells(constant: LearnedConstant, stage: CalibratedStage) -> tuple[str, ...]:
    """A constant as it is printed."""
    rows = counted(len(stage.kinds), "row") + f" of {stage.name}" + (", at its bound" if constant.at_bound else "")
    values = constant.before, constant.after, constant.standard_error
    return (constant.name, *(readable(value, constant.unit) for value in values), rows)


def error_cells(ratios: FloatArray) -> list[str]:
    """Mean and median of the sizes of errors as they are printed."""
    record = error_record(np.expm1(ratios))
    errors = [record[f"{what}_abs_error_percent"] for what in ("mean", "median")]
    return ["-" if math.isnan(value) else f"{value:.1f} %" for value in errors]
