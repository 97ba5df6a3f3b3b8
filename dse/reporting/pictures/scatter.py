"""Predicted against measured figures: logarithmic axes, lines of equal errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

import altair as alt
import pandas as pd

from dse.reporting.pictures.style import SHAPES, WIDTH, axis, rows, styled

#: Errors at which lines stand beside the diagonal. [-]
ERROR_LINES: Final = (0.0, 0.10, -0.10, 0.25, -0.25)

#: Between the hues of one series and the next, the golden angle: neighbours differ, however many there are.
#: [degrees]
HUE_STEP: Final = 137.508


@dataclass(frozen=True, slots=True)
class Point:
    """A measured figure with its prediction, and what is said of it."""

    measured: float  #: [SI unit of the picture]
    predicted: float  #: [SI unit of the picture]
    about: str


def hue(place: int) -> str:
    """Colour of a series, readable on light and on dark paper."""
    return f"hsl({place * HUE_STEP % 360:.0f}, 62%, 50%)"


def scatter(series: Mapping[str, Sequence[Point]], what: str, unit: str) -> alt.LayerChart:
    """Series of points; a click on one in the legend shows it alone."""
    data = pd.DataFrame([
        (p.measured, p.predicted, name, p.about) for name, points in series.items() for p in points
    ], columns=["measured", "predicted", "series", "about"])  # fmt: skip
    both = data[["measured", "predicted"]].to_numpy()
    low, high = float(both.min()) / 1.3, float(both.max()) * 1.3
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    where: dict[str, Any] = {
        letter: kind(f"{name}:Q", scale=scale, axis=axis(f"{name} {what}", unit, log=True))
        for letter, kind, name in (("x", alt.X, "measured"), ("y", alt.Y, "predicted"))
    }
    one = alt.selection_point("series", fields=["series"], bind="legend")
    hues = alt.Scale(domain=[*series], range=[hue(place) for place in range(len(series))])
    shapes = alt.Scale(domain=[*series], range=[*islice(cycle(SHAPES), len(series))])
    marks = alt.Chart(rows(data)).mark_point(filled=True, size=60).encode(
        **where,
        color=alt.Color("series:N", scale=hues),
        shape=alt.Shape("series:N", scale=shapes),
        opacity=alt.when(one).then(alt.value(0.75)).otherwise(alt.value(0.06)),
        tooltip=["series:N", "about:N"],
    ).add_params(one)  # fmt: skip
    chart = alt.layer(error_lines(low, high).encode(**where), marks).properties(width=WIDTH, height=WIDTH)
    return styled(chart, f"{what}: predicted against measured, {len(data)} points")


def error_lines(low: float, high: float) -> alt.Chart:
    """The diagonal, and lines of equal relative errors on both sides of it."""
    ends = [(end, end * (1 + error), f"{error:+.0%}") for error in ERROR_LINES for end in (low, high)]
    lines = alt.Chart(rows(pd.DataFrame(ends, columns=["measured", "predicted", "error"])))
    dash: Any = alt.when("datum.error === '+0%'").then(alt.value([1, 0])).otherwise(alt.value([5, 4]))
    return lines.mark_line(clip=True, color="#808a9b", strokeWidth=1.2).encode(detail="error:N", strokeDash=dash)
