"""A measured step, or the trace of one, held against the predicted step.

`causes.yaml` lists changes of the design or the machine that real runs suffer from, such as half the network
bandwidth. The cost model evaluates each alone; its share of the gap says whether it could explain the gap.

An adapter reads traces. Each kernel of the GPU has a kind: product, attention, optimizer, communication, copy, or
pointwise. The GPU is idle while nothing runs, which the model calls bubble and host time. Products are matched with
those of the model by their shapes, if the profiler recorded shapes: three passes of one layer permute m, n and k, so a
shape stands for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.columns import grouped, short_repr
from costmodel.errors import DseError, ParameterError
from costmodel.formats.input_files import data_beside
from dse.arguments import Paths
from dse.explaining.explanation import Explanation
from dse.pricing.evaluation import evaluated_design
from dse.registry import measurement_reader

#: Causes below this share of the predicted step are left out. [-]
SLIGHT: Final = 0.002


@dataclass(frozen=True)
class Cause:
    """A candidate cause, evaluated alone."""

    name: str
    changes: Mapping[str, Any]  #: setting or quantity -> value [SI units]
    step_time: float  #: with the cause [s]
    share: float  #: of the gap that it could explain [-]
    check: str  #: the counter or command that would show it


@dataclass(frozen=True)
class MeasuredGap:
    """A measured step, the predicted one, and the causes that could explain the gap, the closest first."""

    __repr__ = short_repr

    explanation: Explanation
    measured: float  #: [s]
    causes: tuple[Cause, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 90 % interval of the predicted step. [s]"""
        record, usual = self.explanation.record, self.explanation.step_time
        return record.get("step_time_low_s", usual), record.get("step_time_high_s", usual)

    def to_json(self) -> dict[str, Any]:
        """Both steps and the causes as JSON has them."""
        low, high = self.interval
        causes = [
            {"cause": cause.name, "changes": dict(cause.changes), "step_time_s": cause.step_time,
             "share_of_gap": cause.share, "check": cause.check} for cause in self.causes
        ]  # fmt: skip
        predicted = {"predicted_s": self.explanation.step_time, "low_s": low, "high_s": high}
        return {"measured_s": self.measured, **predicted, "causes": causes}


def measured_gap(
    explanation: Explanation, *, measured_step_time: float | None = None, measured_mfu: float | None = None
) -> MeasuredGap:
    """Hold a measured step against a design's prediction, and rank the causes that could explain the gap.

    Raises `DseError` if neither or both are given, or one is out of range.

    Parameters
    ----------
    explanation : Explanation
        The design, as `dse.explain` explains it.
    measured_step_time : float, optional
        Measured time of a step. [s]
    measured_mfu : float, optional
        Measured MFU in place of the time, a share such as 0.30. [-]
    """
    if (measured_step_time is None) == (measured_mfu is None):
        raise ParameterError("give one of {measured_step_time} and {measured_mfu}")
    if measured_mfu is not None:
        if not 0 < measured_mfu <= 1:
            hint = f"{measured_mfu / 100:.2f}" if 1 < measured_mfu <= 100 else "0.30"
            raise ParameterError(f"{{measured_mfu}} {measured_mfu:g}: MFU is a share: {hint}")
        measured_step_time = explanation.step_time * explanation.record["breakdown"]["mfu"] / measured_mfu
    assert measured_step_time is not None
    predicted = explanation.step_time
    causes = [cause for cause in _causes(explanation, measured_step_time - predicted) if cause.share > 0]
    causes.sort(key=lambda cause: -min(cause.share, 1 / cause.share))  # those that come closest to the gap
    return MeasuredGap(explanation, measured_step_time, tuple(causes))


def _causes(explanation: Explanation, gap: float) -> Iterator[Cause]:
    """Causes that slow the design down, each evaluated alone; none where the measured step is faster."""
    system, predicted = explanation.system, explanation.step_time
    quantities = {name: float(value) for name, value in system.quantities().items()}
    tried: list[tuple[str, Mapping[str, Any], str]] = []
    for row in data_beside(__file__, "causes.yaml"):
        for tier in [tier_name.name for tier_name in system.network] if "{}" in row["cause"] else [""]:
            factors = {name.format(tier): factor for name, factor in row.get("factors", {}).items()}
            scaled = {name: quantities[name] * factors[name] for name in factors if name in quantities}
            if changes := {**row.get("settings", {}), **scaled}:
                tried.append((row["cause"].format(tier), changes, row["check"]))
    for cause, changed, check in tried if gap > 0 else []:
        slower = _step_time(explanation, changed) - predicted
        if slower > SLIGHT * predicted:
            yield Cause(cause, changed, predicted + slower, slower / gap, check)


def _step_time(explanation: Explanation, changes: Mapping[str, Any]) -> float:
    """Step time of the design with a change, NaN where it is not legal. [s]"""
    try:
        space = explanation.space.pinned(changes, replace=True)
        params = space.completed({**explanation.params, **{n: v for n, v in changes.items() if n in space.by_name}})
        return float(evaluated_design(space, params)["breakdown"]["step_time_s"])
    except DseError:
        return float("nan")


#: Parts of the predicted step -> columns of the breakdown, without their unit.
EXPOSED: Final = "exposed communication"
IDLE: Final = "idle"
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "optimizer": ("optimizer",),
    EXPOSED: tuple(f"{name}_communication" for name in ("tp", "cp", "ep", "pp", "dp")),
    "copy": ("offload",),
    IDLE: ("bubble", "host"),
}
#: Kernels that are furthest off, at most. [-]
FURTHEST: Final = 10


@dataclass(frozen=True)
class GpuTrace:
    """Steps that a profiler recorded on one rank: times in seconds for one step in the mean."""

    path: str
    rank: int | None
    steps: int
    step_time: float  #: [s]
    busy: Mapping[str, float]  #: kind, communication aside -> time of its kernels; those side by side count twice [s]
    communication: float  #: any communication [s]
    exposed: float  #: communication while no kernel computes [s]
    idle: float  #: nothing runs [s]
    launches: float  #: kernels [-]
    waited: float  #: share of kernels that start as soon as they are launched: the host is late [-]
    products: Mapping[tuple[int, ...], tuple[float, float]]  #: batch, then m, n, k by size -> launches [-], time [s]
    longest: Mapping[str, float]  #: name of a kernel -> time, the longest first [s]

    @property
    def name(self) -> str:
        """The rank if the trace says it, else the file."""
        return self.path if self.rank is None else f"rank {self.rank}"


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

    def to_json(self) -> dict[str, Any]:
        """Parts, kernels and ranks as JSON has them; times end in ``_s``."""

        def record(row: ComparedTime) -> dict[str, Any]:
            count = {"launches": row.launches} if row.launches == row.launches else {}
            return {"name": row.name, "predicted_s": row.predicted, "measured_s": row.measured, **count}

        ranks = [{**asdict(one), "products": len(one.products)} for one in self.traces]
        units = {"step_time": "step_time_s", "exposed": "exposed_s", "idle": "idle_s", "busy": "busy_s",
                 "communication": "communication_s", "longest": "longest_s"}  # fmt: skip
        return {
            "predicted_s": self.explanation.step_time,
            "measured_s": self.traces[0].step_time,
            "parts": [record(row) for row in self.parts],
            "hidden_communication": record(self.hidden),
            "kernels": [record(row) for row in self.kernels],
            "ranks": [{units.get(name, name): value for name, value in rank.items()} for rank in ranks],
        }


def trace_gap(explanation: Explanation, traces: Paths) -> TraceGap:
    """Hold traces of the PyTorch profiler against the prediction: where a run loses time.

    Raises `DseError` if a file cannot be read, or is no such trace with kernels of a GPU and steps.

    Parameters
    ----------
    explanation : Explanation
        The design, as `dse.explain` explains it.
    traces : sequence of str or Path
        Files of one rank each; the first is held against the prediction, all of them against each other.
    """
    if not traces:
        raise ParameterError("{traces}: expected at least one file")
    read = tuple(map(measurement_reader("trace"), map(Path, traces)))
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
