"""The fastest output tiles of matrix products: blocks of them on the cores, in waves, and k in pieces.

A product is cut into output tiles, one for a core at a time. Cores work in waves, so that 109 tiles on 108 cores take
two waves. Large tiles read their operands seldom and fill the last wave badly. All tiles whose edge is a power of two
are tried, for all products of a batch at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.kernels.kernel_tables import Gemms
from costmodel.kernels.output_tiles import (
    ACCUMULATOR_BYTES,
    SHORTEST_SPLIT,
    TILE_SHARES,
    CoreBlock,
    Cores,
    ExplicitTiles,
    Products,
    ProductTraffic,
    Tile,
)
from costmodel.machine import System

#: Products that are worked on at once: enough to drown the overhead of calls, few enough for the caches.
TOGETHER = 65536


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The fastest tiles so far, changed in place."""

    time: FloatArray  #: of the whole batch [s]
    filling: FloatArray  #: bytes that it moves into the nearest memory [B]

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Best:
        """Choice of tiles for a table of products before any is tried."""
        return cls(np.full(shape, np.inf), np.zeros(shape))

    def improve(self, time: FloatArray, filling: FloatArray) -> None:
        """Take the faster one."""
        better = time < self.time
        if better.all():
            self.time[...], self.filling[...] = time, filling
        else:  # a copy under a mask takes several times as long
            rows = np.flatnonzero(better)
            self.put(rows, Best(time.take(rows), filling.take(rows)))

    def take(self, rows: IntArray) -> Best:
        """A copy of some of them, by their places in the whole table."""
        return Best(self.time.take(rows), self.filling.take(rows))

    def put(self, rows: IntArray, best: Best) -> None:
        """Put a copy of some of them back."""
        self.time.reshape(-1)[rows], self.filling.reshape(-1)[rows] = best.time, best.filling

    def of_kernels(self, kernels: slice) -> Best:
        """A view of those of some kernels."""
        return Best(self.time[kernels], self.filling[kernels])


def fastest_tiling(
    gemms: Gemms,
    system: System,
    floor: FloatArray,
    *,
    element_bytes: FloatArray | float,
    rate: FloatArray | float = 1.0,
    tiles: ExplicitTiles | None = None,
) -> Best:
    """Time of the best of the candidate tiles, and its traffic into the nearest memory.

    `floor` is a time that no tiling can beat, (points, kernels). [s] Other parameters are those of `gemm_cost`; those
    for each point have shape (points, 1).

    Returns
    -------
    best : Best
        Times of the whole batch, without the launch; infinite for an explicit tile that on-chip memory has
        no room for (`has_room`). [s], [B]

    Notes
    -----
    Candidates are the tiles of all blocks whose edge is a power of two, and pieces of k for which there are
    cores. Where each core's part of the on-chip memory is too small for a block, fewer cores work, with the
    parts of others. A candidate takes no longer on a machine with more cores, memory or bandwidth, and such a
    machine has all candidates of the smaller one: the best of them is never slower for it.

    Few need be tried, and none that could be better is left out. Of a block one tile is tried, and the others where
    `CoreBlock.bound` and the traffic of each leave room, as if tiles covered the outputs exactly. A block of half the
    edge is tried where the bound of all smaller ones is below the best so far. Once a core takes as few cycles for each
    element of k as for one output, all smaller blocks take as long or longer. Smaller tiles have more traffic: once
    that of a tile alone takes as long as the best so far, smaller ones are no better. Once so few cores have room for a
    block that useful work takes them as long, larger ones are no better.

    An explicit tile is one of these candidates by its edges, in the better of the two blocks that consist of
    it: the best explicit tile takes the time of the free search, to the bit.
    """
    cores, products = Cores.of(system, element_bytes), Products.of(gemms, floor, element_bytes, rate)
    search = _Search(products, cores, Best.none(products.shape))
    free = None
    if tiles is not None:
        edges = [np.ascontiguousarray(edge.T).ravel() for edge in np.broadcast_arrays(*tiles, gemms.m)[:2]]
        free = np.flatnonzero(edges[0] == 0)
        search.of_edges(*edges)
    search.within_cores(free)
    search.beyond_cores(free)
    return Best(search.best.time.T, search.best.filling.T)


@dataclass(frozen=True, eq=False)
class _Piece:
    """A piece of a table: products whose tilings are tried at once, and the best tiling of each."""

    places: IntArray | int  #: their rows in the table, or the first of consecutive rows
    products: Products
    best: Best

    @cached_property
    def traffic(self) -> ProductTraffic:
        """Traffic of its products."""
        return ProductTraffic.of(self.products)

    def of(self, rows: IntArray) -> IntArray:
        """Rows in the table of several of them."""
        return rows + self.places if isinstance(self.places, int) else self.places[rows]

    def take(self, rows: IntArray) -> _Piece:
        """A copy of several of them."""
        return _Piece(self.of(rows), self.products.take(rows), self.best.take(rows))

    def some(self, rows: IntArray) -> Iterator[_Piece]:
        """Several of them, or all if these are most of it, to try tilings on; the best of each is put back."""
        if 2 * rows.size > self.best.time.size:
            yield self
        elif rows.size:
            part = self.take(rows)
            yield part
            self.best.put(rows, part.best)


def _worth(piece: _Piece, seconds_alone: FloatArray) -> IntArray:
    """Products that may be fast enough with this time for each multiply-add, on each machine."""
    products = piece.products
    time = products.batch * products.m
    time *= products.n
    time *= products.k
    time /= products.rate
    time *= products.each(seconds_alone)
    np.maximum(time, products.floor, out=time)
    return piece.of(np.flatnonzero(time < piece.best.time))


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """Candidates of some products, and the best of those that were tried."""

    products: Products
    cores: Cores
    best: Best

    def of_edges(self, tile_m: FloatArray, tile_n: FloatArray) -> None:
        """Try explicit tiles, each in the blocks that consist of it: (products,) edges. [elements]"""
        pairs = {*zip(tile_m.tolist(), tile_n.tolist(), strict=True)}
        for m, n in sorted(pair for pair in pairs if pair[0] > 0):
            rows = np.flatnonzero((tile_m == m) & (tile_n == n))
            for index, (along_m, along_n) in enumerate(TILE_SHARES):
                if m * along_n != n * along_m:
                    continue
                block = CoreBlock.of(self.cores, m / along_m / self.cores.edge)
                fits = np.broadcast_to(self.cores.room(block.scale) >= 1, self.products.shape[1:])
                for piece in self._pieces(rows[fits[rows % fits.size]]):
                    self._try_tile(block, block.tile(index), piece)

    def within_cores(self, rows: IntArray | None) -> None:
        """Try blocks that fit once into every core, from the largest, on all products or some."""
        block, least = CoreBlock.of(self.cores, 1.0), self.cores.cycles(1.0, 1.0)
        while rows is None or rows.size:
            smaller = CoreBlock.of(self.cores, block.scale / 2)
            rows = self._try_block(block, rows, smaller)
            if not any((block.tile(loop_order).cycles > least).any() for loop_order in (0, 1)):
                return
            block = smaller

    def beyond_cores(self, rows: IntArray | None) -> None:
        """Try larger blocks, for fewer cores, while that number of cores may be fast enough."""
        scale = 2.0
        while rows is None or rows.size:
            alone = np.where(self.cores.room(scale) >= 1, self.cores.seconds_alone(scale), np.inf)
            rows = np.concatenate([_worth(piece, alone) for piece in self._pieces(rows)])
            if rows.size:
                self._try_block(CoreBlock.of(self.cores, scale), rows)
            scale *= 2

    def _pieces(self, rows: IntArray | None) -> Iterator[_Piece]:
        """Pieces of a table of products that fit into the caches."""
        kernels, points = self.products.shape
        if rows is not None:
            for places in np.split(rows, range(TOGETHER, rows.size, TOGETHER)):
                best = self.best.take(places)
                yield _Piece(places, self.products.take(places), best)
                self.best.put(places, best)
            return
        step = max(TOGETHER // points, 1)
        for start in range(0, kernels, step):
            lines = slice(start, start + step)
            yield _Piece(start * points, self.products.of_kernels(lines), self.best.of_kernels(lines))

    def _try_block(self, block: CoreBlock, rows: IntArray | None, smaller: CoreBlock | None = None) -> IntArray:
        """Try one of the largest tiles of a block, and others if they may be faster; rows for smaller blocks. [-]"""
        left = [_NO_ROWS]
        for piece in self._pieces(rows):
            self._try_tile(block, block.tile(0), piece)
            bound = block.bound(piece.products, piece.traffic, whole_waves=True)
            for part in piece.some(np.flatnonzero(bound < piece.best.time)):
                self._try_others(block, part)
            if smaller is not None:
                bound = smaller.bound(piece.products, piece.traffic)
                left.append(piece.of(np.flatnonzero(bound < piece.best.time)))
        return np.concatenate(left)

    def _try_others(self, block: CoreBlock, piece: _Piece) -> None:
        """Try the other tiles of a block on some products, each where its traffic alone may take less time."""
        products, traffic, uneven = piece.products, piece.traffic, self._uneven(block, piece.products)
        crossing, per_byte = block.crossing(products, traffic), products.each(self.cores.seconds_per_byte)
        for number, shares in enumerate(TILE_SHARES[1:], start=1):
            worth = (sum(1 / share for share in shares) * crossing + traffic.of_c) * per_byte < piece.best.time
            for part in piece.some(np.flatnonzero(worth & uneven if number in _TURNED else worth)):
                self._try_tile(block, block.tile(number), part)

    def _uneven(self, block: CoreBlock, products: Products) -> BoolArray:
        """Products that a turned tile may be faster for than the tile before: that one does not cover them exactly."""
        first = block.tile(0)
        rows, columns = products.m * products.each(first.per_row), products.n * products.each(first.per_column)
        shorter = [block.tile(number).cycles < block.tile(number - 1).cycles for number in _TURNED]
        uneven: BoolArray = (np.floor(rows) != rows) | (np.floor(columns) != columns)
        return uneven | (products.each(np.where(np.logical_or(*shorter), 1.0, 0.0)) > 0)

    def _try_tile(self, block: CoreBlock, tile: Tile, piece: _Piece) -> None:
        """Try a tile, with k whole and in pieces."""
        cores, products, traffic, best = self.cores, piece.products, piece.traffic, piece.best
        rows, columns = products.m * products.each(tile.per_row), products.n * products.each(tile.per_column)
        np.ceil(rows, out=rows)
        np.ceil(columns, out=columns)
        filling = traffic.of_a * columns
        filling += traffic.of_b * rows
        filling += traffic.of_c
        rounds = np.multiply(products.batch, rows, out=rows)
        rounds *= columns
        rounds /= products.each(block.busy)
        time = traffic.depth * products.each(tile.streaming)
        time += products.each(cores.draining)
        time *= np.ceil(rounds, out=columns)
        waves = np.ceil(np.multiply(rounds, 1 / tile.resident, out=columns), out=columns)
        time += np.multiply(waves, products.each(cores.latency), out=columns)
        transfer = np.multiply(filling, products.each(cores.seconds_per_byte), out=columns)
        np.maximum(time, transfer, out=time)
        np.maximum(time, products.floor, out=time)
        best.improve(time, filling)
        splits = block.splits(tile)
        if splits.any():
            split = np.flatnonzero((rounds <= 1 / 2) & (products.k > SHORTEST_SPLIT) & (products.each(splits) > 0))
            if split.size:
                part = piece.take(split)
                _try_pieces(part.products, cores, tile, part.best, filling.take(split), rounds.take(split))
                best.put(split, part.best)


def _try_pieces(
    products: Products, cores: Cores, tile: Tile, best: Best, filling: FloatArray, rounds: FloatArray
) -> None:
    """Try the two numbers of pieces of k that may be the best, for tiles that leave cores idle.

    Pieces run at once. Their sums are added up in fp32: each writes its own and reads one. More pieces take
    less arithmetic time and more traffic. Numbers of pieces are powers of two: twice the tiles with half the
    pieces fill as many cores, so that a product takes no longer than its two halves. A piece shorter than
    `SHORTEST_SPLIT` takes as long as one of that length.
    """
    draining, per_byte = products.each(cores.draining + cores.latency), products.each(cores.seconds_per_byte)
    per_k = products.each(tile.streaming) / products.rate
    streaming, shortest = products.k * per_k, SHORTEST_SPLIT * per_k
    partial = 2 * ACCUMULATOR_BYTES * (products.batch * products.m * products.n)
    partial_time = np.maximum(partial * per_byte, np.finfo(np.float64).tiny ** 0.5)
    ahead = draining - filling * per_byte
    even = _power_of_two((ahead + np.sqrt(ahead**2 + 4 * partial_time * streaming)) / (2 * partial_time))
    for pieces in (even, 2 * even):
        pieces = np.maximum(np.minimum(pieces, _power_of_two(1 / rounds)), 2.0)
        moved = filling + partial * pieces
        transfer = np.maximum(moved * per_byte, products.floor)
        best.improve(np.maximum(np.maximum(streaming / pieces, shortest) + draining, transfer), moved)


def _power_of_two(values: FloatArray) -> FloatArray:
    """The largest power of two that is no larger. [-]"""
    return np.asarray(np.ldexp(1.0, np.frexp(values)[1] - 1))


#: Tiles of a block that are the tile before, the other way round.
_TURNED = (1, 4)

_NO_ROWS = np.zeros(0, dtype=np.intp)
