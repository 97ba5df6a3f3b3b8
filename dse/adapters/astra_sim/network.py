"""The machine as ASTRA-sim's analytical back end reads it: network, system and memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.machine.system import LinkTier
from dse.adapters.astra_sim.placement import RankPlacement
from dse.adapters.astra_sim.program import Ring
from dse.adapters.chakra.trace import Node

#: What the back end takes a GB to be. [B]
GIBI: Final = 2**30
#: Least share of the time of a message that is left to its bytes when steps have been taken off. [-]
LEAST: Final = 0.5
#: Weight of exchanges of replicas beside passes in the rates of tiers: they count where there are no others.
BESIDE: Final = 1e-3
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
        """Latency of one link, of which a message through a switch takes two. [s]"""
        return _one(self.tier.latency) / (2 if self.topology == "Switch" else 1)


def dimensions(
    placement: RankPlacement, stages: Iterable[Sequence[Node]], hop_time: float
) -> tuple[NetworkDimension, ...]:
    """Tiers of a machine with the rates that the messages of a step reach in the cost model.

    `stages` are the nodes of the ranks of each stage; `hop_time` is that of a message to the next stage. [s]

    The bus bandwidth of nccl-tests: bytes that a rank sends in rings over the time of collectives, with
    launches, ramps, copies and whatever switches reduce on the way, but for the latency of steps, which
    ASTRA-sim counts by itself. Where tiers work at once in the cost model, which ASTRA-sim has one after the
    other, each is as much faster. A tier without a message has the rate of its links.
    """
    sent, times = (np.zeros(len(placement.tiers)) for _ in range(2))
    hops = placement.farthest("pp")
    for node in (node for stage in stages for node in stage):
        if isinstance(node.about, Ring) and node.about.time:
            place, own, time = node.about.phase.tier, node.about.phase, node.about.time
            size, steps, weight = own.sent, own.steps, BESIDE if node.about.beside else 1.0
        elif node.type == "COMM_SEND_NODE" and hop_time:
            place, time, size, steps, weight = hops, hop_time, float(node.attributes["comm_size"]), 1, 1.0
        else:
            continue
        sent[place] += weight * size
        alone = max(time - steps * _one(placement.tiers[place].latency), LEAST * time)
        times[place] += weight * alone
    return tuple(
        NetworkDimension(tier, size, own / time if time else _one(tier.rate))
        for tier, size, own, time in zip(placement.tiers, placement.sizes, sent, times, strict=True)
    )


def _one(value: np.ndarray) -> float:
    return float(np.asarray(value).item())


def network_file(found: Sequence[NetworkDimension], bandwidths: Sequence[float]) -> str:
    """A network with a dimension for each tier, of some bandwidths. [B/s]"""
    names = ", ".join(own.tier.name for own in found)
    return "\n".join(
        [
            f"# {names}: from the inside out",
            f"topology: [ {', '.join(own.topology for own in found)} ]",
            f"npus_count: [ {', '.join(str(own.size) for own in found)} ]",
            f"bandwidth: [ {', '.join(f'{own / GIBI:.6g}' for own in bandwidths)} ]  # GiB/s",
            f"latency: [ {', '.join(f'{own.latency * 1e9:.6g}' for own in found)} ]  # ns, of one link",
            "",
        ]
    )


def system_file(found: Sequence[NetworkDimension]) -> str:
    """`system.json`: rings in every dimension, in one piece; compute nodes take the time that they have."""
    settings = {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 1,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{f"{name}-implementation": ["ring"] * len(found) for name in IMPLEMENTATIONS},
        "collective-optimization": "localBWAware",
        "local-mem-bw": ENDLESS,
        "roofline-enabled": 0,
        "boost-mode": 0,
    }
    return json.dumps(settings, indent=2) + "\n"


def memory_file() -> str:
    """`memory.json`: no memory beyond the chip's own."""
    return json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=2) + "\n"
