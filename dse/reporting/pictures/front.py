"""The front of a study: each pair of its objectives, beside the designs that it beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from costmodel.columns import FloatArray
from dse.reporting.pictures.style import DOMINATED, FRONT, HEIGHT, WIDTH, quantity, rows, styled, words
from dse.spaces.sections.objectives import Direction

#: Designs that are not on the front, of which at most so many are drawn, evenly spread over the trials.
CLOUD: Final = 2000

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
    name: str = "Pareto front"  #: what the first designs are called
    notable: Mapping[int, str] = field(default_factory=dict)  #: design of the front -> what it is best at

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Places of the two axes of each panel."""
        return list(combinations(range(len(self.axes)), 2))


def front_figure(picture: FrontPicture, title: str = "") -> alt.ChartType:
    """A panel for each pair of axes; `title` is the text for screen readers."""
    panels = [panel(picture, pair) for pair in picture.pairs]
    if len(panels) > 1:  # side by side, as wide as one panel and a half
        panels = [own.properties(width=WIDTH * SEVERAL, height=HEIGHT * SEVERAL) for own in panels]
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
    headings = {f"t{place}": heading for place, heading in enumerate(texts)}
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
    """The name beside each design that is best by an axis, towards the middle of the picture."""
    signs = [1 if picture.axes[axis].direction == "minimize" else -1 for axis in pair]
    ends = {int(np.argmin(sign * picture.front[:, axis])) for sign, axis in zip(signs, pair, strict=True)}
    kept = {row: name for row, name in picture.notable.items() if row in ends or len(picture.axes) == 2}
    best = front.loc[[*kept], ["x", "y"]].assign(best=[*kept.values()])
    left = best["x"] <= (front["x"].min() + front["x"].max()) / 2
    return [
        alt.Chart(rows(own)).mark_text(align=side, dx=dx, dy=dy, fontWeight="bold").encode(**where, text="best:N")
        for own, side, dx, dy in ((best[left], "left", 7, -8), (best[~left], "right", 4, -15))
        if len(own)
    ]
