"""Where ranks and their groups stand in the tiers of a network."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from costmodel.kernels.collectives import held_ranks
from costmodel.machine.system import LinkTier, System
from dse.adapters.chakra.pass_work import RankGrid
from dse.adapters.chakra.step import members

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
        """Tiers of a system with what a job fills of them; those that join nothing are left out.

        Where a job does not fill its nodes evenly, its nodes are as large as divides it; a tier that groups
        of one kind do not all fill alike is part of the next.
        """
        held = [min(float(np.asarray(own).item()), grid.world_size) for own in held_ranks(system.network)]
        blocks = [math.gcd(int(own), grid.world_size) for own in held[:-1]] + [grid.world_size]
        found, inside = list[tuple[LinkTier, int]](), 1
        for tier, block in zip(system.network, blocks, strict=True):
            if block > inside and block % inside == 0:
                found.append((tier, block // inside))
                inside = block
        while True:
            here = cls(grid, tuple(tier for tier, _ in found), tuple(size for _, size in found))
            uneven = here._uneven()
            if uneven is None:
                return here
            (_, inner), (tier, outer) = found[uneven : uneven + 2]
            found[uneven : uneven + 2] = [(tier, inner * outer)]

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
        """All groups of one kind, one beside the other."""
        first = members(self.grid.groups[name], 0)
        starts: Iterable[int] = range(self.grid.world_size)
        if name == "embedding":
            starts = (rank for rank in starts if self.stages[rank] == 0)
        found, taken = [], set[int]()
        for start in starts:
            if start not in taken and start + first[-1] < self.grid.world_size:
                found.append(ranks := tuple(start + member for member in first))
                taken.update(ranks)
        return found

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
            found = self.alike(name)
            if sorted(rank for ranks in found for rank in ranks) != [*range(self.grid.world_size)]:
                return False
            if name not in ("pp", "world") and any(len({self.stages[r] for r in own}) > 1 for own in found):
                return False
        return True

    def _divided(self, groups: Iterable[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Parts of groups in each tier: ranks of one block, then the first of all blocks, the second."""
        lines, inside = [*groups], 1
        for size in self.sizes:
            inside *= size
            parts = [_parts(line, inside) for line in lines]
            yield [part for own in parts for part in own]
            lines = [line for own in parts for line in zip(*own, strict=False)]

    def _uneven(self) -> int | None:
        """The innermost tier in which parts of groups of one kind are not all of one size."""
        for name in self.grid.groups:
            for tier, parts in enumerate(self._divided(self.alike(name))):
                if len({len(part) for part in parts}) > 1:
                    return tier
        return None


def _parts(ranks: Sequence[int], block: int) -> list[tuple[int, ...]]:
    """Ranks by the blocks of neighbours in which they stand."""
    found = defaultdict[int, list[int]](list)
    for rank in ranks:
        found[rank // block].append(rank)
    return [tuple(own) for own in found.values()]


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
