"""Comparisons with measurements as one page that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from costmodel.formats.quantity import readable
from dse.report.scatter import Point, legend, scatter
from dse.report.validation_report import headline, reason_rows, tables
from dse.validation.comparison import ComparedRow
from dse.validation.kernels import kind_of, size_of

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5d6675; --line: #d9dee6; --paper: #fff;
  --panel: #f6f8fa; --series: 40%; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --dim: #98a2b1; --line: #333b48;
  --paper: #14181f; --panel: #1b212b; --series: 66%; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .6rem; }
p { margin: .2rem 0; color: var(--dim); }
figure { margin: 0; display: grid; grid-template-columns: minmax(0, 46rem) minmax(11rem, 1fr); gap: 1rem;
  align-items: start; }
figure > svg { width: 100%; height: auto; background: var(--panel); border-radius: 8px; }
@media (max-width: 56rem) { figure { grid-template-columns: 1fr; } }
svg text { fill: var(--dim); font-size: 12px; } svg .axis { fill: var(--ink); font-size: 13px; }
.frame { fill: none; stroke: var(--line); } .grid { stroke: var(--line); stroke-width: .6; fill: none; }
.exact { stroke: var(--ink); stroke-width: 1.3; }
.error { stroke: var(--dim); stroke-dasharray: 5 4; opacity: .75; }
.series { fill: var(--c); fill-opacity: .72; stroke: var(--paper); stroke-width: .7;
  transition: opacity .15s; }
.series g:hover { fill-opacity: 1; stroke: var(--ink); stroke-width: 1.4; }
.legend { list-style: none; margin: 0; padding: .4rem; columns: 11rem; font-size: 13px; }
.legend li { display: flex; gap: .45rem; align-items: center; break-inside: avoid; cursor: default; }
.legend svg { width: 14px; height: 14px; flex: none; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem .28rem 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; vertical-align: top; }
th { color: var(--dim); font-weight: 600; border-bottom-color: var(--dim); }
th:first-child, td:first-child, .texts td, .texts th { text-align: left; } .texts td { white-space: normal; }
details { margin-top: .8rem; } summary { cursor: pointer; color: var(--dim); }
"""


def validation_page(rows: Sequence[ComparedRow], title: str) -> str:
    """HTML of predictions beside measurements: pictures, tables, and every row.

    Parameters
    ----------
    rows : sequence of ComparedRow
        Of any types.
    title : str
        What was measured.
    """
    shown, first = [], 0
    for what, unit, series in pictures(rows):
        picture = scatter(series, what, unit, first)
        dimmed = "".join(
            f"figure:has(.k{n}:hover) .series:not(.s{n}):not(.legend .series) {{ opacity: .07; }}"
            for n in range(first, first + len(series))
        )
        heading = f"{what[0].upper()}{what[1:]}"
        shown.append(
            f"<h2>{escape(heading)}: predicted against measured</h2><style>{dimmed}</style>"
            f"<figure>{picture}{legend([*series], first)}</figure>"
        )
        first += len(series)
    shown += [
        f'<h2>{escape(name)}</h2><div class="wide">{table(headings, cells)}</div>'
        for name, headings, cells in tables(rows)
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}: dse validate'
        f'</title><meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n<body>'
        f"<h1>{escape(title)}: predictions and measurements</h1><p>{escape(headline(rows))}. Lines beside "
        f"the diagonal are errors of 10 and 25 %.</p>{''.join(shown)}{not_expressed(rows)}{every_row(rows)}"
        "</body></html>\n"
    )


def pictures(rows: Sequence[ComparedRow]) -> list[tuple[str, str, dict[str, list[Point]]]]:
    """What is measured, its unit and its series, of each picture that has points."""
    times = by_name((one.row.dataset, time_point(one)) for one in rows if one.is_step)
    memory = by_name((one.row.dataset, memory_point(one)) for one in rows if math.isfinite(one.memory_error))
    kernels = by_name(
        (kind_of(one.row), kernel_point(one)) for one in rows if one.row.is_kernel and one.expressed
    )
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
    return Point(
        one.measured_bytes, one.predicted_bytes, f"{run_text(one)}\n{both} ({one.memory_error:+.1%})"
    )


def kernel_point(one: ComparedRow) -> Point:
    """A kernel."""
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


def table(headings: Sequence[str], cells: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of texts."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


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
