"""Comparisons with measurements as one page that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from costmodel.formats.quantity import readable
from dse.reporting.measurements.validation_report import headline, reason_rows, tables
from dse.reporting.pages.page import page, plot, table
from dse.reporting.pictures.scatter import Point, scatter
from dse.validation.comparison import ComparedRow
from dse.validation.kernels import kind_of, size_of


def validation_page(rows: Sequence[ComparedRow], title: str) -> str:
    """HTML of predictions beside measurements: pictures, tables, and every row."""
    figures, shown = {}, []
    for what, unit, series in pictures(rows):
        figures[what] = scatter(series, what, unit)
        heading = f"{what[0].upper()}{what[1:]}: predicted against measured"
        shown.append(f"<h2>{escape(heading)}</h2>{plot(what)}")
    shown += [
        f'<h2>{escape(name)}</h2><div class="wide">{table(headings, cells)}</div>'
        for name, headings, cells in tables(rows)
    ]
    heading = f"{title}: predictions and measurements"
    return page(
        f"{title}: dse validate",
        f"<h1>{escape(heading)}</h1><p>{escape(headline(rows))}. Lines beside the diagonal are errors of 10 "
        f"and 25 %; a click on a name in a legend shows it alone.</p>"
        f"{''.join(shown)}{not_expressed(rows)}{every_row(rows)}",
        figures=figures,
    )


def pictures(rows: Sequence[ComparedRow]) -> list[tuple[str, str, dict[str, list[Point]]]]:
    """What is measured, its unit and its series, of each picture that has points."""
    times = by_name((one.row.dataset, time_point(one)) for one in rows if one.is_step)
    memory = by_name((one.row.dataset, memory_point(one)) for one in rows if math.isfinite(one.memory_error))
    kernels = by_name((kind_of(one.row), kernel_point(one)) for one in rows if one.row.is_kernel and one.expressed)
    found = [("step time", "s", times), ("memory", "B", memory), ("kernel time", "s", kernels)]
    return [(what, unit, series) for what, unit, series in found if series]


def by_name(points: Iterable[tuple[str, Point]]) -> dict[str, list[Point]]:
    """Points by the name of their series."""
    series: dict[str, list[Point]] = {}
    for name, point in points:
        series.setdefault(name, []).append(point)
    return series


def time_point(one: ComparedRow) -> Point:
    """The step of a row."""
    return Point(one.measured_s, one.predicted_s, f"{run_text(one)}\n{times_text(one)}")


def memory_point(one: ComparedRow) -> Point:
    """The memory of a row."""
    both = f"{readable(one.predicted_bytes, 'B')} for {readable(one.measured_bytes, 'B')}"
    return Point(one.measured_bytes, one.predicted_bytes, f"{run_text(one)}\n{both} ({one.memory_error:+.1%})")


def kernel_point(one: ComparedRow) -> Point:
    """Point of a kernel in the picture of kernels."""
    return Point(one.measured_s, one.predicted_s, f"{kernel_text(one)}\n{times_text(one)}")


def run_text(one: ComparedRow) -> str:
    """Which run a row is of."""
    layout = " ".join(f"{name}={value}" for name, value in layout_of(one).items())
    return f"{one.row.id}, {one.row.model}, {one.row.hw}" + (f"\n{layout}" if layout else "")


def layout_of(one: ComparedRow) -> Mapping[str, str]:
    """The counts of a design that are not 1, as they are printed."""
    return {name: f"{value:g}" for name, value in one.layout if isinstance(value, float) and value > 1}


def kernel_text(one: ComparedRow) -> str:
    """Which kernel a row is of."""
    row = one.row
    if row.row_type == "kernel_gemm":
        return f"{row.id}, {row.m:g} x {row.n:g} x {row.k:g} {row.dtype}, {row.hw}"
    size, unit = size_of(row)
    ranks = f", {row.n_ranks:g} ranks" if row.n_ranks else ""
    return f"{row.id}, {row.op} of {readable(size, unit)}{ranks}, {row.hw}"


def times_text(one: ComparedRow) -> str:
    """Predicted and measured time, and the error."""
    return f"{readable(one.predicted_s, 's')} for {readable(one.measured_s, 's')} ({one.error:+.1%})"


def not_expressed(rows: Sequence[ComparedRow]) -> str:
    """What rows lack that are not expressed, and which they are."""
    lacking = reason_rows(rows)
    if not lacking:
        return ""
    each = [(one.row.id, one.row.dataset, one.row.model, one.why_not) for one in rows if one.why_not]
    return (
        f"<h2>Not expressed</h2>{table(('rows', 'lack', 'data sets'), lacking, 'texts')}"
        f"<details><summary>{len(each)} rows</summary>"
        f"{table(('id', 'data set', 'model', 'lacks'), each, 'texts')}</details>"
    )


def every_row(rows: Sequence[ComparedRow]) -> str:
    """All rows with a predicted time."""
    cells = [
        (
            one.row.id,
            one.row.dataset,
            one.row.model or kind_of(one.row),
            readable(one.measured_s, "s"),
            readable(one.predicted_s, "s"),
            f"{one.error:+.1%}",
        )
        for one in rows
        if math.isfinite(one.error)
    ]
    headings = ("id", "data set", "model", "measured", "predicted", "error")
    return (
        f'<h2>Every row</h2><details><summary>{len(cells)} rows</summary><div class="wide">'
        f"{table(headings, cells)}</div></details>"
    )
