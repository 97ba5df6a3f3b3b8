"""Pictures drawn by Altair: their colours, sizes and axes; a picture as SVG; bars of parts.

A part of the step has one colour in all pictures (`PART_COLOURS`). Colours are classes, so that a page can switch
between its light and dark scheme without drawing again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO, StringIO
from itertools import cycle
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from costmodel.columns import FloatArray
from costmodel.formats.input_files import data_beside
from dse.output import part_name

#: Colours of the front and of designs that it dominates, readable on light and on dark paper.
FRONT, DOMINATED = "#2f7de1", "#7f8896"

#: Colours of parts by name, and of other parts and series in their order; ink, dim ink, lines and paper of the schemes.
PART_COLOURS, COLOURS, SCHEMES = data_beside(__file__, "colours.yaml").values()

#: Shapes of series, taken in turn.
SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "cross")

#: Forms of a picture's file.
FORMS: Final = ("svg", "png", "pdf")

#: Size of a picture, and height of one bar with the room around it. [pixels]
WIDTH, HEIGHT, BAR_HEIGHT = 560, 340, 46

#: Greatest over least value from which an axis is logarithmic. [-]
FAR_APART: Final = 8.0


def look(scheme: str) -> dict[str, Any]:
    """Vega-Lite's configuration of fonts, lines and paper of one of `SCHEMES`."""
    ink, dim, line, paper = SCHEMES[scheme]
    lines = {"gridColor": line, "domainColor": line, "tickColor": line}
    sizes = {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal", "labelLimit": 400}
    return {
        "background": paper,
        "font": "system-ui, -apple-system, 'Segoe UI', sans-serif",
        "view": {"stroke": line},
        "axis": {**lines, **sizes, "labelColor": dim, "titleColor": ink, "titlePadding": 10},
        "legend": {**sizes, "orient": "top", "title": None, "labelColor": ink, "symbolOpacity": 1, "columns": 5},
        "title": {"color": ink, "anchor": "start", "fontSize": 15, "offset": 14, "subtitleColor": dim},
        "text": {"color": ink, "fontSize": 12},
        "rule": {"color": dim},
    }


def styled(chart: alt.ChartType, about: str) -> Any:
    """A chart in the light style, with the text for screen readers."""
    return chart.properties(description=about).configure(**look("light"))


def svg(chart: alt.ChartType) -> str:
    """SVG of a styled chart, with its description as title; it follows the reader's light or dark scheme."""
    written = StringIO()
    chart.save(written, format="svg")
    about = escape(str(chart.description))
    pairs = zip(SCHEMES["light"], SCHEMES["dark"], strict=True)
    dark = "".join(f'[fill="{old}"]{{fill:{new}}}[stroke="{old}"]{{stroke:{new}}}' for old, new in pairs)
    style = f"<title>{about}</title><style>@media (prefers-color-scheme: dark){{{dark}}}</style>"
    places: dict[str, str] = {}  # Vega numbers its elements on through all pictures of a process
    named = re.compile(r"\b(clip|gradient_)\d+")
    text = named.sub(lambda at: places.setdefault(at[0], f"{at[1]}{len(places)}"), written.getvalue())
    text = re.sub(r' (?:d|transform)="[^"]*"', lambda at: re.sub(r"(\.\d\d)\d+", r"\1", at[0]), text)
    start, rest = text.split(">", 1)
    return f'{start} role="img" aria-label="{about}">{style}{rest}\n'


def picture(chart: alt.ChartType, form: str) -> bytes:
    """A styled chart as a file of one of `FORMS`."""
    if form == "svg":
        return svg(chart).encode()
    written = BytesIO()
    chart.save(written, format=form, **({"scale_factor": 2} if form == "png" else {}))
    return written.getvalue()


def rows(frame: pd.DataFrame) -> alt.InlineData:
    """A table of any length as the data of a chart; callers thin data with too many marks."""
    kinds = {name: "string" if dtype.kind in "OUT" else "number" for name, dtype in frame.dtypes.items()}
    whole = frame.astype({name: int for name, dtype in frame.dtypes.items() if dtype.kind == "b"})
    return alt.InlineData(values=whole.to_csv(index=False), format=alt.CsvDataFormat(type="csv", parse=kinds))


def label(unit: str) -> str:
    """Vega's expression for the number of a tick, with the prefix of its unit."""
    short = "format(datum.value, '.4~s')"
    if unit == "$":
        return f"'$' + replace({short}, 'G', 'B')"
    if unit in ("-", "1/s"):
        return f"abs(datum.value) < 1 ? format(datum.value, '.4~g') : {short}"
    spaced = rf"replace({short}, regexp('([^-0-9.]?)$'), ' $1{unit}')"
    return f"abs(datum.value) >= 1 ? format(datum.value, '.6~g') + ' s' : {spaced}" if unit == "s" else spaced


def words(name: str) -> str:
    """A name as text reads.

    >>> words("step_time")
    'step time'
    """
    return name.replace("_", " ")


def axis(name: str, unit: str, *, log: bool = False, **more: Any) -> alt.Axis:
    """An axis of a quantity: its name, and ticks with prefixed units; of a logarithmic one at 1, 2 and 5."""
    shown = label(unit)
    if log:
        shown = f"test(regexp('^[125]'), format(datum.value, '.0e')) ? {shown} : ''"
    return alt.Axis(title=words(name), labelExpr=shown, labelOverlap="greedy", **{"tickCount": 6, **more})


def quantity(field: str, name: str, unit: str, values: Any, *, zero: bool = False) -> dict[str, Any]:
    """Axis and scale of a column that holds a quantity, as arguments of ``alt.X`` and ``alt.Y``."""
    numbers = np.asarray(values, dtype=float)
    log = bool(numbers.size and numbers.min() > 0 and numbers.max() >= FAR_APART * numbers.min())
    scale = alt.Scale(type="log" if log else "linear", zero=zero and not log, nice=False, padding=14)
    return {"shorthand": f"{field}:Q", "scale": scale, "axis": axis(name, unit, log=log), "title": words(name)}


def bars_of_parts(
    parts: Mapping[str, FloatArray | Sequence[float]], unit: str, names: Sequence[str], *, title: str
) -> alt.ChartType:
    """A bar for each design of parts, (points,) each, that add up to `title`, without unused parts. [their unit]"""
    parts_drawn = {
        part_name(part): list(map(float, values)) for part, values in parts.items() if max(values, default=0.0) > 0
    }
    others = cycle(COLOURS)
    hues = {part: PART_COLOURS.get(part) or next(others) for part in parts_drawn}
    frame = pd.DataFrame(
        [(index, part, order, value)
         for order, (part, values) in enumerate(parts_drawn.items()) for index, value in enumerate(values)],
        columns=["design", "part", "order", "value"],
    )  # fmt: skip
    called = f"{json.dumps([*names])}[datum.value]"
    down = alt.Y("design:O", axis=alt.Axis(title=None, labelExpr=called, ticks=False))
    colour = alt.Scale(domain=[*hues], range=[*hues.values()])
    said = {"title": f"{words(title)} [{unit}]", "format": ".3~s"}
    bars = alt.Chart(rows(frame)).mark_bar(size=0.65 * BAR_HEIGHT).encode(
        alt.X("value:Q", axis=axis(title, unit)), down, alt.Color("part:N", scale=colour),
        order="order:Q", tooltip=["part:N", alt.Tooltip("value:Q", **said)],
    )  # fmt: skip
    drawn = bars.properties(width=WIDTH, height=BAR_HEIGHT * len(names))
    return styled(drawn, f"{words(title)} of {len(names)} designs, and its parts")
