"""Several workloads on a machine in words: the step and the layout of each."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.formats.quantity import readable
from dse.report.text import Record, design_text
from dse.spaces.space import Space


def step_key(workload: str) -> str:
    """The breakdown's column of a workload's step time: ``dense.step_time_s``."""
    return f"{workload}.step_time_s"


def step_text(record: Record, workload: str) -> str:
    """The step time of a workload on a machine, or a dash where it has no layout."""
    key = step_key(workload)
    return readable(record["breakdown"][key], "s") if workload in record["layouts"] else "-"


def workload_lines(space: Space, record: Record) -> Sequence[str]:
    """A line for each workload: ``dense (weight 0.7): 12.3 s, 84.1 GB with tp=8 pp=4``."""
    lines = []
    for own in space.workloads:
        weight = "" if own.weight == 1 else f" (weight {own.weight:g})"
        if own.name not in record["layouts"]:
            lines.append(f"{own.name}{weight}: no legal layout")
            continue
        memory = readable(record["breakdown"][f"{own.name}.peak_memory_bytes"], "B")
        layout = design_text(own.space, record["layouts"][own.name])
        lines.append(f"{own.name}{weight}: {step_text(record, own.name)}, {memory} with {layout}")
    return lines
