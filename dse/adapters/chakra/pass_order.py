"""Passes of micro-batches along the stages of a pipeline: what each waits for, and what waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from costmodel.columns import BoolArray, IntArray
from costmodel.steps.pipeline.schedules import NONE, SCHEDULES
from costmodel.steps.timeline import KINDS
from costmodel.training.design import SCHEDULE_WORDS, DesignPoints

#: Kinds of events that are passes.
FORWARD, BACKWARD, WEIGHT = KINDS[:3]
#: From a pass to the one of the next stage that takes what it sends.
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
        """True if gradients of weights have a pass of their own after the backward pass."""
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
        there = 0 <= stage + step < self.ranks.shape[1]
        return (kind, chain, stage + step, micro) if step and there else None


def message_delay(events: Iterable[Event], pipeline: Pipeline, hop_time: float) -> float:
    """Time of messages that overlap, at most the time that the timeline leaves for them. [s]

    The closed form of 1F1B may be shorter than its passes with such messages, and a timeline is then shorter
    by as much.
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
