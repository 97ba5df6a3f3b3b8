"""One step as a timeline: who runs which pass when, and that all of it is the time of the step."""

import json

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, step
from costmodel.columns import distinct_rows
from costmodel.formats import shipped
from costmodel.steps.timeline import EXPOSED, KINDS, timelines
from costmodel.steps.transformer import transformer_step
from costmodel.training.design import SCHEDULE_WORDS
from dse.explaining.timeline import timeline as events_of
from dse.pricing.evaluation import transformer_run
from dse.spaces.space import Space
from tests.support.commands import outputs_of
from tests.support.runs import run_of

#: Schedules, each with as many chunks as it has.
CHUNKS = {**dict.fromkeys(SCHEDULE_WORDS, 1), "breadth_first": 3, "zb_v": 2, "dualpipe_v": 2}
LAYOUTS = [*CHUNKS.items(), ("1f1b", 3)]
TRANSFORMERS = [name for name in shipped.names("spaces") if not name.startswith("lstm")]


def designed(schedule, vpp, **others):
    return DesignPoints.of(
        **{"tp": 8, "pp": 4, "dp": 2, "gradient_accumulation_steps": 24, "sequence_parallel": True, **others},
        schedule=schedule,
        vpp=vpp,
    )


@pytest.mark.parametrize(("schedule", "vpp"), LAYOUTS)
def test_the_last_event_ends_when_the_step_does(a100, schedule, vpp):
    model, design = load_model("gpt3_175b"), designed(schedule, vpp)
    [events], cost = timelines(run_of(model, design, a100)), step(model, a100, design)
    assert events.end.max() == cost.step_time
    last = events.take(events.kind < KINDS.index("weight_cast")).end.max()
    tail = cost.dp_communication_time + cost.optimizer_time + cost.host_time
    assert last <= (cost.step_time - tail) * (1 + 1e-12)
    assert last == pytest.approx(cost.step_time - tail, rel=1e-3)  # the closed form of 1F1B is a little above


@pytest.mark.parametrize(("schedule", "vpp"), LAYOUTS)
def test_every_micro_batch_passes_every_chunk_once_each_way_and_a_stage_does_one_thing_at_a_time(a100, schedule, vpp):
    [events] = timelines(run_of(load_model("gpt3_175b"), designed(schedule, vpp), a100))
    stages = np.arange(4)
    for kind in ("forward", "backward"):
        selected = events.take(events.kind == KINDS.index(kind))
        chunks = 2 if schedule == "dualpipe" else vpp
        passes = 4 * 24 * vpp
        assert selected.num_points == passes
        rows, _ = distinct_rows(selected.stage, selected.chunk, selected.micro_batch)
        assert rows.size == passes
        assert set(selected.stage) == {*stages}
        assert set(selected.chunk) == {*range(chunks)}
    for stage in stages:
        selected = events.take(events.stage == stage)
        alone, _ = distinct_rows(selected.start, selected.end)  # of passes that overlap both have one place
        selected = selected.take(np.sort(alone))
        assert (selected.start[1:] >= selected.end[:-1] * (1 - 1e-12)).all()
    assert (sum(getattr(events, name) for name in EXPOSED) <= (events.end - events.start) * (1 + 1e-9)).all()


def test_gradients_of_weights_are_events_of_their_own_where_schedules_have_them_apart(a100):
    model = load_model("gpt3_175b")
    kinds = {word: set(next(timelines(run_of(model, designed(word, CHUNKS[word]), a100))).words) for word in CHUNKS}
    apart = {word for word in kinds if "weight_gradient" in kinds[word]}
    assert apart == {"zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipe_v"}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_designs_of_every_space_have_a_timeline_of_their_step(name):
    space = Space.load(name)
    params = space.completed({})
    events = events_of(space, params)
    run = transformer_run(space, space.encode([params]), DesignPoints)
    assert events["end_s"].max() == transformer_step(run).step_time
    assert list(events)[:6] == ["stage", "micro_batch", "chunk", "kind", "start_s", "end_s"]
    assert events["start_s"].is_monotonic_increasing
    assert set(events["kind"]) <= {*KINDS}


def test_a_trace_opens_in_perfetto(small_study):
    """Spans of microseconds in the lane of their stage, named; exposed communication lies within its pass."""
    outputs_of("export", "small", "--trial", "0", "--format", "trace", "-o", "step.json")
    trace = json.loads((small_study / "step.json").read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    ends = [event["ts"] + event["dur"] for event in spans]
    assert max(ends) == pytest.approx(trace["otherData"]["step_time_s"] * 1e6)
    lanes = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert all(lane.startswith("stage ") for lane in lanes.values() if "step" not in lane)
    assert {event["cat"] for event in spans} <= {*KINDS, "communication"}
