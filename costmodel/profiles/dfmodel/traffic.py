"""What moves between chips: out of kernels and along edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.profiles.dfmodel.graph import NOTHING, DfmodelGraph
from costmodel.profiles.dfmodel.sharding import edge_collectives, kernel_collectives


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Traffic:
    """Collectives by the codes of the format, and their whole messages."""

    of_kernels: IntArray  #: (kernels,) [code]
    of_edges: IntArray  #: (edges,) [code]
    kernel_bytes: FloatArray  #: 0 where nothing moves; (kernels,) [B]
    edge_bytes: FloatArray  #: (edges,) [B]

    @classmethod
    def of(cls, graph: DfmodelGraph, sharding: IntArray) -> Self:
        """What a sharding moves: unsharded tensors."""
        of_kernels, of_edges = kernel_collectives(graph, sharding), edge_collectives(graph, sharding)
        made = graph.output_bytes
        return cls(
            of_kernels=of_kernels,
            of_edges=of_edges,
            kernel_bytes=np.where(of_kernels == NOTHING, 0.0, made),
            edge_bytes=np.where(of_edges == NOTHING, 0.0, made[graph.start]),
        )
