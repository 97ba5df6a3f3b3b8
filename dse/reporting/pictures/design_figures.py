"""Pictures of designs: bars of the parts of a total, a sweep as lines, and sensitivities as a tornado.

A sweep shows the first objective over the first swept name, with a line for each value of the second; of further names
the best design is drawn. Bars to the left of a tornado are faster steps, to the right slower ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Final

import altair as alt
import pandas as pd

from costmodel.columns import layout_of
from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.formats.quantity import readable
from costmodel.steps.breakdown import PARTS, Breakdown
from dse.explaining.neighbours import Sensitivity
from dse.output import ROWS_SHOWN
from dse.pricing.sweep import NamedDesigns
from dse.reporting.designs.changes_report import TornadoRow, count_rows, parameter_rows, quantity_rows
from dse.reporting.designs.sweep_report import number, parameters_of
from dse.reporting.pictures.style import HEIGHT, SHAPES, WIDTH, bars_of_parts, quantity, rows, styled, words
from dse.spaces.sections.parameters import Parameter


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
    return bars_of_parts(parts, layout_of(Breakdown).units[total], labels, title=total)


#: Values that are marked one by one on an axis, at most.
TICKS: Final = 8
#: Angle between the hues of two series, the golden angle: neighbours differ, however many there are. [degrees]
HUE_STEP: Final = 137.508


def sweep_plot(designs: NamedDesigns) -> alt.LayerChart:
    """The picture of a sweep.

    Of more than two names, the best design at each pair of values of the first two is drawn. Designs that break a limit
    are hollow; those that are not legal are left out.

    Raises `DseError` if nothing was swept, or no design has a number.
    """
    if not designs.names:
        raise ParameterError("a picture needs a name to draw over: {sweep} NAME=VALUES")
    objective = designs.space.objectives[0]
    lines = best_of(designs)
    if not lines:
        raise DseError("no design of these has a number to draw")
    by_name = {p.name: p for p in parameters_of(designs)}
    first, second = by_name[designs.names[0]], by_name[designs.names[1]] if len(designs.names) > 1 else None
    keys = {value: f"{second.name} {second.shown(value)}" if second else words(objective.name) for value in lines}
    data = pd.DataFrame([
        (place(first, at), record["values"][objective.key], keys[value], record["feasible"])
        for value, line in lines.items() for at, record in line.items()
    ], columns=["x", "y", "line", "feasible"])  # fmt: skip
    across = [record["params"][first.name] for record in designs.records]
    up = quantity("y", objective.name, objective.unit, data["y"], zero=True)
    hues = [f"hsl({number * HUE_STEP % 360:.0f}, 62%, 50%)" for number in range(len(keys))]
    colour = alt.Color("line:N", scale=alt.Scale(domain=[*keys.values()], range=hues))
    shape = alt.Scale(domain=[*keys.values()], range=[*islice(cycle(SHAPES), len(keys))])
    legend = alt.Legend(orient="right", columns=1) if second else None
    base = alt.Chart(rows(data)).encode(horizontal(first, across), alt.Y(**up), colour.legend(legend))
    marks = alt.Shape("line:N", scale=shape, legend=legend)
    layers = [
        base.mark_line(strokeWidth=1.8),
        base.mark_point(filled=True, size=60).encode(marks).transform_filter("datum.feasible"),
        base.mark_point(filled=False, size=60).encode(marks).transform_filter("!datum.feasible"),
    ]
    title = f"{designs.space.name}: {words(objective.name)} over {words(first.name)}"
    title += f", the best of {', '.join(designs.names[2:])}" if len(designs.names) > 2 else ""
    hollow = "" if data["feasible"].all() else "hollow: over a limit"
    heading = alt.TitleParams(title, subtitle=hollow)
    return styled(alt.layer(*layers).properties(title=heading, width=WIDTH, height=HEIGHT), title)


def place(first: Parameter, value: Any) -> Any:
    """Where a value is on the axis of its name: at a number or at a word."""
    return first.shown(value) if isinstance(value, str | bool) else value


def horizontal(first: Parameter, values: list[Any]) -> alt.X:
    """The axis of the first name: a place for each word, else a scale, with every value marked if few."""
    distinct = list(dict.fromkeys(place(first, value) for value in values))
    if any(isinstance(value, str) for value in distinct):
        return alt.X("x:O", sort=distinct, axis=alt.Axis(title=words(first.name), labelAngle=0))
    drawn = quantity("x", first.name, first.unit, distinct)
    if len(distinct) <= TICKS:
        marks = json.dumps([readable(value, first.unit) for value in distinct])
        drawn["axis"].values = distinct
        drawn["axis"].labelExpr = f"{marks}[indexof({json.dumps(distinct)}, datum.value)]"
    return alt.X(**drawn)


def best_of(designs: NamedDesigns) -> dict[Any, dict[Any, Mapping[str, Any]]]:
    """Value of the second name -> value of the first -> the best design with both values; feasible ones come first."""
    objective = designs.space.objectives[0]
    lines: dict[Any, dict[Any, Mapping[str, Any]]] = {}
    ranks: dict[tuple[Any, Any], tuple[bool, float]] = {}
    for record in designs.records:
        value = number(record, "values", objective.key)
        if value is None:
            continue
        params = record["params"]
        point = (params[designs.names[1]] if len(designs.names) > 1 else None, params[designs.names[0]])
        rank = (not record["feasible"], objective.cost(value))
        if point not in ranks or rank < ranks[point]:
            ranks[point] = rank
            lines.setdefault(point[0], {})[point[1]] = record
    return lines


#: Colours of faster and slower changes, and height of a row. [-, -, pixels]
FASTER, SLOWER, ROW = "#2a9d78", "#d9643a", 20

#: Length of the axis over that of the longest bar, with room for its number. [-]
ROOM: Final = 1.3


def tornado(sensitivity: Sensitivity) -> alt.VConcatChart:
    """Tornados of parameters, counts and quantities, one above the other."""
    rows = [rows_of(sensitivity)[:ROWS_SHOWN] for rows_of in (parameter_rows, count_rows, quantity_rows)]
    parts = [
        panel("Step time after one step of a parameter", rows[0], "change of step time", ".0%"),
        panel("Step time with more parts of a chip", rows[1], "change of step time", ".0%"),
        panel("Step time after 1 % more of a quantity", rows[2], "change of step time [%]", "~g"),
    ]
    return styled(alt.vconcat(*parts), f"Sensitivity of the step time of {sensitivity.explanation.space.name}")


def panel(title: str, bars: Sequence[TornadoRow], what: str, form: str) -> alt.LayerChart:
    """A bar for each row; pale where the design breaks a limit."""
    data = pd.DataFrame(
        [(bar.name, bar.share, bar.text, bar.faint) for bar in bars], columns=["name", "share", "text", "faint"]
    )
    longest = float(data["share"].abs().max()) if len(data) else 1.0
    ends = alt.Scale(domain=[-ROOM * (longest or 1.0), ROOM * (longest or 1.0)], nice=False)
    base = alt.Chart(rows(data)).encode(
        x=alt.X("share:Q", scale=ends, axis=alt.Axis(title=what, format=form, tickCount=7)),
        y=alt.Y("name:N", sort=None, axis=alt.Axis(title=None, ticks=False)),
    )
    layers: list[alt.Chart] = [
        base.mark_bar(height={"band": 0.75}).encode(
            color=alt.when("datum.share < 0").then(alt.value(FASTER)).otherwise(alt.value(SLOWER)),
            opacity=alt.when("datum.faint").then(alt.value(0.4)).otherwise(alt.value(1)),
        ),
        base.mark_text(align="left", dx=4).transform_filter("datum.share >= 0").encode(text="text:N"),
        base.mark_text(align="right", dx=-4).transform_filter("datum.share < 0").encode(text="text:N"),
    ]
    pale = "pale: breaks a limit" if data["faint"].any() else ""
    heading = alt.TitleParams(title, subtitle=pale)
    return alt.layer(*layers).properties(title=heading, width=WIDTH, height=ROW * max(1, len(bars)))
