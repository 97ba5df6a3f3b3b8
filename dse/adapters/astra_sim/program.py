"""The work of the ranks of a pipeline stage in a step, as nodes that ASTRA-sim can issue.

Ranks and their groups have places in the tiers of a network. ASTRA-sim's groups run a collective as rings within these
tiers, one after the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np

from costmodel.formats.chrome_trace import MICROSECOND
from costmodel.kernels.collectives import held_ranks
from costmodel.machine import LinkTier, System
from dse.adapters.chakra.pass_work import PassExchange, RankGrid
from dse.adapters.chakra.step import BACKWARD, FORWARD, members
from dse.adapters.chakra.trace import COLLECTIVES, Node, RankTrace

#: A group of ranks in each tier, by each of its ranks.
Tiers = Sequence[Mapping[int, tuple[int, ...]]]


@dataclass(slots=True)
class GroupNames:
    """Names of process groups, from 1 on: ASTRA-sim keeps 0 for all ranks."""

    names: dict[tuple[int, ...], int] = field(default_factory=dict)

    def of(self, ranks: tuple[int, ...]) -> str:
        """The name of a group; the next number where it is new."""
        return str(self.names.setdefault(ranks, len(self.names) + 1))


@dataclass(frozen=True)
class RankPlacement:
    """Ranks of a job in the tiers that it spans."""

    grid: RankGrid
    tiers: tuple[LinkTier, ...]  #: from the inside out
    sizes: tuple[int, ...]  #: parts that each joins; their product is the number of ranks

    @classmethod
    def of(cls, grid: RankGrid, system: System) -> RankPlacement:
        """Tiers of a system and the part of them that a job fills; those that join nothing are left out.

        Where a job does not fill its nodes evenly, its nodes are as large as divides it; a tier that groups
        of one kind do not all fill alike is part of the next.
        """
        held = [min(float(np.asarray(held_rank).item()), grid.world_size) for held_rank in held_ranks(system.network)]
        blocks = [math.gcd(int(ranks), grid.world_size) for ranks in held[:-1]] + [grid.world_size]
        tiers_within, inside = list[tuple[LinkTier, int]](), 1
        for tier, block in zip(system.network, blocks, strict=True):
            if block > inside and block % inside == 0:
                tiers_within.append((tier, block // inside))
                inside = block
        while True:
            here = cls(grid, tuple(tier for tier, _ in tiers_within), tuple(size for _, size in tiers_within))
            uneven = here._uneven()
            if uneven is None:
                return here
            (_, inner), (tier, outer) = tiers_within[uneven : uneven + 2]
            tiers_within[uneven : uneven + 2] = [(tier, inner * outer)]

    @cached_property
    def rates(self) -> list[float]:
        """Rates of the links of a rank in each tier. [B/s]"""
        return [float(np.asarray(tier.rate).item()) for tier in self.tiers]

    @cached_property
    def pipelines(self) -> Mapping[int, tuple[int, ...]]:
        """The ranks of each rank's pipeline, in the order of stages."""
        return {rank: ranks for ranks in self.alike("pp") for rank in ranks}

    @cached_property
    def stages(self) -> Mapping[int, int]:
        """The stage of each rank."""
        return {rank: stage for ranks in self.alike("pp") for stage, rank in enumerate(ranks)}

    def alike(self, name: str) -> list[tuple[int, ...]]:
        """All groups of one kind, in the order of their first ranks."""
        first = members(self.grid.groups[name], 0)
        starts: Iterable[int] = range(self.grid.world_size)
        if name == "embedding":
            starts = (rank for rank in starts if self.stages[rank] == 0)
        chosen_tiers, taken = [], set[int]()
        for start in starts:
            if start not in taken and start + first[-1] < self.grid.world_size:
                chosen_tiers.append(ranks := tuple(start + member for member in first))
                taken.update(ranks)
        return chosen_tiers

    @cached_property
    def _known(self) -> dict[str, Tiers]:
        return {}

    def groups(self, name: str) -> Tiers:
        """The ranks that a rank reaches through its groups of one kind in each tier, beyond the inner tiers."""
        if name not in self._known:
            divided = self._divided(self.alike(name))
            self._known[name] = [{rank: part for part in parts for rank in part} for parts in divided]
        return self._known[name]

    def group_sizes(self, name: str) -> list[int]:
        """Ranks of a group of one kind in each tier; 0 where the job is too small for one. [-]"""
        return [len(next(iter(tier.values()), ())) for tier in self.groups(name)]

    def farthest(self, name: str) -> int:
        """The outermost tier that groups of one kind span."""
        return max((tier for tier, size in enumerate(self.group_sizes(name)) if size > 1), default=0)

    def keeps_stages(self) -> bool:
        """True if every rank is in one group of each kind, and that group lies within its stage where it must."""
        for name in set(self.grid.groups) - {"embedding"}:
            groups_alike = self.alike(name)
            if sorted(rank for ranks in groups_alike for rank in ranks) != [*range(self.grid.world_size)]:
                return False
            if name not in ("pp", "world") and any(len({self.stages[r] for r in group}) > 1 for group in groups_alike):
                return False
        return True

    def _divided(self, groups: Iterable[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Parts of groups in each tier: ranks of one block, then the first of all blocks, the second."""
        lines, inside = [*groups], 1
        for size in self.sizes:
            inside *= size
            parts = [_parts(line, inside) for line in lines]
            yield [part for part_of in parts for part in part_of]
            lines = [line for group_parts in parts for line in zip(*group_parts, strict=False)]

    def _uneven(self) -> int | None:
        """The innermost tier in which parts of groups of one kind are not all of one size."""
        for name in self.grid.groups:
            for tier, parts in enumerate(self._divided(self.alike(name))):
                if len({len(part) for part in parts}) > 1:
                    return tier
        return None


def _parts(ranks: Sequence[int], block: int) -> list[tuple[int, ...]]:
    """Ranks by the blocks of neighbours in which they stand."""
    blocks = defaultdict[int, list[int]](list)
    for rank in ranks:
        blocks[rank // block].append(rank)
    return [tuple(block_ranks) for block_ranks in blocks.values()]


#: Groups that are smaller where a job has fewer replicas, by the first word of their names.
OF_REPLICAS: Final = ("dp", "edp", "world")


def same_tiers(one: RankPlacement, other: RankPlacement) -> bool:
    """True if groups of two jobs span the same tiers, and are equally large unless they are groups of replicas."""
    if [tier.name for tier in one.tiers] != [tier.name for tier in other.tiers]:
        return False
    for name in one.grid.groups:
        sizes = one.group_sizes(name), other.group_sizes(name)
        if [size > 1 for size in sizes[0]] != [size > 1 for size in sizes[1]]:
            return False
        if name.split()[0] not in OF_REPLICAS and math.prod(sizes[0]) != math.prod(sizes[1]):
            return False
    return True


#: A ring: ranks n -> messages that each sends one after the other, and each as a share of `comm_size`.
RINGS: Final[Mapping[str, Callable[[int], tuple[int, float]]]] = {
    "ALL_GATHER": lambda n: (n - 1, 1.0),
    "REDUCE_SCATTER": lambda n: (n - 1, 1 / n),
    "ALL_REDUCE": lambda n: (2 * (n - 1), 1 / n),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A ring in one tier."""

    tier: int  #: place in the network, from the inside out
    word: str  #: key of `RINGS`
    size: float  #: `comm_size`, the input of a rank [B]
    ranks: int

    @property
    def steps(self) -> int:
        """Messages that each rank sends, one after the other. [-]"""
        return RINGS[self.word](self.ranks)[0]

    @property
    def sent(self) -> float:
        """Bytes that each rank sends. [B]"""
        steps, share = RINGS[self.word](self.ranks)
        return steps * share * self.size

    def scaled(self, ranks: int) -> Phase:
        """This ring, where each rank sends the bytes that it sends in a ring of `ranks` ranks."""
        if ranks == self.ranks:
            return self
        size = self.size * self.ranks / ranks if self.word == "ALL_GATHER" else self.size  # of the same tensor
        wanted = Phase(self.tier, self.word, size, ranks).sent
        return Phase(self.tier, self.word, self.size * wanted / self.sent, self.ranks)


def phases(collective: str, message: float, sizes: Sequence[int]) -> list[Phase]:
    """Rings, one after the other, that do the work of a collective over a group that spans several tiers.

    `message` is the input of a rank [B]; `sizes` are the ranks of the group in each tier, from the inside out. [-]
    Tiers with one rank have no ring.

    A reduction goes outwards with ever smaller parts, a gather inwards, an all-reduce there and back. An
    exchange of all with all is a gather of the parts for the ranks that only this tier reaches: as many
    messages, of as many bytes, as if each rank sent its parts to one rank after the other. (ASTRA-sim's own,
    of a group, is a ring that sends every part through all ranks between.) So is a ring of keys and values.
    """
    tiers = [tier for tier, size in enumerate(sizes) if size > 1]
    if not tiers:
        return []
    inside = {tier: prod(sizes[:tier]) for tier in tiers}
    outside = {tier: prod(sizes[tier + 1 :]) for tier in tiers}
    if collective == "all_to_all":
        parts = {tier: message / (sizes[tier] * outside[tier]) for tier in tiers}
        return [Phase(tier, "ALL_GATHER", parts[tier], sizes[tier]) for tier in tiers]
    if collective == "send_recv":
        collective, message = "all_gather", message / (prod(sizes) - 1)
    if collective == "all_gather":
        return [Phase(tier, "ALL_GATHER", message * outside[tier], sizes[tier]) for tier in reversed(tiers)]
    reduced = [Phase(tier, "REDUCE_SCATTER", message / inside[tier], sizes[tier]) for tier in tiers]
    if collective == "reduce_scatter":
        return reduced
    *_, last = tiers
    whole = Phase(last, "ALL_REDUCE", message / inside[last], sizes[last])
    gathered = [
        Phase(tier, "ALL_GATHER", message / inside[tier] / sizes[tier], sizes[tier]) for tier in reversed(tiers[:-1])
    ]
    return [*reduced[:-1], whole, *gathered]


#: An exchange and the share of it that runs at once.
Piece = tuple[PassExchange, float]
#: First stage of ZeRO whose replicas exchange in every micro-batch.
EVERY_MICRO_BATCH: Final = 2


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of a collective, the same for every rank."""

    group: str  #: key of `RankGrid.groups`
    phase: Phase
    time: float  #: its share of the cost model's time for the collective, hidden or not [s]
    overlapped: bool = False  #: runs during a pass, and is not part of it


@dataclass(frozen=True, slots=True)
class Rings:
    """Collectives of a job as rings on its machine."""

    here: RankPlacement
    whole: RankPlacement  #: the same with all replicas

    def of(self, exchange: PassExchange, share: float = 1.0, *, overlapped: bool = False) -> list[Ring]:
        """A share of an exchange; among fewer replicas, each rank sends the bytes that it sends among all."""
        sizes, all_sizes = (job.group_sizes(exchange.group) for job in (self.here, self.whole))
        message = exchange.message_bytes * share
        if exchange.collective == "all_gather":  # a rank has a larger part where there are fewer
            message *= prod(all_sizes) / prod(sizes)
        phases_here = [
            phase.scaled(all_sizes[phase.tier]) for phase in phases(exchange.collective, message, sizes) if phase.size
        ]
        alone = [phase.sent / self.here.rates[phase.tier] for phase in phases_here]
        time = exchange.time * share
        return [
            Ring(exchange.group, phase, time * part / sum(alone), overlapped)
            for phase, part in zip(phases_here, alone, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Exchanges of replicas in a step that may overlap with passes, and the part of them that does."""

    exchanges: tuple[PassExchange, ...]
    often: bool  #: in every micro-batch, else once
    hidden: float  #: share of their time [-]

    @classmethod
    def of(cls, exchanges: Sequence[PassExchange], zero: int, traces: Sequence[RankTrace]) -> Replicas:
        """Exchanges of a step with the hidden share from its traces; those of tied embeddings hide nothing."""
        whole = sum(exchange.time for exchange in exchanges) / MICROSECOND
        exposed = max(sum(node.duration for node in trace.nodes if of_replicas(node)) for trace in traces)
        hides = tuple(exchange for exchange in exchanges if exchange.group != "embedding")
        most = sum(exchange.time for exchange in hides) / MICROSECOND
        hidden = min((whole - exposed) / most, 1.0) if whole - exposed > 1 and most else 0.0
        return cls(hides, zero >= EVERY_MICRO_BATCH, hidden)

    def left(self, exchange: PassExchange) -> float:
        """Share of an exchange that is exposed. [-]"""
        return 1 - self.hidden if exchange in self.exchanges else 1.0

    def of_passes(self, exchange: PassExchange, passes: Sequence[Node]) -> list[Node]:
        """Passes that have gradients to reduce, or weights to wait for, in their order.

        Once a step, these are the last backward pass of each chunk, and its first forward pass.
        """
        gathers = exchange.collective == "all_gather"
        kinds = (FORWARD, BACKWARD) if gathers and self.often else (FORWARD,) if gathers else (BACKWARD,)
        passes_about = [(node.about, node) for node in passes]
        fitting = [(of, node) for of, node in passes_about if isinstance(of, tuple) and of[0] in kinds]
        if self.often:
            return [node for _, node in fitting]
        of_chunks = {of[1:3]: node for of, node in (reversed(fitting) if gathers else fitting)}
        return sorted(of_chunks.values(), key=lambda node: node.id)


def of_replicas(node: Node) -> bool:
    """True if a node is an exchange of replicas; the norm of gradients is none."""
    of = node.about
    return isinstance(of, PassExchange) and of.kind == "dp" and of.group != "world"


class StageProgram:
    """Nodes of all ranks of a stage, from the trace of its first rank.

    Kernels of a pass take the time that they have in the trace. The collectives that the model hides run during the end
    of the kernels of their pass, so that the exposed time is the same if they take the time of the trace. Two passes
    that overlap follow each other, in the time of both. Collectives of a rank follow each other in one order, so that
    no two ranks wait for each other. Exchanges of replicas in every micro-batch begin with each pass; once a step,
    after the pass of each chunk, and run during the next. All dependencies are of data: ASTRA-sim reads no others.
    """

    def __init__(self, trace: RankTrace, rings: Rings, replicas: Replicas) -> None:
        self.trace, self._rings, self._replicas = trace, rings, replicas
        self._out = RankTrace(trace.rank, trace.metadata)
        self._done: dict[int, tuple[int, ...]] = {}  # nodes that a successor of a node waits for
        self._free: dict[int, tuple[int, ...]] = {}  # nodes that a collective after it waits for
        self._last_ring: tuple[int, ...] = ()

    def nodes(self) -> list[Node]:
        """All nodes; those of rings lack the name of their group."""
        of_pass = _of_passes(self.trace.nodes)
        starts = [(key, (nodes[0].start, nodes[0].order)) for key, nodes in of_pass.items()]
        pairs = {second: first for (first, one), (second, other) in pairwise(starts) if one == other}  # they overlap
        lengths, hidden = (
            _lengths(of_pass, pairs),
            {key: _hidden(nodes_of_pass[1:]) for key, nodes_of_pass in of_pass.items()},
        )
        during, behind = self._pieces([nodes_of_pass[0] for nodes_of_pass in of_pass.values()])
        last = done = -1  # the last pass, and its last node
        for node in self.trace.nodes:
            if node.type in ("COMP_NODE", "COMM_RECV_NODE") and last in behind:
                self._piece_nodes(behind.pop(last), self._done[done])
            if node.type == "METADATA_NODE":
                self._done[node.id] = ()
            elif node.type == "COMP_NODE":
                if node.id in pairs:
                    node = replace(node, order=[of_pass[pairs[node.id]][-1].id])
                self._piece_nodes(during.get(node.id, ()), self._behind(node))
                length = lengths.get(node.id, node.duration)
                self._computing(node, length, min(hidden.get(node.id, 0), length))
                last = node.id
            elif node.type == "COMM_COLL_NODE":
                self._collective(node)
            else:
                added = self._add(node.name, node.type, node.attributes, self._behind(node))
                self._done[node.id] = self._free[node.id] = (added,)
            done = node.id
        return self._out.nodes

    def _behind(self, node: Node) -> list[int]:
        return [new for old in (*node.order, *node.data) for new in self._done[old]]

    def _piece_nodes(self, pieces: Iterable[Piece], behind: Iterable[int]) -> None:
        """Add exchanges of replicas during passes."""
        for exchange, share in pieces:
            name = f"replicas {exchange.collective.replace('_', '-')} beside passes"
            self._ring_nodes(name, self._rings.of(exchange, share, overlapped=True), behind)

    def _computing(self, node: Node, length: int, hidden: int) -> None:
        """Add kernels; the last of them runs during collectives."""
        behind = self._behind(node)
        if not isinstance(node.about, tuple):
            behind += self._last_ring
        last = free = tuple(sorted({*behind}))
        for part in (length - hidden, hidden):
            free = last
            if part:
                attributes_of_part = dict(node.attributes)
                for name in ("num_ops", "tensor_size"):
                    if name in attributes_of_part:
                        attributes_of_part[name] = int(attributes_of_part[name]) * part // length
                last = (self._add(node.name, node.type, attributes_of_part, last, part),)
        self._done[node.id], self._free[node.id] = last, free if hidden else last

    def _collective(self, node: Node) -> None:
        """Rings of an exchange, without the part that ran during passes."""
        assert isinstance(node.about, PassExchange)
        [before] = node.data
        rings = self._rings.of(node.about, self._replicas.left(node.about))
        ring = self._ring_nodes(node.name, rings, self._free[before])
        self._free[node.id] = ring
        kernels = [new for new in self._done[before] if self._out.nodes[new].type == "COMP_NODE"]
        self._done[node.id] = (*ring, *kernels)

    def _ring_nodes(self, name: str, rings: Iterable[Ring], behind: Iterable[int]) -> tuple[int, ...]:
        """Nodes of rings in turn, and the last of them."""
        last = tuple(behind)
        for ring in rings:
            attributes = {"comm_type": COLLECTIVES[ring.phase.word], "comm_size": max(round(ring.phase.size), 1)}
            behind_all = (*last, *self._last_ring)
            last = (self._add(name, "COMM_COLL_NODE", attributes, behind_all, about=ring),)
            self._last_ring = last
        return last

    def _add(
        self, name: str, kind: str, attributes: Mapping[str, bool | int | float | str], behind: Iterable[int],
        length: int = 0, *, about: Ring | None = None,
    ) -> int:  # fmt: skip
        return self._out.add(name, kind, (0, length), attributes, data=sorted({*behind}), about=about)

    def _pieces(self, passes: Sequence[Node]) -> tuple[dict[int, list[Piece]], dict[int, list[Piece]]]:
        """Exchanges of replicas during passes and after them: equal shares, none after the last pass."""
        during, behind = dict[int, list[Piece]](), dict[int, list[Piece]]()
        for exchange in self._replicas.exchanges:
            fitting = self._replicas.of_passes(exchange, passes)
            with_each_pass = self._replicas.often or len(fitting) == 1
            begins, where = (fitting, during) if with_each_pass else (fitting[:-1], behind)
            for pass_node in begins:
                where.setdefault(pass_node.id, []).append((exchange, self._replicas.hidden / len(begins)))
        return during, behind


def _of_passes(nodes: Iterable[Node]) -> dict[int, list[Node]]:
    """Nodes of each pass by the number of the first, its kernels: then its collectives and its message."""
    passes: dict[int, list[Node]] = {}
    current: list[Node] = []
    for node in nodes:
        if node.type == "COMP_NODE":
            current = [node]
            if isinstance(node.about, tuple):
                passes[node.id] = current
        elif node.type != "COMM_RECV_NODE" and not of_replicas(node):
            current.append(node)
    return passes


def _lengths(of_pass: Mapping[int, Sequence[Node]], pairs: Mapping[int, int]) -> dict[int, int]:
    """Time of the kernels of each pass; of two that overlap, by their arithmetic, of both together. [us]"""
    lengths = {key: nodes_of_pass[0].duration for key, nodes_of_pass in of_pass.items()}
    for other, one in pairs.items():
        first, second = of_pass[one], of_pass[other]
        end = max(node.start + node.duration for node in (*first, *second))
        both = max(lengths[one] + lengths[other] - (end - first[0].start), 0)
        work = [int(nodes_of_pass[0].attributes["num_ops"]) for nodes_of_pass in (first, second)]
        lengths[one] = both * work[0] // max(sum(work), 1)
        lengths[other] = both - lengths[one]
    return lengths


def _hidden(nodes: Iterable[Node]) -> int:
    """Time of collectives that the cost model hides. [us]"""
    exchanges = ((node.about, node.duration) for node in nodes)
    times = (of.time / MICROSECOND - exposed for of, exposed in exchanges if isinstance(of, PassExchange))
    return max(round(sum(times)), 0)


def rank_traces(
    programs: Sequence[tuple[RankTrace, Sequence[Node]]], rings: Rings, names: GroupNames
) -> Iterator[RankTrace]:
    """The trace of every rank, from the trace of the first rank of its stage and the nodes of all its ranks.

    Completes `names`, the names of groups.
    """
    placement, stride = rings.here, rings.whole.grid.stage_stride
    for rank in range(placement.grid.world_size):
        trace, nodes = programs[placement.stages[rank]]
        pipeline, nodes_of_rank = placement.pipelines[rank], []
        for node in nodes:
            attributes = dict(node.attributes)
            if isinstance(node.about, Ring):
                tier = placement.groups(node.about.group)[node.about.phase.tier]
                attributes["pg_name"] = names.of(tier[rank])
            elif "comm_src" in attributes:
                for end in ("comm_src", "comm_dst"):
                    attributes[end] = pipeline[int(attributes[end]) // stride]
            nodes_of_rank.append(replace(node, attributes=attributes))
        yield RankTrace(rank, trace.metadata, nodes_of_rank)
