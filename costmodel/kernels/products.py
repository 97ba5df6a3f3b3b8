"""Products on a tiled machine: matrix products, each in its number format, their reload analysis, and fused attention.

A product takes as long as the slowest of its arithmetic, in waves of output tiles over the cores, and the traffic of
its operands at each memory level. Products of layers may run in fewer bits than others of the same micro-batch. Fused
attention keeps its scores on chip: memory sees queries, keys, values and the output.

A product C[m, n] = A[m, k] B[k, n] reads its operands several times where a memory has no room for all of them. From
the nearest memory the matrix units read A once for each strip of columns that they hold, and B once for each strip of
rows. Into it, A comes once for each column of output tiles and B once for each row of them. Between farther levels the
tile is the largest square with room for three in the nearer level, in the better of both loop orders [DeepFlow]_.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, per_kernel
from costmodel.kernels.kernel_cost import slowest_level
from costmodel.kernels.kernel_tables import (
    Gemms,
    every_part,
    explicit_edges,
    has_units,
    is_quantised,
    narrow_places,
    operand_bytes,
    product_rate,
    some_narrow,
    transformer_gemms,
)
from costmodel.kernels.output_tiles import ExplicitTiles, has_room, seconds_per_byte, tile_edge, useful_edges
from costmodel.kernels.tiling import fastest_tiling
from costmodel.machine import System
from costmodel.training.design import CP_A2A, FLASH_1, FLASH_2, FUSED, FUSED_FP8, tile_columns, tiled_kernel
from costmodel.training.kernel_kind import PASSES, Kernel
from costmodel.training.kinds import keys_met
from costmodel.training.model import ModelShape
from costmodel.training.run import RankRun

#: Rate of the matrix units where rows of operands are not a multiple of 16 bytes, over that where they are. [-]
UNALIGNED_RATE: Final = 2 / 3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GemmCost:
    """Cost of each matrix product, (points, kernels) arrays, or of one layer's attention core, (points,)."""

    time: FloatArray  #: [s]
    memory_bound: BoolArray  #: whether some memory level takes longer than the arithmetic
    flops: FloatArray  #: useful work, 2 m n k per product; of a causal core half of it [FLOP]
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
    """Which products have rows in memory that are not a multiple of 16 bytes; (points, kernels).

    Rows of an operand run along the reduced dimension or along the output; for gradients of weights, whose operands are
    read as they were written, along both edges of the output. The number of rows does not matter.
    """
    per_multiple = 1 / 2.0 ** np.ceil(np.log2(16 / element_bytes))  # scales of blocks lie apart
    unaligned = _is_fraction(gemms.n * per_multiple)
    weights = np.array([label.of_pass == "weight_gradient" for label in gemms.labels], dtype=bool)
    for along, places in ((gemms.m, np.flatnonzero(weights)), (gemms.k, np.flatnonzero(~weights))):
        unaligned[:, places] |= _is_fraction(along[:, places] * per_multiple)
    return unaligned


def _is_fraction(values: FloatArray) -> BoolArray:
    return np.asarray(np.floor(values) != values)


def gemm_cost(
    gemms: Gemms, system: System, *, element_bytes: FloatArray | float, rate: FloatArray | float = 1.0,
    tiles: ExplicitTiles | None = None,
) -> GemmCost:  # fmt: skip
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
        Rate of the matrix units for these operands, over that for 16 bits. [-]
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
    whose rows are not a multiple of 16 bytes are loaded in smaller pieces, which costs a third of the rate
    [Anthony2024]_. Each wave fills and drains the pipeline once. Each
    level's traffic follows from the tiles above it, and the time is that of the slowest of arithmetic and
    levels, plus the launch, and `Chip.expert_latency` for each expert of a call but the first.
    """
    levels, grouped = system.memory, [label.runs == "grouped" for label in gemms.labels]
    element_bytes, rate = _for_kernels(element_bytes), _for_kernels(rate)
    unaligned = is_unaligned(gemms, element_bytes)
    reached = rate * np.where(unaligned, UNALIGNED_RATE, 1.0) if unaligned.any() else rate
    if any(grouped):
        reached = reached * np.where(grouped, per_kernel(system.chip.grouped_efficiency), 1.0)
    beyond = [
        reload_traffic(gemms, edge=tile_edge(per_kernel(level.capacity), element_bytes), element_bytes=element_bytes)
        for level in levels[1:-1]
    ]
    feed = operand_feed(gemms, system, element_bytes=element_bytes)
    streaming = np.where(grouped, 1.0, per_kernel(system.chip.product_streaming))
    floor = np.maximum(
        slowest_level([moved / streaming for moved in beyond], levels[2:], repeats=gemms.batch),
        slowest_level([feed], levels[:1], repeats=gemms.batch),
    )
    best = fastest_tiling(gemms, system, floor, element_bytes=element_bytes, rate=reached, tiles=tiles)
    transfer = np.maximum(best.filling * seconds_per_byte(system), floor)
    flops = 2 * gemms.batch * gemms.m * gemms.n * gemms.k
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

    The units of a core work on one block together, so that a row or a column of them shares an operand.
    """
    chip = system.chip
    per_row = 1 / per_kernel(chip.arrays_per_core * chip.array_height)
    per_column = 1 / per_kernel(chip.arrays_per_core * chip.array_width)
    return element_bytes * (gemms.m * gemms.n * gemms.k) * (per_row + per_column)


def products_cost(run: RankRun, gemms: Gemms) -> GemmCost:
    """Time, work and traffic of some products of a micro-batch, (points, kernels).

    Operands of layers' products have the bytes and the rate of their design's format, and tiles follow the bytes;
    outputs keep 16 bits, and accumulators 32. A design whose format the chip has no units for gets the rate of 16 bits
    here, one whose tiles the chip has no room for the best ones: `step` has no number for either (`is_possible`).
    """
    first, back = distinct_products(run, gemms)
    if first.size < back.size:
        distinct = gemms.take_kernels(first)
        return kernels_of(_each_cost(run, distinct, _possible_edges(run, distinct)), back)
    return _each_cost(run, gemms, _possible_edges(run, gemms))


def best_tiles(run: RankRun, gemms: Gemms) -> dict[str, FloatArray]:
    """Edges of the fastest output tiles of products, by the names of `tile_columns`; (points,). [elements]

    Where a product occurs in several parts of a model, its tile is that of the least total time. A design without a
    product has 0; products that no design has are left out. Tiles of the run are free.
    """
    gemms = gemms.present()
    first, back = distinct_products(run, gemms)
    distinct = gemms.take_kernels(first)
    names = [tiled_kernel(label.name, label.of_pass) for label in gemms.labels]
    least = {name: np.full(run.num_points, np.inf) for name in names}
    best = {name: np.zeros((2, run.num_points)) for name in names}
    edges = useful_edges(run.system, operand_bytes(run) if some_narrow(run) else run.precision.element_bytes)
    for m, n in itertools.product(reversed(edges), repeat=2):
        if not 1 / 2 <= m / n <= 2:
            continue
        costs = _each_cost(run, distinct, (np.full(distinct.m.shape, m), np.full(distinct.m.shape, n)))
        times = dict.fromkeys(names, np.zeros(run.num_points))
        for number, name in zip(back, names, strict=True):
            times[name] = times[name] + distinct.count[:, number] * costs.time[:, number]
        for name, time in times.items():
            better = (time < least[name]) & (time > 0)  # a design without the product has no tile
            least[name] = np.where(better, time, least[name])
            best[name] = np.where(better, np.array([[m], [n]]), best[name])
    return {column: edge for name, pair in best.items() for column, edge in zip(tile_columns(name), pair, strict=True)}


def _possible_edges(run: RankRun, gemms: Gemms) -> ExplicitTiles | None:
    """Edges of explicit tiles; 0, so that they are free, for designs whose tiles the chip has no room for."""
    tiles = explicit_edges(run, gemms.labels)
    if tiles is None:
        return None
    fits = is_possible(run)[..., np.newaxis]
    return np.where(fits, tiles[0], 0.0), np.where(fits, tiles[1], 0.0)


def is_possible(run: RankRun) -> BoolArray:
    """Designs with units for their format, and with on-chip memory for their explicit tiles; (points,)."""
    possible, tiles = has_units(run), run.design.tiles
    if not tiles:
        return possible
    for part in every_part(run.model):
        for kernel in part.kernels:
            narrow = part.layer is not None and is_quantised(kernel)
            size = operand_bytes(run) if narrow else run.precision.element_bytes
            for product, of_pass in itertools.product(kernel.products, PASSES):
                m, n = (tiles[name] for name in tile_columns(tiled_kernel(product, of_pass)))
                possible = possible & has_room(m, n, run.system, size)
    return possible


def distinct_products(run: RankRun, gemms: Gemms) -> tuple[IntArray, IntArray]:
    """Products of a table that differ in some row, ascending, and the place of each product's kind among them. [-]"""
    narrow, tiled = {*narrow_places(run.model, gemms.labels).tolist()}, bool(run.design.tiles)
    arrays = [gemms.m, gemms.n, gemms.k, gemms.batch, gemms.output_bytes, gemms.count]
    known: dict[tuple[Any, ...], list[int]] = {}
    first: list[int] = []
    back = np.empty(len(gemms.labels), dtype=np.intp)
    for number, label in enumerate(gemms.labels):
        ends = [array[row, number] for array in arrays for row in (0, -1)]
        kind = (
            label.of_pass == "weight_gradient",
            number in narrow,
            label.runs,
            (label.name, label.of_pass) if tiled else (),
            *ends,
        )
        alike = known.setdefault(kind, [])
        same = (at for at in alike if all((a[:, first[at]] == a[:, number]).all() for a in arrays))
        back[number] = next(same, len(first))
        if back[number] == len(first):
            alike.append(len(first))
            first.append(number)
    return np.array(first, dtype=np.intp), back


def _each_cost(run: RankRun, gemms: Gemms, tiles: ExplicitTiles | None) -> GemmCost:
    """Costs of products, each for itself, with explicit tiles or the best ones."""
    if not some_narrow(run):
        return gemm_cost(gemms, run.system, element_bytes=run.precision.element_bytes, tiles=tiles)
    rate = product_rate(run.design.precision, run.system)
    narrow = narrow_places(run.model, gemms.labels)
    others = np.setdiff1d(np.arange(len(gemms.labels)), narrow)
    sizes = np.asarray(run.precision.element_bytes), operand_bytes(run)
    rates = np.ones(1), np.where(rate > 0, rate, 1.0)
    costs = []
    for at, size, of_format in zip((others, narrow), sizes, rates, strict=True):
        edges = tiles and (tiles[0][:, at], tiles[1][:, at])
        costs.append(gemm_cost(gemms.take_kernels(at), run.system, element_bytes=size, rate=of_format, tiles=edges))
    order = np.argsort(np.concatenate([others, narrow]))
    return joined_costs(costs, lambda _, values: np.concatenate(values, axis=1)[:, order])


def kernels_of(cost: GemmCost, places: IntArray) -> GemmCost:
    """Costs of some products of a table, some perhaps more than once."""
    return joined_costs([cost], lambda _, values: values[0].T[places].T)


def joined_costs(costs: Sequence[GemmCost], join: Callable[[str, list[Any]], Any]) -> GemmCost:
    """One table of costs from several: a function of a field's name and the arrays that they have there."""

    def joined(name: str, values: list[Any]) -> Any:
        if isinstance(values[0], tuple):
            return tuple(joined(name, [*level]) for level in zip(*values, strict=True))
        return join(name, values)

    names = [f.name for f in fields(GemmCost)]
    return GemmCost(**{name: joined(name, [getattr(cost, name) for cost in costs]) for name in names})


#: Rows of queries that a core works on at once, as in the published kernels. [elements]
QUERY_TILE = 128.0
#: FlashAttention has kernels for head sizes that are multiples of it; others are padded [Dao2022]_. [-]
HEAD_MULTIPLE = 32.0
#: Rate of the first FlashAttention over that of the second: half, forward and backward [Dao2022]_. [-]
FLASH_1_RATE = 0.5


@dataclass(frozen=True, slots=True)
class FusedPass:
    """Work of one pass of fused attention, per score."""

    score_products: float  #: matrix products of the scores' tile along the width of keys
    value_products: float  #: ... and along the width of values
    vector_flops: float  #: for scale, mask, running maximum, exponential, sum [FLOP]
    reads: tuple[float, float]  #: tensors of query width and of key width moved through memory


#: Pass -> work. The backward pass recomputes the scores, then forms four gradients [Dao2022]_.
FUSED_PASSES = {"forward": FusedPass(1, 1, 16, (2, 2)), "backward": FusedPass(3, 2, 40, (5, 4))}


def visited_share(seq_len: float, window: float = np.inf, context_len: float = 0.0) -> float:
    """Share of the scores' tiles that causal attention visits: half, and the diagonal; less in a window. [-]

    >>> visited_share(2048.0), visited_share(2048.0, 256.0), visited_share(2048.0, context_len=2048.0)
    (0.53125, 0.17578125, 0.765625)
    """
    first, tiles = np.ceil(context_len / QUERY_TILE), np.ceil(seq_len / QUERY_TILE)

    def visited(rows: float) -> float:
        """Tiles that the first `rows` rows of tiles visit from the start of the keys."""
        before = min(np.ceil(window / QUERY_TILE), rows - 1)  # tiles of keys that a tile of queries sees
        return float(rows * (before + 1) - before * (before + 1) / 2)

    return float((visited(first + tiles) - visited(first)) / (tiles * (first + tiles)))


def core_share(model: ModelShape, kernel: Kernel) -> float:
    """Share of all scores of a sequence that an attention core visits. [-]"""
    if kernel.kind.core and (kernel.kind.core.indexed or kernel.kind.core.compressed):
        return keys_met(model, kernel) / model.key_len
    length = model.document_tokens
    of_sequence = (model.context_len + length) / model.key_len
    if not kernel.is_windowed or model.window >= model.context_len + length:
        return visited_share(length, context_len=model.context_len) * of_sequence
    if model.window_kind == "chunked":
        return visited_share(model.window) * model.window / model.key_len
    return visited_share(length, model.window, model.context_len) * of_sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionWork:
    """Work of fused attention cores on one rank; (points,) arrays, or numbers for all points."""

    fused: FloatArray | float  #: 1 where a fused kernel runs, else 0 [-]
    scores: FloatArray  #: that are computed, of all heads [-]
    tiles: FloatArray  #: of queries, of all heads [-]
    keys: FloatArray | float  #: that a query sees, on average [-]
    size: FloatArray  #: width of a head, averaged over the products [elements]
    once: FloatArray  #: bytes of queries, keys, values and outputs [B]
    element_bytes: FloatArray | float  #: [B]
    kind: FloatArray | float = float(FUSED)  #: code of `attention`
    casts: FloatArray | float = 0.0  #: bytes of casts to 8 bits, which other kernels make [B]


def fused_attention(run: RankRun, kernel: Kernel, of_pass: str) -> GemmCost:
    """Time, work and traffic of the fused attention core of one layer and micro-batch; 0 where it is not fused.

    `of_pass` is a key of `FUSED_PASSES`. Ranks that share a sequence have equal parts of its causal half; each works on
    the keys of all of them. FlashAttention-2 [Dao2022]_ has one head size, to which values are padded. In 8 bits, each
    tensor is cast once.
    """
    run = run.of_core(kernel)
    work, model, shape = FUSED_PASSES[of_pass], run.model, run.design
    fused, width = np.where(shape.attention > 0, 1.0, 0.0), model.query_size + model.attention_size
    products = work.score_products + work.value_products
    flash_2 = (shape.attention == FLASH_2) | (shape.attention == FLASH_1)
    padded = np.ceil(model.score_size / HEAD_MULTIPLE) * HEAD_MULTIPLE
    scored, values = (np.where(flash_2, padded, size) for size in (model.score_size, model.value_size))
    heads, unit = model.num_attention_heads / shape.tp, kernel.kind.core.head_multiple if kernel.kind.core else 0.0
    heads = fused * shape.micro_batch_size * (np.ceil(heads / unit) * unit if unit else heads) / shape.cp
    queries, keys = work.reads
    seen = np.where(shape.cp_communication == CP_A2A, shape.cp, 1.0)  # ranks that share out the keys of a head
    tokens = fused * shape.micro_batch_size * model.seq_len
    w = np.where(shape.attention == FUSED_FP8, 1.0, run.precision.element_bytes)
    key_width = model.key_len / model.seq_len * keys * model.key_value_size
    elements = tokens * (queries * width / 2 / shape.cp + key_width / seen) / shape.tp
    core = AttentionWork(
        fused=fused,
        scores=heads * (model.seq_len * model.key_len) * core_share(model, kernel),
        tiles=heads * np.ceil(model.seq_len / QUERY_TILE),
        keys=model.key_len * core_share(model, kernel),
        size=(work.score_products * scored + work.value_products * values) / products,
        once=w * elements,
        element_bytes=w,
        kind=shape.attention,
        casts=np.where(shape.attention == FUSED_FP8, elements * (run.precision.element_bytes + 1), 0.0),
    )
    return attention_cost(core, of_pass, run.system)


def attention_cost(core: AttentionWork, of_pass: str, system: System) -> GemmCost:
    """Time, work and traffic of one pass of fused attention cores on machines, (points,).

    Each tile of queries streams its keys and values from the second level; the third sees each tensor once.
    """
    work, chip, memory = FUSED_PASSES[of_pass], system.chip, system.memory
    products, w = work.score_products + work.value_products, core.element_bytes
    flops = core.scores * products * 2 * core.size
    idle = np.ceil(core.tiles / chip.cores) * chip.cores / np.maximum(core.tiles, 1.0)
    streamed = core.once + w * core.scores / QUERY_TILE * work.reads[1] * core.size
    feed = w * core.scores * products * core.size / QUERY_TILE
    traffic = (feed, streamed, *[core.once for _ in memory[2:]])[: len(memory)]
    rates = [level.bandwidth * level.efficiency for level in memory]
    transfer = [moved / rate for moved, rate in zip(traffic[1:], rates[1:], strict=True)]
    busy = arithmetic_time(core, of_pass, flops, system) * idle
    moving = np.maximum.reduce(np.broadcast_arrays(*transfer, busy)[:-1])
    time = np.maximum(busy, moving) + core.fused * chip.kernel_launch + core.casts / (rates[-1] * chip.cast_efficiency)
    moved = (*traffic[:-1], traffic[-1] + core.casts)
    return GemmCost(time=time, memory_bound=moving > busy, flops=flops, work=flops, traffic=moved)


def arithmetic_time(core: AttentionWork, of_pass: str, flops: FloatArray, system: System) -> FloatArray:
    """Time of the products and the softmax of one pass on busy cores, (points,). [s]

    Matrix units and vector lanes take turns on a tile, so their times add up. Where a chip has `exponentials`, softmax
    overlaps with the products of the forward pass, and limits it on Blackwell; the backward pass is limited by shared
    memory [Zadouri2026]_, and its times still add up. FlashAttention-2 does not use all units of later chips;
    FlashAttention-1 runs at half its rate. Products of 8 bits have the chip's rate of the format. A tile of queries
    fills and drains its pipeline once, as some keys would.
    """
    chip, kind = system.chip, core.kind
    vector = core.scores * FUSED_PASSES[of_pass].vector_flops / chip.vector_flop_rate
    narrow = np.where(kind == FUSED_FP8, np.maximum(chip.format_rate("fp8"), 1.0), 1.0)
    matrix = flops / (chip.matrix_flop_rate * chip.attention_efficiency * narrow)
    busy = matrix + vector
    flash_1, flash_2 = kind == FLASH_1, (kind == FLASH_1) | (kind == FLASH_2)
    if of_pass == "forward" and np.any(chip.exponentials):
        beside = (chip.exponentials > 0) & ~flash_2
        softmax = core.scores / np.where(beside, chip.exponentials * chip.cores * chip.clock, 1.0)
        power = chip.softmax_overlap
        busy = np.where(beside, (matrix**power + softmax**power) ** (1 / power), busy)
    fill = chip.attention_fill_backward if of_pass == "backward" else np.where(flash_2, 0.0, chip.attention_fill)
    busy = busy * (1 + fill / core.keys)
    return busy / np.where(flash_2, chip.flash_2_efficiency, 1.0) / np.where(flash_1, FLASH_1_RATE, 1.0)


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
    """Reads of each operand of each product from each memory level, of designs with explicit tiles.

    Raises `ValueError` if the tiles of a product are free: `costmodel.resolve_tiling` makes them explicit.
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
