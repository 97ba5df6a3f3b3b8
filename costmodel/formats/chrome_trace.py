"""Timelines as Chrome's trace viewer and Perfetto read them: spans in lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

#: Unit of the format's times. [s]
MICROSECOND: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a trace: something that takes time, in a lane."""

    name: str
    category: str
    lane: str
    start: float  #: [s]
    duration: float  #: [s]
    details: Mapping[str, Any] = field(default_factory=dict)


def chrome_trace(process: str, spans: Sequence[Span], details: Mapping[str, Any]) -> dict[str, Any]:
    """A trace of one process: its spans [s], and details of the whole trace."""
    lanes = {lane: number for number, lane in enumerate(dict.fromkeys(span.lane for span in spans))}
    events: list[dict[str, Any]] = [_named("process_name", 0, process)]
    events += [_named("thread_name", number, lane) for lane, number in lanes.items()]
    for span in spans:
        start, duration = span.start / MICROSECOND, span.duration / MICROSECOND
        events.append({"ph": "X", "pid": 0, "tid": lanes[span.lane], "name": span.name, "cat": span.category,
                       "ts": start, "dur": duration, "args": dict(span.details)})  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(details)}


def _named(what: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": lane, "name": what, "args": {"name": name}}
