"""One optimizer step as events: the passes of each rank of the pipeline, with their times, and the end of the step.

Times are those of `pipeline_step`, so that the last event ends at the step time. Each pass of a micro-batch through
a chunk is an event, with the communication that it exposes; late exchanges and the update follow the passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.columns import Columns, FloatArray, column, concatenated, taken
from costmodel.errors import DseError
from costmodel.kernels.kernel_cost import BESIDE_KERNELS, KernelCost, weighted_sum
from costmodel.kernels.kernel_tables import some_narrow
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.pipeline.pipeline_step import (
    ScheduledPasses,
    message_delay,
    messages,
    passes_on_ranks,
    pipeline_hop,
    schedule_step,
    sending_time,
)
from costmodel.steps.pipeline.schedules import BACKWARD, FORWARD, NONE, SCHEDULES, WEIGHT, Order, order
from costmodel.steps.pipeline.simulation import TimedPasses
from costmodel.steps.pipeline.stages import pipeline_stages
from costmodel.steps.pipeline.timed_pipelines import design_pipelines
from costmodel.steps.transformer import pass_costs, rank_costs, resolve_sharding, transformer_step
from costmodel.training.design import SCHEDULE_WORDS
from costmodel.training.run import RankRun, TransformerRun, rank_run

#: Kinds of events, by their codes. A backward pass is that of inputs and weights unless the schedule separates the
#: gradients of weights. The last four are of the whole rank: casts of weights before its first pass; the exposed part
#: of data-parallel communication, the update, and the host at the end.
KINDS: Final = (*("forward", "backward", "weight_gradient"), *("weight_cast", "dp_communication", "optimizer", "host"))
ENDING: Final = ("dp_communication", "optimizer", "host")

#: Columns of a `Timeline`: exposed communication within a pass.
EXPOSED: Final = (*BESIDE_KERNELS, "pp_time")
TIMES: Final = ("start", "end", *EXPOSED)

#: Micro-batch and chunk of an event of a whole rank. [-]
NO_PASS: Final = -1.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Timeline(Columns):
    """Passes, exchanges and updates of the ranks of one pipeline in a step, by their start; (events,) columns."""

    stage: FloatArray = column("-")  #: rank of the pipeline, from 0
    micro_batch: FloatArray = column("-")  #: from 0; -1: of the whole rank
    chunk: FloatArray = column("-")  #: of the rank, from 0; -1: of the whole rank
    kind: FloatArray = column("-")  #: place in `KINDS`
    start: FloatArray = column("s")  #: from the start of the step
    end: FloatArray = column("s")
    tp_time: FloatArray = column("s")  #: exposed communication in between, by its group
    cp_time: FloatArray = column("s")
    ep_time: FloatArray = column("s")
    offload_time: FloatArray = column("s")
    pp_time: FloatArray = column("s")

    @property
    def words(self) -> list[str]:
        """Kind of each event by its name."""
        return [KINDS[int(code)] for code in self.kind]


def timelines(run: TransformerRun) -> Iterator[Timeline]:
    """The step of each design, event by event; the last one ends when the step does.

    A timeline has a row for each pass of a micro-batch through a chunk of a rank, and for the work of each rank before
    and behind all passes; in the order of start, then of stage. [-], [s]

    Raises `DseError` if the cost model has no number for a design.

    Notes
    -----
    Passes run in the orders of `SCHEDULES` and take the times of `schedule_step`. Two passes that overlap have the same
    start and end. Stages of both ends of a pipeline, as of DualPipe, are chunks of one rank. Exchanges of replicas
    follow all passes, also where parts of them are exposed between passes.
    """
    run = run.of(run.design.map(np.atleast_1d))
    run = run.of(resolve_sharding(run.model, run.system, run.design, precision=run.precision))
    cost = transformer_step(run)
    if not np.isfinite(cost.step_time).all():
        raise DseError("timeline: the cost model has no number for this design")
    run = replace(run, system=run.system.sliced(run.design.world_size))
    ranks = rank_run(run)
    costs, _ = rank_costs(run, ranks, pass_costs(run, ranks))
    for row in np.arange(run.num_points)[:, np.newaxis]:
        yield _timeline(run.take(row), ranks.take(row), taken(costs, row), cost.take(row))


def _timeline(run: TransformerRun, ranks: RankRun, costs: MicroBatch, cost: Breakdown) -> Timeline:
    """The step of one design, event by event; `costs` are those of a micro-batch, `cost` is that of the step. [s]"""
    stages = pipeline_stages(run.model, run.design).runs
    columns, _, scheduled = schedule_step(run, ranks, costs, stages)
    passes = _passes(run, scheduled, pipeline_hop(run, ranks))
    casts = float(cost.forward_time[0] - columns["forward_time"][0]) if some_narrow(run) else 0.0
    ending, step_time = {kind: float(getattr(cost, f"{kind}_time")[0]) for kind in ENDING}, float(cost.step_time[0])
    ready = step_time - sum(ending.values())
    passes = replace(passes, start=passes.start + casts, end=passes.end + casts)
    events = concatenated([passes, *_of_ranks(run, {"weight_cast": casts}, 0.0), *_of_ranks(run, ending, ready)])
    events = events.take(np.lexsort([events.end, events.stage, events.start]))
    return replace(events, end=np.where(events.end == events.end.max(), step_time, events.end))


def _of_ranks(run: TransformerRun, times: Mapping[str, float], start: float) -> Iterator[Timeline]:
    """Events that all ranks have one after the other from some time on; those without length are left out."""
    stages = np.arange(run.design.pp.item())
    for kind, time in times.items():
        if time > 0:
            places = {"stage": stages, "micro_batch": NO_PASS, "chunk": NO_PASS, "kind": KINDS.index(kind)}
            yield Timeline.of(**places, start=start, end=start + time, **dict.fromkeys(EXPOSED, 0.0))
        start += time


def _passes(run: TransformerRun, scheduled: ScheduledPasses, hop: KernelCost) -> Timeline:
    """Passes of all micro-batches, from the start of the first."""
    design, stages = run.design, scheduled.stages
    late = np.broadcast_to(message_delay(design, hop), 1)
    timed, like = passes_on_ranks(design, scheduled.times, late, stages, (np.zeros(1, np.intp),))
    asked = design_pipelines(design, timed)
    word = SCHEDULE_WORDS[int(design.schedule.item())]
    p, v, m, n = (int(size.item()) for size in (asked.pp, asked.vpp, asked.micro_batches, asked.group_size))
    table, one = SCHEDULES[word].slots(p, v, m, n), order(word, p, v, m, n)
    ends = slot_ends(one, timed)
    durations = timed.entries(np.zeros(1, np.intp), p)[:, :, 0]
    exposed = {bit: _exposed(run, scheduled, hop, bit) for bit in (FORWARD, BACKWARD, WEIGHT)}
    rank = np.broadcast_to(table.rank[:, :, np.newaxis], table.forward.shape)
    chain, stage, micro = np.indices(table.forward.shape)
    chunk = stage // p + chain * (table.forward.shape[1] // p)
    tables = []
    for code, (bit, slots) in enumerate(((FORWARD, table.forward), (BACKWARD, table.backward), (WEIGHT, table.weight))):
        runs = slots != NONE
        slot, rank_of_pass = slots[runs], rank[runs]
        end = ends[slot, rank_of_pass]
        tables.append(
            Timeline.of(
                stage=rank_of_pass,
                micro_batch=(micro + chain * table.forward.shape[2])[runs],
                chunk=chunk[runs],
                kind=np.full(slot.size, code),
                start=end - durations[one.entry[slot, rank_of_pass], rank_of_pass],
                end=end,
                **{name: times[like[0, rank_of_pass]] for name, times in exposed[bit].items()},
            )
        )
    return concatenated([events for events in tables if events.stage.size])


def slot_ends(one: Order, passes: TimedPasses) -> FloatArray:
    """End of each slot of one pipeline's order on each rank, (slots, ranks), from the start of the first rank. [s]

    `passes` are those on the ranks of one point. [s]
    """
    slots, p = one.entry.shape
    times = np.take_along_axis(passes.entries(np.zeros(1, np.intp), p)[:, :, 0], one.entry.astype(np.intp), axis=0)
    before = np.arange(slots)[:, np.newaxis]
    sources = [  # place of the source's end, and the time of its message
        (p * (before - (before - 1 - (places >> 1)) % one.window) + ranks, passes.message[0] * (places & 1))
        for places, ranks in one.sources
    ]
    ends = np.zeros((slots + 1, p))  # before the first slot all are done at 0
    for slot in range(slots):
        begin = ends[slot]
        for ended, message in sources:
            begin = np.maximum(begin, ends.take(ended[slot]) + message[slot])
        np.add(begin, times[slot], out=ends[slot + 1])
    return ends[1:]


def _exposed(run: TransformerRun, scheduled: ScheduledPasses, hop: KernelCost, bit: int) -> dict[str, FloatArray]:
    """Exposed communication of a pass through a chunk of each stage, by column; (stages,) each. [s]"""
    design, costs = run.design, scheduled.costs
    seconds: dict[str, list[float]] = {name: [] for name in EXPOSED}
    for stage in scheduled.stages:
        sums, sent = [KernelCost()], 0.0
        if bit != WEIGHT:
            sums = [weighted_sum(costs.forward if bit == FORWARD else costs.backward, stage.counts)]
            sent = float(messages(design, stage)[bit == BACKWARD].item())
        if bit == BACKWARD:
            sums.append(weighted_sum(costs.again, stage.recomputed_layers))
        for name in BESIDE_KERNELS:
            seconds[name].append(sum(float(getattr(cost, name).item()) for cost in sums))
        seconds["pp_time"].append(sent * float(sending_time(design, hop).item()))
    return {name: np.array(times) / design.vpp.item() for name, times in seconds.items()}
