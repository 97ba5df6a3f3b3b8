"""The work of one pipeline stage in a step, as nodes of an execution trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from costmodel.formats.chrome_trace import MICROSECOND
from costmodel.training.ranks import Group
from dse.adapters.chakra.pass_order import BACKWARD, FORWARD, WEIGHT, Event, Pass, Pipeline
from dse.adapters.chakra.pass_work import PassExchange, PassWork, StepWork, together
from dse.adapters.chakra.trace import SCHEMA, RankTrace, Value, process_groups

#: Pass -> the one of the same stage whose results it takes.
NEEDS: Final = {BACKWARD: FORWARD, WEIGHT: BACKWARD}
#: Collective -> Chakra's word. A ring of messages brings to each rank what a gather does.
WORDS: Final = {"send_recv": "ALL_GATHER"}
#: What the optimizer does, in turn, and whether that is a collective of all ranks.
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
        """Append what runs at once, behind all that ran before."""
        self._last = [self._pass(event) if event.of else self._whole(event) for event in events]

    def finished(self) -> RankTrace:
        """The trace, with the process groups that it names."""
        self.trace.name_inputs(0, process_groups(self._groups))
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
        """Work of a pass; gradients of weights are of the backward pass unless they have one of their own."""
        passes = self.work.passes[self.stage]
        if one[0] != BACKWARD or self.pipeline.is_split(one):
            return passes[one[0]]
        return together(passes[BACKWARD], passes[WEIGHT])

    def _timed(
        self, exchanges: Sequence[PassExchange], exposed: Mapping[str, float]
    ) -> Iterator[tuple[PassExchange, float]]:
        """Exchanges of several ranks, each with its part of the exposed time of its kind, by bytes. [s]"""
        shared = [own for own in exchanges if self.work.grid.groups[own.group].size.item() > 1]
        for own in shared:
            whole = sum(other.message_bytes for other in shared if other.kind == own.kind)
            yield own, exposed[own.kind] * own.message_bytes / whole

    def _received(self, event: Event, label: str) -> Iterator[int]:
        """The node that has what the stage before sends: its own, or a receive."""
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
            {
                "comm_type": SCHEMA.CollectiveCommType.Value(word),
                "comm_size": round(message),
                "pg_name": self._group(one.group, group),
            },
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
        own = {"is_cpu_op": event.kind == "host", "num_ops": 0}
        return self.trace.add(event.kind.replace("_", " "), "COMP_NODE", times, own, order=self._last)

    def _replicas(self, event: Event) -> int:
        """Reductions of gradients, then gathers of weights; those of tied embeddings on both ends alone."""
        at_end = self.stage in (0, self.pipeline.size - 1)
        here = [own for own in self.work.replicas if own.group != "embedding" or at_end]
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
    """Starts and ends of the pieces of an event, one behind the other, and of what is left of it. [us]"""
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
    return tuple(base + row * apart + place * stride for row in range(rows) for place in range(size // rows))
