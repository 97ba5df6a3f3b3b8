"""A sweep as a picture: an objective over the first swept name, a line for each value of the second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import cycle, islice
from typing import Any, Final

import altair as alt
import pandas as pd

from costmodel.errors import DseError, ParameterError
from costmodel.formats.quantity import readable
from dse.pricing.sweep import NamedDesigns
from dse.reporting.designs.sweep_report import number, parameters_of
from dse.reporting.pictures.style import HEIGHT, SHAPES, WIDTH, quantity, rows, styled, words
from dse.spaces.sections.parameters import Parameter

#: Values that are marked one by one on an axis, at most.
TICKS: Final = 8
#: Angle between the hues of two series, the golden angle: neighbours differ, however many there are. [degrees]
HUE_STEP: Final = 137.508


def hue(place: int) -> str:
    """Colour of a series, readable on light and on dark paper."""
    return f"hsl({place * HUE_STEP % 360:.0f}, 62%, 50%)"


def sweep_plot(found: NamedDesigns) -> alt.LayerChart:
    """The picture of a sweep.

    Of more than two names, the best design beside each value of the first two is drawn. Designs that break a
    limit are hollow; those that are not legal are left out.

    Raises `DseError` if nothing was swept, or no design has a number.
    """
    if not found.names:
        raise ParameterError("a picture needs a name to draw over: {sweep} NAME=VALUES")
    objective = found.space.objectives[0]
    lines = best_of(found)
    if not lines:
        raise DseError("no design of these has a number to draw")
    by_name = {p.name: p for p in parameters_of(found)}
    first, second = by_name[found.names[0]], by_name[found.names[1]] if len(found.names) > 1 else None
    keys = {value: f"{second.name} {second.shown(value)}" if second else words(objective.name) for value in lines}
    data = pd.DataFrame([
        (place(first, at), record["values"][objective.key], keys[value], record["feasible"])
        for value, line in lines.items() for at, record in line.items()
    ], columns=["x", "y", "line", "feasible"])  # fmt: skip
    across = [record["params"][first.name] for record in found.records]
    up = quantity("y", objective.name, objective.unit, data["y"], zero=True)
    colour = alt.Color("line:N", scale=alt.Scale(domain=[*keys.values()], range=[hue(n) for n in range(len(keys))]))
    shape = alt.Scale(domain=[*keys.values()], range=[*islice(cycle(SHAPES), len(keys))])
    legend = alt.Legend(orient="right", columns=1) if second else None
    base = alt.Chart(rows(data)).encode(horizontal(first, across), alt.Y(**up), colour.legend(legend))
    marks = alt.Shape("line:N", scale=shape, legend=legend)
    layers = [
        base.mark_line(strokeWidth=1.8),
        base.mark_point(filled=True, size=60).encode(marks).transform_filter("datum.feasible"),
        base.mark_point(filled=False, size=60).encode(marks).transform_filter("!datum.feasible"),
    ]
    title = f"{found.space.name}: {words(objective.name)} over {words(first.name)}"
    title += f", the best of {', '.join(found.names[2:])}" if len(found.names) > 2 else ""
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


def best_of(found: NamedDesigns) -> dict[Any, dict[Any, Mapping[str, Any]]]:
    """Value of the second name -> value of the first -> the best design beside both, feasible ones before."""
    objective = found.space.objectives[0]
    sign = 1.0 if objective.direction == "minimize" else -1.0
    lines: dict[Any, dict[Any, Mapping[str, Any]]] = {}
    ranks: dict[tuple[Any, Any], tuple[bool, float]] = {}
    for record in found.records:
        value = number(record, "values", objective.key)
        if value is None:
            continue
        own = record["params"]
        place = (own[found.names[1]] if len(found.names) > 1 else None, own[found.names[0]])
        rank = (not record["feasible"], sign * value)
        if place not in ranks or rank < ranks[place]:
            ranks[place] = rank
            lines.setdefault(place[0], {})[place[1]] = record
    return lines
