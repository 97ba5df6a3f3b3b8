"""Matrix products on a tiled machine: arithmetic, and reload analysis per memory level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, per_kernel
from costmodel.kernels.output_tiles import ExplicitTiles, seconds_per_byte, tile_edge
from costmodel.kernels.roofline import slowest_level
from costmodel.kernels.tiling import fastest_tiling
from costmodel.machine.system import System
from costmodel.workload.kernel_tables import Gemms

#: Rate of the matrix units where rows of operands are no multiple of 16 bytes, over that where they are. [-]
UNALIGNED_RATE: Final = 2 / 3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GemmCost:
    """Cost of each matrix product; every array has shape (points, kernels)."""

    time: FloatArray  #: [s]
    memory_bound: BoolArray  #: whether some memory level takes longer than the arithmetic
    flops: FloatArray  #: useful work, 2 m n k per product [FLOP]
    work: FloatArray  #: the same, counted as the 16-bit products that take as long, which draw as much [FLOP]
    traffic: tuple[FloatArray, ...]  #: bytes read and written at each memory level, nearest first [B]


@dataclass(frozen=True, slots=True)
class Reload:
    """Crossings of each operand of A[m, k] B[k, n] = C[m, n] into a memory, and their bytes."""

    of_a: FloatArray  #: [-]
    of_b: FloatArray  #: [-]
    of_c: FloatArray  #: [-]
    traffic: FloatArray  #: reads plus writes of one product of the batch [B]


def reload_factors(
    m: FloatArray, k: FloatArray, n: FloatArray, *, edge: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Number of times that each operand of A[m, k] B[k, n] = C[m, n] crosses into a memory tiled by `edge`. [-]

    Parameters
    ----------
    m, k, n : array
        Dimensions of the product. [elements]
    edge : array that broadcasts against `m`
        Edge of a resident tile; 0 means that the level is absent. [elements]

    Returns
    -------
    of_a, of_b, of_c : array
        A strip of A stays resident when k fits in a tile, else A comes once per strip of columns of C;
        B comes once per strip of rows; C goes out once. [-]

    Notes
    -----
    Rule GT2 of the first generation of [DeepFlow]_.
    """
    present = edge > 0
    width = np.where(present, edge, 1.0)
    of_a = np.where(present & (k > edge), np.ceil(n / width), 1.0)
    of_b = np.where(present, np.ceil(m / width), 1.0)
    return of_a, of_b, np.ones_like(of_b)


def reload_orders(gemms: Gemms, *, edge: FloatArray, element_bytes: FloatArray | float) -> tuple[Reload, Reload]:
    """Elements that cross into a memory tiled by `edge`, in either loop order.

    Parameters
    ----------
    gemms : Gemms
        Products, (points, kernels). [elements]
    edge : array that broadcasts against (points, kernels)
        Edge of a resident tile. [elements]
    element_bytes : array or float
        Size of an operand's element. [B]

    Returns
    -------
    direct, swapped : Reload
        The product as given, and its transpose (n, k, m), whose first operand is B: rules GT1 and GT3 of
        the first generation of [DeepFlow]_; (points, kernels). [-], [B]
    """
    m, n, k = gemms.m, gemms.n, gemms.k
    orders = []
    for rows, columns in ((m, n), (n, m)):
        of_a, of_b, of_c = reload_factors(rows, k, columns, edge=edge)
        operands = element_bytes * (rows * k * of_a + k * columns * of_b)
        orders.append(Reload(of_a, of_b, of_c, operands + gemms.output_bytes * m * n * of_c))
    return orders[0], orders[1]


def reload_traffic(gemms: Gemms, *, edge: FloatArray, element_bytes: FloatArray | float) -> FloatArray:
    """Bytes that cross into a memory tiled by `edge`, in the better of the two loop orders. [B]

    Parameters and rules as for `reload_orders`.
    """
    direct, swapped = reload_orders(gemms, edge=edge, element_bytes=element_bytes)
    return np.minimum(direct.traffic, swapped.traffic)


def is_unaligned(gemms: Gemms, element_bytes: FloatArray | float) -> BoolArray:
    """Which products have rows in memory that are no multiple of 16 bytes; (points, kernels).

    Rows of an operand run along what is multiplied or along what comes out; of gradients of weights, whose
    operands are read as they were written, along both edges of the output. How many rows there are does not
    matter: tiles of them are filled or not.
    """
    per_multiple = 1 / 2.0 ** np.ceil(np.log2(16 / element_bytes))  # scales of blocks lie apart
    unaligned = _is_fraction(gemms.n * per_multiple)
    weights = np.array([label.of_pass == "weight_gradient" for label in gemms.labels], dtype=bool)
    for along, places in ((gemms.m, np.flatnonzero(weights)), (gemms.k, np.flatnonzero(~weights))):
        unaligned[:, places] |= _is_fraction(along[:, places] * per_multiple)
    return unaligned


def _is_fraction(values: FloatArray) -> BoolArray:
    fractions: BoolArray = np.floor(values) != values
    return fractions


def gemm_cost(
    gemms: Gemms,
    system: System,
    *,
    element_bytes: FloatArray | float,
    rate: FloatArray | float = 1.0,
    tiles: ExplicitTiles | None = None,
) -> GemmCost:
    """Time, work and traffic of matrix products: the best of a family of tilings, or an explicit one.

    Parameters
    ----------
    gemms : Gemms
        Products, (points, kernels). [elements]
    system : System
        Machine; its quantities hold one value or one per point.
    element_bytes : (points,) array or float
        Size of an operand's element. [B]
    rate : (points,) array or float
        Rate of the matrix units for such operands, over that for 16 bits. [-]
    tiles : (array, array), optional
        Edges of output tiles along m and n, (points, kernels) each; 0 where free. [elements]

    Returns
    -------
    cost : GemmCost
        Times [s], work [FLOP] and traffic [B], (points, kernels), of the whole batch of each product;
        an infinite time for an explicit tile that on-chip memory has no room for.

    Notes
    -----
    An output tile belongs to one core, which streams k past it. Tiles run in waves over the cores; a core
    works on a block of some tiles at once, and a grid takes as long as the core with most tiles. Operands
    whose rows are no multiple of 16 bytes are loaded in smaller pieces, which costs a third of the rate
    [Anthony2024]_. Each wave fills and drains the pipeline once. Each
    level's traffic follows from the tiles above it, and the time is that of the slowest of arithmetic and
    levels, plus the launch, and `Chip.expert_latency` for each expert of a call but the first.
    """
    levels = system.memory
    element_bytes, rate = _for_kernels(element_bytes), _for_kernels(rate)
    unaligned = is_unaligned(gemms, element_bytes)
    reached = rate * np.where(unaligned, UNALIGNED_RATE, 1.0) if unaligned.any() else rate
    beyond = [
        reload_traffic(gemms, edge=tile_edge(per_kernel(level.capacity), element_bytes), element_bytes=element_bytes)
        for level in levels[1:-1]
    ]
    feed = operand_feed(gemms, system, element_bytes=element_bytes)
    floor = np.maximum(
        slowest_level(beyond, levels[2:], repeats=gemms.batch), slowest_level([feed], levels[:1], repeats=gemms.batch)
    )
    best = fastest_tiling(gemms, system, floor, element_bytes=element_bytes, rate=reached, tiles=tiles)
    transfer = np.maximum(best.filling * seconds_per_byte(system), floor)
    flops = 2 * gemms.batch * gemms.m * gemms.n * gemms.k
    grouped = [label.runs == "grouped" for label in gemms.labels]
    further = np.where(grouped, np.maximum(gemms.batch - 1, 0.0), 0.0)
    overhead = per_kernel(system.chip.kernel_launch) + further * per_kernel(system.chip.expert_latency)
    return GemmCost(
        time=np.where(gemms.count > 0, best.time + overhead, 0.0),
        memory_bound=transfer >= best.time,
        flops=flops,
        work=flops / rate if np.ndim(rate) else flops,
        traffic=(gemms.batch * feed, best.filling, *(gemms.batch * moved for moved in beyond))[: len(levels)],
    )


def _for_kernels(values: FloatArray | float) -> FloatArray | float:
    """A number, or a column of designs as (points, 1)."""
    return per_kernel(values) if isinstance(values, np.ndarray) else values


def operand_feed(gemms: Gemms, system: System, *, element_bytes: FloatArray | float) -> FloatArray:
    """Bytes that the matrix units read from the nearest memory, for one product of the batch. [B]

    The units of a core work on one block together, so that an operand read once serves a row or a
    column of all of them.
    """
    chip = system.chip
    per_row = 1 / per_kernel(chip.arrays_per_core * chip.array_height)
    per_column = 1 / per_kernel(chip.arrays_per_core * chip.array_width)
    return element_bytes * (gemms.m * gemms.n * gemms.k) * (per_row + per_column)
