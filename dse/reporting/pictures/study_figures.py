"""Pictures of a study: its front, or of a single objective the best value so far by trial.

The front has a picture for each pair of objectives, with the designs that it beats behind it. Axes are logarithmic
where values differ by much. The best design of each objective has a label, and labels that are near are stacked.
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
from dse.fronts import thinned
from dse.reporting.answers import picks, title
from dse.reporting.pictures import style
from dse.searching.trials.trial_table import TrialTable
from dse.spaces.sections.parameters import Direction
from dse.spaces.space import Space

#: Most designs that are drawn besides the front, evenly spread over the trials.
CLOUD: Final = 2000

#: Names of designs that are this near on both axes are stacked, at this distance. [-], [pixels]
NEAR, LINE = (0.5, 0.12), 13
#: Outline that keeps a text readable on lines and points.
PAPER: Final[Mapping[str, Any]] = {"stroke": style.SCHEMES["light"][3], "strokeWidth": 3, "opacity": 0.8}
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
        panels = [panel.properties(width=style.WIDTH * SEVERAL, height=style.HEIGHT * SEVERAL) for panel in panels]
    about = title or f"{picture.name} by {', '.join(style.words(shown.name) for shown in picture.axes)}"
    return style.styled(panels[0] if len(panels) == 1 else alt.hconcat(*panels), about)


def panel(picture: FrontPicture, pair: tuple[int, int]) -> alt.LayerChart:
    """One pair of axes, the front on top, with the names of its best designs."""
    colours = {picture.name: style.FRONT} | ({"dominated": style.DOMINATED} if len(picture.dominated) else {})
    colour = alt.Color("kind:N", scale=alt.Scale(domain=[*colours], range=[*colours.values()]))
    x, y = (
        style.quantity(letter, picture.axes[axis].name, picture.axes[axis].unit, picture.front[:, axis])
        for letter, axis in zip("xy", pair, strict=True)
    )
    where = {"x": alt.X(**x), "y": alt.Y(**y)}  # fit the front; designs outside of them are not drawn
    cloud = points(picture.dominated, pair).assign(kind="dominated")
    around = alt.Chart(style.rows(cloud)).mark_point(filled=True, size=16, clip=True, aria=False)
    front = points(picture.front, pair).assign(kind=picture.name, row=range(len(picture.front)))
    layers = [
        *([around.encode(**where, color=colour)] if len(cloud) else []),
        *stairs(picture, pair, front, where),
        designs(picture, front).encode(**where, color=colour),
        *names(picture, pair, front, where),
    ]
    return alt.layer(*layers).properties(width=style.WIDTH, height=style.HEIGHT)


def points(values: FloatArray, pair: tuple[int, int]) -> pd.DataFrame:
    """Columns ``x`` and ``y`` of designs. [the units of the pair]"""
    return pd.DataFrame({"x": values[:, pair[0]], "y": values[:, pair[1]]})


def stairs(
    picture: FrontPicture, pair: tuple[int, int], front: pd.DataFrame, where: Mapping[str, Any]
) -> list[alt.Chart]:
    """The line below which nothing was found, where there are two axes alone."""
    if len(picture.axes) > 2:
        return []
    step: Any = "step-after" if picture.axes[pair[0]].direction == "minimize" else "step-before"
    line = alt.Chart(style.rows(front[["x", "y"]])).mark_line(interpolate=step, strokeWidth=1.3, color=style.FRONT)
    return [line.encode(**where)]


def designs(picture: FrontPicture, front: pd.DataFrame) -> alt.Chart:
    """The front; a tooltip describes each design."""
    texts = pd.DataFrame(picture.texts)
    headings = {f"t{index}": heading for index, heading in enumerate(texts)}
    data = front.join(texts.set_axis([*headings], axis=1))
    tooltip = [alt.Tooltip(f"{name}:N", title=heading) for name, heading in headings.items()]
    return (
        alt.Chart(style.rows(data))
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
        text = alt.Chart(style.rows(best)).encode(**where, text="best:N")
        text_style = {"align": side, "dx": dx, "dy": dy - LINE * above, "fontWeight": "bold"}
        charts += [text.mark_text(**text_style, **more) for more in (PAPER, {})]
    return charts


def study_picture(table: TrialTable, name: str, form: str) -> bytes:
    """The front of a study as a picture file of one of `dse.reporting.pictures.style.FORMS`.

    Raises `DseError` if it has no feasible trials.
    """
    if not table.feasible.any():
        raise DseError(f"study {name!r}: no feasible trials, so no front")
    return style.picture(front_figure(front_picture(table), f"Pareto front of {name}"), form)


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
            **{style.words(o.name): readable(record["values"][o.key], o.unit) for o in space.objectives},
            **{p.name: p.shown(record["params"][p.name]) for p in varied},
        }
        for record in records
    ]
