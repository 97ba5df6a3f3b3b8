"""Progress of a search, and importance of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import altair as alt
import pandas as pd

from costmodel.columns import FloatArray, IntArray
from dse.reporting.pictures.style import COLOURS, FRONT, WIDTH, axis, rows, styled, words

#: Height of a curve, and of the bar of one parameter. [pixels]
HIGH, BAR = 240, 22

#: The vertical axis begins where the hypervolume is after one in so many of the trials.
SETTLED: Final = 50


def history_figure(numbers: IntArray, hypervolume: FloatArray) -> alt.Chart:
    """Hypervolume after each trial, as shares of the study's box, (trials,). [-]"""
    later = hypervolume[len(hypervolume) // SETTLED :]
    room = max(0.05 * (later[-1] - later[0]), 1e-3)
    frame = pd.DataFrame({"trial": numbers, "hypervolume": hypervolume})
    changes = frame["hypervolume"].diff().ne(0) | (frame.index == len(frame) - 1)
    up = alt.Scale(domain=[float(later[0] - room), float(later[-1] + room)])
    line = alt.Chart(rows(frame[changes])).mark_line(interpolate="step-after", color=FRONT, clip=True)
    drawn = line.encode(
        x=alt.X("trial:Q", axis=axis("trial", "-")),
        y=alt.Y("hypervolume:Q", axis=axis("hypervolume", "-"), scale=up),
        tooltip=["trial:Q", alt.Tooltip("hypervolume:Q", format=".4f")],
    )
    return styled(drawn.properties(width=WIDTH, height=HIGH), "Hypervolume of the front after each trial")


def importance_figure(importances: Mapping[str, Mapping[str, float]]) -> alt.Chart:
    """Importance of each parameter for each of several objectives: objective -> parameter -> share. [-]"""
    names = list(dict.fromkeys(name for shares in importances.values() for name in shares))
    names.sort(key=lambda name: -max(shares.get(name, 0.0) for shares in importances.values()))
    frame = pd.DataFrame(
        [(words(name), words(end), shares.get(name, 0.0)) for end, shares in importances.items() for name in names],
        columns=["parameter", "objective", "share"],
    )
    ends = [words(end) for end in importances]
    colours = [COLOURS[(0, 3, 7, 9, 6)[place % 5]] for place in range(len(ends))]
    bars = alt.Chart(rows(frame)).mark_bar().encode(
        x=alt.X("share:Q", axis=alt.Axis(title="importance", format=".0%", tickCount=6)),
        y=alt.Y("parameter:N", sort=[words(name) for name in names], title=None),
        yOffset=alt.YOffset("objective:N", sort=ends),
        color=alt.Color("objective:N", scale=alt.Scale(domain=ends, range=colours)),
        tooltip=["parameter:N", "objective:N", alt.Tooltip("share:Q", format=".1%")],
    )  # fmt: skip
    height = (BAR + 9 * (len(ends) - 1)) * len(names)
    return styled(bars.properties(width=WIDTH, height=height), f"Importance of {len(names)} parameters")
