"""Pictures of a study: its front, parallel coordinates, the progress of the search, and importances.

The front has a picture for each pair of objectives, with the designs that it beats behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from dse.explaining.importance import Importance
from dse.fronts import thinned
from dse.reporting.answers import picks, title
from dse.reporting.pictures.style import (
    COLOURS,
    DOMINATED,
    FRONT,
    HEIGHT,
    SCHEMES,
    WIDTH,
    axis,
    picture,
    quantity,
    rows,
    styled,
    words,
)
from dse.searching.trials.trial_table import TrialTable
from dse.spaces.sections.parameters import Direction, Objective, Parameter
from dse.spaces.space import Space

#: Most designs that are drawn besides the front, evenly spread over the trials.
CLOUD: Final = 2000

#: Names of designs that are this near on both axes are stacked, at this distance. [-], [pixels]
NEAR, LINE = (0.5, 0.12), 13
#: Outline that keeps a text readable on lines and points.
PAPER: Final[Mapping[str, Any]] = {"stroke": SCHEMES["light"][3], "strokeWidth": 3, "opacity": 0.8}
#: Size of each of several panels, over that of one. [-]
SEVERAL = 0.55
#: Most designs that a screen reader reads one by one; a larger picture has one summary.
MOST_READ = 200


@dataclass(frozen=True)
class Shown:
    """Quantity of an axis."""

    name: str
    unit: str
    direction: Direction = "minimize"


@dataclass(frozen=True, kw_only=True)
class FrontPicture:
    """Designs plotted by their objectives."""

    axes: Sequence[Shown]
    front: FloatArray  #: (designs, axes) [the unit of each]
    texts: Sequence[Mapping[str, str]]  #: texts of each design of the front: heading -> text
    dominated: FloatArray  #: (designs, axes) feasible designs that others beat [the unit of each]
    name: str = "Pareto front"  #: title of the first designs
    notable: Mapping[int, str] = field(default_factory=dict)  #: design of the front -> text of its best objective

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Places of the two axes of each panel."""
        return list(combinations(range(len(self.axes)), 2))


def front_figure(picture: FrontPicture, title: str = "") -> alt.ChartType:
    """A panel for each pair of axes; `title` is the text for screen readers."""
    panels = [panel(picture, pair) for pair in picture.pairs]
    if len(panels) > 1:  # side by side, as wide as one panel and a half
        panels = [panel.properties(width=WIDTH * SEVERAL, height=HEIGHT * SEVERAL) for panel in panels]
    about = title or f"{picture.name} by {', '.join(words(shown.name) for shown in picture.axes)}"
    return styled(panels[0] if len(panels) == 1 else alt.hconcat(*panels), about)


def panel(picture: FrontPicture, pair: tuple[int, int]) -> alt.LayerChart:
    """One pair of axes, the front on top, with the names of its best designs."""
    colours = {picture.name: FRONT} | ({"dominated": DOMINATED} if len(picture.dominated) else {})
    colour = alt.Color("kind:N", scale=alt.Scale(domain=[*colours], range=[*colours.values()]))
    where = place_of(picture, pair)
    cloud = points(picture.dominated, pair).assign(kind="dominated")
    around = alt.Chart(rows(cloud)).mark_point(filled=True, size=16, clip=True, aria=False)
    front = points(picture.front, pair).assign(kind=picture.name, row=range(len(picture.front)))
    layers = [
        *([around.encode(**where, color=colour)] if len(cloud) else []),
        *stairs(picture, pair, front, where),
        designs(picture, front).encode(**where, color=colour),
        *names(picture, pair, front, where),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def points(values: FloatArray, pair: tuple[int, int]) -> pd.DataFrame:
    """Columns ``x`` and ``y`` of designs. [the units of the pair]"""
    return pd.DataFrame({"x": values[:, pair[0]], "y": values[:, pair[1]]})


def place_of(picture: FrontPicture, pair: tuple[int, int]) -> dict[str, Any]:
    """Axes that fit the front; designs outside of them are not drawn."""
    x, y = (
        quantity(letter, picture.axes[axis].name, picture.axes[axis].unit, picture.front[:, axis])
        for letter, axis in zip("xy", pair, strict=True)
    )
    return {"x": alt.X(**x), "y": alt.Y(**y)}


def stairs(
    picture: FrontPicture, pair: tuple[int, int], front: pd.DataFrame, where: Mapping[str, Any]
) -> list[alt.Chart]:
    """The line below which nothing was found, where there are two axes alone."""
    if len(picture.axes) > 2:
        return []
    step: Any = "step-after" if picture.axes[pair[0]].direction == "minimize" else "step-before"
    line = alt.Chart(rows(front[["x", "y"]])).mark_line(interpolate=step, strokeWidth=1.3, color=FRONT)
    return [line.encode(**where)]


def designs(picture: FrontPicture, front: pd.DataFrame) -> alt.Chart:
    """The front; a tooltip describes each design."""
    texts = pd.DataFrame(picture.texts)
    headings = {f"t{index}": heading for index, heading in enumerate(texts)}
    data = front.join(texts.set_axis([*headings], axis=1))
    tooltip = [alt.Tooltip(f"{name}:N", title=heading) for name, heading in headings.items()]
    return (
        alt.Chart(rows(data))
        .mark_point(filled=True, size=56, opacity=1, aria=len(front) <= MOST_READ)
        .encode(tooltip=tooltip)
    )


def names(
    picture: FrontPicture, pair: tuple[int, int], front: pd.DataFrame, where: Mapping[str, Any]
) -> list[alt.Chart]:
    """The name next to each design that is best by an axis, on the side towards the middle of the picture."""
    signs = [1 if picture.axes[axis].direction == "minimize" else -1 for axis in pair]
    ends = {int(np.argmin(sign * picture.front[:, axis])) for sign, axis in zip(signs, pair, strict=True)}
    kept = {row: name for row, name in picture.notable.items() if row in ends or len(picture.axes) == 2}
    values = picture.front[:, pair]
    shares = np.log(values) if (values > 0).all() else values
    shares = (shares - shares.min(axis=0)) / np.maximum(np.ptp(shares, axis=0), np.finfo(float).tiny)
    charts: list[alt.Chart] = []
    placed: list[FloatArray] = []
    for row, name in kept.items():
        above = sum(bool((abs(shares[row] - other) < NEAR).all()) for other in placed)
        placed.append(shares[row])
        left = shares[row, 0] <= 0.5
        side, dx, dy = ("left", 7, -8) if left else ("right", 4, -15)
        best = front.loc[[row], ["x", "y"]].assign(best=name)
        text = alt.Chart(rows(best)).encode(**where, text="best:N")
        style = {"align": side, "dx": dx, "dy": dy - LINE * above, "fontWeight": "bold"}
        charts += [text.mark_text(**style, **more) for more in (PAPER, {})]
    return charts


#: Values up to which a parameter has a tick for each of them, equally far apart; ticks of other coordinates.
MOST_TICKS, TICKS = 16, 5

#: Room that one coordinate needs, and its height. [pixels]
COORDINATE, LINES_HEIGHT = 86, 300

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
    size = {"width": COORDINATE * len(titles), "height": LINES_HEIGHT}
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
    return [base.mark_text(align="left", dx=5, fontSize=11, **more) for more in (PAPER, {})]


def parameter_coordinate(parameter: Parameter, values: Sequence[Any]) -> tuple[Any, list[tuple[str, float]]]:
    """Where each design is on a parameter's coordinate, and its ticks: few options are evenly spread. [-]"""
    used = sorted(set(values), key=parameter.code)
    if len(used) > MOST_TICKS:
        return between([parameter.code(value) for value in values], parameter.unit)
    position = {value: at / max(1, len(used) - 1) for at, value in enumerate(used)}
    ticks = [
        (parameter.shown(value) if isinstance(value, str | bool) else readable(value, parameter.unit), at)
        for value, at in position.items()
    ]
    return np.array([position[value] for value in values]), ticks


def between(values: Sequence[float], unit: str) -> tuple[Any, list[tuple[str, float]]]:
    """Values as shares of their range, and labels of ticks. [-]"""
    low, high = min(values), max(values)
    places = np.linspace(0, 1, TICKS).tolist() if high > low else [0.0]
    ticks = [(readable(low + at * (high - low), unit), at) for at in places]
    return (np.array(values) - low) / (high - low or 1.0), ticks


#: Height of a curve, and of the bar of one parameter. [pixels]
CURVE_HEIGHT, BAR = 240, 22


def history_figure(history: pd.DataFrame) -> alt.Chart:
    """Hypervolume after each trial, as a share of the study's box: columns ``trial`` and ``hypervolume``. [-]"""
    changes = history["hypervolume"].diff().ne(0) | (history.index == len(history) - 1)
    line = alt.Chart(rows(history[changes])).mark_line(interpolate="step-after", color=FRONT)
    drawn = line.encode(
        x=alt.X("trial:Q", axis=axis("trial", "-")),
        y=alt.Y("hypervolume:Q", axis=axis("hypervolume", "-"), scale=alt.Scale(zero=False)),
        tooltip=["trial:Q", alt.Tooltip("hypervolume:Q", format=".4f")],
    )
    return styled(drawn.properties(width=WIDTH, height=CURVE_HEIGHT), "Hypervolume of the front after each trial")


def importance_figure(importance: Importance) -> alt.Chart:
    """Share of the variance of each objective that each parameter explains alone. [-]"""
    order = importance.designs.max(axis=0).argsort()[::-1].tolist()
    names, ends = (
        [words(importance.parameters[at]) for at in order],
        [words(o.name) for o in importance.space.objectives],
    )
    frame = pd.DataFrame(
        [(name, end, importance.designs[row, at])
         for row, end in enumerate(ends) for name, at in zip(names, order, strict=True)],
        columns=["parameter", "objective", "share"],
    )  # fmt: skip
    colours = [COLOURS[number % 5] for number in range(len(ends))]
    bars = alt.Chart(rows(frame)).mark_bar().encode(
        x=alt.X("share:Q", axis=alt.Axis(title="importance", format=".0%", tickCount=6)),
        y=alt.Y("parameter:N", sort=names, title=None),
        yOffset=alt.YOffset("objective:N", sort=ends),
        color=alt.Color("objective:N", scale=alt.Scale(domain=ends, range=colours)),
        tooltip=["parameter:N", "objective:N", alt.Tooltip("share:Q", format=".1%")],
    )  # fmt: skip
    height = (BAR + 9 * (len(ends) - 1)) * len(names)
    return styled(bars.properties(width=WIDTH, height=height), f"Importance of {len(names)} parameters")


#: Most feasible designs that parallel coordinates show in addition to the front.
LINES: Final = 400


def study_picture(table: TrialTable, name: str, form: str) -> bytes:
    """The front of a study as a picture file of one of `dse.reporting.pictures.style.FORMS`.

    Raises `DseError` if it has no feasible trials.
    """
    if not table.feasible.any():
        raise DseError(f"study {name!r}: no feasible trials, so no front")
    return picture(front_figure(front_picture(table), f"Pareto front of {name}"), form)


def line_records(table: TrialTable) -> list[dict[str, Any]]:
    """Designs of parallel coordinates: the front, then at most `LINES` other feasible trials."""
    front = table.front()
    others = np.flatnonzero(table.feasible & ~np.isin(table.numbers, front.numbers))
    return [*front.records(), *table.take(thinned(others, LINES)).records()]


def front_picture(table: TrialTable) -> FrontPicture:
    """The designs of a study as they are drawn."""
    if len(table.space.objectives) == 1:
        return best_picture(table)
    front = table.front()
    records = front.records()
    beaten = table.feasible & ~np.isin(table.numbers, front.numbers)
    return FrontPicture(
        axes=[Shown(o.name, o.unit, o.direction) for o in table.space.objectives],
        front=front.values,
        texts=design_texts(table.space, records),
        dominated=thinned(table.take(np.flatnonzero(beaten)).values, CLOUD),
        notable=picks(table.space, records) if records else {},
    )


def best_picture(table: TrialTable) -> FrontPicture:
    """Every trial that was the best so far of a single objective, by its number."""
    rows = improvements(table.costs[:, 0])
    beaten = np.setdiff1d(np.flatnonzero(np.isfinite(table.costs[:, 0])), rows)
    best, [objective] = table.take(rows), table.space.objectives
    return FrontPicture(
        axes=[Shown("trial", "-"), Shown(objective.name, objective.unit, objective.direction)],
        front=by_trial(best),
        texts=design_texts(table.space, best.records()),
        dominated=thinned(by_trial(table.take(beaten)), CLOUD),
        name="best so far",
        notable={len(rows) - 1: title(objective)} if len(rows) else {},
    )


def by_trial(table: TrialTable) -> FloatArray:
    """(trials, 2) Number and only value of each. [-, the unit of the objective]"""
    return np.column_stack([table.numbers.astype(np.float64), table.values[:, 0]])


def improvements(costs: FloatArray) -> Any:
    """Rows that are better than all before them; NaN is worse than anything.

    >>> improvements(np.array([np.nan, 3.0, 4.0, 2.0])).tolist()
    [1, 3]
    """
    known = np.where(np.isnan(costs), np.inf, costs)
    before = np.concatenate([[np.inf], np.minimum.accumulate(known)[:-1]])
    return np.flatnonzero(known < before)


def design_texts(space: Space, records: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Tooltips of designs: trial, values, and parameters that differ."""
    shared = {p.name for p in space.parameters if len({r["params"][p.name] for r in records}) <= 1}
    varied = [p for p in space.parameters if p.name not in shared or len(records) == 1]
    return [
        {
            "trial": str(record["trial"]),
            **{words(o.name): readable(record["values"][o.key], o.unit) for o in space.objectives},
            **{p.name: p.shown(record["params"][p.name]) for p in varied},
        }
        for record in records
    ]
