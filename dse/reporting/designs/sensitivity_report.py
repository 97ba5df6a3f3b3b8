"""Sensitivities as a tornado of text bars; importances of parameters as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.explaining.sensitivity import Sensitivity
from dse.output.text import bar, parameter_text, percent
from dse.reporting.answers import wrapped
from dse.reporting.design_table import Column, drawn, fitted, lines_of
from dse.reporting.designs.difference_report import signed_bar
from dse.reporting.designs.explanation_report import heading
from dse.reporting.designs.neighbours_report import relative
from dse.reporting.study_report import Report

if TYPE_CHECKING:
    from dse.explaining.importance import Importance

#: Length of the longest bar. [characters]
BAR = 8


def importance_report(name: str, found: Importance, width: int) -> Report:
    """Importance of each parameter for each objective: among the best trials, and over all designs."""
    from dse.explaining.importance import DRAWN  # loads Optuna

    order = np.argsort(-(found.trials[0] + found.designs[0]), kind="stable").tolist()
    columns = [Column("parameter", ("parameter",), [found.parameters[at] for at in order], left=True)]
    for row, objective in enumerate(found.space.objectives):
        heading = lines_of(objective.name)
        for what, shares in (("trials", found.trials[row]), ("space", found.designs[row])):
            bars = [bar(share, BAR) if share >= 0.005 else "" for share in shares[order]]
            cells = [percent(share) for share in shares[order]]
            columns += [
                Column(f"{objective.name} {what}", (*heading, what), cells, row),
                Column("", ("",), bars, 100 + row, left=True),
            ]
    kept, left_out = fitted(columns, width)
    lines: Report = [
        Text(f"Study {name}: importance of parameters, over {found.n_trials:,} feasible trials."),
        Text(),
        *drawn(kept),
        Text(),
        Text("trials: how the best tenth of the trials differs from all trials (PED-ANOVA); sum 100 %."),
        Text(f"space: share of the variance that a parameter explains alone, over {DRAWN:,} random legal"),
        Text("designs. Parameters of legal designs depend on each other: shares overlap and do not add up."),
    ]
    names = [column for column in left_out if column]
    return [*lines, Text(f"Columns that do not fit: {', '.join(names)}")] if names else lines


#: Rows of each part, unless all are asked for.
ROWS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class TornadoRow:
    """A bar, and what it is of."""

    name: str
    share: float  #: change of the step time, or an elasticity [-]
    text: str
    faint: bool = False  #: of a design that breaks a limit


def sensitivity_report(found: Sensitivity, width: int, *, everything: bool = False) -> Report:
    """Tornados: steps of parameters, steps of counts, and elasticities of the hardware."""
    report: Report = [*wrapped(heading(found.explanation), width), Text()]
    parts = {
        "one step of a parameter": parameter_rows(found),
        "more parts of a chip": count_rows(found),
        "1 % more of a quantity": quantity_rows(found),
    }
    for title, rows in parts.items():
        shown = rows if everything else rows[:ROWS_SHOWN]
        if not shown:
            continue
        longest = max(abs(row.share) for row in rows) or 1.0
        limits = [Column("limits", ("limits",), ["does not fit" if r.faint else "" for r in shown], left=True)]
        report += [
            *drawn(
                [
                    Column("name", (title,), [row.name for row in shown], left=True),
                    Column("step", ("step time",), [row.text for row in shown]),
                    Column(
                        "bar", ("faster       slower",), [signed_bar(row.share / longest) for row in shown], left=True
                    ),
                    *(limits if any(row.faint for row in shown) else []),
                ]
            )
        ]
        if len(rows) > len(shown):
            report.append(Text(f"{len(rows) - len(shown)} more: --all shows them"))
        report.append(Text())
    return [*report, Text(f"{found.without} other quantities do not change the step time.")]


def parameter_rows(found: Sensitivity) -> list[TornadoRow]:
    """A bar for each step of a parameter."""
    space, rows = found.explanation.space, []
    for neighbour in found.parameters:
        [(name, (old, new))] = neighbour.changes.items()
        before, after = (parameter_text(space.by_name[name], value) for value in (old, new))
        share = found.change(neighbour)
        text = relative(share, 1.0)
        rows.append(TornadoRow(f"{name} {before} to {after}", share, text, not neighbour.feasible))
    return rows


def count_rows(found: Sensitivity) -> list[TornadoRow]:
    """A bar for the next larger number of each part of a chip."""
    return [
        TornadoRow(
            f"{e.quantity} {readable(e.value, e.unit)} to {readable(e.larger, e.unit)}",
            e.change,
            relative(e.change, 1.0),
        )
        for e in found.counts
    ]


def quantity_rows(found: Sensitivity) -> list[TornadoRow]:
    """A bar for each quantity."""
    return [
        TornadoRow(f"{e.quantity} of {readable(e.value, e.unit)}", e.elasticity, f"{e.elasticity:+.3f} %")
        for e in found.elasticities
    ]


def table_text(found: Sensitivity) -> str:
    """Rows of both parts as CSV."""
    import pandas as pd

    rows: list[dict[str, Any]] = found.records()
    return pd.DataFrame(rows).to_csv(index=False)
