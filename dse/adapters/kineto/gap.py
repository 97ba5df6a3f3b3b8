"""Traces of the PyTorch profiler held against the predicted step: the parts in which a run loses time, and why.

Each kernel of the GPU has a kind: product, attention, optimizer, communication, copy, or pointwise. The GPU is idle
while nothing runs, which the model calls bubble and host time. Products are matched with those of the model by their
shapes, if the profiler recorded shapes: three passes of one layer permute m, n and k, so a shape stands for all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.text import Text

from costmodel.columns import grouped
from costmodel.formats.quantity import readable
from dse.adapters.kineto.trace import FURTHEST, GpuTrace, read_trace
from dse.explaining.explanation import Explanation
from dse.output import Report, percent, percent_more
from dse.reporting.answers import Line, wrapped
from dse.reporting.design_table import columns_of, drawn

#: Parts of the predicted step -> columns of the breakdown, without their unit.
EXPOSED: Final = "exposed communication"
IDLE: Final = "idle"
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "optimizer": ("optimizer",),
    EXPOSED: tuple(f"{name}_communication" for name in ("tp", "cp", "ep", "pp", "dp")),
    "copy": ("offload",),
    IDLE: ("bubble", "host"),
}


@dataclass(frozen=True)
class ComparedTime:
    """A part or a kernel of a step: predicted and measured. [s]"""

    name: str
    predicted: float
    measured: float
    launches: float = np.nan  #: measured [-]


@dataclass(frozen=True)
class TraceGap:
    """A predicted step and the traces of some ranks; parts and kernels are those of the first one."""

    explanation: Explanation
    traces: tuple[GpuTrace, ...]
    parts: tuple[ComparedTime, ...]  #: they add up to the predicted step
    kernels: tuple[ComparedTime, ...]  #: products of one shape, those first whose time is furthest off
    hidden: ComparedTime  #: communication that overlaps with kernels

    def report(self, width: int) -> Report:
        """The comparison as text."""
        return trace_report(self, width)

    def to_json(self) -> dict[str, Any]:
        """Parts, kernels and ranks as JSON has them; times end in ``_s``."""

        def record(row: ComparedTime) -> dict[str, Any]:
            count = {"launches": row.launches} if row.launches == row.launches else {}
            return {"name": row.name, "predicted_s": row.predicted, "measured_s": row.measured, **count}

        ranks = [{**asdict(one), "products": len(one.products)} for one in self.traces]
        times = ("step_time", "exposed", "idle", "busy", "communication", "longest")
        return {
            "predicted_s": self.explanation.step_time,
            "measured_s": self.traces[0].step_time,
            "parts": [record(row) for row in self.parts],
            "hidden_communication": record(self.hidden),
            "kernels": [record(row) for row in self.kernels],
            "ranks": [{f"{key}_s" if key in times else key: value for key, value in one.items()} for one in ranks],
        }


def trace_gap(explanation: Explanation, traces: Sequence[Path]) -> TraceGap:
    """Hold traces against the prediction: the first one by its parts and products, all of them against each other.

    Raises `DseError` if a file cannot be read, or has no steps or no kernels of a GPU.
    """
    read = tuple(map(read_trace, traces))
    first, breakdown, kernels = read[0], explanation.record["breakdown"], explanation.kernels
    parts = [
        ComparedTime(kind, float(kernels["seconds"][kernels["kind"] == kind].sum()), first.busy[kind])
        for kind in ("product", "attention", "pointwise")
    ]
    measured = {**first.busy, EXPOSED: first.exposed, IDLE: first.idle}
    for name, columns in PARTS.items():
        predicted = sum(breakdown.get(f"{column}_time_s", 0.0) for column in columns)
        parts.append(ComparedTime(name, predicted, measured[name]))
    hidden_time = float(explanation.hidden["seconds"].sum())
    hidden = ComparedTime("hidden communication", hidden_time, first.communication - first.exposed)
    return TraceGap(explanation, read, tuple(parts), tuple(matched(explanation, first)), hidden)


def matched(explanation: Explanation, trace: GpuTrace) -> list[ComparedTime]:
    """Products of the model whose shape the trace has, by the mean time of one launch, the furthest off first. [s]"""
    predicted = grouped(
        ((int(row["batch"]), *sorted(int(row[name]) for name in ("m", "n", "k"))), (row["product"], row["time_s"]))
        for row in explanation.gemms.to_dict("records")
    )
    rows = []
    for shape, products in predicted.items():
        if shape in trace.products:
            count, seconds = trace.products[shape]
            name = f"{', '.join(dict.fromkeys(name for name, _ in products))} {' x '.join(map(str, shape[1:]))}"
            rows.append(ComparedTime(name, float(np.mean([time for _, time in products])), seconds / count, count))
    return sorted(rows, key=lambda row: -row.launches * abs(row.measured - row.predicted))[:FURTHEST]


#: A rank that computes this much longer than the median one is a straggler; a part this large is said first. [-]
STRAGGLES, MATTERS = 0.05, 0.01
#: Longest name of a kernel. [characters]
LONGEST = 60


def trace_report(gap: TraceGap, width: int) -> Report:
    """Parts of the step and products in which a run loses time, and causes for which ranks wait."""
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
    last = times_table(gap.kernels, "product") if gap.kernels else wrapped([("", name) for name in names], width)
    table = times_table([*gap.parts, gap.hidden], "part")
    return [*wrapped(lines, width), Text(), *table, Text(), *wrapped([("", text)], width), Text(), *last]


def times_table(times: Sequence[ComparedTime], title: str) -> Report:
    """Predicted and measured times of parts or products."""
    rows = []
    for time in times:
        difference = f"{100 * (time.measured / time.predicted - 1):+.0f} %" if time.predicted else ""
        rows.append((time.name, readable(time.predicted, "s"), readable(time.measured, "s"), difference))
    return drawn(columns_of((title, "predicted", "measured", "difference"), rows))


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
