"""One optimizer step of a pipeline, stage by stage, as bars over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import altair as alt
import numpy as np

from dse.reporting.pictures.style import COLOURS, WIDTH, axis, rows, styled, words

if TYPE_CHECKING:
    import pandas as pd

#: Events that are drawn at most; of a step of more, some of the stages.
MOST_EVENTS: Final = 6000

#: Height of a stage, and of the highest picture. [pixels]
STAGE, HIGHEST = 26, 520

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

#: Of an event, what is drawn or said.
COLUMNS: Final = ("stage", "micro_batch", "chunk", "kind", "start_s", "end_s")

#: What an event is coloured by.
SHADE: Final = "datum.micro_batch > 0 && datum.micro_batch % 2 ? datum.kind + ', odd' : datum.kind"


def drawn_stages(events: pd.DataFrame) -> list[int]:
    """The stages of a step, or as many of them as are drawn: the first, the last, and some between."""
    stages = sorted(events["stage"].unique().tolist())
    count = max(2, MOST_EVENTS * len(stages) // len(events))
    if len(stages) <= count:
        return stages
    return [stages[place] for place in np.linspace(0, len(stages) - 1, count).round().astype(int).tolist()]


def timeline_figure(events: pd.DataFrame) -> alt.Chart:
    """A row for each stage; neighbouring micro-batches have two shades; Ctrl and the wheel zoom into time.

    `events` has the columns ``stage``, ``micro_batch``, ``chunk`` (from 0; -1 for a whole stage), ``kind``,
    ``start_s``, ``end_s``.
    """
    stages = drawn_stages(events)
    shown = events.loc[events["stage"].isin(stages), list(COLUMNS)].round(6)
    shown["kind"] = shown["kind"].map(words)
    kinds = list(dict.fromkeys(shown["kind"]))
    colours = {words(kind): shades for kind, shades in KIND_COLOURS.items() if words(kind) in kinds}
    hues = {kind: even for kind, (even, _) in colours.items()}
    hues |= {f"{kind}, odd": uneven for kind, (_, uneven) in colours.items()}
    zoom = alt.selection_interval("zoom", encodings=["x"], bind="scales", zoom="wheel![event.ctrlKey]")
    height = min(HIGHEST, max(3, len(stages)) * STAGE)
    shade = alt.Scale(domain=[*hues], range=[*hues.values()])
    said = [("micro_batch", "d"), ("chunk", "d"), ("start_s", ".4~s"), ("end_s", ".4~s")]
    bars = alt.Chart(rows(shown)).mark_bar(clip=True, height={"band": 0.8}, aria=False)
    drawn = bars.transform_calculate(shade=SHADE).encode(
        x=alt.X("start_s:Q", axis=axis("time", "s")),
        x2="end_s:Q",
        y=alt.Y("stage:O", title="stage"),
        color=alt.Color("shade:N", scale=shade, legend=alt.Legend(values=kinds)),
        tooltip=["kind:N", *(alt.Tooltip(f"{name}:Q", title=words(name), format=form) for name, form in said)],
    )
    about = f"One optimizer step over time: {len(stages)} pipeline stages, {len(shown)} events"
    return styled(drawn.add_params(zoom).properties(width=WIDTH, height=height), about)
