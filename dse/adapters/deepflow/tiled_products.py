"""Times of matrix products on a hierarchy of memories, in DeepFlow's second and present generation.

Candidates of tiles of each level are drawn by a random generator with a fixed seed, from powers of two that fit. Every
combination of tiles and loop orders is evaluated; the fastest counts. The time of a product is that of its slowest
level, and the time of a level is that of its memory or of the arithmetic, the longer of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from dse.adapters.deepflow.chips import Values

#: Dataflows in the order of their codes; "best" keeps the operand that the sizes of a product suggest.
DATAFLOWS: Final = ("best", "wst", "ast", "ost", "none")
BEST, WEIGHT, ACTIVATION, OUTPUT, NONE = map(float, range(5))
#: Loop orders of (m, k, n) that each dataflow tries in the second generation.
ORDERS: Final = {
    WEIGHT: ((1, 2, 0), (2, 1, 0)),
    ACTIVATION: ((0, 1, 2), (1, 0, 2)),
    OUTPUT: ((0, 2, 1), (2, 0, 1)),
    NONE: tuple(permutations(range(3))),
}
#: The dimension of a loop order that a unit of multiply-adds streams past the operand that stays, by dataflow.
STREAMED: Final = {WEIGHT: 0, ACTIVATION: 2, OUTPUT: 1}
#: Loop orders of the present generation that differ in the innermost loop, which decides the traffic.
INNERMOST: Final = ("mnk", "mkn", "nkm")
#: Elements of temporary arrays at a time. [-]
CHUNK: Final = 2_000_000


@cache
def tile_candidates(room: float, level: int, count: int) -> tuple[tuple[int, int, int], ...]:
    """Candidates of tiles of a level that has `room` for elements, in the order of a Python set. [elements]

    Outputs stay in registers and shared memory (levels 0 and 1); farther levels only pass them. None where fewer than
    `count` tiles fit, since the reference would never stop drawing, or `room` exceeds 2^53.
    """
    usable = room if 8 <= room < 2**53 else 8.0
    largest, edge = math.floor(math.log2(usable)), 2 ** math.floor(math.log(math.sqrt(usable / 2), 2))
    tiles = {(edge, edge, edge), (edge // 2, edge, edge * 2)}
    powers = [1 << power for power in range(largest)]
    fitting = {(a, b, depth) for a in powers for b in powers if (depth := _depth(usable, a, b, level))}
    if usable != room or len(fitting | tiles) < count:
        return ()
    generator = np.random.RandomState(1)
    while len(tiles) < count:
        a, b = (1 << int(power) for power in generator.randint(0, largest, 2))
        if depth := _depth(room, a, b, level):
            tiles.add((a, b, depth))
    return tuple(tiles)


def _depth(room: float, a: int, b: int, level: int) -> int:
    """The largest third edge of a tile, a power of two; 0 where the first two leave no room. [elements]"""
    depth = math.floor((room - a * b) / ((a + b) if level <= 1 else b))
    return 1 << math.floor(math.log2(depth)) if depth > 0 else 0


def level_time(flops: FloatArray, traffic: FloatArray, rows: Values, level: int) -> FloatArray:
    """Time of work on one memory: traffic and latency below the inflection, arithmetic from there on. [s]"""
    bandwidth, latency, rate = rows[f"bandwidth{level}"], rows[f"latency{level}"], rows["rate"]
    intensity = np.where(traffic == 0, 0.0, flops / traffic)
    return np.where(intensity < rate / bandwidth, traffic / bandwidth + latency, flops / rate)


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """Times of products, and the choice that gives each; arrays have shape (points, kernels, ...)."""

    time: FloatArray  #: with one launch [s]
    order: FloatArray  #: index in `INNERMOST`; of nested products, among the orders of "none" [-]
    tiles: FloatArray  #: (m, k, n) of levels 0, 1 and 2 [elements]
    traffic: FloatArray  #: bytes of the four levels [B]


#: One of (m, k, n), or columns of a unit, with as many axes as there are choices of tiles.
Sizes = Sequence[FloatArray]


def products(sizes: Sequence[Sizes], unit: Values, *, candidates: int, nested: bool) -> ProductTimes:
    """Times of products (m, k, n), one entry of `sizes` per kernel, on the columns of a `unit`. [s]

    `nested` selects the rules of the second generation. There the first product resolves the dataflow "best" for all
    products of a design, as in the reference. The present generation resolves it for each product.
    """
    points = max(values.size for group in (unit.values(), *sizes) for values in group)
    edges = np.stack([np.stack([np.broadcast_to(v, points) for v in size], axis=-1) for size in sizes], axis=1)
    columns = {name: np.broadcast_to(values, points) for name, values in unit.items()}
    flow = columns["dataflow"]
    if nested:
        m, k, n = edges[:, 0].T
        kept = np.where(m >= np.maximum(k, n), WEIGHT, np.where(k >= np.maximum(m, n), OUTPUT, ACTIVATION))
        flow = np.where(flow == BEST, kept, flow)
    flat, rows = edges.reshape(-1, 3), np.repeat(np.arange(points), len(sizes))
    results = [np.empty((len(rows), *shape)) for shape in ((), (), (3, 3), (4,))]
    for code in np.unique(flow):
        chosen = np.flatnonzero(flow[rows] == code)
        size = len(ORDERS[code]) * candidates**3 if nested else len(INNERMOST) * candidates**2
        for part in np.array_split(chosen, math.ceil(len(chosen) * size / CHUNK)):
            values = {name: column[rows[part]] for name, column in columns.items()}
            tables = [_tiles(values, level or 2 - 2 * nested, candidates) for level in range(3)]
            work = (nested_work if nested else flat_work)(flat[part], tables, values, code)
            time, order, *choice = _fastest(*work, values, tables)
            time = np.where(np.isnan(sum(table[:, 0, 0] for table in tables)), np.nan, time)
            if nested:
                order = np.array([ORDERS[NONE].index(loops) for loops in ORDERS[code]], dtype=np.float64)[order]
            for result, array in zip(results, (time, order, *choice), strict=True):
                result[part] = array
    return ProductTimes(*(array.reshape(points, len(sizes), *array.shape[1:]) for array in results))


def _tiles(rows: Values, level: int, count: int) -> FloatArray:
    """Candidates of a level, NaN where too few fit; (rows, candidates, 3). [elements]"""
    rooms, places = np.unique(rows[f"share{level}"] / rows["element_bytes"], return_inverse=True)
    none = ((np.nan,) * 3,) * count
    return np.array([tile_candidates(float(room), level, count) or none for room in rooms])[places]


def _wide(rows: Values, axes: int) -> Values:
    """Columns with `axes` axes after that of rows."""
    return {name: values.reshape(-1, *[1] * axes) for name, values in rows.items()}


def _fastest(
    flops: FloatArray, traffic: Sizes, tie: FloatArray, rows: Values, tables: Sizes
) -> tuple[FloatArray, Any, FloatArray, FloatArray]:
    """Time, order, tiles and traffic of the fastest choice of each row; among equals the first of the least `tie`.

    Axes of choices: order, then tiles of levels 0, 1 and 2; the present generation has none of level 0.
    """
    wide = _wide(rows, traffic[1].ndim - 1)
    times = [level_time(flops, moved, wide, level) for level, moved in enumerate(traffic)]
    time = np.maximum(np.maximum(times[0], times[1]), np.maximum(times[2], times[3]))
    by_choice = time.reshape(len(time), -1)
    least = by_choice.min(axis=1)
    equal = by_choice == least[:, None]
    index = np.argmin(np.where(equal, np.broadcast_to(tie, time.shape).reshape(equal.shape), np.inf), axis=1)
    order, *choices = np.unravel_index(index, time.shape[1:])
    number = np.arange(len(time))
    choices = [np.zeros_like(number)] * (3 - len(choices)) + choices
    tables = [tables[2], *tables[1:]] if len(time.shape) == 4 else tables
    tiles = np.stack([table[number, choice] for table, choice in zip(tables, choices, strict=True)], axis=1)
    moved = [np.broadcast_to(values, time.shape).reshape(equal.shape)[number, index] for values in traffic]
    return least + rows["launch"], order, tiles, np.stack(moved, axis=-1)


def nested_work(sizes: FloatArray, tables: Sizes, rows: Values, flow: float) -> tuple[FloatArray, Sizes, FloatArray]:
    """FLOP, traffic of the four levels and no tie, second generation; (rows, orders, tiles of 0, 1, 2). [FLOP], [B]

    Tiles are those of the loop order. A tile is loaded again for each tile of the dimension that it lacks; outputs are
    accumulated on chip except in registers.
    """
    wide = _wide(rows, 4)
    w, width = wide["element_bytes"], wide["fma_outputs"]
    edges = sizes[:, np.array(ORDERS[flow])][..., None, None, None]
    inner = [edges[:, :, index] for index in range(3)]
    x, y, z = inner
    flops = x * z * (y + y - 1)
    reuse = np.ceil(inner[STREAMED[flow]] / width) if flow in STREAMED else np.ones_like(x)
    traffic = [flops * ((2 * reuse + 1) / (2 * reuse)) / width * w]
    repeat = np.ones(1)
    for level in (3, 2, 1):
        shape = tuple(-1 if axis == level - 1 else 1 for axis in range(3))
        table = tables[level - 1].reshape(len(sizes), 1, *shape, 3)
        tile = [np.minimum(table[..., index], inner[index]) for index in range(3)]
        counts = [np.ceil(whole / part) for whole, part in zip(inner, tile, strict=True)]
        outputs = counts[1] if level == 1 else 1.0
        x, y, z = inner
        traffic.insert(1, repeat * (x * y * counts[2] + y * z * counts[0] + x * z * outputs) * w)
        repeat, inner = repeat * (counts[0] * counts[1] * counts[2]), tile
    return flops, traffic, np.zeros(1)


def flat_work(sizes: FloatArray, tables: Sizes, rows: Values, flow: float) -> tuple[FloatArray, Sizes, FloatArray]:
    """FLOP, traffic and tie, present generation; (rows, innermost loops, tiles of levels 1 and 2). [FLOP], [B]

    The operands of the innermost loop stay in L2 for its length. Shared memories work at once, and their traffic is
    that of one. Outputs reach the DRAM only where the three matrices exceed it. Of equally fast choices that with the
    least traffic of DRAM and L2 counts.
    """
    wide = _wide(rows, 3)
    w, d1, d2 = wide["element_bytes"], wide["fma_outputs"], wide["fma_depth"]
    edges = [sizes[:, index, None, None, None] for index in range(3)]
    second = [np.minimum(tables[2][:, None, None, :, index], edge) for index, edge in enumerate(edges)]
    first = [np.minimum(tables[1][:, None, :, None, index], edge) for index, edge in enumerate(second)]
    (m, k, n), (m2, k2, n2), (m1, k1, n1) = edges, second, first
    nm, nk, nn = (np.ceil(whole / part) for whole, part in zip(edges, second, strict=True))
    rm, rk, rn = (np.ceil(whole / part) for whole, part in zip(second, first, strict=True))
    fm, fk, fn = (np.floor_divide(whole, part) for whole, part in zip(edges, second, strict=True))
    flops, count = m * n * (2 * k - 1), nm * nk * nn
    streams = {WEIGHT: np.ceil(m / d1), ACTIVATION: np.ceil(n / d1), OUTPUT: np.ceil(k / d2), NONE: np.ones(1)}
    reuse = streams.get(flow, np.maximum(np.maximum(streams[WEIGHT], streams[ACTIVATION]), streams[OUTPUT]))
    registers = flops * 2 * d2 / (d1 * (2 * d2 - 1)) * w + flops / (reuse * (2 * d2 - 1)) * w
    shared = (m1 * k1 * w + k1 * n1 * w) * (rm * rn * rk) + m1 * n1 * w * (rm * rn)
    # Loads of (m, k), (k, n) and (m, n) tiles into L2, and of these matrices from DRAM, by the innermost loop.
    loads: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
        "mnk": ((count * rn, count * rm, nm * nn), (fn, fm, 1.0)),
        "mkn": ((nm * nk, count * rm, count * rk), (1.0, fm, fk)),
        "nkm": ((count * rn, nk * nn, count * rk), (fn, 1.0, fk)),
    }
    l2, outer = [], []
    spilled = (m * k + k * n + m * n) * w > wide["share3"]
    for order in INNERMOST:
        (a, b, c), (far_a, far_b, far_c) = loads[order]
        l2.append(a * (m2 * k2 * w) + b * (k2 * n2 * w) + 2 * c * (m2 * n2 * w))
        outer.append(far_a * (m * k * w) + far_b * (k * n * w) + np.where(spilled, far_c * (m * n * w), 0.0))
    traffic = [registers, shared * count / np.minimum(wide["bundles"], count),
               *(np.concatenate(np.broadcast_arrays(*moved), axis=1) for moved in (l2, outer))]  # fmt: skip
    return flops, traffic, np.hypot(traffic[3], traffic[2])
