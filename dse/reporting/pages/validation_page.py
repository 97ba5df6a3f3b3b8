"""Comparisons with measurements as one page: errors by data set, tables, and every row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.columns import grouped
from costmodel.formats.quantity import readable
from dse.reporting.measurements.validation_report import accuracy_tables, headline, reason_rows, tables
from dse.reporting.pages.page import page, rounded
from dse.validation.comparison import ComparedRow
from dse.validation.kernels import kind_of, size_of

#: A measured value, predicted over measured, and a text about both.
Point = tuple[float, float, str]


def validation_page(rows: Sequence[ComparedRow], title: str) -> str:
    """HTML of predictions and measurements."""
    sources = grouped((one.row.dataset, one.row.source) for one in rows)
    data = {
        "kind": "validation",
        "question": f"{title}: predictions and measurements",
        "headline": f"{headline(rows)}.",
        "pictures": [{"what": what, "series": series} for what, series in pictures(rows)],
        "tables": [
            {"title": name, "head": head, "rows": cells, "left": [0, *([9] if "sources" in head else [])]}
            for name, head, cells in (*accuracy_tables(rows), *tables(rows))
            if cells
        ],
        "lacking": reason_rows(rows),
        "lacks": [(one.row.id, one.row.dataset, one.row.model, one.why_not) for one in rows if one.why_not],
        "rows": every_row(rows),
        "sources": {name: [source for source in dict.fromkeys(texts) if source] for name, texts in sources.items()},
    }
    return page(f"{title}: dse validate", data, "validation.js")


def pictures(rows: Sequence[ComparedRow]) -> list[tuple[str, dict[str, list[Point]]]]:
    """Quantities with the points of each data set, or kind of kernel; those that have points."""

    def of_time(one: ComparedRow, text: str) -> Point:
        return point(text, "s", one.measured_s, one.predicted_s, one.error)

    times = grouped((one.row.dataset, of_time(one, run_text(one))) for one in rows if one.is_step)
    memory = grouped(
        (one.row.dataset, point(run_text(one), "B", one.measured_bytes, one.predicted_bytes, one.memory_error))
        for one in rows if math.isfinite(one.memory_error)
    )  # fmt: skip
    kernels = grouped(
        (kind_of(one.row), of_time(one, kernel_text(one))) for one in rows if one.row.is_kernel and one.expressed
    )
    return [pair for pair in (("step time", times), ("memory", memory), ("kernel time", kernels)) if pair[1]]


def point(text: str, unit: str, measured: float, predicted: float, error: float) -> Point:
    """Point of a measured and a predicted quantity of a row that a text describes."""
    both = f"{readable(predicted, unit)} for {readable(measured, unit)} ({error:+.1%})"
    return rounded(measured), rounded(1 + error), f"{text}\n{both}"


def run_text(one: ComparedRow) -> str:
    """The run of a row: its name, model, hardware and layout."""
    layout = " ".join(f"{name}={value}" for name, value in layout_of(one).items())
    return f"{one.row.id}, {one.row.model}, {one.row.hw}" + (f"\n{layout}" if layout else "")


def layout_of(one: ComparedRow) -> Mapping[str, str]:
    """The counts of a design that are not 1, as they are printed."""
    return {name: f"{value:g}" for name, value in one.layout if isinstance(value, float) and value > 1}


def kernel_text(one: ComparedRow) -> str:
    """The kernel of a row: its name, shape or size, and hardware."""
    row = one.row
    if row.row_type == "kernel_gemm":
        return f"{row.id}, {row.m:g} x {row.n:g} x {row.k:g} {row.dtype}, {row.hw}"
    size, unit = size_of(row)
    ranks = f", {row.n_ranks:g} ranks" if row.n_ranks else ""
    return f"{row.id}, {row.op} of {readable(size, unit)}{ranks}, {row.hw}"


def every_row(rows: Sequence[ComparedRow]) -> list[list[Any]]:
    """Cells of all rows with a predicted time."""
    return [
        [one.row.id, one.row.dataset, one.row.model or kind_of(one.row), readable(one.measured_s, "s"),
         readable(one.predicted_s, "s"), f"{one.error:+.1%}"]
        for one in rows if math.isfinite(one.error)
    ]  # fmt: skip
