"""A design's step as Chakra's traces: the first rank of each pipeline stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import numpy as np

from costmodel.errors import DseError
from costmodel.rules.registry import NATIVE
from costmodel.steps.timeline import Timeline, timeline
from costmodel.training.run import TransformerRun
from dse.adapters.chakra.pass_order import Event, Pipeline, message_delay
from dse.adapters.chakra.pass_work import StepWork, step_work
from dse.adapters.chakra.stage import StageGraph
from dse.adapters.chakra.trace import RankTrace, Value
from dse.output.artefact import Artefact

#: What files are called in front of a rank's number, as ASTRA-sim asks for them.
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
    timed, work = timeline(run), work or step_work(run)
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
    for _, together in groupby(
        enumerate(events), lambda own: (own[1].start, own[1].end) if pairs and own[1].of else own[0]
    ):
        graph.add([event for _, event in together])
    return graph.finished()


def _events(timed: Timeline, pipeline: Pipeline) -> Iterator[Event]:
    """Rows of a timeline in their order."""
    words = timed.words
    columns = {name: getattr(timed, name).tolist() for name in ("stage", "chunk", "micro_batch")}
    times = {name: getattr(timed, f"{name}_time").tolist() for name in ("tp", "cp", "ep", "pp")}
    for row, (start, end) in enumerate(zip(timed.start.tolist(), timed.end.tolist(), strict=True)):
        rank, chunk, micro = (int(column[row]) for column in columns.values())
        exposed = {name: own[row] for name, own in times.items()}
        of = (words[row], *pipeline.place(rank, chunk), micro) if micro >= 0 else None
        yield Event(rank, words[row], start, end, exposed, of)
