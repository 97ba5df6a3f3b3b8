"""Designs as folders that ASTRA-sim's analytical back end runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.rules.registry import NATIVE
from costmodel.steps.transformer import resolve_sharding
from costmodel.training.run import TransformerRun
from dse.adapters.astra_sim.network import NetworkDimension, dimensions, memory_file, network_file, system_file
from dse.adapters.astra_sim.placement import GroupNames, RankPlacement, same_tiers
from dse.adapters.astra_sim.program import Replicas, Rings, StageProgram, rank_traces
from dse.adapters.chakra.pass_work import rank_grid, step_work
from dse.adapters.chakra.step import NAME, step_traces
from dse.adapters.chakra.trace import Value
from dse.output.artefact import Artefact

#: Most ranks with traces, and most nodes of all of them, unless a job with so few replicas is another one:
#: the simulator keeps all nodes, 2 KB each, and all groups for each rank.
MOST_RANKS: Final = 1024
MOST_NODES: Final = 1_000_000
#: What a job of one rank has instead of files.
ALONE: Final = "one rank: ASTRA-sim needs two at least; give it another, such as tp=2 or dp=2"
#: What a job whose groups do not fill its stages has instead of files.
UNEVEN: Final = "ranks of a stage are not whole groups; give sizes of groups that divide those of stages"
#: Ranks of a job that is too large.
FEWER: Final = (
    "{ranks} ranks, a job of {all_ranks} with fewer replicas: other groups are as large as there, and of"
    " what replicas exchange each rank sends as many bytes as among all of them"
)
#: README of the folder.
README: Final = Path(__file__).with_name("folder.md").read_text()


def astra_sim_files(run: TransformerRun, form: str = "astra-sim", profile: str = NATIVE) -> Iterator[Artefact]:
    """Designs as folders: traces of all ranks, groups, network, system, memory, and how to start it."""
    for point in range(run.num_points):
        try:
            yield Artefact(_folder(run.take(np.array([point]))), ())
        except DseError as error:
            yield Artefact(None, (str(error),))


def _folder(run: TransformerRun) -> dict[str, bytes]:
    """The files of one design."""
    run = run.of(resolve_sharding(run.model, run.system, run.design, precision=run.precision))
    work = step_work(run)
    if work.grid.world_size == 1:
        raise DseError(ALONE)
    traces = step_traces(run, work)
    whole = RankPlacement.of(work.grid, run.system)
    if not whole.keeps_stages():
        raise DseError(UNEVEN)
    most = min(MOST_RANKS, MOST_NODES // max(len(trace.nodes) for trace in traces))
    here = fewer_replicas(run, whole, most)
    rings = Rings(here, whole)
    replicas = Replicas.of(work.replicas, int(run.design.zero.item()), traces)
    stages = [(trace, StageProgram(trace, rings, replicas).nodes()) for trace in traces]
    network = dimensions(here, [nodes for _, nodes in stages], work.hop_time)
    names = GroupNames()
    files = {f"{NAME}.{own.rank}.et": own.encoded() for own in rank_traces(stages, rings, names)}
    texts = {
        "groups.json": json.dumps({str(name): ranks for ranks, name in names.names.items()}) + "\n",
        "network.yml": network_file(network, [own.bandwidth for own in network]),
        "links.yml": network_file(network, here.rates),
        "system.json": system_file(network),
        "memory.json": memory_file(),
        "README.md": readme(traces[0].metadata, whole, here, network),
    }
    return {**files, **{name: text.encode() for name, text in texts.items()}}


def fewer_replicas(run: TransformerRun, whole: RankPlacement, most: int) -> RankPlacement:
    """Ranks of a job, with fewer replicas if it has too many: as many as keep all groups and their tiers."""
    ranks, replicas = whole.grid.world_size, int(run.design.dp.item())
    if ranks <= most:
        return whole
    fewer = [count for count in range(1, replicas) if replicas % count == 0]
    few_enough = [count for count in fewer if ranks * count <= most * replicas]
    for count in (*reversed(few_enough), *fewer[len(few_enough) :]):
        design = replace(run.design, dp=np.full_like(run.design.dp, count))
        here = RankPlacement.of(rank_grid(run.of(design)), run.system)
        if same_tiers(here, whole) and here.keeps_stages():
            return here
    return whole


def readme(
    about: Mapping[str, Value], whole: RankPlacement, here: RankPlacement, network: Sequence[NetworkDimension]
) -> str:
    """Describes the files, how to start ASTRA-sim with them, and the step time to compare its result with."""
    ranks, all_ranks = here.grid.world_size, whole.grid.world_size
    jobs = f"all {ranks} ranks of the job, by their number" if ranks == all_ranks else FEWER
    rows = [
        (own.tier.name, own.size, *_giga(own.tier.bandwidth, rate, own.bandwidth))
        for own, rate in zip(network, here.rates, strict=True)
    ]
    return README.format(
        model=about["model"],
        system=about["system"],
        cycles=round(float(about["step_time_s"]) * 1e9),
        step_time=float(about["step_time_s"]),
        jobs=jobs.format(ranks=ranks, all_ranks=all_ranks),
        name=NAME,
        tiers="\n".join(f"| {' | '.join(map(str, row))} |" for row in rows),
    )


def _giga(*rates: FloatArray | float) -> list[str]:
    """Rates in GB/s, to one decimal."""
    return [f"{np.asarray(rate).item() / 1e9:.1f}" for rate in rates]
