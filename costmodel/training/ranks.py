"""The grid of ranks: which of them form a process group, and how far apart its members stand.

Ranks are numbered along the axes of parallelism in an order, by default tensor, context, data, pipeline. A group
consists of ranks that differ in one axis; the product of the axes before it is the distance of its neighbours. With
tp 4 and dp 2, ranks 0 to 3 are a tensor-parallel group, and ranks 0 and 4 are replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import FloatArray

#: Axes of a transformer's grid, neighbours first, as Megatron-LM numbers its ranks by default.
ORDER: Final = ("tp", "cp", "dp", "pp")
#: Axes of the same ranks in the order of experts: within a stage of the pipeline they are divided again.
EXPERT_ORDER: Final = ("etp", "ep", "edp", "pp")

#: Words of `rank_order`, and their codes: neighbours first. Stages are outermost; or they stand inside of the
#: replicas, as in Llama 3's [tp, cp, pp, dp] [Llama2024]_.
RANK_ORDERS: Final = ("tp_cp_ep_dp_pp", "tp_cp_pp_dp")
STAGES_OUTSIDE, STAGES_INSIDE = range(2)


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate with each other; (points,) columns. [-]"""

    size: FloatArray
    stride: FloatArray  #: between neighbours in the numbering of all ranks, which fills nodes one by one
    #: Number of rows of ranks in a group with several rows, and the distance between the starts of two rows.
    rows: FloatArray | float = 1.0
    row_stride: FloatArray | float = 1.0

    @classmethod
    def of_neighbours(cls, size: FloatArray) -> Group:
        """Ranks with consecutive numbers."""
        return cls(size, np.ones_like(size))

    @classmethod
    def of_stage(cls, size: FloatArray, stride: FloatArray, together: FloatArray, spread: FloatArray) -> Group:
        """Ranks of one pipeline stage, numbered within it, where ranks of other stages may lie in between.

        `size` and `stride` are those of the group among the ranks of its stage; `together` ranks of a stage are
        consecutive; `spread` stages take turns, 1 where the ranks of a stage are consecutive; (points,) each. [-]
        """
        parted = spread > 1
        if not parted.any():
            return cls(size, stride)
        row = np.where(parted, np.clip(together / stride, 1.0, size), size)
        rows = size / row
        behind = np.where(rows > 1, np.maximum(together, stride) * spread, 1.0)
        single = (row == 1) & (rows > 1)  # rows of one rank each are one row, of ranks farther apart
        return cls(size, np.where(single, behind, stride), np.where(single, 1.0, rows), np.where(single, 1.0, behind))

    @property
    def is_one_row(self) -> bool:
        """True if the ranks of each group are one row at all points."""
        return self.rows == 1 if isinstance(self.rows, float) else bool((self.rows == 1).all())

    def blocks(self, length: FloatArray) -> FloatArray:
        """Blocks of `length` consecutive ranks that the group spans, if it starts with a block. [-]"""
        row = self.size if self.is_one_row else self.size / self.rows
        spanned: FloatArray = np.clip(np.ceil(row * self.stride / length), 1.0, row)
        if self.is_one_row:
            return spanned
        apart: FloatArray = np.clip(np.ceil(self.rows * self.row_stride / length), 1.0, self.rows)
        return spanned * apart

    def gap(self, length: FloatArray) -> FloatArray:
        """Blocks of consecutive ranks from one that holds members to the next. [-]"""
        in_row = np.maximum(self.stride / length, 1.0)
        if self.is_one_row:
            return in_row
        row = self.size / self.rows
        return np.where(row * self.stride > length, in_row, np.maximum(self.row_stride / length, 1.0))


@dataclass(frozen=True, slots=True)
class Sharing:
    """Ranks with the same weights, as sharded states see them: shares are neighbours, copies of them are not.

    Hybrid sharding, FSDP's HSDP [Zhao2023]_: with as many copies as there are ranks nothing is shared out,
    with one it is shared out over all of them.
    """

    whole: Group  #: all ranks with the same weights
    shards: Group  #: ranks that hold one copy of the states together
    copies: Group  #: ranks that hold the same share

    @classmethod
    def of(cls, whole: Group, copies: FloatArray) -> Sharing:
        """Sharding with `copies` copies of states, (points,), among ranks with the same weights; or the largest
        number that divides both."""
        if not (copies > 1).any():
            return cls(whole, whole, Group(np.ones_like(whole.size), whole.size * whole.stride))
        both = np.maximum(whole.size, 1.0).astype(np.int64), copies.astype(np.int64)
        number = np.gcd(*both).astype(np.float64)
        shards = whole.size / number
        row = whole.size / whole.rows  # consecutive ranks; shards may fill several rows, or a part of one
        rows = np.maximum(shards / row, 1.0)
        inside = (shards < row) | (np.asarray(whole.rows) == 1)
        return cls(
            whole,
            Group(shards, whole.stride, rows, whole.row_stride),
            Group(
                number,
                np.where(inside, shards * whole.stride, rows * whole.row_stride),
                np.where(inside, whole.rows, 1.0),
                whole.row_stride,
            ),
        )


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks of a run as a grid. One run may have several views of them: of dense layers, of experts."""

    sizes: Mapping[str, FloatArray]  #: of each axis, neighbours first; (points,) each [-]
    #: Where stages, the last axis, are inside of replicas: the number of consecutive ranks of a stage, and of
    #: stages that take turns; 1 where they are not.
    together: FloatArray | None = None
    spread: FloatArray | None = None

    def group(self, *axes: str) -> Group:
        """The ranks that differ in these axes alone, which are neighbours in the order of the grid."""
        order = [*self.sizes]
        first, last = order.index(axes[0]), order.index(axes[-1])
        if order[first : last + 1] != [*axes]:
            raise ValueError(f"axes {', '.join(axes)}: expected neighbours in the order {', '.join(order)}")
        size, stride = self._product(order[first : last + 1]), self._product(order[:first])
        if self.together is None or self.spread is None:
            return Group(size, stride)
        if last < len(order) - 1:
            return Group.of_stage(size, stride, self.together, self.spread)
        if first == last:
            return Group(size, np.where(self.spread > 1, self.together, stride))
        return Group(size, stride)

    def ends(self, axis: str) -> Group:
        """The first and the last rank along an axis; one rank where they are the same."""
        whole = self.group(axis)
        return Group(np.minimum(whole.size, 2.0), np.maximum(whole.size - 1, 1.0) * whole.stride)

    @property
    def all(self) -> Group:
        """The group of all ranks."""
        return self.group(*self.sizes)

    def _product(self, axes: list[str]) -> FloatArray:
        sizes = [self.sizes[axis] for axis in axes]
        product = np.ones_like(next(iter(self.sizes.values())))
        for size in sizes:
            product = product * size
        return product
