"""Calibrations as text and as JSON: constants before and after, the rows they rest on, errors held out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.calibration.calibration import CalibratedStage, Calibration
from dse.calibration.constants import LearnedConstant
from dse.output import counted
from dse.reporting.design_table import columns_of, drawn
from dse.reporting.measurements.validation_report import error_cells
from dse.validation.summary import error_record

#: Predictions whose errors are reported, and the figures of each.
ERRORS_SHOWN, FIGURES = ("before", "after", "held_out"), ("mean", "median")


def calibration_record(calibration: Calibration) -> dict[str, Any]:
    """A calibration as one JSON object. Errors in percent, constants in SI units."""
    return {
        "constants": [
            {**asdict(constant), "rows": stage.name}
            for stage in calibration.stages
            for constant in stage.constants
        ],
        "errors": [*error_records(calibration.stages)],
        "scales": [
            {"rows_of": stage.name, "rows": len(stage.kinds), "measured_over_predicted": scale, "standard_error": None
             if math.isnan(error) else error}
            for stage in calibration.stages for scale, error in [stage.scale]
        ],
        "left_out": {name: why for stage in calibration.stages for name, why in stage.left_out.items()},
        "unused": dict(calibration.unused),
    }  # fmt: skip


def error_records(stages: Sequence[CalibratedStage]) -> Iterator[dict[str, Any]]:
    """Kinds of rows with the errors of their rows: before, after, held out. [%]"""
    for stage in stages:
        for kind in dict.fromkeys(stage.kinds):
            array = np.array([one == kind for one in stage.kinds])
            of_kind = {name: getattr(stage, name)[array] for name in ERRORS_SHOWN}
            errors = {name: error_record(np.expm1(ratios[~np.isnan(ratios)])) for name, ratios in of_kind.items()}
            yield {"rows_of": kind, "rows": int(array.sum()), **errors}


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
        (one["rows_of"], str(one["rows"]), *(cell for when in ERRORS_SHOWN for cell in error_cells(one[when], FIGURES)))
        for one in error_records(calibration.stages)
    ]
    figures = (f"{when.replace('_', ' ')}\n{name}" for when in ERRORS_SHOWN for name in FIGURES)
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
