"""Bars of the parts of a total, one bar for each design of a breakdown."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from costmodel.columns import column_units
from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.steps.result.breakdown import PARTS, Breakdown
from dse.reporting.pictures.style import bars_of_parts


def plot_breakdown(breakdown: Breakdown, total: str = "step_time", names: Sequence[str] | None = None) -> alt.ChartType:
    """Draw a bar for each design, made of the parts of a total.

    Raises `DseError` if there is no such total, or not as many names as designs.

    Parameters
    ----------
    breakdown : Breakdown
        Result of `costmodel.step`, or of another function that evaluates designs.
    total : str
        ``step_time``, ``peak_memory`` or ``energy_per_step``.
    names : sequence of str, optional
        Names of the designs; by default their positions.
    """
    columns = breakdown.columns()
    if total not in PARTS:
        raise ParameterError(f"{{total}} {total!r}: unknown{suggestion(total, PARTS)}")
    points = len(columns[total])
    labels = [f"design {point}" for point in range(points)] if names is None else list(names)
    if len(labels) != points:
        raise DseError(f"{len(labels)} names for {points} designs")
    parts = {name: columns[name] for name in PARTS[total]}
    return bars_of_parts(parts, column_units(Breakdown)[total], labels, title=total)
