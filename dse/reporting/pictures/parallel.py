"""Parameters and objectives of designs as parallel coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from costmodel.formats.quantity import readable
from dse.reporting.pictures.style import SCHEMES, rows, styled, words
from dse.spaces.sections.objectives import Objective
from dse.spaces.sections.parameters import Parameter
from dse.spaces.space import Space

#: Values up to which a parameter has a tick for each of them, equally far apart; ticks of other coordinates.
MOST_TICKS, TICKS = 16, 5

#: Room that one coordinate needs, and its height. [pixels]
COORDINATE, HIGH = 86, 300

#: Whether a design is within a marked box on each coordinate that the box is over.
INSIDE: Final = (
    "!box.coordinate || indexof(box.coordinate, datum.coordinate) < 0 || "
    "(datum.at >= min(box.at[0], box.at[1]) && datum.at <= max(box.at[0], box.at[1])) ? 1 : 0"
)


def parallel_figure(space: Space, records: Sequence[Mapping[str, Any]]) -> alt.LayerChart:
    """A line for each design, a record with ``params`` and ``values``, across parameters that differ and objectives."""
    first = space.objectives[0]
    names = [p for p in space.parameters if len({record["params"][p.name] for record in records}) > 1]
    coordinates = [
        *(parameter_coordinate(p, [record["params"][p.name] for record in records]) for p in names),
        *(between([record["values"][o.key] for record in records], o.unit) for o in space.objectives),
    ]
    titles = [words(name) for name in (*(p.name for p in names), *(o.name for o in space.objectives))]
    lines = pd.DataFrame({
        "coordinate": np.repeat(titles, len(records)),
        "at": np.concatenate([at for at, _ in coordinates]).round(4),
        "row": np.tile(np.arange(len(records)), len(titles)),
        "first": np.tile([record["values"][first.key] for record in records], len(titles)),
    })  # fmt: skip
    marks = [pd.DataFrame(ticks, columns=["text", "at"]).assign(coordinate=title)
             for title, (_, ticks) in zip(titles, coordinates, strict=True)]  # fmt: skip
    chart = alt.layer(axes(titles), line_marks(lines, first, titles), *tick_texts(pd.concat(marks), titles))
    size = {"width": COORDINATE * len(titles), "height": HIGH}
    about = f"{len(records)} designs as lines over {', '.join(titles)}"
    return styled(chart.properties(**size), about).configure_view(stroke=None)


def across(titles: Sequence[str]) -> alt.X:
    """The coordinates, side by side."""
    heads = alt.Axis(orient="top", title=None, labelAngle=-24, grid=False, ticks=False, domain=False)
    return alt.X("coordinate:N", sort=[*titles], scale=alt.Scale(type="point", padding=0.5), axis=heads)


def axes(titles: Sequence[str]) -> alt.Chart:
    """A line for each coordinate."""
    data = pd.DataFrame({"coordinate": titles, "at": 0.0, "end": 1.0})
    return alt.Chart(rows(data)).mark_rule().encode(x=across(titles), y=alt.Y("at:Q", axis=None), y2="end:Q")


def line_marks(lines: pd.DataFrame, first: Objective, titles: Sequence[str]) -> alt.Chart:
    """A line for each design; a box over some coordinates keeps those that are in it on all of these."""
    box = alt.selection_interval("box")
    best = ["#f0883e", "#8e6bbf", "#2f7de1"] if first.direction == "minimize" else ["#2f7de1", "#8e6bbf", "#f0883e"]
    shade = alt.Color("first:Q", scale=alt.Scale(range=best), legend=None)
    return (
        alt.Chart(rows(lines))
        .mark_line(strokeWidth=1.1)
        .encode(
            x=across(titles),
            y=alt.Y("at:Q", axis=None, scale=alt.Scale(domain=[0, 1])),
            detail="row:N",
            color=shade,
            opacity=alt.when("datum.inside === 1").then(alt.value(0.75)).otherwise(alt.value(0.04)),
        )
        .transform_calculate(within=INSIDE)
        .transform_joinaggregate(inside="min(within)", groupby=["row"])
        .add_params(box)
    )


def tick_texts(ticks: pd.DataFrame, titles: Sequence[str]) -> list[alt.Chart]:
    """Labels of the ticks of each coordinate, on a background that lines do not cross."""
    base = alt.Chart(rows(ticks)).encode(x=across(titles), y=alt.Y("at:Q", axis=None), text="text:N")
    paper = {"stroke": SCHEMES["light"][3], "strokeWidth": 3, "opacity": 0.8}
    return [base.mark_text(align="left", dx=5, fontSize=11, **more) for more in (paper, {})]


def parameter_coordinate(parameter: Parameter, values: Sequence[Any]) -> tuple[Any, list[tuple[str, float]]]:
    """Where each design is on a parameter's coordinate, and its ticks: few options are evenly spread. [-]"""
    used = sorted(set(values), key=parameter.code)
    if len(used) > MOST_TICKS:
        return between([parameter.code(value) for value in values], parameter.unit)
    place = {value: at / max(1, len(used) - 1) for at, value in enumerate(used)}
    ticks = [
        (parameter.shown(value) if isinstance(value, str | bool) else readable(value, parameter.unit), at)
        for value, at in place.items()
    ]
    return np.array([place[value] for value in values]), ticks


def between(values: Sequence[float], unit: str) -> tuple[Any, list[tuple[str, float]]]:
    """Values as shares of what they span, and some of them as text. [-]"""
    low, high = min(values), max(values)
    places = np.linspace(0, 1, TICKS).tolist() if high > low else [0.0]
    ticks = [(readable(low + at * (high - low), unit), at) for at in places]
    return (np.array(values) - low) / (high - low or 1.0), ticks
