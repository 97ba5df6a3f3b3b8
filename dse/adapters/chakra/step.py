"""A design's step as Chakra's traces: the first rank of each pipeline stage.

A trace holds the work of a stage as nodes: kernels of passes, collectives, messages. A pass of a micro-batch waits for
the pass before it on its stage and for its micro-batch on the neighbouring stage.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final, Self

import numpy as np

from costmodel.columns import BoolArray, IntArray
from costmodel.errors import DseError
from costmodel.formats.chrome_trace import MICROSECOND
from costmodel.rules.registry import NATIVE
from costmodel.steps.pipeline.schedules import NONE, SCHEDULES
from costmodel.steps.timeline import KINDS, Timeline, timelines
from costmodel.training.design import SCHEDULE_WORDS, DesignPoints
from costmodel.training.ranks import Group
from costmodel.training.run import TransformerRun
from dse.adapters.chakra.pass_work import PassExchange, PassWork, StepWork, step_work, together
from dse.adapters.chakra.trace import COLLECTIVES, RankTrace, Value, process_groups
from dse.output import Artefact

#: Kinds of events that are passes.
FORWARD, BACKWARD, WEIGHT = KINDS[:3]
#: Steps from a pass to the stage that takes its output.
STEP: Final = {FORWARD: 1, BACKWARD: -1}

#: A pass of a micro-batch: kind, chain of stages, place in the chain, micro-batch.
Pass = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Event:
    """A row of a `Timeline`."""

    rank: int  #: of the pipeline
    kind: str
    start: float  #: [s]
    end: float  #: [s]
    exposed: Mapping[str, float]  #: communication by kind: "tp", "cp", "ep", "pp" [s]
    of: Pass | None  #: None where the event is of the whole rank


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Where the stages of a pipeline run."""

    ranks: IntArray  #: of each stage of each chain; (chains, stages)
    size: int  #: ranks
    pairs: bool  #: whether forward passes overlap with backward passes
    split: BoolArray  #: backward passes whose gradients of weights are apart; (chains, stages, micro-batches)

    @classmethod
    def of(cls, design: DesignPoints) -> Self:
        """Order of passes of one design."""
        sizes = (design.pp, design.vpp, design.gradient_accumulation_steps, design.group_size)
        schedule = SCHEDULES[SCHEDULE_WORDS[int(design.schedule.item())]]
        p, v, m, n = (int(size.item()) for size in sizes)
        table = schedule.slots(p, v, m, n or p)
        return cls(table.rank, p, schedule.pairs, table.weight != NONE)

    def place(self, rank: int, chunk: int) -> tuple[int, int]:
        """Chain and stage that a chunk of a rank is."""
        chunks = self.ranks.shape[1] // self.size  # of each chain
        chain, around = divmod(chunk, chunks)
        first = around * self.size
        return chain, first + self.ranks[chain, first : first + self.size].tolist().index(rank)

    def rank(self, one: Pass) -> int:
        """Where a pass runs."""
        return int(self.ranks[one[1], one[2]])

    def is_split(self, one: Pass) -> bool:
        """True if gradients of weights have a separate pass after the backward pass."""
        _, chain, stage, micro = one
        return bool(self.split[chain, stage, micro - chain * self.split.shape[2]])

    def source(self, one: Pass) -> Pass | None:
        """The pass whose output a pass takes; None at an end of the pipeline."""
        return self._moved(one, -STEP.get(one[0], 0))

    def target(self, one: Pass) -> Pass | None:
        """The pass that takes the output of a pass."""
        return self._moved(one, STEP.get(one[0], 0))

    def _moved(self, one: Pass, step: int) -> Pass | None:
        kind, chain, stage, micro = one
        is_on_ranks = 0 <= stage + step < self.ranks.shape[1]
        return (kind, chain, stage + step, micro) if step and is_on_ranks else None


def message_delay(events: Iterable[Event], pipeline: Pipeline, hop_time: float) -> float:
    """Time of messages that overlap, at most the time that the timeline leaves for them. [s]

    The closed form of 1F1B may be shorter than its passes with these messages, and a timeline is then shorter by the
    same time.
    """
    if not hop_time:
        return 0.0
    ends = {event.of: event.end for event in events if event.of}
    gaps = [
        event.start - ends[source]
        for event in events
        if event.of and (source := pipeline.source(event.of)) and pipeline.rank(source) != event.rank
    ]
    return max(min([hop_time, *gaps]), 0.0)


#: Pass -> the one of the same stage whose results it takes.
NEEDS: Final = {BACKWARD: FORWARD, WEIGHT: BACKWARD}
#: Collective -> Chakra's word. A ring of messages brings the same data to each rank as a gather.
WORDS: Final = {"send_recv": "ALL_GATHER"}
#: Steps of the optimizer, in turn, and whether each is a collective of all ranks.
UPDATE: Final = {"clipping of gradients": False, "all_reduce of the norm": True, "update of weights": False}
#: The norm of gradients is one number. [B]
NORM_BYTES: Final = 4


class StageGraph:
    """The trace of the first rank of a pipeline stage, event after event.

    `delay` is the time of overlapped messages. [s] `names` maps the ranks of process groups to names; it is completed
    here, the same for all stages. `metadata` are attributes of the file.
    """

    def __init__(
        self,
        stage: int,
        work: StepWork,
        pipeline: Pipeline,
        delay: float,
        names: dict[tuple[int, ...], str],
        metadata: Mapping[str, Value],
    ) -> None:
        self.stage, self.work, self.pipeline, self.delay = stage, work, pipeline, delay
        self.trace = RankTrace(stage * work.grid.stage_stride, {**metadata, "stage": stage})
        self._names = names
        self._groups: dict[str, tuple[str, Sequence[int]]] = {}
        self._done: dict[Pass, int] = {}
        self._last = [self.trace.add("process groups", "METADATA_NODE", (0, 0))]

    def add(self, events: Sequence[Event]) -> None:
        """Append events that run at once, after all that ran before."""
        self._last = [self._pass(event) if event.of else self._whole(event) for event in events]

    def finished(self) -> RankTrace:
        """The trace, with the process groups that it names."""
        self.trace.nodes[0] = replace(self.trace.nodes[0], inputs=process_groups(self._groups))
        return self.trace

    def _pass(self, event: Event) -> int:
        """Nodes that a pass receives, computes, exchanges and sends; returns the node that the next pass waits for."""
        assert event.of
        kind, chain, stage, micro = event.of
        label = f"{kind.replace('_', ' ')} {micro} stage {stage}" + (f" chain {chain}" if chain else "")
        data = [*self._received(event, label)]
        if kind in NEEDS:
            data.append(self._done[NEEDS[kind], chain, stage, micro])
        work = self._work(event.of)
        timed = [*self._timed(work.exchanges, event.exposed)]
        target = self.pipeline.target(event.of)
        sending = event.exposed["pp"]
        computing = max(event.end - event.start - sending - sum(time for _, time in timed), 0.0)
        times = _times(event, [computing, *(time for _, time in timed), sending])
        last = self.trace.add(
            label,
            "COMP_NODE",
            next(times),
            {"num_ops": round(work.flops), "tensor_size": round(work.dram_bytes)},
            order=self._last,
            data=data,
            about=event.of,
        )
        for exchange, _ in timed:
            last = self._exchange(f"{label} {exchange.kind}", exchange, next(times), last)
        self._done[event.of] = last
        if target and self.pipeline.rank(target) != self.stage:
            sent = self._sent(f"{label} send", event.of, next(times), last)
            last = last if self.delay else sent
        return last

    def _work(self, one: Pass) -> PassWork:
        """Work of a pass; gradients of weights belong to the backward pass unless they have a separate one."""
        passes = self.work.passes[self.stage]
        if one[0] != BACKWARD or self.pipeline.is_split(one):
            return passes[one[0]]
        return together(passes[BACKWARD], passes[WEIGHT])

    def _timed(
        self, exchanges: Sequence[PassExchange], exposed: Mapping[str, float]
    ) -> Iterator[tuple[PassExchange, float]]:
        """Exchanges of several ranks, each with its part of the exposed time of its kind, by bytes. [s]"""
        shared = [exchange for exchange in exchanges if self.work.grid.groups[exchange.group].size.item() > 1]
        for node in shared:
            whole = sum(other.message_bytes for other in shared if other.kind == node.kind)
            yield node, exposed[node.kind] * node.message_bytes / whole

    def _received(self, event: Event, label: str) -> Iterator[int]:
        """The node with the output of the stage before: a local one, or a receive."""
        assert event.of
        source = self.pipeline.source(event.of)
        if source and self.pipeline.rank(source) == self.stage:
            yield self._done[source]
        elif source:
            now = _micros(event.start)
            message = self._message(source, self.stage)
            yield self.trace.add(f"{label} receive", "COMM_RECV_NODE", (now, now), message, order=self._last)

    def _sent(self, name: str, one: Pass, times: tuple[int, int], last: int) -> int:
        """The message of a pass to the next stage, which keeps the rank busy unless it overlaps."""
        target = self.pipeline.target(one)
        assert target
        if self.delay:
            times = times[0], times[0] + math.floor(self.delay / MICROSECOND)
        message = self._message(one, self.pipeline.rank(target))
        return self.trace.add(name, "COMM_SEND_NODE", times, message, data=[last])

    def _message(self, one: Pass, target: int) -> dict[str, Value]:
        """Ends and size of a pass's message to a rank of the pipeline, and a tag that no other has."""
        kind, chain, stage, micro = one
        chains, stages = self.pipeline.ranks.shape
        return {
            "comm_src": self.pipeline.rank(one) * self.work.grid.stage_stride,
            "comm_dst": target * self.work.grid.stage_stride,
            "comm_size": round(self.work.hop_bytes),
            "comm_tag": 2 * ((micro * chains + chain) * stages + stage) + (kind == BACKWARD),
        }

    def _exchange(self, name: str, one: PassExchange, times: tuple[int, int], last: int) -> int:
        """Collectives of one kind as a node."""
        group, message = self.work.grid.groups[one.group], one.message_bytes
        if one.collective == "send_recv":
            message /= group.size.item() - 1
        word = WORDS.get(one.collective, one.collective.upper())
        return self.trace.add(
            f"{name} {one.collective.replace('_', '-')}",
            "COMM_COLL_NODE",
            times,
            {"comm_type": COLLECTIVES[word], "comm_size": round(message), "pg_name": self._group(one.group, group)},
            data=[last],
            about=one,
        )

    def _group(self, of: str, group: Group) -> str:
        """Name of a process group; it is listed in the trace."""
        ranks = members(group, self.trace.rank if of != "embedding" else 0)
        key = () if len(ranks) == self.work.grid.world_size else ranks
        name = self._names.setdefault(key, str(len(self._names)))
        self._groups[name] = of, key
        return name

    def _whole(self, event: Event) -> int:
        """Work of a rank before and after all passes: one node, or several in turn."""
        if event.kind == "dp_communication":
            return self._replicas(event)
        if event.kind == "optimizer":
            return self._update(event)
        [times] = _times(event, [])
        attributes_of_event = {"is_cpu_op": event.kind == "host", "num_ops": 0}
        return self.trace.add(event.kind.replace("_", " "), "COMP_NODE", times, attributes_of_event, order=self._last)

    def _replicas(self, event: Event) -> int:
        """Reductions of gradients, then gathers of weights; those of tied embeddings on both ends alone."""
        at_end = self.stage in (0, self.pipeline.size - 1)
        here = [replica for replica in self.work.replicas if replica.group != "embedding" or at_end]
        timed = [*self._timed(here, {"dp": event.end - event.start})]
        times, last = _times(event, [time for _, time in timed[:-1]]), self._last[-1]
        for exchange, _ in timed:
            last = self._exchange("replicas", exchange, next(times), last)
        return last

    def _update(self, event: Event) -> int:
        """Clipping, for which the norm is summed up, and the update."""
        alone = self.work.grid.groups["world"].size.item() == 1
        names = [name for name, is_collective in UPDATE.items() if not (is_collective and alone)]
        times, last = _times(event, [self.work.update[name] for name in names[:-1]]), self._last[-1]
        for name in names:
            if UPDATE[name]:
                norm = PassExchange("dp", "world", "all_reduce", NORM_BYTES)
                last = self._exchange("norm of gradients", norm, next(times), last)
            else:
                last = self.trace.add(name, "COMP_NODE", next(times), {"num_ops": 0}, order=[last])
        return last


def _micros(time: float) -> int:
    """The nearest whole number of microseconds, halves upwards. [us]"""
    return math.floor(time / MICROSECOND + 0.5)


def _times(event: Event, lengths: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Starts and ends of the pieces of an event, one after the other, and of the remainder. [us]"""
    marks, now = [event.start], event.start
    for length in lengths:
        now = min(now + length, event.end)
        marks.append(now)
    return pairwise(_micros(mark) for mark in [*marks, event.end])


def members(group: Group, base: int) -> tuple[int, ...]:
    """Ranks of a group that starts with one of them."""
    size, stride, rows, apart = (
        round(float(value.item() if hasattr(value, "item") else value))
        for value in (group.size, group.stride, group.rows, group.row_stride)
    )
    return tuple(base + row * apart + column * stride for row in range(rows) for column in range(size // rows))


#: Start of a file's name, before a rank's number, as ASTRA-sim requires.
NAME: Final = "step"


def chakra_traces(run: TransformerRun, form: str = "chakra", profile: str = NATIVE) -> Iterator[Artefact]:
    """Designs as folders of traces, a file for one rank of each stage."""
    for point in range(run.num_points):
        try:
            traces = step_traces(run.take(np.array([point])))
        except DseError as error:
            yield Artefact(None, (str(error),))
            continue
        yield Artefact({f"{NAME}.{trace.rank}.et": trace.encoded() for trace in traces}, ())


def step_traces(run: TransformerRun, work: StepWork | None = None) -> list[RankTrace]:
    """The step of one design as traces of the first rank of each pipeline stage, in the order of stages.

    `work` is that of the run, if known. Raises `DseError` if the cost model has no number for the design.

    Each pass of the timeline is a compute node, then a node for each kind of collective in it, then its
    message to the next stage. Ends of passes are rounded, not lengths, so that errors do not add up. Where a
    pass sends nothing, the time of the message that the model charges every pass is left out.
    """
    [timed], work = timelines(run), work or step_work(run)
    pipeline = Pipeline.of(run.design.map(np.atleast_1d))
    events = [*_events(timed, pipeline)]
    delay = message_delay(events, pipeline, work.hop_time if work.overlaps_hops else 0.0)
    metadata: dict[str, Value] = {
        "model": run.model.title or run.model.name,
        "system": run.system.name,
        "step_time_s": float(timed.end.max()),
        "world_size": work.grid.world_size,
    }
    of_rank: Mapping[int, list[Event]] = defaultdict(list)
    for event in events:
        of_rank[event.rank].append(event)
    names: dict[tuple[int, ...], str] = {}
    return [
        _traced(of_rank[rank], StageGraph(rank, work, pipeline, delay, names, metadata)) for rank in sorted(of_rank)
    ]


def _traced(events: Sequence[Event], graph: StageGraph) -> RankTrace:
    """The events of one rank in turn; passes that overlap follow the same ones."""
    pairs = graph.pipeline.pairs
    for _, overlapping in groupby(
        enumerate(events), lambda pair: (pair[1].start, pair[1].end) if pairs and pair[1].of else pair[0]
    ):
        graph.add([event for _, event in overlapping])
    return graph.finished()


def _events(timed: Timeline, pipeline: Pipeline) -> Iterator[Event]:
    """Rows of a timeline in their order."""
    words = timed.words
    columns = {name: getattr(timed, name).tolist() for name in ("stage", "chunk", "micro_batch")}
    times = {name: getattr(timed, f"{name}_time").tolist() for name in ("tp", "cp", "ep", "pp")}
    for row, (start, end) in enumerate(zip(timed.start.tolist(), timed.end.tolist(), strict=True)):
        rank, chunk, micro = (int(column[row]) for column in columns.values())
        exposed = {name: time[row] for name, time in times.items()}
        of = (words[row], *pipeline.place(rank, chunk), micro) if micro >= 0 else None
        yield Event(rank, words[row], start, end, exposed, of)
