"""A design's step event by event: as a table, and as Chrome's trace viewer and Perfetto read it.

Each stage is a lane of the viewer. For pictures, `folded` cuts the repeated middle of a step: warm-up,
one period times its count, cool-down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.errors import DseError
from costmodel.formats.chrome_trace import Span, chrome_trace
from costmodel.steps.timeline import KINDS, Timeline
from costmodel.steps.timeline import timelines as events_of
from costmodel.training.design import DesignPoints
from costmodel.training.run import TransformerRun
from dse.output import Artefact
from dse.pricing.evaluation import transformer_run
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

    from costmodel.columns import FloatArray


#: Columns that count from 0; -1 where an event is of a whole stage.
COUNTS: Final = ("stage", "micro_batch", "chunk")
#: Exposed communication in the table -> in the cost model.
EXPOSED: Final = {
    "tp_communication_s": "tp_time",
    "cp_communication_s": "cp_time",
    "ep_communication_s": "ep_time",
    "offload_s": "offload_time",
    "pp_communication_s": "pp_time",
}


def timeline(space: Space, params: Mapping[str, Any]) -> pd.DataFrame:
    """Activities of the pipeline stages of a design in one optimizer step, by the native cost model.

    A row is an event, in the order of start: ``stage``, ``micro_batch``, ``chunk`` (from 0; -1 for events of a whole
    stage), ``kind`` (a word of `costmodel.steps.timeline.KINDS`), ``start_s``, ``end_s``, and its exposed
    communication: the columns of `EXPOSED`. The last event ends at ``step_time_s``.

    Raises `DseError` if the model is not a transformer, or the cost model has no number for the design.
    """
    [events] = timelines(space, [params])
    return events_frame(events)


def timelines(space: Space, designs: Sequence[Mapping[str, Any]]) -> Iterator[Timeline]:
    """Events of several designs, whose shardings are solved together."""
    run = transformer_run(space, space.encode(designs), DesignPoints)
    return events_of(run)


def events_frame(events: Timeline) -> pd.DataFrame:
    """Events as a table in pandas, with their units."""
    import pandas as pd

    return pd.DataFrame(
        {
            **{name: getattr(events, name).astype(np.int64) for name in COUNTS},
            "kind": events.words,
            "start_s": events.start,
            "end_s": events.end,
            **{name: getattr(events, column) for name, column in EXPOSED.items()},
        }
    )


def traces(run: TransformerRun) -> Iterator[Artefact]:
    """Designs as Chrome traces of a step each."""
    for point in range(run.num_points):
        try:
            [events] = events_of(run.take(np.array([point])))
        except DseError as error:
            yield Artefact(None, (str(error),))
            continue
        title = f"{run.model.title or run.model.name}, one step of one pipeline"
        details = {"step_time_s": float(events.end.max()), "system": run.system.name}
        trace = chrome_trace(title, list(spans(events_frame(events))), details)
        yield Artefact(json.dumps(trace, allow_nan=False).encode(), ())


def spans(events: pd.DataFrame) -> Iterator[Span]:
    """Events in the lanes of their stages, each followed by its exposed communication, which ends it.

    Where two passes overlap, the backward one has a separate lane.
    """
    places = ["stage", "start_s", "end_s"]
    paired = events.duplicated(places) & (events["kind"] == "backward")
    ordered = events.assign(paired=paired).sort_values(["stage", "paired", "start_s"], kind="stable")
    for event in ordered.to_dict("records"):
        lane = f"stage {event['stage']}" + (", beside" if event["paired"] else "")
        start, time, kind = event["start_s"], event["end_s"] - event["start_s"], event["kind"]
        of_pass = {} if event["micro_batch"] < 0 else {name: event[name] for name in COUNTS[1:]}
        name = kind.replace("_", " ")
        yield Span(f"{name} {event['micro_batch']}" if of_pass else name, kind, lane, start, time, of_pass)
        exposed = {name: event[name] for name in EXPOSED if event[name] > 0}
        if exposed:
            spent = min(sum(exposed.values()), time)
            label = ", ".join(name.rpartition("_")[0].partition("_")[0] for name in exposed)
            yield Span(f"exposed {label}", "communication", lane, start + time - spent, spent, exposed)


@dataclass(frozen=True)
class Period:
    """Part of a step that the stages of a pipeline repeat."""

    start: float  #: of its first repetition [s]
    time: float  #: [s]
    count: int  #: repetitions [-]


def folded(events: Timeline) -> tuple[Timeline, Period | None]:
    """Events of a step with the repetitions of its period left out, except the first; and the period.

    Later events are as much earlier as the time that is left out. Without two repetitions all events are returned.

    A stage repeats an event k events later, at a distance that all stages share. The longest run of these events around
    the middle of each stage gives the time in which all stages repeat.
    """
    rows = np.lexsort([events.start, events.stage])
    rows = rows[events.micro_batch[rows] >= 0]
    kinds = events.chunk * len(KINDS) + events.kind
    stages = [
        (events.start[stage], events.micro_batch[stage], kinds[stage])
        for stage in np.split(rows, np.flatnonzero(np.diff(events.stage[rows])) + 1)
    ]
    for stride in dict.fromkeys((1, 2, len(stages), 2 * len(stages))) if rows.size else ():
        if (period := _period(stages, stride)) and period.count > 1:
            left_out = (period.count - 1) * period.time
            within = events.start - (period.start + period.time)
            early = within < -PRECISION * period.time
            late = within >= left_out - PRECISION * period.time
            start, end = (np.where(early, times, times - left_out) for times in (events.start, events.end))
            return replace(events, start=start, end=end).take(np.flatnonzero(early | late)), period
    return events, None


def _period(stages: Sequence[tuple[FloatArray, FloatArray, FloatArray]], stride: int) -> Period | None:
    """The period in which every stage advances by `stride` micro-batches; None if there is none.

    `stages` have the start [s], the micro-batch and the kind of each pass, in order. [-]
    """
    micro_batches = int(stages[0][1].max()) + 1
    starts, ends, times = [], [], []
    for start, batch, kind in stages:
        step, left = divmod(len(start) * stride, micro_batches)
        if left or not 0 < step < len(start):
            return None
        away, middle = start[step:] - start[:-step], (len(start) - step) // 2
        same = (kind[step:] == kind[:-step]) & (batch[step:] - batch[:-step] == stride)
        same &= np.abs(away - away[middle]) < PRECISION * away[middle]
        if not same[middle]:
            return None
        breaks = np.flatnonzero(~same)
        first = int(breaks[breaks < middle].max(initial=-1)) + 1
        last = int(breaks[breaks > middle].min(initial=len(same)))
        starts.append(start[first])
        ends.append(min(start[min(last + step, len(start) - 1)], start[min(last, len(away) - 1)] + away[middle]))
        times.append(away[middle])
    time = float(np.median(times))
    if max(times) - min(times) > PRECISION * time:
        return None
    return Period(float(max(starts)), time, int((min(ends) - max(starts)) / time + PRECISION))


#: Share of a period within which times are equal. [-]
PRECISION: Final = 1e-6
