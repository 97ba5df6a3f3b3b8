"""The front of a study: each pair of its objectives, beside the designs that it beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from costmodel.columns import FloatArray
from dse.reporting.pictures.style import (
    BROKEN,
    DOMINATED,
    FRONT,
    HEIGHT,
    NOTABLE,
    SHAPES,
    WIDTH,
    quantity,
    rows,
    styled,
    words,
)
from dse.spaces.sections.objectives import Direction

#: Designs that are not on the front, of which at most so many are drawn, evenly spread over the trials.
CLOUD: Final = 2000

#: Marks of designs that are best at something, as they are drawn.
LEGEND: Final = alt.Legend(symbolStrokeColor=NOTABLE, symbolFillColor="transparent")

#: Test of a design of the front: a page sets ``kept`` to the rows that it keeps, or to null where all are.
KEPT: Final = "kept === null || indexof(kept, datum.row) >= 0"


#: Size of each of several panels, over that of one. [-]
SEVERAL = 0.55
#: Most designs that a screen reader reads one by one; a picture of more says what it shows as a whole.
MOST_READ = 200


@dataclass(frozen=True)
class Shown:
    """Quantity of an axis."""

    name: str
    unit: str
    direction: Direction = "minimize"


@dataclass(frozen=True, kw_only=True)
class FrontPicture:
    """Designs by what is sought of them."""

    axes: Sequence[Shown]
    front: FloatArray  #: (designs, axes) [the unit of each]
    texts: Sequence[Mapping[str, str]]  #: what is said of each design of the front: heading -> text
    dominated: FloatArray  #: (designs, axes) feasible designs that others beat [the unit of each]
    infeasible: FloatArray  #: (designs, axes) [the unit of each]
    name: str = "Pareto front"  #: what the first designs are called
    notable: Mapping[int, str] = field(default_factory=dict)  #: design of the front -> what it is best at

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Places of the two axes of each panel."""
        return list(combinations(range(len(self.axes)), 2))


def thinned(values: Any, most: int = CLOUD) -> Any:
    """At most so many rows of an array, evenly spread.

    >>> thinned(np.arange(10.0), 4)
    array([0., 3., 6., 9.])
    """
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).round().astype(int)]


def front_figure(
    picture: FrontPicture, title: str = "", pairs: Sequence[tuple[int, int]] | None = None
) -> alt.ChartType:
    """A panel for each pair of axes, all by default; `title` is the text for screen readers.

    Infeasible designs are drawn only in a figure of one panel, where a click in the legend shows them: Vega-Lite cannot
    bind one legend to the layers of several panels.
    """
    places = picture.pairs if pairs is None else pairs
    if len(places) > 1:
        picture = replace(picture, infeasible=picture.infeasible[:0])
    panels = [panel(picture, pair, legend_filter=len(places) == 1) for pair in places]
    if len(panels) > 1:  # side by side, as wide as one panel and a half
        panels = [own.properties(width=WIDTH * SEVERAL, height=HEIGHT * SEVERAL) for own in panels]
    about = title or f"{picture.name} by {', '.join(words(shown.name) for shown in picture.axes)}"
    return styled(panels[0] if len(panels) == 1 else alt.hconcat(*panels), about)


def panel(picture: FrontPicture, pair: tuple[int, int], *, legend_filter: bool) -> alt.LayerChart:
    """One pair of axes, the front on top; with a filter, clicks in the legend show and hide designs."""
    kinds = {"dominated": DOMINATED, "infeasible": BROKEN}
    colours = {picture.name: FRONT} | {kind: kinds[kind] for kind in kinds if len(getattr(picture, kind))}
    colour = alt.Color("kind:N", scale=alt.Scale(domain=[*colours], range=[*colours.values()]))
    where = place_of(picture, pair)
    cloud = points(np.concatenate([picture.dominated, picture.infeasible]), pair)
    cloud["kind"] = ["dominated"] * len(picture.dominated) + ["infeasible"] * len(picture.infeasible)
    around = alt.Chart(rows(cloud)).mark_point(filled=True, size=16, opacity=0.45, aria=False)
    if legend_filter:
        first = [{"kind": kind} for kind in (picture.name, "dominated")]
        shown = alt.selection_point("shown", fields=["kind"], bind="legend", toggle="true", value=first)
        around = around.transform_filter(shown).add_params(shown)
    front = points(picture.front, pair).assign(kind=picture.name, row=range(len(picture.front)))
    layers = [
        around.encode(**where, color=colour),
        *stairs(picture, pair, front, where),
        designs(picture, pair, front).encode(**where, color=colour),
        *rings(picture, front, where),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def points(values: FloatArray, pair: tuple[int, int]) -> pd.DataFrame:
    """Columns ``x`` and ``y`` of designs. [the units of the pair]"""
    return pd.DataFrame({"x": values[:, pair[0]], "y": values[:, pair[1]]})


def place_of(picture: FrontPicture, pair: tuple[int, int]) -> dict[str, Any]:
    """Axes that have room for the front and what it beats."""
    every = np.concatenate([picture.front, picture.dominated])
    x, y = (
        quantity(letter, picture.axes[axis].name, picture.axes[axis].unit, every[:, axis])
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


def designs(picture: FrontPicture, pair: tuple[int, int], front: pd.DataFrame) -> alt.Chart:
    """The front: dragging over it marks designs, and the mouse says what they are."""
    texts = pd.DataFrame(picture.texts)
    headings = {f"t{place}": heading for place, heading in enumerate(texts)}
    data = front.join(texts.set_axis([*headings], axis=1))
    brush = alt.selection_interval(f"brush_{pair[0]}_{pair[1]}")
    kept, pointed = alt.param("kept", value=None), alt.param("pointed", value=None)
    return (
        alt.Chart(rows(data))
        .mark_point(filled=True, aria=len(front) <= MOST_READ)
        .encode(
            opacity=alt.condition(
                alt.PredicateComposition({"and": [{"param": brush.name}, KEPT]}), alt.value(1), alt.value(0.15)
            ),
            size=alt.when("datum.row === pointed").then(alt.value(260)).otherwise(alt.value(56)),
            tooltip=[alt.Tooltip(f"{name}:N", title=heading) for name, heading in headings.items()],
        )
        .add_params(brush, kept, pointed)
    )


def rings(picture: FrontPicture, front: pd.DataFrame, where: Mapping[str, Any]) -> list[alt.Chart]:
    """A mark around each design that is best at something; the legend says at what."""
    best = front.loc[[*picture.notable], ["x", "y"]].assign(best=[*picture.notable.values()])
    shape = alt.Shape("best:N", scale=alt.Scale(domain=best["best"].tolist(), range=[*SHAPES]), legend=LEGEND)
    around = alt.Chart(rows(best)).mark_point(size=230, color=NOTABLE, strokeWidth=2.2)
    return [around.encode(**where, shape=shape)] if len(best) else []
