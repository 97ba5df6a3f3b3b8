"""Timelines as Chrome's trace viewer and Perfetto read them: spans in lanes, and arrows between spans."""

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


@dataclass(frozen=True, slots=True)
class Arrow:
    """From the end of a span to the start of another, by their places."""

    source: int
    target: int
    details: Mapping[str, Any] = field(default_factory=dict)


def chrome_trace(
    process: str, spans: Sequence[Span], arrows: Sequence[Arrow], details: Mapping[str, Any]
) -> dict[str, Any]:
    """A trace of one process: spans [s], arrows between them, and details of the whole trace."""
    lanes = {lane: number for number, lane in enumerate(dict.fromkeys(span.lane for span in spans))}
    events: list[dict[str, Any]] = [_named("process_name", 0, process)]
    events += [_named("thread_name", number, lane) for lane, number in lanes.items()]
    for span in spans:
        start, duration = span.start / MICROSECOND, span.duration / MICROSECOND
        events.append({"ph": "X", "pid": 0, "tid": lanes[span.lane], "name": span.name, "cat": span.category,
                       "ts": start, "dur": duration, "args": dict(span.details)})  # fmt: skip
    for number, arrow in enumerate(arrows):
        source, target = spans[arrow.source], spans[arrow.target]
        shared = {"pid": 0, "name": "data", "cat": "data", "id": number, "args": dict(arrow.details)}
        end = (source.start + source.duration) / MICROSECOND
        events.append({**shared, "ph": "s", "tid": lanes[source.lane], "ts": end})
        events.append({**shared, "ph": "f", "bp": "e", "tid": lanes[target.lane], "ts": target.start / MICROSECOND})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(details)}


def _named(what: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": lane, "name": what, "args": {"name": name}}
