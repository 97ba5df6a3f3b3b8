"""Progress of a search, and importance of parameters."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dse.explaining.importance import Importance
from dse.reporting.pictures.style import COLOURS, FRONT, WIDTH, axis, rows, styled, words

#: Height of a curve, and of the bar of one parameter. [pixels]
HIGH, BAR = 240, 22


def history_figure(history: pd.DataFrame) -> alt.Chart:
    """Hypervolume after each trial, as a share of the study's box: columns ``trial`` and ``hypervolume``. [-]"""
    changes = history["hypervolume"].diff().ne(0) | (history.index == len(history) - 1)
    line = alt.Chart(rows(history[changes])).mark_line(interpolate="step-after", color=FRONT)
    drawn = line.encode(
        x=alt.X("trial:Q", axis=axis("trial", "-")),
        y=alt.Y("hypervolume:Q", axis=axis("hypervolume", "-"), scale=alt.Scale(zero=False)),
        tooltip=["trial:Q", alt.Tooltip("hypervolume:Q", format=".4f")],
    )
    return styled(drawn.properties(width=WIDTH, height=HIGH), "Hypervolume of the front after each trial")


def importance_figure(found: Importance) -> alt.Chart:
    """Share of the variance of each objective that each parameter explains alone. [-]"""
    order = found.designs.max(axis=0).argsort()[::-1].tolist()
    names, ends = ([words(found.parameters[at]) for at in order], [words(o.name) for o in found.space.objectives])
    frame = pd.DataFrame(
        [(name, end, found.designs[row, at])
         for row, end in enumerate(ends) for name, at in zip(names, order, strict=True)],
        columns=["parameter", "objective", "share"],
    )  # fmt: skip
    colours = [COLOURS[place % 5] for place in range(len(ends))]
    bars = alt.Chart(rows(frame)).mark_bar().encode(
        x=alt.X("share:Q", axis=alt.Axis(title="importance", format=".0%", tickCount=6)),
        y=alt.Y("parameter:N", sort=names, title=None),
        yOffset=alt.YOffset("objective:N", sort=ends),
        color=alt.Color("objective:N", scale=alt.Scale(domain=ends, range=colours)),
        tooltip=["parameter:N", "objective:N", alt.Tooltip("share:Q", format=".1%")],
    )  # fmt: skip
    height = (BAR + 9 * (len(ends) - 1)) * len(names)
    return styled(bars.properties(width=WIDTH, height=height), f"Importance of {len(names)} parameters")
