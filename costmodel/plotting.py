"""The look of figures, and bars of parts. Plotly draws them; it is imported when a figure is first wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.installation import installation

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: What of a figure has one meaning wherever it is drawn. They are readable on light and on dark paper.
FRONT, DOMINATED, NOTABLE, BROKEN = "#2f7de1", "rgba(128,138,155,0.45)", "#f0883e", "#d1495b"

#: Colours of parts of a total, in their order.
COLOURS: Final = (
    *("#2f7de1", "#6aa5ee", "#a9caf6", "#f0883e", "#f6b26b", "#c9772c", "#8e6bbf"),
    *("#35a29f", "#9aa5b4", "#d1495b", "#7fb069", "#5d6675", "#b8860b"),
)

#: Ink, dim ink, lines and paper of the two schemes.
SCHEMES: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "light": ("#1c2330", "#5d6675", "#d9dee6", "#ffffff"),
    "dark": ("#e4e8ee", "#98a2b1", "#333b48", "#14181f"),
}

#: Height of one bar with the room around it, and of all that stands above and below the bars. [pixels]
BAR_HEIGHT, AROUND_BARS = 46, 150


def plotly() -> Any:
    """The library that draws, ``plotly.graph_objects``.

    Raises
    ------
    DseError
        If it is not installed, saying how.
    """
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise DseError(f"figures need Plotly: {installation('report')}") from None
    return go


def look(scheme: str) -> dict[str, Any]:
    """A Plotly template: fonts, lines and paper of one of `SCHEMES`."""
    ink, dim, line, paper = SCHEMES[scheme]
    axis = {
        "gridcolor": line,
        "linecolor": line,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"color": dim, "size": 12},
        "title": {"font": {"color": ink, "size": 13}, "standoff": 10},
    }
    return {
        "layout": {
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": ink},
            "paper_bgcolor": paper,
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {"bgcolor": paper, "bordercolor": dim, "font": {"color": ink, "size": 12.5}},
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.02,
                "yanchor": "bottom",
                "font": {"size": 12},
            },
            "margin": {"l": 60, "r": 40, "t": 40, "b": 50},
            "hovermode": "closest",
            "dragmode": "select",
            "modebar": {"orientation": "v", "bgcolor": "rgba(0,0,0,0)", "color": dim, "activecolor": ink},
        },
        "data": {
            "parcoords": [
                {
                    "labelfont": {"color": ink},
                    "tickfont": {"color": dim},
                    "rangefont": {"color": "rgba(0,0,0,0)"},
                }
            ]
        },
    }


def axis(name: str, unit: str) -> dict[str, Any]:
    """An axis of a quantity: its name, and ticks with prefixed units.

    >>> axis("peak_memory", "B")["ticksuffix"], axis("system_price", "$")["tickprefix"]
    ('B', '$')
    """
    shown: dict[str, Any] = {"title": {"text": name.replace("_", " ")}}
    if unit == "$":
        return shown | {"tickprefix": "$", "exponentformat": "B", "separatethousands": True}
    if unit == "s":
        return shown | {"ticksuffix": " s", "exponentformat": "power"}
    if unit in ("-", "1/s"):
        return shown | {"exponentformat": "SI"}
    return shown | {"ticksuffix": unit, "exponentformat": "SI"}


def figure(traces: Sequence[Any], **layout: Any) -> go.Figure:
    """A figure of some traces in the light scheme."""
    return plotly().Figure(data=list(traces), layout={"template": look("light"), **layout})


def bars_of_parts(
    parts: Mapping[str, FloatArray | Sequence[float]],
    unit: str,
    names: Sequence[str],
    *,
    title: str,
    limits: Sequence[float] | None = None,
) -> go.Figure:
    """A bar for each design, made of its parts; a part that none has is left out.

    Parameters
    ----------
    parts : mapping
        Part -> (points,) its value in each design.
    unit : str
        SI unit of the parts.
    names : sequence of str
        What each design is called.
    title : str
        What the parts add up to.
    limits : sequence of float, optional
        What the total of each design may be, drawn as a line across its bar. [unit of the parts]
    """
    places = list(range(len(names)))
    there = {part: list(map(float, values)) for part, values in parts.items() if max(values, default=0.0) > 0}
    colours = dict(zip(parts, cycle(COLOURS), strict=False))
    traces = [part_bars(label_of(part), places, there[part], unit, colours[part]) for part in there]
    if limits is not None:
        traces.append(limit_marks(places, limits, unit))
    return figure(
        traces,
        barmode="stack",
        bargap=0.35,
        height=AROUND_BARS + BAR_HEIGHT * len(names),
        xaxis=axis(title, unit),
        yaxis={
            "tickvals": places,
            "ticktext": list(names),
            "autorange": "reversed",
            "showgrid": False,
            "tickfont": {"size": 12.5},
        },
        legend={"traceorder": "normal"},
        dragmode=False,
    )


def part_bars(name: str, places: Sequence[int], values: Sequence[float], unit: str, colour: str) -> Any:
    """One part of every bar."""
    return plotly().Bar(
        x=list(values),
        y=list(places),
        orientation="h",
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        hovertemplate=f"{name} %{{x:.3s}}{unit}<extra></extra>",
    )


def limit_marks(places: Sequence[int], limits: Sequence[float], unit: str) -> Any:
    """A line across each bar."""
    return plotly().Scatter(
        x=[float(limit) for limit in limits],
        y=list(places),
        mode="markers",
        name="capacity",
        marker={"symbol": "line-ns", "size": 26, "line": {"width": 2.5, "color": BROKEN}},
        hovertemplate=f"capacity %{{x:.3s}}{unit}<extra></extra>",
    )


def label_of(part: str) -> str:
    """A part without what it measures.

    >>> label_of("tp_communication_time")
    'tp communication'
    """
    return part.rpartition("_")[0].replace("_", " ")
