"""A measured step, or the trace of one, held against the predicted step.

`causes.yaml` lists changes of the design or the machine that real runs suffer from, such as half the network
bandwidth. The cost model evaluates each alone; its share of the gap says whether it could explain the gap.

Traces are those of the PyTorch profiler (Kineto, Chrome's trace format). The steps are those that the profiler marks
(``ProfilerStep#N``). Each kernel of the GPU is put into a kind by its name: product, attention, optimizer,
communication, copy, or pointwise. Communication is exposed while no kernel computes, as Holistic Trace Analysis counts
it; the GPU is idle while nothing runs, which the model calls bubble and host time. Products are matched with those of
the model by their shapes, if the profiler recorded shapes: three passes of one layer permute m, n and k, so a shape
stands for all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, short_repr
from costmodel.errors import DseError, ParameterError
from costmodel.formats.input_files import content, data_beside
from dse.explaining.explanation import Explanation
from dse.pricing.evaluation import priced_design

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
    if not measured_step_time > 0:
        raise ParameterError(f"{{measured_step_time}} {measured_step_time:g}: expected seconds above 0")
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
        return float(priced_design(space, params)["breakdown"]["step_time_s"])
    except DseError:
        return float("nan")


Event = Mapping[str, Any]
#: Kinds of GPU work: the first whose pattern the name of a kernel contains, without regard to case.
COMMUNICATION: Final = "communication"
KINDS: Final = {
    COMMUNICATION: r"nccl|rccl|deep_?ep|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|userbuffers|nvshmem",
    "copy": r"^mem(cpy|set)",
    "attention": r"flash|fmha|attention|attn|sdpa",
    "product": r"gemm|cutlass|nvjet|cublas|cijk_|xmma|matmul|wgmma|_mm_",
    "optimizer": r"multi_tensor|adam|l2norm|optimizer",
    "pointwise": r"",
}
#: Parts of the predicted step -> columns of the breakdown, without their unit.
EXPOSED: Final = "exposed communication"
IDLE: Final = "idle"
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "optimizer": ("optimizer",),
    EXPOSED: tuple(f"{name}_communication" for name in ("tp", "cp", "ep", "pp", "dp")),
    "copy": ("offload",),
    IDLE: ("bubble", "host"),
}
#: A kernel that starts this soon after its launch waited for the host. [s]
SOON: Final = 20e-6
#: Kernels that are furthest off, at most. [-]
FURTHEST: Final = 10
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")


@dataclass(frozen=True)
class GpuTrace:
    """Steps that a profiler recorded on one rank: times in seconds for one step in the mean."""

    path: str
    rank: int | None
    steps: int
    step_time: float  #: [s]
    busy: Mapping[str, float]  #: other kind of `KINDS` -> time of its kernels; those side by side count twice [s]
    communication: float  #: any communication [s]
    exposed: float  #: communication while no kernel computes [s]
    idle: float  #: nothing runs [s]
    launches: float  #: kernels [-]
    waited: float  #: share of kernels that start within `SOON` of their launch: the host is late [-]
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
    """A predicted step beside the traces of some ranks; parts and kernels are those of the first one."""

    explanation: Explanation
    traces: tuple[GpuTrace, ...]
    parts: tuple[ComparedTime, ...]  #: they add up to the predicted step
    kernels: tuple[ComparedTime, ...]  #: products of one shape, those first whose time is furthest off
    hidden: ComparedTime  #: communication beside kernels

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


def read_trace(path: Path) -> GpuTrace:
    """A trace of one rank, packed by gzip or not.

    Raises `DseError` if the file cannot be read, is no trace of the PyTorch profiler, or has no kernels of a GPU or no
    steps.
    """
    trace = trace_events(path)
    events = [event for event in trace["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
    try:
        return gpu_trace(path, events, (trace.get("distributedInfo") or {}).get("rank"))
    except (KeyError, TypeError, ValueError) as error:
        raise DseError(f"{path}: no trace of the PyTorch profiler: an event without {error}") from None


def gpu_trace(path: Path, events: Sequence[Event], rank: int | None) -> GpuTrace:
    """A trace from its events with a duration; a `KeyError`, `TypeError` or `ValueError` if one is no such event."""
    kernels = [event for event in events if str(event["cat"]).lower() in ("kernel", "gpu_memcpy", "gpu_memset")]
    start, time = (1e-6 * np.array([event[key] for event in kernels], float) for key in ("ts", "dur"))
    first, last, steps = step_window(path, events)
    within = (start >= first) & (start < last)
    if not within.any():
        raise DseError(f"{path}: no kernels of a GPU within the steps; profile with ProfilerActivity.CUDA")
    kernels = [kernel for kernel, kept in zip(kernels, within.tolist(), strict=True) if kept]
    start, time = start[within], time[within]
    names = [str(kernel["name"]) for kernel in kernels]
    kinds = np.array([kind_of(name) for name in names])
    ends, copies, moves = np.minimum(start + time, last), kinds == "copy", kinds == COMMUNICATION
    computes, products = ~(moves | copies), np.flatnonzero(kinds == "product")
    sent_or_computed = union(start[~copies], ends[~copies])
    longest: dict[str, float] = {}
    for name, seconds in zip(names, time.tolist(), strict=True):
        longest[name] = longest.get(name, 0.0) + seconds / steps
    return GpuTrace(
        path=str(path),
        rank=rank,
        steps=steps,
        step_time=(last - first) / steps,
        busy={kind: float(time[kinds == kind].sum()) / steps for kind in KINDS if kind != COMMUNICATION},
        communication=union(start[moves], ends[moves]) / steps,
        exposed=(sent_or_computed - union(start[computes], ends[computes])) / steps,
        idle=(last - first - union(start, ends)) / steps,
        launches=len(kernels) / steps,
        waited=waiting(events, kernels, start),
        products=shapes(events, [kernels[row] for row in products], time[products], steps),
        longest=dict(sorted(longest.items(), key=lambda pair: -pair[1])[:FURTHEST]),
    )


def trace_events(path: Path) -> dict[str, Any]:
    """The object that a file of a trace holds. Raises `DseError` if it holds none."""
    try:
        trace = json.loads(content(path))
    except (ValueError, RecursionError) as error:
        raise DseError(f"{path}: no trace of the PyTorch profiler: {error}") from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise DseError(f"{path}: no trace of the PyTorch profiler: it has no traceEvents")
    return trace


def kind_of(name: str) -> str:
    """Kind of a kernel by its name.

    >>> kind_of("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"), kind_of("nvjet_tst_192x192_64x4")
    ('communication', 'product')
    >>> kind_of("void flash_fwd_kernel<...>"), kind_of("Memcpy DtoD"), kind_of("void vectorized_elementwise_kernel")
    ('attention', 'copy', 'pointwise')
    """
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))


def step_window(path: Path, events: Iterable[Event]) -> tuple[float, float, int]:
    """Begin and end of the marked steps, and their number; on the GPU's side if it marks as many. [s], [-]"""
    marks: dict[str, dict[str, tuple[float, float]]] = {}
    for event in events:
        if match := _STEP.fullmatch(str(event["name"])):
            begin = 1e-6 * float(event["ts"])
            marks.setdefault(str(event["cat"]), {})[match[1]] = begin, begin + 1e-6 * float(event["dur"])
    if not marks:
        raise DseError(f"{path}: no steps (ProfilerStep#N); call profiler.step() once in each step")
    host, device = (marks.get(key, {}) for key in ("user_annotation", "gpu_user_annotation"))
    kept = device if len(device) >= max(len(host), 1) else host or device
    return min(begin for begin, _ in kept.values()), max(end for _, end in kept.values()), len(kept)


def union(start: FloatArray, end: FloatArray) -> float:
    """Time that some intervals cover together, (n,) each. [s]"""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate([start[:1], end[:-1]])
    return float(np.maximum(end - np.maximum(start, before), 0.0).sum())


def argument(event: Event, name: str) -> Any:
    """An argument of an event; None if it has none of this name."""
    arguments = event.get("args")
    return arguments.get(name) if isinstance(arguments, dict) else None


def waiting(events: Iterable[Event], kernels: Sequence[Event], start: FloatArray) -> float:
    """Share of the kernels with a known launch that start within `SOON` of it; `start` is (kernels,). [s], [-]"""
    runtime = [event for event in events if event["cat"] in ("cuda_runtime", "cuda_driver", "hip_runtime")]
    launched = {argument(event, "correlation"): 1e-6 * float(event["ts"]) for event in runtime}
    launched.pop(None, None)
    at = np.array([launched.get(argument(kernel, "correlation"), np.nan) for kernel in kernels])
    known = np.isfinite(at)
    return float((start - at < SOON)[known].mean()) if known.any() else np.nan


def shapes(
    events: Iterable[Event], kernels: Sequence[Event], time: FloatArray, steps: int
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Shapes of matrix products -> launches and time in a step, where operators have them. [-], [s]

    `kernels` are those of products, and `time` has theirs, (kernels,). [s]
    """
    operators = [event for event in events if event["cat"] == "cpu_op"]
    dimensions = {argument(event, "External id"): argument(event, "Input Dims") or [] for event in operators}
    by_shape: dict[tuple[int, ...], tuple[float, float]] = {}
    for kernel, duration in zip(kernels, time.tolist(), strict=True):
        if shape := product_shape(dimensions.get(argument(kernel, "External id"), [])):
            count, seconds = by_shape.get(shape, (0.0, 0.0))
            by_shape[shape] = count + 1 / steps, seconds + duration / steps
    return by_shape


def product_shape(dims: Sequence[Any]) -> tuple[int, ...]:
    """Batch, then m, n and k by size, of the operands of a product; () if they are none.

    >>> product_shape([[512], [1024, 1705], [1705, 512], [], []]), product_shape([[8, 128, 64], [8, 64, 128]])
    ((1, 512, 1024, 1705), (8, 64, 128, 128))
    """
    matrices = [tuple(shape) for shape in dims if isinstance(shape, list) and len(shape) in (2, 3)]
    for one, other in pairwise(matrices):
        if one[-1] == other[-2] and one[:-2] == other[:-2]:
            return (int(np.prod(one[:-2], initial=1)), *sorted((one[-2], one[-1], other[-1])))
    return ()


def trace_gap(explanation: Explanation, traces: Sequence[str | Path]) -> TraceGap:
    """Hold traces of the PyTorch profiler against the prediction: where a run loses time.

    Raises `DseError` if a file is no such trace (`read_trace`).

    Parameters
    ----------
    explanation : Explanation
        The design, as `dse.explain` explains it.
    traces : sequence of str or Path
        Files of one rank each; the first is held against the prediction, all of them against each other.
    """
    read = tuple(read_trace(Path(path)) for path in traces)
    first, breakdown, kernels = read[0], explanation.record["breakdown"], explanation.kernels
    parts = [
        ComparedTime(kind, float(kernels["seconds"][kernels["kind"] == kind].sum()), first.busy[kind])
        for kind in ("product", "attention", "pointwise")
    ]
    measured = {**first.busy, EXPOSED: first.exposed, IDLE: first.idle}
    for name, columns in PARTS.items():
        predicted = sum(breakdown.get(f"{column}_time_s", 0.0) for column in columns)
        parts.append(ComparedTime(name, predicted, measured[name]))
    beside = float(explanation.hidden["seconds"].sum())
    hidden = ComparedTime("hidden communication", beside, first.communication - first.exposed)
    return TraceGap(explanation, read, tuple(parts), tuple(matched(explanation, first)), hidden)


def matched(explanation: Explanation, trace: GpuTrace) -> list[ComparedTime]:
    """Products of the model whose shape the trace has, by the mean time of one launch, the furthest off first. [s]"""
    predicted: dict[tuple[int, ...], list[tuple[str, float]]] = {}
    for row in explanation.gemms.to_dict("records"):
        sizes = sorted(int(row[name]) for name in ("m", "n", "k"))
        predicted.setdefault((int(row["batch"]), *sizes), []).append((row["product"], row["time_s"]))
    rows = []
    for shape, products in predicted.items():
        if shape in trace.products:
            count, seconds = trace.products[shape]
            name = f"{', '.join(dict.fromkeys(name for name, _ in products))} {' x '.join(map(str, shape[1:]))}"
            rows.append(ComparedTime(name, float(np.mean([time for _, time in products])), seconds / count, count))
    return sorted(rows, key=lambda row: -row.launches * abs(row.measured - row.predicted))[:FURTHEST]
