"""Sensitivities of a design as a tornado: bars to the left are faster steps, to the right slower ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import altair as alt
import pandas as pd

from dse.explaining.sensitivity import Sensitivity
from dse.reporting.designs.sensitivity_report import ROWS_SHOWN, TornadoRow, count_rows, parameter_rows, quantity_rows
from dse.reporting.pictures.style import WIDTH, rows, styled

#: Colours of what is faster and slower, and height of a row. [-, -, pixels]
FASTER, SLOWER, ROW = "#2a9d78", "#d9643a", 20

#: Room beside the longest bar for its number. [-]
ROOM: Final = 1.3


def tornado(found: Sensitivity) -> alt.VConcatChart:
    """Tornados of parameters, counts and quantities, one above the other."""
    rows = [own(found)[:ROWS_SHOWN] for own in (parameter_rows, count_rows, quantity_rows)]
    parts = [
        panel("Step time after one step of a parameter", rows[0], "change of step time", ".0%"),
        panel("Step time with more parts of a chip", rows[1], "change of step time", ".0%"),
        panel("Step time after 1 % more of a quantity", rows[2], "change of step time [%]", "~g"),
    ]
    return styled(alt.vconcat(*parts), f"Sensitivity of the step time of {found.explanation.space.name}")


def panel(title: str, bars: Sequence[TornadoRow], what: str, form: str) -> alt.LayerChart:
    """A bar for each row; pale where the design breaks a limit."""
    data = pd.DataFrame(
        [(bar.name, bar.share, bar.text, bar.faint) for bar in bars], columns=["name", "share", "text", "faint"]
    )
    longest = float(data["share"].abs().max()) if len(data) else 1.0
    ends = alt.Scale(domain=[-ROOM * (longest or 1.0), ROOM * (longest or 1.0)], nice=False)
    base = alt.Chart(rows(data)).encode(
        x=alt.X("share:Q", scale=ends, axis=alt.Axis(title=what, format=form, tickCount=7)),
        y=alt.Y("name:N", sort=None, axis=alt.Axis(title=None, ticks=False)),
    )
    layers: list[alt.Chart] = [
        base.mark_bar(height={"band": 0.75}).encode(
            color=alt.when("datum.share < 0").then(alt.value(FASTER)).otherwise(alt.value(SLOWER)),
            opacity=alt.when("datum.faint").then(alt.value(0.4)).otherwise(alt.value(1)),
        ),
        base.mark_text(align="left", dx=4).transform_filter("datum.share >= 0").encode(text="text:N"),
        base.mark_text(align="right", dx=-4).transform_filter("datum.share < 0").encode(text="text:N"),
    ]
    pale = "pale: breaks a limit" if data["faint"].any() else ""
    heading = alt.TitleParams(title, subtitle=pale)
    return alt.layer(*layers).properties(title=heading, width=WIDTH, height=ROW * max(1, len(bars)))
