"""Designs that a user named, as a table: differing values in columns, shared ones below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.output import Record, counted, parameter_text, percent
from dse.pricing.sweep import NamedDesigns
from dse.reporting.design_table import (
    Column,
    fitted_table,
    interval_columns,
    parameter_column,
    rest_text,
    texts_of,
    varies,
)
from dse.spaces.sections.parameters import Parameter


def sweep_report(designs: NamedDesigns, width: int, *, most: int | None = None) -> list[RenderableType]:
    """The designs with the values that differ, at most the first `most` of them."""
    records = designs.records
    parameters = parameters_of(designs)
    varying = [p for p in parameters if p.name in designs.names or varies(records, "params", p.name)]
    shown = [p for p in varying if varies(records, "params", p.name) or len(records) == 1]
    columns = [
        *(parameter_column(p, records, index) for index, p in enumerate(shown, start=1)),
        *number_columns(designs, records),
    ]
    if any(record["reason"] for record in records):
        columns.append(Column("", [short_reason(record["reason"]) for record in records], left=True))
    reasons = dict.fromkeys(record["reason"] for record in records[:most])
    rules = [reason for reason in reasons if short_reason(reason) != reason]
    infeasible = designs.legal - designs.feasible
    illegal = len(designs) - designs.legal
    heading = f"{designs.space.name}: {counted(len(designs), 'design')}, {designs.feasible:,} feasible"
    heading += f", {infeasible:,} over a limit" if infeasible else ""
    heading += f", {illegal:,} not legal" if illegal else ""
    return [
        Text(heading + "."),
        Text(),
        *fitted_table([replace(column, cells=column.cells[:most]) for column in columns], width),
        *([Text(rest_text(len(records), most, "-o sweep.csv writes all"))] if most and len(records) > most else []),
        *alike_lines(designs, records, [p for p in parameters if p not in shown]),
        *(Text(rule.removeprefix("not legal: ")[:-1].replace(" (", ": ", 1)) for rule in rules),
    ]


def parameters_of(designs: NamedDesigns) -> list[Parameter]:
    """The named parameters in their order, then the other parameters."""
    space = designs.space
    known = {p.name: p for part in designs.parts for p in part.space.parameters}
    for part in designs.parts:
        for name, value in part.settings.items():
            known.setdefault(name, Parameter(name, space.unit_of(name), (value,)))
    return [*(known[name] for name in designs.names), *(p for n, p in known.items() if n not in designs.names)]


def number_columns(designs: NamedDesigns, records: Sequence[Record]) -> list[Column]:
    """Derived columns, objectives, intervals and utilization, as far as they differ."""
    space = designs.space
    columns = [
        Column(d.name, texts_of(records, "derived", d.name, d.unit), 1000 + index)
        for index, d in enumerate(space.derived)
        if d.name not in designs.names and varies(records, "derived", d.name)
    ]
    columns += [
        Column(o.name, texts_of(records, "values", o.key, o.unit))
        for o in space.objectives
        if varies(records, "values", o.key) or len(records) == 1
    ]
    columns += [column for column in interval_columns(records) if len(set(column.cells)) > 1]
    if varies(records, "breakdown", "mfu"):
        shares = [number(record, "breakdown", "mfu") for record in records]
        columns.append(Column("mfu", ["-" if s is None else percent(s) for s in shares], 500))
    return columns


def number(record: Record, group: str, name: str) -> float | None:
    """A finite number of a record, if it has one."""
    value = record[group].get(name)
    return value if value is not None and math.isfinite(value) else None


def short_reason(reason: str) -> str:
    """A reason without the text of its rule, which is printed below the table.

    >>> short_reason("not legal: tp_stays_in_the_node (tp <= node_size)")
    'not legal: tp_stays_in_the_node'
    """
    return reason.partition(" (")[0] if reason.startswith("not legal: ") else reason


def alike_lines(designs: NamedDesigns, records: Sequence[Record], alike: Sequence[Parameter]) -> list[RenderableType]:
    """Values that all evaluated designs share."""
    timed = [record for record in records if record["values"]]
    if len(records) < 2 or not timed:
        return []
    first = timed[0]
    params = first["params"]
    design = " ".join(f"{p.name}={parameter_text(p, params[p.name])}" for p in alike if p.name in params)
    values = [
        f"{o.name.replace('_', ' ')} {readable(value, o.unit)}"
        for o in designs.space.objectives
        if not varies(records, "values", o.key) and (value := number(first, "values", o.key)) is not None
    ]
    shared = [text for text in (design, ", ".join(values)) if text]
    return [Text(f"All have {'; '.join(shared)}")] if shared else []
