"""Reload analysis of matrix products: how often each operand is read from each memory level.

A product C[m, n] = A[m, k] B[k, n] reads its operands several times where a memory has no room for all of them. From
the nearest memory the matrix units read A once for each strip of columns that they hold, and B once for each strip of
rows. Into it, A comes once for each column of output tiles and B once for each row of them. Between farther levels the
tile is the largest square of which three fit into the nearer level, in the better of both loop orders [DeepFlow]_.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray, per_kernel
from costmodel.kernels.gemm import GemmCost, products_cost, reload_orders
from costmodel.kernels.output_tiles import tile_edge
from costmodel.training.run import RankRun
from costmodel.workload.kernel_tables import Gemms
from costmodel.workload.transformer import explicit_edges, narrow_places, operand_bytes, transformer_gemms


@dataclass(frozen=True, slots=True, eq=False)
class LevelReloads:
    """Reads of one memory level; (points, kernels) each."""

    of_a: FloatArray  #: times that A is read from it [-]
    of_b: FloatArray  #: [-]
    of_c: FloatArray  #: times that C is read or written, partial sums of a split k included [-]
    bytes_moved: FloatArray  #: of one launch [B]


@dataclass(frozen=True, slots=True, eq=False)
class GemmReloads:
    """Products of one micro-batch on one rank, each pass by itself; arrays are (points, kernels)."""

    gemms: Gemms  #: dimensions [elements]
    tile_m: FloatArray  #: edges of output tiles [elements]
    tile_n: FloatArray
    costs: GemmCost
    levels: Mapping[str, LevelReloads]  #: memory level -> reads, the nearest first


def gemm_reloads(run: RankRun) -> GemmReloads:
    """Reads of each operand of each product from each memory level.

    Parameters
    ----------
    run : RankRun
        Model, machines and designs with explicit tiles (`costmodel.resolve_tiling`), (points,).

    Raises `ValueError` if the tiles of a product are free.
    """
    gemms = transformer_gemms(run).present()
    edges = explicit_edges(run, gemms.labels)
    if edges is None or not (edges[0] > 0).all():
        raise ValueError("gemm_reloads: tiles are free; resolve them first")
    costs, system = products_cost(run, gemms), run.system
    size = np.full(gemms.m.shape, float(run.precision.element_bytes))
    narrow = narrow_places(run.model, gemms.labels)
    size[:, narrow] = per_kernel(operand_bytes(run))
    chip, (tile_m, tile_n) = system.chip, edges
    levels = {}
    for number, (level, moved) in enumerate(zip(system.memory, costs.traffic, strict=False)):
        if number == 0:
            of_a = gemms.n / per_kernel(chip.arrays_per_core * chip.array_width)
            of_b = gemms.m / per_kernel(chip.arrays_per_core * chip.array_height)
        elif number == 1:
            of_a, of_b = np.ceil(gemms.n / tile_n), np.ceil(gemms.m / tile_m)
        else:
            edge = tile_edge(per_kernel(system.memory[number - 1].capacity), size)
            direct, swapped = reload_orders(gemms, edge=edge, element_bytes=size)
            better = swapped.traffic < direct.traffic
            of_a = np.where(better, swapped.of_b, direct.of_a)
            of_b = np.where(better, swapped.of_a, direct.of_b)
        operands = size * gemms.batch * gemms.k * (gemms.m * of_a + gemms.n * of_b)
        of_c = (moved - operands) / (gemms.output_bytes * gemms.batch * gemms.m * gemms.n)
        levels[level.name] = LevelReloads(of_a, of_b, np.maximum(of_c, 0.0), moved)
    return GemmReloads(gemms, tile_m, tile_n, costs, levels)
