"""A profiler's trace beside the prediction: parts of the step, products, and ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.explaining.profiler_trace import IDLE, ComparedTime, TraceGap
from dse.output import Report, percent, percent_more
from dse.reporting.answers import Line, wrapped
from dse.reporting.design_table import Column, drawn

#: A rank that computes this much longer than the median one is a straggler; a part this large is said first. [-]
STRAGGLES, MATTERS = 0.05, 0.01
#: Longest name of a kernel. [characters]
LONGEST = 60


def trace_report(gap: TraceGap, width: int) -> Report:
    """Where a run loses time: by part of the step and by product, and what the ranks wait for."""
    first, predicted = gap.traces[0], gap.explanation.step_time
    rank = f"{first.name}, " if first.rank is not None else ""
    off = percent_more(first.step_time / predicted)
    lines: list[Line] = [("", f"Measured {readable(first.step_time, 's')} a step ({rank}{first.steps} steps of "
                          f"{first.path}), predicted {readable(predicted, 's')} ({off}).")]  # fmt: skip
    losses = sorted(gap.parts, key=lambda row: row.predicted - row.measured)[:2]
    said = [f"{row.name} {readable(row.measured - row.predicted, 's')}" for row in losses
            if row.measured - row.predicted > MATTERS * predicted]  # fmt: skip
    if said:
        lines.append(("", f"Most time is lost in {' and '.join(said)}."))
    lines += [("", text) for text in notes(gap)]
    text = "Products by shape, one launch in the mean, the furthest off first:"
    if not gap.kernels:
        text = "No product has the shape of one of the model (record_shapes=True records shapes). Longest kernels:"
    names = [f"{readable(seconds, 's')} {name[:LONGEST]}" for name, seconds in first.longest.items()]
    last = drawn(columns(gap.kernels, "product")) if gap.kernels else wrapped([("", name) for name in names], width)
    table = drawn(columns([*gap.parts, gap.hidden], "part"))
    return [*wrapped(lines, width), Text(), *table, Text(), *wrapped([("", text)], width), Text(), *last]


def columns(rows: Sequence[ComparedTime], title: str) -> list[Column]:
    """Predicted and measured times of parts or products."""
    return [
        Column(title, (title,), [row.name for row in rows], left=True),
        Column("predicted", ("predicted",), [readable(row.predicted, "s") for row in rows]),
        Column("measured", ("measured",), [readable(row.measured, "s") for row in rows]),
        Column("difference", ("difference",), [
            f"{100 * (row.measured / row.predicted - 1):+.0f} %" if row.predicted else "" for row in rows
        ]),
    ]  # fmt: skip


def notes(gap: TraceGap) -> Iterator[str]:
    """Sentences about launches, and about ranks that others wait for."""
    first = gap.traces[0]
    idle = next(row for row in gap.parts if row.name == IDLE)
    if first.waited > 0.5 and idle.measured > MATTERS * first.step_time:
        late = f"{percent(first.waited)} of {first.launches:,.0f} kernels start as soon as they are launched"
        yield f"The GPU waits for the host: {late}. CUDA graphs or fewer, larger kernels would help."
    if len(gap.traces) < 2:
        return
    work = np.array([sum(one.busy.values()) for one in gap.traces])
    slowest, usual = int(work.argmax()), float(np.median(work))
    if work[slowest] > (1 + STRAGGLES) * usual:
        compared = f"{readable(float(work[slowest]), 's')}, the median of {len(work)} ranks {readable(usual, 's')}"
        yield f"{gap.traces[slowest].name} computes {compared}: others wait for it in their collectives."
    else:
        yield f"No rank of {len(work)} computes more than {percent(STRAGGLES)} longer than the median one."
