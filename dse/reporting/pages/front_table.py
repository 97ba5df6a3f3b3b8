"""The front of a study as a table of a page: what may be sorted and filtered is in its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from costmodel.formats.quantity import readable
from dse.output.text import Record, percent
from dse.reporting.design_table import varying_parameters
from dse.spaces.sections.parameters import Parameter
from dse.spaces.space import Space


@dataclass(frozen=True)
class TableColumn:
    """One column: its heading, the text of each cell, and the number of each where it has one."""

    name: str
    texts: Sequence[str]
    values: Sequence[float] | None = None  #: [the SI unit of the column]
    example: str = ""


def front_table(space: Space, records: Sequence[Record], notable: Mapping[int, str]) -> str:
    """HTML of a front: a row for each design, a filter for each column."""
    columns = fields(space, records, notable)
    heads = "".join(
        f'<th scope="col"><button>{escape(column.name.replace("_", " "))}</button></th>' for column in columns
    )
    filters = "".join(
        f'<th><input type="text" placeholder="{escape(column.example)}" aria-label="filter {escape(column.name)}"></th>'
        for column in columns
    )
    rows = "".join(
        f'<tr data-row="{row}">{"".join(cell(column, row) for column in columns)}</tr>' for row in range(len(records))
    )
    return (
        '<div class="tools"><p><span id="shown"></span> designs shown</p>'
        '<button id="clear">Show all</button></div>'
        f'<div class="front"><table><thead><tr>{heads}</tr><tr>{filters}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def cell(column: TableColumn, row: int) -> str:
    """Cell of the table as HTML."""
    number = "" if column.values is None else f' data-value="{column.values[row]!r}"'
    note = ' class="note"' if column.name == "best at" else ""
    return f"<td{number}{note}>{escape(column.texts[row])}</td>"


def fields(space: Space, records: Sequence[Record], notable: Mapping[int, str]) -> list[TableColumn]:
    """Trial, what it is best at, objectives, utilization, and the parameters that differ."""
    numbers = [float(record["trial"]) for record in records]
    columns = [TableColumn("trial", [f"{number:.0f}" for number in numbers], numbers)]
    for objective in space.objectives:
        numbers = [float(record["values"][objective.key]) for record in records]
        texts = [readable(value, objective.unit) for value in numbers]
        sign = "<" if objective.direction == "minimize" else ">"
        columns.append(TableColumn(objective.name, texts, numbers, f"{sign}{texts[len(texts) // 2]}"))
    if "mfu" not in [objective.name for objective in space.objectives]:
        shares = [float(record["breakdown"].get("mfu", 0.0)) for record in records]
        columns.append(TableColumn("mfu", [percent(share) for share in shares], shares))
    at = [notable.get(row, "").removeprefix("best ") for row in range(len(records))]
    columns.append(TableColumn("best at", at))
    varying = varying_parameters(space, records) if len(records) > 1 else []
    return [*columns, *(parameter_field(space.by_name[name], records) for name in varying)]


def parameter_field(parameter: Parameter, records: Sequence[Record]) -> TableColumn:
    """The column of a parameter."""
    values: list[Any] = [record["params"][parameter.name] for record in records]
    if parameter.words or parameter.boolean:
        texts = [parameter.shown(value) for value in values]
        return TableColumn(parameter.name, texts, example=texts[0])
    return TableColumn(parameter.name, [readable(value, parameter.unit) for value in values], values)
