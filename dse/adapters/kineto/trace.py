"""Steps in traces of the PyTorch profiler (Kineto, Chrome's trace format).

The steps are those that the profiler marks (``ProfilerStep#N``). A kernel's name decides its kind. Communication is
exposed while no kernel computes, as Holistic Trace Analysis counts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.formats.input_files import content, data_beside

Event = Mapping[str, Any]
#: Kinds of GPU work: the first whose pattern the name of a kernel contains, without regard to case.
COMMUNICATION: Final = "communication"
KINDS: Final[Mapping[str, str]] = data_beside(__file__)
#: A kernel that starts this soon after its launch waited for the host. [s]
SOON: Final = 20e-6
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")
#: Kernels that take longest or are furthest off, at most. [-]
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


def read_trace(path: Path) -> GpuTrace:
    """A trace of one rank, packed by gzip or not.

    Raises `DseError` for unreadable files, other files than traces of the PyTorch profiler, and no GPU kernels or
    steps.
    """
    trace = trace_events(path)
    events = [event for event in trace["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
    try:
        return gpu_trace(path, events, (trace.get("distributedInfo") or {}).get("rank"))
    except (KeyError, TypeError, ValueError) as error:
        raise DseError(f"{path}: not a trace of the PyTorch profiler: an event without {error}") from None


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
    longest = pd.Series(time / steps).groupby(np.array(names)).sum().nlargest(FURTHEST)
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
        longest={str(name): seconds for name, seconds in longest.items()},
    )


def trace_events(path: Path) -> dict[str, Any]:
    """The object that a file of a trace holds. Raises `DseError` if it holds none."""
    try:
        trace = json.loads(content(path))
    except (ValueError, RecursionError) as error:
        raise DseError(f"{path}: not a trace of the PyTorch profiler: {error}") from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise DseError(f"{path}: not a trace of the PyTorch profiler: it has no traceEvents")
    return trace


def kind_of(name: str) -> str:
    """Kind of a kernel by its name.

    >>> kind_of("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"), kind_of("nvjet_tst_192x192_64x4")
    ('communication', 'product')
    >>> kind_of("void flash_fwd_kernel<...>"), kind_of("Memcpy DtoD"), kind_of("void vectorized_elementwise_kernel")
    ('attention', 'copy', 'pointwise')
    """
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), "pointwise")


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
