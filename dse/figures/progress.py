"""How a search went, and which parameters matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from costmodel.columns import FloatArray, IntArray
from costmodel.plotting import AROUND_BARS, COLOURS, FRONT, axis, figure, plotly

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Height of the bars of one parameter. [pixels]
ROW = 26

#: The vertical axis begins where the hypervolume is after one in so many of the trials.
SETTLED = 50


def history_figure(numbers: IntArray, hypervolume: FloatArray) -> go.Figure:
    """Hypervolume after each trial.

    Parameters
    ----------
    numbers : (trials,) array of int
        Numbers of the trials. [-]
    hypervolume : (trials,) array
        Share of the study's box that the front dominates by then. [-]
    """
    changes = [
        place
        for place in range(len(numbers))
        if place in (0, len(numbers) - 1) or hypervolume[place] != hypervolume[place - 1]
    ]
    line = plotly().Scatter(
        x=numbers[changes].tolist(),
        y=hypervolume[changes].tolist(),
        mode="lines",
        line={"color": FRONT, "width": 2, "shape": "hv"},
        hovertemplate="after trial %{x}: %{y:.4f}<extra></extra>",
    )
    later = hypervolume[len(hypervolume) // SETTLED :]
    room = max(0.05 * (later[-1] - later[0]), 1e-3)
    up = {**axis("hypervolume", "-"), "range": [float(later[0] - room), float(later[-1] + room)]}
    return figure([line], height=320, xaxis=axis("trial", "-"), yaxis=up)


def importance_figure(importances: Mapping[str, Mapping[str, float]]) -> go.Figure:
    """How much each parameter matters for each of several ends.

    Parameters
    ----------
    importances : mapping
        What it matters for -> parameter -> its share. [-]
    """
    go = plotly()
    names = list(dict.fromkeys(name for shares in importances.values() for name in shares))
    names.sort(key=lambda name: -max(shares.get(name, 0.0) for shares in importances.values()))
    bars = [
        go.Bar(
            x=[shares.get(name, 0.0) for name in names],
            y=[name.replace("_", " ") for name in names],
            orientation="h",
            name=target.replace("_", " "),
            marker={"color": COLOURS[(0, 3, 7, 9, 6)[place % 5]]},
            hovertemplate="%{y}: %{x:.0%} of " + target.replace("_", " ") + "<extra></extra>",
        )
        for place, (target, shares) in enumerate(importances.items())
    ]
    return figure(
        bars,
        barmode="group",
        bargap=0.3,
        height=AROUND_BARS + (ROW + 9 * (len(bars) - 1)) * len(names),
        xaxis={**axis("importance", "-"), "tickformat": ".0%"},
        yaxis={"autorange": "reversed", "showgrid": False},
        dragmode=False,
    )


def counts_figure(counts: Mapping[str, int], what: str) -> go.Figure:
    """How many trials each of some reasons has.

    Parameters
    ----------
    counts : mapping
        Reason -> trials. [-]
    what : str
        What is counted.
    """
    names: Sequence[Any] = [name.replace("_", " ") for name in counts]
    bar = plotly().Bar(
        x=list(counts.values()),
        y=names,
        orientation="h",
        marker={"color": COLOURS[9]},
        hovertemplate="%{y}: %{x:,}<extra></extra>",
    )
    return figure(
        [bar],
        bargap=0.4,
        height=AROUND_BARS - 40 + ROW * len(counts),
        xaxis={**axis(what, "-"), "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "showgrid": False},
        dragmode=False,
    )
