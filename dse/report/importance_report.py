"""Importances of parameters as a table."""

from __future__ import annotations

import numpy as np
from rich.text import Text

from dse.explain.importance import DRAWN, Importance
from dse.report.design_table import Column, drawn, fitted, lines_of
from dse.report.study_report import Report
from dse.report.text import bar, percent

#: Length of the longest bar. [characters]
BAR = 8


def importance_report(name: str, found: Importance, width: int) -> Report:
    """For each objective what the best trials share, and what explains all designs."""
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
        Text("trials: what tells the best tenth of the trials from all (PED-ANOVA); adds up to 100 %."),
        Text(f"space: share of the variance that it alone explains, over {DRAWN:,} random legal designs."),
    ]
    names = [column for column in left_out if column]
    return [*lines, Text(f"too wide to show: {', '.join(names)}")] if names else lines
