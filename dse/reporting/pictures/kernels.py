"""Kernels of one design beneath the roofline of its chip, and its step as a tree."""

from __future__ import annotations

from itertools import cycle
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from costmodel.formats.quantity import readable
from dse.reporting.pictures.style import COLOURS, FRONT, HEIGHT, NOTABLE, WIDTH, axis, rows, styled, words

#: What a kernel waits for -> its colour; a level of memory that is not named has the next one.
BOUND_COLOURS: Final = {"arithmetic": FRONT, "dram": NOTABLE, "launch": COLOURS[11], "l2": COLOURS[6]}

#: Area of the largest kernel, and of the smallest. [square pixels]
LARGEST, SMALLEST = 900.0, 30.0

#: Height of one level of a tree. [pixels]
LEVEL: Final = 62

#: Start and end of the part of a tree that was chosen, or of all. [-]
START, END = "part.start ? part.start[0] : 0", "part.end ? part.end[0] : 1"

#: Pixels that a part of a tree is wide.
BROAD: Final = "(datum.end - datum.start) / (part.start ? part.end[0] - part.start[0] : 1) * width"


def roofline_figure(kernels: pd.DataFrame, peak_flop_rate: float, bandwidth: float) -> alt.LayerChart:
    """Kernels as bubbles below the chip's peak [FLOP/s] and bandwidth [B/s]; their area is the share of the step.

    `kernels` has the columns ``path``, ``seconds``, ``flops``, ``bound``, ``intensity`` and ``attained``. [SI units]
    """
    shown = kernels[(kernels["flops"] > 0) & np.isfinite(kernels["intensity"])]
    ridge = peak_flop_rate / bandwidth
    ends = [min(shown["intensity"].min(), ridge) / 2, max(shown["intensity"].max(), ridge) * 2]
    roof = pd.DataFrame({"intensity": [ends[0], ridge, ends[1]]})
    roof["attained"] = np.minimum(roof["intensity"] * bandwidth, peak_flop_rate)
    line = alt.Chart(rows(roof)).mark_line(color=COLOURS[8], strokeWidth=2)
    log = alt.Scale(type="log", nice=False, padding=10)
    title = "intensity [FLOP per byte of device memory]"
    where = {
        "x": alt.X("intensity:Q", scale=log, axis=axis(title, "-", log=True)),
        "y": alt.Y("attained:Q", scale=log, axis=axis("attained", "FLOP/s", log=True)),
    }
    about = f"{len(shown)} kernels beneath the roofline of the chip"
    chart = alt.layer(line.encode(**where), bubbles(shown, where)).properties(width=WIDTH, height=HEIGHT)
    return styled(chart, about)


def bubbles(kernels: pd.DataFrame, where: dict[str, Any]) -> alt.Chart:
    """Kernels by what they wait for."""
    data = pd.DataFrame({
        "intensity": kernels["intensity"],
        "attained": kernels["attained"],
        "seconds": kernels["seconds"],
        "bound": "bound by " + kernels["bound"].astype(str),
        "kernel": [", ".join(path) for path in kernels["path"]],
        "time": [readable(value, "s") for value in kernels["seconds"]],
        "work": [readable(value, "FLOP") for value in kernels["flops"]],
        "rate": [readable(value, "FLOP/s") for value in kernels["attained"]],
    })  # fmt: skip
    bounds = list(dict.fromkeys(kernels["bound"].astype(str)))
    hues = alt.Scale(
        domain=[f"bound by {bound}" for bound in bounds],
        range=[BOUND_COLOURS.get(bound, COLOURS[9]) for bound in bounds],
    )
    return alt.Chart(rows(data)).mark_point(filled=True, opacity=0.65).encode(
        **where,
        color=alt.Color("bound:N", scale=hues),
        size=alt.Size("seconds:Q", scale=alt.Scale(range=[SMALLEST, LARGEST]), legend=None),
        tooltip=[*(f"{name}:N" for name in ("kernel", "time", "work", "rate", "bound")), "intensity:Q"],
    )  # fmt: skip


def tree_figure(tree: pd.DataFrame, whole: str) -> alt.LayerChart:
    """A tree as nested rows: a total, its parts, and theirs; a click on a part shows it alone.

    `tree` has a row for each leaf: ``path`` (a tuple), and a column of values; `whole` is their sum as text.
    """
    unit = {"seconds": "s", "bytes": "B"}[tree.columns[1]]
    parts = tree_parts(tree, whole, unit)
    depth = int(parts["depth"].max()) + 1
    part = alt.selection_point("part", fields=["start", "end"], on="click", toggle=False)
    width = alt.Scale(domainMin=alt.ExprRef(START), domainMax=alt.ExprRef(END), nice=False, zero=False)
    base = alt.Chart(rows(parts)).encode(y=alt.Y("depth:Q", axis=None, scale=alt.Scale(domain=[depth, 0], nice=False)))
    boxes = base.mark_rect(clip=True, strokeWidth=1).encode(
        x=alt.X("start:Q", axis=None, scale=width), x2="end:Q", y2="below:Q",
        color=alt.Color("colour:N", scale=None),
        stroke=alt.value("white"),
        tooltip=["part:N", "value:N", alt.Tooltip("share:Q", title="of all", format=".1%")],
    ).add_params(part)  # fmt: skip
    texts = [
        base.mark_text(clip=True, dy=dy, color="#10151d", limit=alt.ExprRef(f"max(1, {BROAD} - 8)")).encode(
            x=alt.X("middle:Q", axis=None),
            y="centre:Q",
            text=f"{field}:N",
            opacity=alt.when(f"{BROAD} > 34").then(alt.value(1)).otherwise(alt.value(0)),
        )
        for field, dy in (("part", -7), ("value", 8))
    ]
    chart = alt.layer(boxes, *texts).properties(width=WIDTH, height=LEVEL * depth)
    return styled(chart, f"{words(whole)} of {parts['value'][0]} and its parts")


def tree_parts(tree: pd.DataFrame, whole: str, unit: str) -> pd.DataFrame:
    """A row for each part of a tree: where it stands as a share of the whole, and what is said of it."""
    paths, leaves = tree["path"].tolist(), tree.iloc[:, 1].tolist()
    values: dict[tuple[str, ...], float] = {}
    for path, value in zip(paths, leaves, strict=True):
        for depth in range(len(path) + 1):
            values[path[:depth]] = values.get(path[:depth], 0.0) + value
    hues = dict(zip(dict.fromkeys(path[:1] for path in paths), cycle(COLOURS), strict=False))
    total, found = values[()] or 1.0, []
    filled: dict[tuple[str, ...], float] = {(): 0.0}  # where the next part of each begins
    for path, value in values.items():
        start = filled.get(path[:-1], 0.0)
        filled[path], filled[path[:-1]] = start, start + value / total if path else 0.0
        found.append((len(path), start, start + value / total, (path or (whole,))[-1], value, hues.get(path[:1])))
    parts = pd.DataFrame(found, columns=["depth", "start", "end", "part", "amount", "colour"])
    return parts.assign(
        middle=(parts["start"] + parts["end"]) / 2,
        centre=parts["depth"] + 0.5,
        below=parts["depth"] + 1,
        share=parts["amount"] / total,
        value=[readable(value, unit) for value in parts["amount"]],
        part=parts["part"].map(words),
        colour=parts["colour"].fillna(COLOURS[8]),
    )
