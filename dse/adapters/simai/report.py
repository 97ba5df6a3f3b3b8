"""The report of one workload by SimAI's rules, as text and as a record for other programs."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from costmodel.formats.quantity import readable
from costmodel.training.kernel_kind import PASSES
from dse.adapters.simai.time import SimaiReport
from dse.adapters.simai.workload_rows import COLLECTIVES, GROUPS
from dse.output.text import percent
from dse.reporting.design_table import ruled_table

#: Column of `Totals` -> what it is called in the report, in the order in which they add up.
_PARTS: Final = {
    "total_compute_time": "arithmetic",
    "exposed_tp_time": "tensor-parallel communication",
    "exposed_ep_time": "communication among experts",
    "exposed_dp_time": "data-parallel communication",
    "exposed_dp_ep_time": "communication among replicas of experts",
    "exposed_pp_time": "messages between stages",
    "bubble_time": "pipeline bubble",
}

#: What the reference prints for a number that is none.
NOT_FINITE: Final = "NaN or Inf"


def simai_record(report: SimaiReport, *, strict: bool = False) -> dict[str, Any]:
    """The first workload of a report as JSON: totals, and every row in the order of the step. [us]"""
    totals: dict[str, float | str] = {
        name.removesuffix("_time") + "_us": float(values[0]) * 1e6 for name, values in report.totals.columns().items()
    }
    if strict:
        totals = {key: value if np.isfinite(value) else NOT_FINITE for key, value in totals.items()}
    rows = row_records(report)
    return {**totals, "rows": [rows[place] for place in report.workload.unrolled().tolist()]}


def row_records(report: SimaiReport) -> list[dict[str, Any]]:
    """Every row of the template, pass by pass."""
    workload = report.workload
    kinds, groups = workload.collective[0].tolist(), workload.group[0].tolist()
    times = (np.rint(workload.time[0] * 1e9) / 1e3).tolist()
    sizes, ranks = workload.message_bytes[0].tolist(), report.group_size[0].tolist()
    took, exposed = (report.communication[0] / 1e3).tolist(), (report.exposed[0] / 1e3).tolist()
    return [
        {
            "name": name,
            **{
                of_pass: {
                    "compute_us": times[row][at],
                    "collective": COLLECTIVES[kinds[row][at]],
                    "group": GROUPS[groups[row][at]],
                    "group_size": int(ranks[row][at]),
                    "message_bytes": int(sizes[row][at]),
                    "communication_us": took[row][at],
                    "exposed_us": exposed[row][at],
                }
                for at, of_pass in enumerate(PASSES)
            },
        }
        for row, name in enumerate(workload.names)
    ]


def simai_report(report: SimaiReport, revision: str) -> list[RenderableType]:
    """The first workload of a report in tables: where the time goes, and which rows take it."""
    layout = report.workload.layout
    columns = {name: float(values[0]) for name, values in layout.columns().items() if name in _SHOWN}
    shape = ", ".join(f"{name} {value:g}" for name, value in columns.items() if np.isfinite(value))
    heading = f"{revision}, {report.world_size[0]:g} GPUs: {shape}"
    return [Text(heading, style="bold"), Text(), totals_table(report), Text(), rows_table(report)]


#: Most rows of a table for people.
MOST_SHOWN: Final = 1000
_SHOWN: Final = ("tp", "pp", "ep", "vpp")


def totals_table(report: SimaiReport) -> Table:
    """Where the time of the step goes."""
    whole = float(report.totals.total_time[0])
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, text in _PARTS.items():
        value = float(getattr(report.totals, name)[0])
        share = percent(value / whole) if np.isfinite(whole) and whole > 0 else ""
        if value != 0:
            table.add_row(text, time_text(value), share)
    table.add_row(Text("step", style="bold"), time_text(whole), "")
    return table


def rows_table(report: SimaiReport) -> Table:
    """Rows of one name together, in the order of the step."""
    table = ruled_table(
        "row", "times", "arithmetic", *(f"{word}\nexposed" for word in ("forward", "backward", "weights"))
    )
    workload = report.workload
    counts, exposed = workload.counts[0], report.exposed[0] * 1e-9
    places: dict[str, list[int]] = {}
    for place, name in enumerate(workload.names):
        if counts[place]:
            places.setdefault(name, []).append(place)
    for name, rows in islice(places.items(), MOST_SHOWN):
        arithmetic = float(counts[rows] @ workload.time[0, rows].sum(axis=1))
        cells = [time_text(float(value)) for value in (arithmetic, *(counts[rows] @ exposed[rows]))]
        table.add_row(name, f"{counts[rows].sum():g}", *cells)
    if len(places) > MOST_SHOWN:
        table.add_row(f"and {len(places) - MOST_SHOWN:,} more, which --format json has")
    return table


def time_text(seconds: float) -> str:
    """A time, or that there is none."""
    return readable(seconds, "s", digits=4) if np.isfinite(seconds) else "not given"
