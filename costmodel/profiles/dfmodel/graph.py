"""A dataflow graph of DFModel: kernels in columns, edges between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.errors import DseError

#: Dimensions by which a kernel may be sharded or tiled, by the codes of the format; the last is none.
OUTER, M, K, N, NONE = range(1, 6)
SHARDINGS: Final = {OUTER: "outer", M: "m", K: "k", N: "n", NONE: "none"}

#: What moves along an edge or out of a kernel, by the codes of the format.
NOTHING, ALL_REDUCE, ALL_TO_ALL, ALL_GATHER, PERIODIC, POINT_TO_POINT, BROADCAST = range(7)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DfmodelGraph:
    """Kernels C[outer, m, n] (+)= A[outer, m, k] B[outer, k, n]; columns of shape (kernels,).

    Dimensions and sizes of many designs are (points, kernels); all else is shared by the designs.
    """

    names: tuple[str, ...]
    backward: BoolArray
    systolic: BoolArray  #: a matrix product; else a vector kernel
    weighted: BoolArray  #: the second operand is a weight
    tiling: IntArray  #: dimension that streams in tiles
    outer: FloatArray
    m: FloatArray
    k: FloatArray  #: 1 for vector kernels
    n: FloatArray
    first_bytes: FloatArray  #: first input [B]
    second_bytes: FloatArray  #: second input or weight; 0 where there is none [B]
    output_bytes: FloatArray
    start: IntArray  #: producers of the edges, places among kernels; (edges,)
    end: IntArray  #: consumers
    repeats: FloatArray = field(default_factory=lambda: np.ones(1))
    memory_bytes: FloatArray = field(default_factory=lambda: np.zeros(1))  #: DRAM traffic that a file states
    streamed: BoolArray = field(
        default_factory=lambda: np.zeros(1, dtype=bool)
    )  #: the weight is not held in SRAM
    zero_out: BoolArray = field(default_factory=lambda: np.zeros(1, dtype=bool))  #: edges that carry nothing

    def __len__(self) -> int:
        return len(self.names)

    def with_kernel(self, name: str, **changes: Any) -> Self:
        """The same graph with other values in the columns of one kernel."""
        own = np.arange(len(self)) == self.names.index(name)
        columns: dict[str, Any] = {c: np.where(own, value, getattr(self, c)) for c, value in changes.items()}
        return replace(self, **columns)

    def levels(self) -> IntArray:
        """Longest way from a source to each kernel. [edges]

        Raises
        ------
        DseError
            If the edges make a cycle; it names one.
        """
        level = np.zeros(len(self), dtype=np.int64)
        for _ in range(len(self)):
            deeper = level.copy()
            np.maximum.at(deeper, self.end, level[self.start] + 1)
            if np.array_equal(deeper, level):
                return level
            level = deeper
        raise DseError(f"connections make a cycle: {' -> '.join(self._cycle())}; a graph flows one way")

    def _cycle(self) -> list[str]:
        """Names of kernels around a cycle, where there is one."""
        left = np.ones(len(self), dtype=bool)
        while True:
            inside = left[self.start] & left[self.end]
            fed = np.isin(np.arange(len(self)), self.end[inside])
            if np.array_equal(fed & left, left):
                break
            left &= fed  # what nothing feeds is on no cycle
        before = dict(zip(self.end[inside].tolist(), self.start[inside].tolist(), strict=True))
        path = [next(iter(before))]
        while before[path[-1]] not in path:
            path.append(before[path[-1]])
        around = [before[path[-1]], *reversed(path[path.index(before[path[-1]]) :])]
        return [self.names[place] for place in around]
