"""The designs of a study as one table to read: the front, or all trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from dse.pricing.intervals import RECORD_KEYS
from dse.report.design_table import design_table
from dse.report.text import Record, counted

if TYPE_CHECKING:
    from dse.search.study import Study
    from dse.search.trial_table import Selection, TrialTable

Report = list[RenderableType]


def designs_report(study: Study, part: Selection, width: int, *, most: int | None = None) -> Report:
    """The whole front, or all finished trials, as one table; of more than `most`, both ends."""
    table = study.table.front() if part == "front" else study.table
    if not len(table):
        return [Text(f"Study {study.name}: none so far.")]
    if most is not None and len(table) > most:
        return ends_report(study, part, table, width, most // 2)
    feasible = table.feasible.tolist()
    notes = {row: "infeasible" for row, kept in enumerate(feasible) if not kept}
    records = [in_short(record) for record in table.each_record()]
    return [*design_table(study.space, records, width, notes)]


def ends_report(study: Study, part: Selection, table: TrialTable, width: int, rows: int) -> Report:
    """The first and the last rows of a long table, and how to see the others."""
    space, count = study.space, len(table)
    records = [
        in_short(record)
        for first in (0, count - rows)
        for record in table.take(np.arange(first, first + rows)).records()
    ]
    feasible = [*table.feasible[:rows].tolist(), *table.feasible[-rows:].tolist()]
    notes = {row: "infeasible" for row, kept in enumerate(feasible) if not kept}
    varying = [p.name for p in space.parameters if p.options is None or p.options.size > 1]
    command = "pareto" if part == "front" else "trials"
    return [
        *design_table(space, records, width, notes, varying=varying),
        Text(f"the first and the last {rows} of {counted(count, 'design' if part == 'front' else 'trial')}; "
             f"all of them: dse {command} {study.name} -o {command}.csv"),
    ]  # fmt: skip


def in_short(record: Record) -> Record:
    """What a table shows of a design."""
    names = ("trial", "winner", "params", "derived", "values", "run", "layouts", *RECORD_KEYS)
    kept = {name: record[name] for name in names if name in record}
    shown = {n: v for n, v in record["breakdown"].items() if n == "mfu" or n.endswith(".step_time_s")}
    return {**kept, "breakdown": shown}
