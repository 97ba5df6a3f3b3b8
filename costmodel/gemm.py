"""Matrix products on a tiled machine: tiling, reload analysis per memory level, waves over cores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray, per_kernel
from costmodel.roofline import slowest_level
from costmodel.system import System
from costmodel.workload.kernels import Gemms

#: Candidate output tiles, as shares of the largest square edge that the on-chip memory of a core allows.
#: The largest has half the area of that square: accumulators are fp32, and operands are buffered twice.
TILE_SHARES: tuple[tuple[float, float], ...] = (
    (1 / 2, 1),
    (1, 1 / 2),
    (1 / 2, 1 / 2),
    (1 / 4, 1 / 2),
    (1 / 2, 1 / 4),
    (1 / 4, 1 / 4),
)
LARGEST_TILE_AREA = 1 / 2

#: A product is split along k only into pieces at least this long. [elements]
SHORTEST_SPLIT = 1024.0

ACCUMULATOR_BYTES = 4.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GemmCost:
    """Price of each matrix product; every array has shape (points, kernels)."""

    time: FloatArray  #: [s]
    flops: FloatArray  #: useful work, 2 m n k per product [FLOP]
    traffic: tuple[FloatArray, ...]  #: bytes read and written at each memory level, nearest first [B]


def tile_edge(capacity: FloatArray, element_bytes: float) -> FloatArray:
    """Edge of the largest power-of-two square tile of which three fit into a memory. [elements]

    Parameters
    ----------
    capacity : array
        Size of the memory. [B]
    element_bytes : float
        Size of one element. [B]

    Returns
    -------
    edge : array like `capacity`
        2^floor(log2(sqrt(capacity / element_bytes / 3))), and 0 where there is no memory. [elements]

    Notes
    -----
    Rule TL1 of the first generation of [DeepFlow]_. The power is read off the binary exponent of the square,
    which is exact: floor(log2(sqrt(x))) = floor(floor(log2(x)) / 2).

    >>> tile_edge(np.array([9.2201 * 2**20, 0.0]), 4.0)
    array([512.,   0.])
    """
    elements = np.maximum(np.asarray(capacity, dtype=np.float64), 0.0) / element_bytes / 3
    exponent = np.floor((np.frexp(elements)[1] - 1) / 2)
    return np.where(elements >= 1, np.ldexp(1.0, exponent.astype(np.int64)), 0.0)


@dataclass(frozen=True, slots=True)
class Reload:
    """How often each operand of A[m, k] B[k, n] = C[m, n] crosses into a memory, and the bytes that makes."""

    of_a: FloatArray  #: [-]
    of_b: FloatArray  #: [-]
    of_c: FloatArray  #: [-]
    traffic: FloatArray  #: reads plus writes of one product of the batch [B]


def reload_factors(
    m: FloatArray, k: FloatArray, n: FloatArray, *, edge: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How often each operand of A[m, k] B[k, n] = C[m, n] crosses into a memory tiled by `edge`. [-]

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
    """What crosses into a memory tiled by `edge`, in either loop order.

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


def reload_traffic(gemms: Gemms, *, edge: FloatArray, element_bytes: float) -> FloatArray:
    """Bytes that cross into a memory tiled by `edge`, in the better of the two loop orders. [B]

    Parameters and rules as for `reload_orders`.
    """
    direct, swapped = reload_orders(gemms, edge=edge, element_bytes=element_bytes)
    return np.minimum(direct.traffic, swapped.traffic)


def gemm_cost(gemms: Gemms, system: System, *, element_bytes: float) -> GemmCost:
    """Time, work and traffic of matrix products: the best of a family of tilings.

    Parameters
    ----------
    gemms : Gemms
        Products, (points, kernels). [elements]
    system : System
        Machine; its quantities hold one value or one per point.
    element_bytes : float
        Size of an operand's element. [B]

    Returns
    -------
    cost : GemmCost
        Times [s], work [FLOP] and traffic [B], (points, kernels), of the whole batch of each product.

    Notes
    -----
    An output tile belongs to one core, which streams k past it. Tiles run in waves over the cores;
    a core holds as many small tiles at once as one large tile takes room, and a wave lasts until its
    fullest core is done. Each level's traffic follows from the tiles above it, and the time is that
    of the slowest of arithmetic and levels, plus the launch.
    """
    chip, levels = system.chip, system.memory
    beyond = [
        reload_traffic(
            gemms, edge=per_kernel(tile_edge(level.capacity, element_bytes)), element_bytes=element_bytes
        )
        for level in levels[1:-1]
    ]
    beyond_time = slowest_level(beyond, levels[2:], repeats=gemms.batch)
    tensor_rows = per_kernel(chip.arrays_per_core * chip.array_height)
    tensor_columns = per_kernel(chip.arrays_per_core * chip.array_width)
    products = gemms.m * gemms.n * gemms.k
    feed = element_bytes * products * (1 / tensor_rows + 1 / tensor_columns)
    floor = np.maximum(beyond_time, slowest_level([feed], levels[:1], repeats=gemms.batch))

    best = np.full(gemms.m.shape, np.inf)
    best_filling = np.zeros_like(best)
    edge = per_kernel(tile_edge(levels[0].capacity / chip.cores, element_bytes))
    for share_m, share_n in TILE_SHARES:
        tile_m, tile_n = np.maximum(edge * share_m, 1.0), np.maximum(edge * share_n, 1.0)
        resident = LARGEST_TILE_AREA / (share_m * share_n)
        rows, columns = np.ceil(gemms.m / tile_m), np.ceil(gemms.n / tile_n)
        tiles = gemms.batch * rows * columns
        whole = np.ones_like(tiles)
        spread = np.clip(
            np.floor(resident * per_kernel(chip.cores) / tiles),
            1.0,
            np.maximum(gemms.k // SHORTEST_SPLIT, 1.0),
        )
        for split in (whole, spread):
            # Pieces of a split product are added up in fp32: written, and read once more.
            partial_sums = np.where(split > 1, 2 * ACCUMULATOR_BYTES * split * gemms.m * gemms.n, 0.0)
            filling = (
                element_bytes * (gemms.m * gemms.k * columns + gemms.k * gemms.n * rows)
                + gemms.output_bytes * gemms.m * gemms.n
                + partial_sums
            )
            waves = wave_time(
                tiles * split, gemms.k / split, tile_m, tile_n, resident=resident, system=system
            )
            time = np.maximum(
                np.maximum(waves, slowest_level([filling], levels[1:2], repeats=gemms.batch)), floor
            )
            better = time < best
            np.copyto(best, time, where=better)
            np.copyto(best_filling, filling, where=better)
    traffic = tuple(gemms.batch * values for values in (feed, best_filling, *beyond))
    return GemmCost(
        time=np.where(gemms.count > 0, best + per_kernel(chip.kernel_launch), 0.0),
        flops=2 * gemms.batch * products,
        traffic=traffic[: len(levels)],
    )


def wave_time(
    tiles: FloatArray,
    k: FloatArray,
    tile_m: FloatArray,
    tile_n: FloatArray,
    *,
    resident: float,
    system: System,
) -> FloatArray:
    """Time of the arithmetic of a grid of output tiles on the cores. [s]

    Parameters
    ----------
    tiles, k : (points, kernels) array
        Number of tiles [-] and their depth [elements].
    tile_m, tile_n : array that broadcasts against `tiles`
        Edges of a tile. [elements]
    resident : float
        Tiles that a core works on at once. [-]
    system : System
        Machine.

    Returns
    -------
    time : (points, kernels) array
        Full waves last as long as a full core; a grid smaller than one wave as long as its fullest
        core. Each wave fills and drains the pipeline once. [s]
    """
    chip = system.chip
    cores = per_kernel(chip.cores)
    height, width = per_kernel(chip.array_height), per_kernel(chip.array_width)
    blocks = np.ceil(tile_m / height) * np.ceil(tile_n / width)
    cycles = np.ceil(blocks / per_kernel(chip.arrays_per_core)) * k + height + width
    per_core = np.minimum(np.ceil(tiles / cores), resident)
    waves = np.ceil(tiles / (resident * cores))
    return waves * (
        per_core * cycles / per_kernel(chip.clock * chip.sustained * chip.matrix_efficiency)
        + per_kernel(chip.tile_latency)
    )
