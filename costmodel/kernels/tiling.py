"""The fastest output tiles of matrix products: blocks of them on the cores, in waves, and k in pieces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.kernels.blocks import BLOCK_AREA, TILE_SHARES, Cores, ExplicitTiles, Products
from costmodel.machine.system import System
from costmodel.workload.kernels import Gemms

#: Products that are worked on at once: enough to drown the overhead of calls.
TOGETHER = 32768

#: Of products that are worked on, the share that must be done with before the others are gathered.
WORTH_GATHERING = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The fastest tiles so far, changed in place."""

    time: FloatArray  #: of the whole batch [s]
    filling: FloatArray  #: bytes that it moves into the nearest memory [B]

    @classmethod
    def none(cls, count: int) -> Best:
        """Of so many products, before any tile is tried."""
        return cls(np.full(count, np.inf), np.zeros(count))

    def take(self, rows: IntArray | slice) -> Best:
        """Some of them: a copy, or a view of consecutive ones."""
        return Best(self.time[rows], self.filling[rows])

    def put(self, rows: IntArray, best: Best) -> None:
        """Put a copy of some of them back."""
        self.time[rows], self.filling[rows] = best.time, best.filling

    def improve(self, time: FloatArray, filling: FloatArray, allowed: BoolArray | None) -> None:
        """Take what is faster, of what is allowed."""
        better = time < self.time
        if allowed is not None:
            better &= allowed
        np.copyto(self.time, time, where=better)
        np.copyto(self.filling, filling, where=better)


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

    Parameters
    ----------
    gemms : Gemms
        Products, (points, kernels). [elements]
    system : System
        Machine.
    floor : (points, kernels) array
        Time that no tiling can beat. [s]
    element_bytes : (points, 1) array or float
        Size of an operand's element. [B]
    rate : (points, 1) array or float
        Rate of the matrix units for such operands, over that for 16 bits. [-]
    tiles : (array, array), optional
        Edges of output tiles along m and n where they are explicit: a pair of `TILE_SHARES`. [-]

    Returns
    -------
    best : Best
        Times of the whole batch, without the launch; infinite where an explicit tile is no pair of
        `TILE_SHARES`. [s], [B]

    Notes
    -----
    Candidates are the tiles of all blocks whose edge is a power of two, and pieces of k for which there are
    cores. Where each core's part of the on-chip memory is too small for a block, fewer cores work, with the
    parts of others. A candidate takes no longer on a machine with more cores, memory or bandwidth, and such a
    machine has all candidates of the smaller one: the best of them is never slower for it.

    Few need be tried, and none that could be better is left out. A block of half the edge has as many tiles,
    of half the edges: a product has no fewer of them, and no less traffic. Once a core takes as few cycles
    for each element of k as for one output, all smaller blocks take as long or longer. Smaller tiles have
    more traffic: once that of a tile alone takes as long as the best so far, smaller ones are no better.
    Once so few cores have room for a block that useful work takes them as long, larger ones are no better.
    """
    cores, explicit = Cores.of(system, element_bytes), tiles is not None
    points, kernels = floor.shape
    best, step = Best(*np.empty((2, kernels, points))), max(TOGETHER // kernels, 1)
    for piece in (slice(start, start + step) for start in range(0, points, step)):
        some = Products.of(
            gemms.take(piece), floor[piece], _rows(element_bytes, piece), _rows(rate, piece),
            None if tiles is None else (tiles[0][piece], tiles[1][piece]),
        )  # fmt: skip
        search = _Search(some, cores.take(piece), Best.none(some.at.size), explicit)
        search.within_cores()
        search.beyond_cores()
        best.time[:, piece] = search.best.time.reshape(kernels, -1)
        best.filling[:, piece] = search.best.filling.reshape(kernels, -1)
    return Best(best.time.T, best.filling.T)


def _rows(values: FloatArray | float, rows: slice) -> FloatArray | float:
    """A number, or some rows of a column of one or more."""
    return values[rows] if isinstance(values, np.ndarray) and values.size > 1 else values


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """Candidates of some products, and the best of those that were tried."""

    products: Products
    cores: Cores
    best: Best
    some_explicit: bool

    def within_cores(self) -> None:
        """Try blocks of which every core has room for one, from the largest."""
        rows, scale, least = np.arange(self.best.time.size), 1.0, self.cores.cycles(1.0, 1.0)
        while rows.size:
            rows = self._try_block(scale, rows)
            largest = [self.cores.cycles(*self.cores.tile(scale, shares)) for shares in TILE_SHARES[:2]]
            if not any((cycles > least).any() for cycles in largest):
                return
            scale /= 2

    def beyond_cores(self) -> None:
        """Try larger blocks, for fewer cores, while as few as that may be fast enough."""
        own, scale = self.products, 2.0
        multiply_adds = own.batch * own.m * own.n * own.depth
        rows = np.flatnonzero(own.floor < self.best.time)
        while rows.size:
            alone = np.where(self.cores.room(scale) >= 1, self.cores.seconds_alone(scale), np.inf)
            each = alone[own.at[rows]] if alone.size > 1 else alone
            rows = rows[multiply_adds[rows] * each < self.best.time[rows]]
            if rows.size:
                self._try_block(scale, rows)
            scale *= 2

    def _try_block(self, scale: float, rows: IntArray) -> IntArray:
        """Try the tiles of a block on some products, and say which of them smaller blocks may suit."""
        left, own, best = rows, self.products, self.best
        if rows.size < best.time.size:
            own, best = own.take(rows), best.take(rows)
        for size, alike in enumerate(_BY_SIZE):
            moving = [self._try_tile(scale, shares, own, best) for shares in alike]
            worth = np.minimum.reduce(moving) < best.time
            if best is not self.best:
                self.best.put(rows, best)
            if np.count_nonzero(worth) <= (1 - WORTH_GATHERING) * worth.size:
                rows = rows[worth]
                own, best = self.products.take(rows), self.best.take(rows)
            if size <= 2:  # tiles as large as the next block has some
                left = rows
            if not rows.size:
                break
        return left

    def _allowed(self, scale: float, shares: tuple[float, float], own: Products) -> BoolArray | None:
        """Where a tile may be chosen; None if anywhere."""
        if not self.some_explicit:
            return None
        allowed: BoolArray = own.share_m == 0
        if scale == 1:
            allowed |= (own.share_m == shares[0]) & (own.share_n == shares[1])
        return allowed

    def _try_tile(self, scale: float, shares: tuple[float, float], own: Products, best: Best) -> FloatArray:
        """Try a tile, with k whole and in pieces, and say how long its traffic takes. [s]"""
        cores, resident = self.cores, BLOCK_AREA / (shares[0] * shares[1])
        allowed = self._allowed(scale, shares, own)
        tile_m, tile_n = cores.tile(scale, shares)
        rows, columns = own.m * own.each(1 / tile_m), own.n * own.each(1 / tile_n)  # exact: powers of two
        np.ceil(rows, out=rows)
        np.ceil(columns, out=columns)
        filling = own.of_a * columns
        filling += own.of_b * rows
        filling += own.of_c
        transfer = filling * own.each(cores.seconds_per_byte)
        rounds = np.multiply(own.batch, rows, out=rows)
        rounds *= columns
        rounds /= own.each(cores.busy(scale))
        streaming = own.depth * own.each(cores.cycles(tile_m, tile_n) / cores.rate)
        time = np.minimum(np.ceil(rounds, out=columns), resident, out=columns)
        time *= streaming + own.each(cores.draining)
        time += own.each(cores.latency)
        time *= np.ceil(rounds * (1 / resident))
        np.maximum(time, transfer, out=time)
        np.maximum(time, own.floor, out=time)
        best.improve(time, filling, allowed)
        if scale == 1 or (resident >= 4) == (scale < 1):  # else it is a tile of another block as well
            possible = (rounds <= 1 / 2) & (own.pieces > 1)
            split = np.flatnonzero(possible if allowed is None else possible & allowed)
            if split.size:
                found = best.take(split)
                _try_pieces(own.take(split), cores, found, streaming[split], filling[split], rounds[split])
                best.put(split, found)
        return transfer


def _try_pieces(
    own: Products,
    cores: Cores,
    best: Best,
    streaming: FloatArray,
    filling: FloatArray,
    rounds: FloatArray,
) -> None:
    """Try the two numbers of pieces of k that may be the best, for tiles that leave cores idle.

    Pieces run at once. Their sums are added up in fp32: each writes its own and reads one. The more there are
    the less time arithmetic takes, and the more traffic: best are the whole numbers about the point at which
    both take as long.
    """
    draining, per_byte = own.each(cores.draining + cores.latency), own.each(cores.seconds_per_byte)
    most = np.minimum(np.floor(1 / rounds), own.pieces)
    each = np.maximum(own.partial * per_byte, np.finfo(np.float64).tiny ** 0.5)
    ahead = draining - filling * per_byte
    even = np.floor((ahead + np.sqrt(ahead**2 + 4 * each * streaming)) / (2 * each))
    for pieces in (even, even + 1):
        pieces = np.maximum(np.minimum(pieces, most), 2.0)
        moved = filling + own.partial * pieces
        transfer = np.maximum(moved * per_byte, own.floor)
        best.improve(np.maximum(streaming / pieces + draining, transfer), moved, None)


#: The tiles of a block, those of one size together.
_BY_SIZE = (TILE_SHARES[:2], TILE_SHARES[2:3], TILE_SHARES[3:5], TILE_SHARES[5:])
