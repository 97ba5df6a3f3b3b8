"""Kernels of one design beneath the roofline of its chip, and its step as a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.formats.quantity import readable
from costmodel.plotting import COLOURS, FRONT, NOTABLE, axis, figure, plotly

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: What a kernel waits for -> its colour; a level of memory that is not named has the next one.
BOUND_COLOURS: Final = {"arithmetic": FRONT, "dram": NOTABLE, "launch": COLOURS[11], "l2": COLOURS[6]}

#: Diameter of the largest kernel, and of the smallest. [pixels]
LARGEST, SMALLEST = 34.0, 6.0


def roofline_figure(kernels: pd.DataFrame, peak_flop_rate: float, bandwidth: float) -> go.Figure:
    """Kernels as bubbles beneath the chip's peak and its memory, as large as their share of the step.

    Parameters
    ----------
    kernels : DataFrame
        Columns ``path``, ``seconds``, ``flops``, ``bound``, ``intensity`` and ``attained``. [SI units]
    peak_flop_rate : float
        Of the chip. [FLOP/s]
    bandwidth : float
        Of its farthest memory level. [B/s]
    """
    shown = kernels[(kernels["flops"] > 0) & np.isfinite(kernels["intensity"])]
    ridge = peak_flop_rate / bandwidth
    ends = [min(shown["intensity"].min(), ridge) / 2, max(shown["intensity"].max(), ridge) * 2]
    roof = plotly().Scatter(
        x=[ends[0], ridge, ends[1]],
        y=[ends[0] * bandwidth, peak_flop_rate, peak_flop_rate],
        mode="lines",
        name="roofline",
        line={"color": COLOURS[8], "width": 2},
        hoverinfo="skip",
    )
    title = {"title": {"text": "intensity [FLOP per byte of device memory]"}}
    return figure(
        [roof, *(bubbles(own, str(bound), kernels) for bound, own in shown.groupby("bound", sort=False))],
        height=430,
        legend={"itemsizing": "constant"},
        xaxis={**title, "type": "log", "dtick": 1, "tickformat": "~g"},
        yaxis={**axis("attained", "FLOP/s"), "type": "log", "dtick": 1, "tickformat": "~s"},
        dragmode="zoom",
    )


def bubbles(own: pd.DataFrame, bound: str, kernels: pd.DataFrame) -> Any:
    """The kernels that wait for one thing."""
    seconds = own["seconds"].to_numpy()
    sizes = np.maximum(SMALLEST, LARGEST * np.sqrt(seconds / kernels["seconds"].max()))
    texts = [
        f"<b>{', '.join(path)}</b><br>{readable(time, 's')} of the step, {readable(flops, 'FLOP')}<br>"
        f"{readable(rate, 'FLOP/s')} at {intensity:.3g} FLOP/B"
        for path, time, flops, rate, intensity in zip(
            own["path"], seconds, own["flops"], own["attained"], own["intensity"], strict=True
        )
    ]
    return plotly().Scatter(
        x=own["intensity"].tolist(),
        y=own["attained"].tolist(),
        mode="markers",
        name=f"bound by {bound}",
        marker={
            "size": sizes.round(1).tolist(),
            "opacity": 0.65,
            "line": {"width": 0},
            "color": BOUND_COLOURS.get(bound, COLOURS[9]),
        },
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def tree_figure(tree: pd.DataFrame, whole: str) -> go.Figure:
    """A tree as nested rows: what a total is made of, its parts, and theirs.

    Parameters
    ----------
    tree : DataFrame
        A row for each leaf: ``path`` (a tuple), and a column of its values. [the unit of the column]
    whole : str
        What they add up to, as it is printed.
    """
    paths, leaves = tree["path"].tolist(), tree.iloc[:, 1].tolist()
    values: dict[tuple[str, ...], float] = {}
    for path, value in zip(paths, leaves, strict=True):
        for depth in range(len(path) + 1):
            values[path[:depth]] = values.get(path[:depth], 0.0) + value
    unit = {"seconds": "s", "bytes": "B"}[tree.columns[1]]
    colours = dict(zip(dict.fromkeys(path[0] for path in paths), COLOURS, strict=False))
    icicle = plotly().Icicle(
        ids=["/".join(path) or "root" for path in values],
        labels=[(path[-1] if path else whole).replace("_", " ") for path in values],
        parents=["/".join(path[:-1]) if len(path) > 1 else "root" if path else "" for path in values],
        values=list(values.values()),
        text=[readable(value, unit) for value in values.values()],
        marker={"colors": [colours.get(path[0], COLOURS[8]) if path else COLOURS[8] for path in values]},
        branchvalues="total",
        tiling={"orientation": "v"},
        pathbar={"visible": False},
        leaf={"opacity": 1},
        sort=False,
        hovertemplate="%{label}<br>%{text}, %{percentRoot} of all<extra></extra>",
    )
    return figure(
        [icicle],
        height=430,
        margin={"l": 0, "r": 40, "t": 20, "b": 10},
        uniformtext={"minsize": 10, "mode": "hide"},
    )
