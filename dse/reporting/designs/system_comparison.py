"""Comparison of two systems: the quantities that differ, and their ratios."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rich.text import Text

from costmodel.columns import FloatArray
from costmodel.formats.quantity import readable
from costmodel.machine.system import System, chip_power, chip_price
from dse.reporting.answers import joined, wrapped
from dse.reporting.design_table import Column, drawn, fitted
from dse.reporting.study_report import ROWS_SHOWN, Report

#: Quantities that a comparison begins with.
HEADLINE = (
    *("peak_flop_rate", "dram_bandwidth", "dram_capacity", "node_bandwidth", "fabric_bandwidth"),
    *("chip_price", "chip_power"),
)
#: Derived quantities: name -> unit, and value of a system.
DERIVED: dict[str, tuple[str, Callable[[System], FloatArray]]] = {
    "peak_flop_rate": ("FLOP/s", lambda system: system.chip.peak_flop_rate),
    "chip_price": ("$", chip_price),
    "chip_power": ("W", chip_power),
}


def system_quantities(system: System) -> dict[str, tuple[str, float]]:
    """Unit and value of every quantity of a machine, derived ones first. [SI units]"""
    units = system.units()
    derived = {name: (unit, value_of(found(system))) for name, (unit, found) in DERIVED.items()}
    return derived | {name: (units[name], value_of(own)) for name, own in system.quantities().items()}


def value_of(values: FloatArray) -> float:
    """The one value of a quantity. [its unit]"""
    return float(np.ravel(values)[0])


def differing(one: System, other: System) -> list[dict[str, Any]]:
    """Quantities in which two machines differ: name, unit, values, and their ratio; NaN where none. [-]"""
    left, right = system_quantities(one), system_quantities(other)
    rows = []
    for name in dict.fromkeys((*left, *right)):
        unit = (left.get(name) or right[name])[0]
        values = [own.get(name, (unit, float("nan")))[1] for own in (left, right)]
        if values[0] != values[1] and not all(np.isnan(values)):
            ratio = values[1] / values[0] if values[0] else float("nan")
            rows.append({"quantity": name, "unit": unit, "values": values, "ratio": ratio})
    return rows


def system_report(one: System, other: System, width: int) -> Report:
    """The ratios of rates, memory and price; then the table of `differing`, its first rows."""
    rows = sorted(differing(one, other), key=lambda row: row["quantity"] not in HEADLINE)
    if not rows:
        return [Text(f"Systems {one.name} and {other.name} are alike.")]
    shown = rows[:ROWS_SHOWN]
    cells = [
        ["-" if np.isnan(row["values"][at]) else readable(row["values"][at], row["unit"]) for row in shown]
        for at in (0, 1)
    ]
    table = [
        Column("quantity", ("quantity",), [row["quantity"] for row in shown], left=True),
        Column(one.name, (one.name,), cells[0], 1),
        Column(other.name, (other.name,), cells[1], 1),
        Column("ratio", ("ratio",), [ratio_text(row) for row in shown]),
    ]
    headline = [f"{ratio_text(row)} x {row['quantity']}" for row in rows if row["quantity"] in HEADLINE]
    text = f"{other.name} has {joined(headline)} of {one.name}." if headline else ""
    count = f"Systems {one.name} and {other.name}: {len(rows)} quantities differ."
    more = len(rows) - len(shown)
    return [
        *wrapped([("", part) for part in (text, count) if part], width),
        Text(),
        *drawn(fitted(table, width)[0]),
        *([Text(f"{more} more: --format json")] if more else []),
    ]


def ratio_text(row: dict[str, Any]) -> str:
    """The ratio of a quantity; "" where it has none."""
    return f"{row['ratio']:.3g}" if np.isfinite(row["ratio"]) else ""
