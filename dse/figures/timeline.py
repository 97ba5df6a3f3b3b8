"""One optimizer step of a pipeline, stage by stage, as lines over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.plotting import COLOURS, axis, figure, plotly

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: Events that are drawn at most; of a step of more, some of the stages.
MOST_EVENTS: Final = 6000

#: Height of a stage, of the highest picture, and of what is around the stages. [pixels]
STAGE, HIGHEST, AROUND = 26, 520, 130

#: Kind of event -> colours of even and odd micro-batches.
KIND_COLOURS: Final = {
    "forward": ("#2f7de1", "#6aa5ee"),
    "backward": ("#e0782f", "#f6b26b"),
    "weight_gradient": ("#8e6bbf", "#b79bdc"),
    "weight_cast": (COLOURS[11], COLOURS[11]),
    "dp_communication": (COLOURS[9], COLOURS[9]),
    "optimizer": (COLOURS[10], COLOURS[10]),
    "host": (COLOURS[8], COLOURS[8]),
}


def drawn_stages(events: pd.DataFrame) -> list[int]:
    """The stages of a step, or as many of them as are drawn: the first, the last, and some between."""
    stages = sorted(events["stage"].unique().tolist())
    count = max(2, MOST_EVENTS * len(stages) // len(events))
    if len(stages) <= count:
        return stages
    return [stages[place] for place in np.linspace(0, len(stages) - 1, count).round().astype(int).tolist()]


def timeline_figure(events: pd.DataFrame) -> go.Figure:
    """A row for each stage; neighbouring micro-batches have two shades.

    Parameters
    ----------
    events : DataFrame
        Columns ``stage``, ``micro_batch``, ``chunk`` (from 0; -1 for what is of a whole stage), ``kind``,
        ``start_s``, ``end_s``.
    """
    stages = drawn_stages(events)
    shown = events[events["stage"].isin(stages)]
    row_of = {stage: row for row, stage in enumerate(stages)}
    height = min(HIGHEST, max(3, len(stages)) * STAGE)
    thick = max(2.0, 0.78 * height / len(stages))
    traces = []
    for kind in dict.fromkeys(shown["kind"]):
        for odd in (0, 1):
            own = shown[(shown["kind"] == kind) & (shown["micro_batch"].clip(lower=0) % 2 == odd)]
            if len(own):
                traces.append(kind_trace(own, kind, odd, row_of, min(thick, 24.0)))
    return figure(
        traces,
        height=height + AROUND,
        xaxis=axis("time", "s"),
        yaxis={
            **axis("stage", "-"),
            "tickvals": list(row_of.values()),
            "ticktext": [str(stage) for stage in stages],
            "range": [len(stages) - 0.4, -0.6],
            "showgrid": False,
            "fixedrange": True,
        },
        dragmode="zoom",
    )


def kind_trace(own: pd.DataFrame, kind: str, odd: int, row_of: dict[int, int], thick: float) -> Any:
    """Events of a kind, of even or of odd micro-batches, each from its start to its end."""
    start, end = (np.round(own[name].to_numpy(), 6).tolist() for name in ("start_s", "end_s"))
    name = kind.replace("_", " ")
    of_pass = own["micro_batch"].to_numpy() >= 0
    texts = [
        f"{name}, micro-batch {micro_batch}, chunk {chunk}" if passed else name
        for micro_batch, chunk, passed in zip(own["micro_batch"], own["chunk"], of_pass, strict=True)
    ]
    rows = [row_of[stage] for stage in own["stage"].tolist()]
    return plotly().Scatter(
        x=[x for pair in zip(start, end, strict=True) for x in (*pair, None)],
        y=[y for row in rows for y in (row, row, None)],
        text=[text for each in texts for text in (each, each, None)],
        mode="lines",
        name=name,
        legendgroup=name,
        showlegend=not odd,
        line={"color": KIND_COLOURS[kind][odd], "width": thick, "simplify": False},
        hovertemplate="%{text}<br>%{x:.4~s}s<extra></extra>",
    )
