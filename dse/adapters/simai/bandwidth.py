"""Bus bandwidths of collectives: given by a file, or derived from the links; differences between revisions.

Both come as tables with the axes (points, sides, groups, collectives). A side is 0 for the forward and
activation-gradient passes and 1 for the weight gradient: the reference takes a group's size from there. Measured
efficiencies by message size and number of nodes are those of SimAI [SimAI]_.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, IntArray, column
from costmodel.formats.input_files import data_beside
from dse.adapters.simai.workload_rows import COLLECTIVES, GROUPS, Parallelism


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """Rules of one revision of SimAI's analytical mode."""

    bandwidth: str  #: "file": bus bandwidths from a file; "links": from the machine
    bandwidth_unit: float = 2.0**30  #: of a bus bandwidth [B/s]
    gather: str = "all_gather"  #: collective whose bandwidth that takes over the tensor-parallel group
    bubble_by: str = "vpp"  #: column of `Parallelism` that divides the bubble in addition to the micro-batches
    overlaps: bool = True  #: whether ratios of overlap exist, and exposed pipeline messages
    least_forward_bytes: float = 4096  #: smaller messages of the forward pass count as this much [B]


REVISIONS: Final = {
    name: Revision(**rules) for name, rules in data_beside(__file__, "tables.yaml")["revisions"].items()
}

#: Message sizes of the tables' rows: 16 MiB to 16 GiB. [B]
SIZES: Final = 2.0 ** np.arange(24, 35)

#: Nodes of the tables' columns; 9 stands for groups with one member per node, which share all NICs.
NODES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 9)
#: Column of a number of nodes that the tables do not have.
OTHER_NODES: Final = NODES.index(16)

#: Which table a collective reads: none, then one per bottleneck.
WHOLE, NIC, NVLINK, ALL_TO_ALL = range(4)
TABLES: Final[FloatArray] = np.array([*data_beside(__file__).values()])


def efficiency(table: IntArray, column: IntArray, message_bytes: FloatArray) -> FloatArray:
    """Share of the bandwidth that a message [B] of a table and a column reaches, relative to the largest message. [-]

    Linear between the rows; as the first row below 16 MiB, 1 for nothing, NaN beyond 16 GiB.
    """
    row = np.clip(np.searchsorted(SIZES, message_bytes, side="right") - 1, 0, len(SIZES) - 2)
    low, high = TABLES[table, column, row], TABLES[table, column, row + 1]
    size = np.maximum(message_bytes, SIZES[0])
    share = low + (high - low) * (size - SIZES[row]) / (SIZES[row + 1] - SIZES[row])
    share = share / TABLES[table, column, -1]
    beyond = (message_bytes > SIZES[-1]) & (table != WHOLE)
    return np.where(beyond, np.nan, np.where(message_bytes == 0, 1.0, share))


#: A bandwidth that is not defined, as the reference stores it; and that of free collectives.
UNDEFINED, FREE = -1.0, np.inf

#: NVLink bandwidth by GPU, and that of a NIC by type. [GiB/s]
GPU_TYPES: Final[Mapping[str, float]] = {"A100": 240, "A800": 160, "H100": 370.8, "H20": 370.8, "H800": 164.8}
NIC_TYPES: Final[Mapping[str, float]] = {"cx6": 23.5, "cx7": 48.5, "bf3": 48.5}


@dataclass(frozen=True, slots=True)
class Busbw:
    """Bus bandwidths by group ("tp", "dp", "ep") and collective, as a file gives them. [GiB/s]"""

    by_name: Mapping[tuple[str, str], float]
    pp: float | None  #: of a message between stages

    def of(self, group: str, collective: str) -> float:
        """A bandwidth, `UNDEFINED` where the file has none. [GiB/s]"""
        return self.by_name.get((group, collective), UNDEFINED)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Links(Columns):
    """Servers and their links; one value, or one per design."""

    gpus_per_server: FloatArray = column("-", 8)
    nics_per_server: FloatArray = column("-", 8)
    nvlink_bandwidth: FloatArray = column("B/s")  #: of one GPU
    nic_bandwidth: FloatArray = column("B/s")  #: of one NIC


@dataclass(frozen=True, kw_only=True, slots=True)
class Bandwidths:
    """Inputs of the time of a collective besides its size; (points, sides, groups, collectives)."""

    group_size: FloatArray  #: (points, sides, groups) [-]
    bandwidth: FloatArray  #: not positive where there is none [GiB/s]
    table: IntArray  #: of `efficiency.TABLES`
    column: IntArray  #: of the table


def group_sizes(layout: Parallelism, world_size: FloatArray) -> FloatArray:
    """(points, sides, groups) Ranks of a group.

    The reference takes the tensor-parallel size for every group of the forward side but the experts', and
    the number of replicas for every group of the other side but the replicas of experts.
    """
    dp = np.floor(world_size / (layout.tp * layout.pp))
    per_expert = np.floor(dp / layout.ep)
    forward = [layout.tp, layout.tp, layout.ep, layout.tp]
    return np.stack([np.stack(forward, -1), np.stack([dp, dp, dp, per_expert], -1)], axis=1)


def file_bandwidths(
    busbw: Busbw, layout: Parallelism, world_size: FloatArray, gpus_per_server: FloatArray, revision: Revision
) -> Bandwidths:
    """Bandwidths of collectives as a file gives them.

    Over experts' groups all-gather and reduce-scatter are free. If tensor-parallel groups leave the server, all
    collectives among experts are free, except in the first revision, which takes the replicas' bandwidths. If the run
    has only one server, replicas reduce at the tensor-parallel bandwidth and the rest is free.
    """
    sizes = group_sizes(layout, world_size)
    inside = layout.tp <= gpus_per_server
    alone = inside & (world_size == gpus_per_server)
    first = revision.gather == "all_reduce"
    leaving = {
        kind: busbw.of("dp", "all_reduce" if kind == "all_reduce" else "all_gather") if first else FREE
        for kind in COLLECTIVES
    }
    gathered = busbw.of("tp", revision.gather)
    across = np.where(inside | (not first), gathered, busbw.of("tp", "all_to_all"))
    table = np.full((*sizes.shape, len(COLLECTIVES)), FREE)
    for kind, name in enumerate(COLLECTIVES):
        if name in ("none", "broadcast"):
            continue
        reduces = name == "all_reduce"
        degree = {"all_reduce": "tp", "all_to_all": "ep"}.get(name)
        experts = busbw.of(degree, name) if degree else FREE
        near = busbw.of("tp", "all_reduce") if reduces else FREE
        per_group = {
            "tp": across if name in ("all_gather", "reduce_scatter") else busbw.of("tp", name),
            "dp": np.where(alone, near, busbw.of("dp", "all_reduce" if reduces else "all_gather")),
            "ep": np.where(inside, experts, leaving[name]),
            "dp_ep": np.where(alone, near, busbw.of("ep", "all_reduce" if reduces else "all_gather")),
        }
        for group, values in per_group.items():
            table[:, :, GROUPS.index(group), kind] = np.reshape(values, (-1, 1))
    whole = np.zeros((1, 1, 1, 1), dtype=np.intp)
    return Bandwidths(group_size=sizes, bandwidth=table, table=whole, column=whole)


def derived_bandwidths(
    links: Links, layout: Parallelism, world_size: FloatArray, *, bandwidth_unit: float
) -> Bandwidths:
    """Bandwidths of rings and of all-to-all on the links between a group's ranks, (points,).

    `world_size` is (points,) [-]; `bandwidth_unit` is the unit of the tables. [B/s]
    """
    sizes = group_sizes(layout, world_size)
    points = len(sizes)
    shape = (*sizes.shape, len(COLLECTIVES))
    bandwidth = np.full(shape, FREE)
    table, columns = np.full(shape, WHOLE), np.zeros(shape, dtype=np.intp)
    units = {
        name: single(np.broadcast_to(getattr(links, name) / bandwidth_unit, (points,)))
        for name in ("nvlink_bandwidth", "nic_bandwidth")
    }
    gather, scatter, swap = (COLLECTIVES.index(n) for n in ("all_gather", "reduce_scatter", "all_to_all"))
    for side in range(2):
        for group, name in enumerate(GROUPS):
            size = sizes[:, side, group]
            where = placement(name, size, layout, links)
            ring, by_nvlink = ring_bandwidth(where, **units)
            swapped = all_to_all_bandwidth(where, **units)
            nothing = (size <= 1) & (name != "tp")
            for kind in range(1, len(COLLECTIVES) - 1):
                times_of_kind = swapped if kind == swap else ring
                bandwidth[:, side, group, kind] = np.where(nothing, FREE, times_of_kind)
            if name == "tp":
                for kind in (gather, scatter):
                    table[:, side, group, kind] = np.where(by_nvlink, NVLINK, NIC)
            if name in ("tp", "ep"):
                table[:, side, group, swap] = ALL_TO_ALL
                nodes = nodes_of_table(name, size, layout, links)
                column = np.select([nodes == count for count in NODES], range(len(NODES)), OTHER_NODES)
                columns[:, side, group] = column[:, None]
    return Bandwidths(group_size=sizes, bandwidth=bandwidth, table=table, column=columns)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranks of a group sit; (points,) each. [-]"""

    nodes: FloatArray
    per_node: FloatArray
    nics: FloatArray  #: of a node, for this group


def placement(group: str, size: FloatArray, layout: Parallelism, links: Links) -> Placement:
    """Nodes, ranks per node and NICs of a group; NICs and ranks are shared out in whole numbers."""
    tp, ep, gpus, nics = layout.tp, layout.ep, links.gpus_per_server, links.nics_per_server
    one = np.ones_like(size)
    if group == "tp":
        inside = tp <= gpus
        return Placement(np.where(inside, 1.0, np.floor(tp / gpus)), np.where(inside, tp, gpus), nics * one)
    if group == "ep":
        inside = tp * size <= gpus
        share = np.where(tp > gpus, np.floor(nics / gpus), np.floor(nics / tp))
        return Placement(
            np.where(inside, 1.0, np.floor(tp * size / gpus)),
            np.where(inside, np.floor(gpus / tp), np.maximum(np.floor(gpus / tp), 1.0)),
            np.where(inside, nics, share),
        )
    block = tp * ep if group == "dp_ep" else tp
    inside = block <= gpus
    return Placement(
        size,
        np.where(inside, np.floor(gpus / block), 1.0),
        np.where(inside, np.floor(nics / block), np.floor(nics / gpus)),
    )


def ring_bandwidth(
    placed: Placement, *, nvlink_bandwidth: FloatArray, nic_bandwidth: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """Bandwidth of a ring [GiB/s], and whether NVLink bounds it [-], (points,).

    0 for a group of one, `UNDEFINED` without a NIC.
    """
    out = single(nic_bandwidth * placed.nics)
    per_node = np.maximum(placed.per_node, 2.0)
    crossing = single(nvlink_bandwidth * per_node / (per_node - 1))
    spread = (placed.nodes > 1) & (placed.per_node > 1)
    inner = np.where(out > nvlink_bandwidth, crossing, nvlink_bandwidth)
    by_nvlink = spread & (inner < out)
    bandwidth = np.where(placed.nodes == 1, nvlink_bandwidth, np.where(spread, np.minimum(inner, out), out))
    return judged(bandwidth, placed), by_nvlink


def all_to_all_bandwidth(placed: Placement, *, nvlink_bandwidth: FloatArray, nic_bandwidth: FloatArray) -> FloatArray:
    """Bandwidth of an all-to-all: messages that leave the node go over the NICs. [GiB/s]"""
    nodes = np.maximum(placed.nodes, 2.0)
    ranks = nodes * placed.per_node
    leaving = nic_bandwidth * placed.nics / placed.per_node * (ranks - 1) / (ranks - placed.per_node)
    return judged(np.where(placed.nodes == 1, nvlink_bandwidth, leaving), placed)


def judged(bandwidth: FloatArray, placed: Placement) -> FloatArray:
    """A bandwidth, 0 where there is nobody to talk to, `UNDEFINED` where there is nothing to talk over."""
    lacking = (placed.nics < 1) | (placed.nodes < 1) | (placed.per_node < 1) | (bandwidth <= 0)
    alone = placed.nodes * placed.per_node == 1
    return single(np.where(alone, 0.0, np.where(lacking, UNDEFINED, bandwidth)))


def single(values: FloatArray) -> FloatArray:
    """Values in single precision, as the reference keeps bandwidths."""
    return values.astype(np.float32).astype(np.float64)


def nodes_of_table(group: str, size: FloatArray, layout: Parallelism, links: Links) -> FloatArray:
    """Nodes under which the efficiency tables have a group. [-]"""
    tp, gpus = layout.tp, links.gpus_per_server
    if group == "tp":
        return np.where(tp < gpus, 1.0, np.floor(tp / gpus))
    spread = np.where(tp >= gpus, 9.0, np.floor(tp * size / gpus))
    return np.where(tp * size <= gpus, 1.0, spread)
