"""Parameters and objectives of designs as parallel coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from costmodel.formats.quantity import readable
from costmodel.plotting import figure, plotly
from dse.spaces.sections.objectives import Objective
from dse.spaces.sections.parameters import Parameter, Value
from dse.spaces.space import Space

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Values up to which a parameter has a tick for each of them, equally far apart.
MOST_TICKS: Final = 16

#: Room that one coordinate needs. [pixels]
COORDINATE: Final = 78


def parallel_figure(space: Space, records: Sequence[Mapping[str, Any]]) -> go.Figure:
    """A line for each design across the parameters that differ and the objectives.

    Parameters
    ----------
    space : Space
        Where the designs come from.
    records : sequence of mappings
        The designs, each with its ``params`` and ``values``.
    """
    names = [p for p in space.parameters if len({record["params"][p.name] for record in records}) > 1]
    first = space.objectives[0]
    colours = [record["values"][first.key] for record in records]
    lines = plotly().Parcoords(
        dimensions=[
            *(parameter_dimension(p, [record["params"][p.name] for record in records]) for p in names),
            *(objective_dimension(o, [record["values"][o.key] for record in records])
              for o in space.objectives),
        ],
        line={
            "color": colours,
            "colorscale": [[0, "#f0883e"], [0.5, "#8e6bbf"], [1, "#2f7de1"]],
            "reversescale": first.direction == "maximize",
        },
        unselected={"line": {"opacity": 0.06}},
        labelangle=-24,
    )  # fmt: skip
    return figure([lines], height=430, margin={"l": 60, "r": 60, "t": 105, "b": 30})


def parameter_dimension(parameter: Parameter, values: Sequence[Any]) -> dict[str, Any]:
    """A coordinate of a parameter: its options equally far apart where they are few."""
    used = sorted(set(values), key=parameter.code)
    label = parameter.name.replace("_", " ")
    if len(used) > MOST_TICKS:
        return {"label": label, "values": [parameter.code(value) for value in values], "tickformat": "~s"}
    place = {value: at for at, value in enumerate(used)}
    return {
        "label": label,
        "values": [place[value] for value in values],
        "tickvals": list(place.values()),
        "ticktext": [tick_text(parameter, value) for value in used],
    }


def tick_text(parameter: Parameter, value: Value) -> str:
    """A value in short."""
    return parameter.shown(value) if isinstance(value, str | bool) else readable(value, parameter.unit)


def objective_dimension(objective: Objective, values: Sequence[float]) -> dict[str, Any]:
    """A coordinate of an objective."""
    unit = "" if objective.unit == "-" else f" [{objective.unit}]"
    return {
        "label": objective.name.replace("_", " ") + unit,
        "values": list(values),
        "tickformat": ".3~s" if objective.unit not in ("-", "s") else ".3~g",
    }
