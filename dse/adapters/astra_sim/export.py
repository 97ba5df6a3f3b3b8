"""Designs as folders that ASTRA-sim's analytical back end runs: traces, network, system and memory.

ASTRA-sim computes the time of messages from its own network file. Each dimension of that file is a tier of the machine,
with the bandwidth that the messages of the step reach in the cost model, so that both use the same sizes and rates. A
job with too many ranks is written with fewer replicas: the most that keep every group and its tiers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from costmodel.errors import DseError
from costmodel.machine import LinkTier
from costmodel.rules.registry import NATIVE
from costmodel.steps.transformer import resolve_sharding
from costmodel.training.run import TransformerRun
from dse.adapters.astra_sim.program import (
    GroupNames,
    RankPlacement,
    Replicas,
    Ring,
    Rings,
    StageProgram,
    rank_traces,
    same_tiers,
)
from dse.adapters.chakra.pass_work import rank_grid, step_work
from dse.adapters.chakra.step import NAME, step_traces
from dse.adapters.chakra.trace import Node, Value
from dse.output import Artefact

#: Size of the back end's GB. [B]
GIBI: Final = 2**30
#: Least share of the time of a message that is left to its bytes when steps have been taken off. [-]
LEAST: Final = 0.5
#: Weight of exchanges of replicas during passes in the rates of tiers: they count where there are no others.
OVERLAPPED: Final = 1e-3
#: Rate at which local reductions read and write: so high that they take no time. [GB/s]
ENDLESS: Final = 1_000_000_000
#: ASTRA-sim's collectives, all of them rings.
IMPLEMENTATIONS: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@dataclass(frozen=True, slots=True)
class NetworkDimension:
    """A tier of links as a dimension of ASTRA-sim's network."""

    tier: LinkTier
    size: int  #: parts that it joins
    bandwidth: float  #: that messages of the step reach, of one rank, one direction [B/s]

    @property
    def topology(self) -> str:
        """Through switches, or over links between chips."""
        direct = np.isfinite(self.tier.peer_bandwidth).any() or self.tier.is_torus
        return "FullyConnected" if direct else "Switch"

    @property
    def latency(self) -> float:
        """Latency of one link; a message through a switch takes two links. [s]"""
        return _one(self.tier.latency) / (2 if self.topology == "Switch" else 1)


def dimensions(
    placement: RankPlacement, stages: Iterable[Sequence[Node]], hop_time: float
) -> tuple[NetworkDimension, ...]:
    """Tiers of a machine with the rates that the messages of a step reach in the cost model.

    `stages` are the nodes of the ranks of each stage; `hop_time` is that of a message to the next stage. [s]

    The bus bandwidth of nccl-tests: bytes that a rank sends in rings over the time of collectives, with launches,
    ramps, copies and reductions in switches, but without the latency of steps, which ASTRA-sim counts by itself. Where
    tiers work at once in the cost model, but one after the other in ASTRA-sim, each is faster by that ratio. A tier
    without a message has the rate of its links.
    """
    sent, times = (np.zeros(len(placement.tiers)) for _ in range(2))
    hops = placement.farthest("pp")
    for node in (node for stage in stages for node in stage):
        if isinstance(node.about, Ring) and node.about.time:
            number, phase_here, time = node.about.phase.tier, node.about.phase, node.about.time
            size, steps, weight = phase_here.sent, phase_here.steps, OVERLAPPED if node.about.overlapped else 1.0
        elif node.type == "COMM_SEND_NODE" and hop_time:
            number, time, size, steps, weight = hops, hop_time, float(node.attributes["comm_size"]), 1, 1.0
        else:
            continue
        sent[number] += weight * size
        alone = max(time - steps * _one(placement.tiers[number].latency), LEAST * time)
        times[number] += weight * alone
    return tuple(
        NetworkDimension(tier, size, seconds / time if time else _one(tier.rate))
        for tier, size, seconds, time in zip(placement.tiers, placement.sizes, sent, times, strict=True)
    )


def _one(value: np.ndarray | float) -> float:
    return float(np.asarray(value).item())


def network_file(tiers: Sequence[NetworkDimension], bandwidths: Sequence[float]) -> str:
    """A network with a dimension for each tier, of some bandwidths. [B/s]"""
    names = ", ".join(tier.tier.name for tier in tiers)
    return "\n".join(
        [
            f"# {names}: from the inside out",
            f"topology: [ {', '.join(tier.topology for tier in tiers)} ]",
            f"npus_count: [ {', '.join(str(tier.size) for tier in tiers)} ]",
            f"bandwidth: [ {', '.join(f'{bandwidth / GIBI:.6g}' for bandwidth in bandwidths)} ]  # GiB/s",
            f"latency: [ {', '.join(f'{tier.latency * 1e9:.6g}' for tier in tiers)} ]  # ns, of one link",
            "",
        ]
    )


def system_file(tiers: Sequence[NetworkDimension]) -> str:
    """`system.json`: rings in every dimension, in one piece; compute nodes take the time that they have."""
    settings = {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 1,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{f"{name}-implementation": ["ring"] * len(tiers) for name in IMPLEMENTATIONS},
        "collective-optimization": "localBWAware",
        "local-mem-bw": ENDLESS,
        "roofline-enabled": 0,
        "boost-mode": 0,
    }
    return json.dumps(settings, indent=2) + "\n"


#: Most ranks with traces, and most nodes of all of them, unless a job with so few replicas is another one:
#: the simulator keeps all nodes, 2 KB each, and all groups for each rank.
MOST_RANKS: Final = 1024
MOST_NODES: Final = 1_000_000
#: Error of a job of one rank, which has no files.
ALONE: Final = "one rank: ASTRA-sim needs two at least; give it another, such as tp=2 or dp=2"
#: Error of a job whose groups do not fill its stages.
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
    files = {f"{NAME}.{rank_trace.rank}.et": rank_trace.encoded() for rank_trace in rank_traces(stages, rings, names)}
    texts = {
        "groups.json": json.dumps({str(name): ranks for ranks, name in names.names.items()}) + "\n",
        "network.yml": network_file(network, [tier.bandwidth for tier in network]),
        "links.yml": network_file(network, here.rates),
        "system.json": system_file(network),
        "memory.json": json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=2) + "\n",
        "README.md": readme(traces[0].metadata, whole, here, network),
    }
    return {**files, **{name: text.encode() for name, text in texts.items()}}


def fewer_replicas(run: TransformerRun, whole: RankPlacement, most: int) -> RankPlacement:
    """Ranks of a job, with fewer replicas if it has too many: the most that keep all groups and their tiers."""
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
        (tier.tier.name, tier.size, *(f"{_one(of) / 1e9:.1f}" for of in (tier.tier.bandwidth, rate, tier.bandwidth)))
        for tier, rate in zip(network, here.rates, strict=True)
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
