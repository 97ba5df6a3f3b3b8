"""What a person reads at the end of `dse plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from dse.report.study_report import Report, front_report

if TYPE_CHECKING:
    from dse.search.study import Study


def plan_report(study: Study, heading: str, commands: Sequence[str], width: int) -> Report:
    """The best layouts of a plan, and what to do next."""
    front = study.table.front().records()
    shown = front_report(study.space, front, width, more=f"dse pareto {study.name}") if front else []
    return [
        *(Text(heading), Text(), *shown, Text()),
        Text(f"Kept as study {study.name}. Next:"),
        *(Padding(command, (0, 0, 0, 2)) for command in commands),
    ]
