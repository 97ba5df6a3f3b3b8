"""The front of a study: each pair of its objectives, beside the designs that it beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.plotting import BROKEN, DOMINATED, FRONT, NOTABLE, axis, figure, plotly
from dse.spaces.sections.objectives import Direction

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Designs that are not on the front, of which at most so many are drawn, evenly spread over the trials.
CLOUD: Final = 2000

#: Marks of designs that are best at something, taken in turn.
MARKS: Final = ("circle-open", "square-open", "diamond-open", "triangle-up-open", "star-open")

#: Quotient of the greatest and the least value from which an axis is logarithmic. [-]
FAR_APART: Final = 8.0

#: Size of one pair in a figure of several. [pixels]
PANEL_HEIGHT: Final = 420


@dataclass(frozen=True)
class Shown:
    """What an axis shows."""

    name: str
    unit: str
    direction: Direction = "minimize"


@dataclass(frozen=True, kw_only=True)
class FrontPicture:
    """Designs by what is sought of them."""

    axes: Sequence[Shown]
    front: FloatArray  #: (designs, axes) [the unit of each]
    texts: Sequence[str]  #: what is said of each design of the front
    dominated: FloatArray  #: (designs, axes) feasible designs that others beat [the unit of each]
    infeasible: FloatArray  #: (designs, axes) [the unit of each]
    name: str = "Pareto front"  #: what the first designs are called
    notable: Mapping[int, str] = field(default_factory=dict)  #: design of the front -> what it is best at

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Places of the two axes of each panel."""
        return list(combinations(range(len(self.axes)), 2))


def thinned(rows: Any, most: int = CLOUD) -> Any:
    """At most so many rows of an array, evenly spread.

    >>> thinned(np.arange(10.0), 4)
    array([0., 3., 6., 9.])
    """
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]


def front_figure(picture: FrontPicture, pairs: Sequence[tuple[int, int]] | None = None) -> go.Figure:
    """A panel for each pair of axes, or for some of them.

    Parameters
    ----------
    picture : FrontPicture
        What is drawn.
    pairs : sequence of pairs of int, optional
        Places of the axes of each panel; all pairs by default. [-]
    """
    pairs = picture.pairs if pairs is None else pairs
    drawn = figure([], height=PANEL_HEIGHT * len(pairs))
    for place, pair in enumerate(pairs):
        end = "" if place == 0 else str(place + 1)
        high = 1 - place / len(pairs)
        domain = [high - 1 / len(pairs) + (0.06 if place + 1 < len(pairs) else 0), high]
        across, up = (axis_of(picture, of) for of in pair)
        drawn.update_layout({
            f"xaxis{end}": across | {"anchor": f"y{end}"},
            f"yaxis{end}": up | {"anchor": f"x{end}", "domain": domain},
        })  # fmt: skip
        drawn.add_traces(panel(picture, pair, {"xaxis": f"x{end}", "yaxis": f"y{end}"}, legend=place == 0))
    return drawn


def panel(
    picture: FrontPicture, pair: tuple[int, int], where: Mapping[str, str], *, legend: bool
) -> list[Any]:
    """The traces of one pair of axes: what is not on the front first."""
    go = plotly()
    across, up = pair

    def points(values: FloatArray, name: str, marker: Mapping[str, Any], **more: Any) -> Any:
        return go.Scatter(
            x=values[:, across].tolist(),
            y=values[:, up].tolist(),
            name=name,
            legendgroup=name,
            showlegend=legend,
            **{"mode": "markers", "marker": marker, **where, **more},
        )

    traces = []
    if len(picture.infeasible):
        marker = {"color": BROKEN, "size": 5, "symbol": "x-thin-open"}
        traces.append(
            points(picture.infeasible, "infeasible", marker, hoverinfo="skip", visible="legendonly")
        )
    if len(picture.dominated):
        marker = {"color": DOMINATED, "size": 5}
        traces.append(points(picture.dominated, "dominated", marker, hoverinfo="skip"))
    line = {"shape": "hv" if picture.axes[across].direction == "minimize" else "vh", "width": 1.2}
    flat = len(picture.axes) == 2
    order = np.argsort(picture.front[:, across], kind="stable") if flat else np.arange(len(picture.front))
    front = points(
        picture.front[order],
        picture.name,
        {"color": FRONT, "size": 8, "line": {"width": 0}},
        mode="lines+markers" if flat else "markers",
        line=line | {"color": FRONT},
        customdata=order.tolist(),
        hovertext=[picture.texts[row] for row in order],
        hovertemplate="%{hovertext}<extra></extra>",
        unselected={"marker": {"opacity": 0.15}},
    )
    return [*traces, front, *notable_points(picture, pair, where, legend=legend)]


def notable_points(
    picture: FrontPicture, pair: tuple[int, int], where: Mapping[str, str], *, legend: bool
) -> list[Any]:
    """A mark around each design that is best at something; the legend says at what."""
    across, up = pair
    return [
        plotly().Scatter(
            x=[float(picture.front[row, across])],
            y=[float(picture.front[row, up])],
            mode="markers",
            name=title,
            legendgroup=title,
            showlegend=legend,
            marker={
                "symbol": MARKS[place % len(MARKS)],
                "size": 15,
                "color": NOTABLE,
                "line": {"width": 2.2},
            },
            hoverinfo="skip",
            cliponaxis=False,
            **where,
        )
        for place, (row, title) in enumerate(picture.notable.items())
    ]


def far_apart(values: FloatArray) -> bool:
    """Whether values want a logarithmic axis."""
    return bool(values.size and values.min() > 0 and values.max() >= FAR_APART * values.min())


def axis_of(picture: FrontPicture, place: int) -> dict[str, Any]:
    """One axis; logarithmic where values are far apart, with ticks at 1, 2 and 5 times powers of ten."""
    shown = picture.axes[place]
    linear = axis(shown.name, shown.unit)
    values = np.concatenate([picture.front, picture.dominated])[:, place]
    if not far_apart(values):
        return linear
    text = shown.name.replace("_", " ") + ("" if shown.unit == "-" else f" [{shown.unit}]")
    digits = {"tickformat": "~g" if shown.unit in ("s", "-") else "~s", "minorloglabels": "complete"}
    return {"title": {"text": text}, "type": "log", "dtick": "D2", **digits}
