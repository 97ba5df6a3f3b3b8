"""The EndToEnd.csv that SimAI writes: a report of the simai profile -> text.

Times are in microseconds, bandwidths in the unit of the revision. Where a number is not finite SimAI writes
"NaN or Inf", and so does this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.formats.input_files import data_beside
from dse.adapters.simai.bandwidth import REVISIONS, Revision
from dse.adapters.simai.time import ALL_REDUCE, SimaiReport, raised, silent

#: Columns of the summary, and of the first revision's, with the totals that they hold.
SUMMARY: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["summary"]
FIRST_SUMMARY: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["first_summary"]

#: Places of forward, weight gradient and activation gradient: the order of the file's columns.
ORDER: Final = (0, 2, 1)


def endtoend_csv(report: SimaiReport, name: str, *, revision: str) -> str:
    """SimAI's text about the first workload of a report, for a run of this name.

    `revision` is a key of `REVISIONS`: the first one writes six decimals, and its summary last.
    """
    rules = REVISIONS[revision]
    totals = {key: float(values[0]) * 1e6 for key, values in report.totals.columns().items()}
    rows = row_table(report, name, rules)
    if not rules.overlaps:
        summary = ",".join(f"{title},{totals[key]:f}" for title, key in FIRST_SUMMARY.items())
        return "\n".join([*rows, summary, ""])
    whole = totals["total_time"]
    cells = [f"{shown(totals[key])} ({100 * totals[key] / whole:.2f}%)" for key in SUMMARY.values()]
    cells[-1] = shown(whole)
    head = ", ".join(["File name", *SUMMARY])
    return "\n".join([head, ", ".join([name, *cells]), *rows, ""])


def row_table(report: SimaiReport, name: str, rules: Revision) -> list[str]:
    """The heading of the rows, and every row in the order of the step."""
    bandwidths = "algbw,busbw"
    ways = ("fwd", "wg", "ig")
    head = ["layer_name", name, *(f"{way} compute" for way in ways), *(f"{way} exposed comm" for way in ways)]
    head += [f"{way} total comm,{bandwidths}" for way in ways]
    compute = np.rint(report.workload.time[0] * 1e9) / 1e3
    exposed, took = report.exposed[0] / 1e3, report.communication[0] / 1e3
    algbw, busbw = reached_bandwidths(report, took, rules)
    lines = []
    for row, title in enumerate(report.workload.names):
        cells = [title, name, *(number(values[row, at], rules) for values in (compute, exposed) for at in ORDER)]
        for at in ORDER:
            cells.append(number(took[row, at], rules))
            cells += [number(values[row, at], rules, decimals=2) for values in (algbw, busbw)]
        lines.append(",".join(cells))
    order = report.workload.unrolled(0).tolist()
    if rules.overlaps:
        return [",".join(head), *(lines[row] for row in order)]
    end = f",{float(report.totals.total_compute_time[0]) * 1e6:f}"
    return [",".join([*head, "workload finished at"]), *(lines[row] + end for row in order)]


def reached_bandwidths(report: SimaiReport, took: FloatArray, rules: Revision) -> tuple[FloatArray, FloatArray]:
    """(rows, passes) Message over time, and what of it goes over a link; in single precision, as there."""
    workload = report.workload
    kind, size = workload.collective[0], report.group_size[0]
    message = raised(workload.message_bytes[0], np.arange(3), rules)
    with np.errstate(divide="ignore", invalid="ignore"):
        algbw = (message / took * 1e6 / rules.bandwidth_unit).astype(np.float32).astype(np.float64)
        twice = np.where(kind == ALL_REDUCE, 2.0, 1.0)
        busbw = np.where(silent(kind), 0.0, algbw * twice * (size - 1) / size)
    return algbw, busbw.astype(np.float32).astype(np.float64)


def number(value: float, rules: Revision, *, decimals: int = 0) -> str:
    """A number of a row."""
    if not rules.overlaps:
        return f"{value:f}"
    return f"{value:.{decimals}f}" if decimals else shown(value)


def shown(value: float) -> str:
    """A whole number of microseconds."""
    return f"{value:.0f}" if np.isfinite(value) else "NaN or Inf"
