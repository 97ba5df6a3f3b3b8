"""The fastest output tiles of matrix products: blocks of them on the cores, in waves, and k in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, per_kernel
from costmodel.machine.system import System
from costmodel.workload.kernels import Gemms

#: Output tiles of a block, as shares of its edge. A block is what a core works on at once: half the area of
#: the square of its edge, in one, two, four or eight tiles of one shape.
TILE_SHARES: tuple[tuple[float, float], ...] = (
    (1 / 2, 1),
    (1, 1 / 2),
    (1 / 2, 1 / 2),
    (1 / 4, 1 / 2),
    (1 / 2, 1 / 4),
    (1 / 4, 1 / 4),
)
BLOCK_AREA = 1 / 2

#: Room that each output of a block takes in on-chip memory: accumulators are fp32, and operands are buffered
#: twice. [elements of operands]
BLOCK_ROOM = 6.0

#: A product is split along k only into pieces at least this long. [elements]
SHORTEST_SPLIT = 1024.0

ACCUMULATOR_BYTES = 4.0

#: Operands narrower than this make no larger blocks: accumulators of a block take two thirds of its memory by
#: then. [B]
LEAST_TILED_BYTES = 1.0

#: What a bound is made smaller by, so that no rounding lifts it above what it bounds.
BELOW = 1 - 1e-12

#: Explicit edges of output tiles, as shares of the edge of the largest block that each core's part of the
#: on-chip memory has room for, (points, kernels) each; 0 where free. [-]
ExplicitTiles = tuple[FloatArray, FloatArray]


def tile_edge(capacity: FloatArray, element_bytes: FloatArray | float) -> FloatArray:
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


def seconds_per_byte(system: System) -> FloatArray:
    """Time of a byte into the nearest memory from the next, 0 where there is none; (points, 1). [s/B]"""
    if len(system.memory) == 1:
        return np.zeros((1, 1))
    source = system.memory[1]
    return 1 / per_kernel(source.bandwidth * source.efficiency)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cores:
    """What tilings read of a machine, for operands of some width; (points, 1) columns."""

    cores: FloatArray  #: [-]
    arrays: FloatArray  #: matrix units of a core [-]
    height: FloatArray  #: of one [-]
    width: FloatArray
    rate: FloatArray  #: cycles in which it multiplies [1/s]
    latency: FloatArray  #: of a wave [s]
    capacity: FloatArray  #: of the on-chip memory [B]
    output_room: FloatArray  #: of it, for each output of a block [B]
    seconds_per_byte: FloatArray  #: of what crosses into it [s/B]
    edge: FloatArray  #: of the largest block that each core has room for [elements]

    @classmethod
    def of(cls, system: System, element_bytes: FloatArray | float) -> Self:
        """Those of a machine; `element_bytes` as (points, 1). [B]"""
        chip, capacity = system.chip, system.memory[0].capacity
        tiled = np.maximum(element_bytes, LEAST_TILED_BYTES)
        return cls(
            cores=per_kernel(chip.cores),
            arrays=per_kernel(chip.arrays_per_core),
            height=per_kernel(chip.array_height),
            width=per_kernel(chip.array_width),
            rate=per_kernel(chip.clock * chip.sustained * chip.matrix_efficiency),
            latency=per_kernel(chip.tile_latency),
            capacity=per_kernel(capacity),
            output_room=BLOCK_ROOM * tiled,
            seconds_per_byte=seconds_per_byte(system),
            edge=np.maximum(tile_edge(per_kernel(capacity / chip.cores), tiled), 1.0),
        )

    def room(self, scale: float) -> FloatArray:
        """Blocks of `scale` times the edge that there is room for, all cores together; (points, 1). [-]"""
        area = BLOCK_AREA * (scale * self.edge) ** 2
        return np.floor(self.capacity / (self.output_room * area))

    def busy(self, scale: float) -> FloatArray:
        """Cores that have a block of `scale` times the edge, at least one; (points, 1). [-]"""
        return np.minimum(self.cores, np.maximum(self.room(scale), 1.0))

    def tile(self, scale: float, shares: tuple[float, float]) -> tuple[FloatArray, FloatArray]:
        """Rows and columns of a tile of such a block; (points, 1). [elements]"""
        tile_m, tile_n = (np.maximum(scale * share * self.edge, 1.0) for share in shares)
        return tile_m, tile_n

    def cycles(self, tile_m: FloatArray, tile_n: FloatArray) -> FloatArray:
        """Of a core, for each element of k of a tile; (points, 1). [-]"""
        return np.ceil(np.ceil(tile_m / self.height) * np.ceil(tile_n / self.width) / self.arrays)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Products:
    """What tilings read of products; (points, kernels) arrays. Bytes are those of the whole batch."""

    batch: FloatArray  #: [-]
    m: FloatArray  #: [elements]
    n: FloatArray
    depth: FloatArray  #: k over the rate of narrow operands [elements]
    pieces: FloatArray  #: that k may be split into [-]
    of_a: FloatArray  #: A, once [B]
    of_b: FloatArray
    of_c: FloatArray  #: what is read and written of C
    partial: FloatArray  #: a partial sum of C, written and read
    floor: FloatArray  #: time that no tiling can beat [s]

    @classmethod
    def of(
        cls,
        gemms: Gemms,
        floor: FloatArray,
        element_bytes: FloatArray | float,
        rate: FloatArray | float,
    ) -> Self:
        """Those of a table of products; parameters are those of `fastest_tiling`."""
        m, n, k, batch = gemms.m, gemms.n, gemms.k, gemms.batch
        outputs, operands = batch * m * n, element_bytes * batch * k
        return cls(
            batch=batch,
            m=m,
            n=n,
            depth=k / rate,
            pieces=np.maximum(k // SHORTEST_SPLIT, 1.0),
            of_a=operands * m,
            of_b=operands * n,
            of_c=gemms.output_bytes * outputs,
            partial=2 * ACCUMULATOR_BYTES * outputs,
            floor=floor,
        )

    def take_kernels(self, places: IntArray) -> Self:
        """Some of the products."""
        return type(self)(**{f.name: getattr(self, f.name)[:, places] for f in fields(self)})


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The fastest tiles so far; (points, kernels) arrays, changed in place."""

    time: FloatArray  #: of the whole batch [s]
    filling: FloatArray  #: bytes that it moves into the nearest memory [B]

    def take_kernels(self, places: IntArray) -> Best:
        """A copy of some of them."""
        return Best(self.time[:, places], self.filling[:, places])

    def put(self, places: IntArray, best: Best) -> None:
        """Put a copy of some of them back."""
        self.time[:, places], self.filling[:, places] = best.time, best.filling

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
    best = Best(np.full_like(floor, np.inf), np.zeros_like(floor))
    search = _Search(
        Products.of(gemms, floor, element_bytes, rate), Cores.of(system, element_bytes), best, tiles
    )
    search.within_cores()
    search.beyond_cores()
    return best


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Products of which k may be split among cores that would be idle; (points, kernels) arrays."""

    streaming: FloatArray  #: all of k past one tile [s]
    draining: FloatArray  #: what each piece takes beside; (points, 1) [s]
    filling: FloatArray  #: traffic when k is whole [B]
    most: FloatArray  #: pieces that there are cores and depth for [-]

    def take_kernels(self, places: IntArray) -> Pieces:
        """Some of the products."""
        own = (values[:, places] for values in (self.streaming, self.filling, self.most))
        streaming, filling, most = own
        return Pieces(streaming, self.draining, filling, most)

    def fastest(self, own: Products, cores: Cores) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Time and traffic of the two numbers of pieces that may be the best. [s], [B]

        Pieces run at once. Their sums are added up in fp32: each writes its own and reads one. The more there
        are the less time arithmetic takes, and the more traffic: best are the whole numbers about the point
        at which both take as long.
        """
        each = np.maximum(own.partial * cores.seconds_per_byte, np.finfo(np.float64).tiny ** 0.5)
        ahead = self.draining - self.filling * cores.seconds_per_byte
        even = np.floor((ahead + np.sqrt(ahead**2 + 4 * each * self.streaming)) / (2 * each))
        for pieces in (even, even + 1):
            pieces = np.maximum(np.minimum(pieces, self.most), 2.0)
            filling = self.filling + own.partial * pieces
            transfer = np.maximum(filling * cores.seconds_per_byte, own.floor)
            yield np.maximum(self.streaming / pieces + self.draining, transfer), filling


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """Candidates of some products, and the best of those that were tried."""

    products: Products
    cores: Cores
    best: Best
    explicit: ExplicitTiles | None

    def within_cores(self) -> None:
        """Try blocks of which every core has room for one, from the largest."""
        places, scale, one = np.arange(self.best.time.shape[1]), 1.0, np.ones((1, 1))
        least = self.cores.cycles(one, one)
        while places.size:
            places = self._try_block(scale, places)
            largest = [self.cores.cycles(*self.cores.tile(scale, shares)) for shares in TILE_SHARES[:2]]
            if not any((cycles > least).any() for cycles in largest):
                return
            scale /= 2

    def beyond_cores(self) -> None:
        """Try larger blocks, for fewer cores, while as few as that may be fast enough."""
        own, scale = self.products, 2.0
        multiply_adds = self.cores.rate * self.cores.arrays * self.cores.height * self.cores.width
        alone = own.batch * own.m * own.n * own.depth * (BELOW / multiply_adds)
        while True:
            fits = self.cores.room(scale) >= 1
            least = np.maximum(alone / self.cores.busy(scale), own.floor)
            places = np.flatnonzero(((least < self.best.time) & fits).any(axis=0))
            if not places.size:
                return
            self._try_block(scale, places, None if fits.all() else fits)
            scale *= 2

    def _try_block(self, scale: float, places: IntArray, fits: BoolArray | None = None) -> IntArray:
        """Try the tiles of a block on some products, and say which of them smaller blocks may suit."""
        left, own, best = places, self.products, self.best
        if places.size < best.time.shape[1]:
            own, best = own.take_kernels(places), best.take_kernels(places)
        for size, alike in enumerate(_BY_SIZE):
            moving = [
                self._try_tile(scale, shares, own, best, self._allowed(scale, shares, places, fits))
                for shares in alike
            ]
            if best is not self.best:
                self.best.put(places, best)
            worth = (np.minimum.reduce(moving) < best.time).any(axis=0)
            if not worth.all():
                places = places[worth]
                own, best = self.products.take_kernels(places), self.best.take_kernels(places)
            if size <= 2:  # tiles as large as the next block has some
                left = places
            if not places.size:
                break
        return left

    def _allowed(
        self, scale: float, shares: tuple[float, float], places: IntArray, fits: BoolArray | None
    ) -> BoolArray | None:
        """Where a tile may be chosen; None if anywhere."""
        if self.explicit is None:
            return fits
        share_m, share_n = (share[:, places] for share in self.explicit)
        allowed: BoolArray = share_m == 0
        if scale == 1:
            allowed |= (share_m == shares[0]) & (share_n == shares[1])
        return allowed if fits is None else allowed & fits

    def _try_tile(
        self,
        scale: float,
        shares: tuple[float, float],
        own: Products,
        best: Best,
        allowed: BoolArray | None,
    ) -> FloatArray:
        """Try a tile, with k whole and in pieces, and say how long its traffic takes. [s]"""
        cores, resident, busy = self.cores, BLOCK_AREA / (shares[0] * shares[1]), self.cores.busy(scale)
        tile_m, tile_n = cores.tile(scale, shares)
        rows, columns = _whole(own.m * (1 / tile_m)), _whole(own.n * (1 / tile_n))  # powers of two: exact
        filling = own.of_a * columns
        filling += own.of_b * rows
        filling += own.of_c
        transfer = filling * cores.seconds_per_byte
        rounds = np.multiply(own.batch, rows, out=rows)
        rounds *= columns
        rounds /= busy
        streaming = own.depth * (cores.cycles(tile_m, tile_n) / cores.rate)
        draining = (cores.height + cores.width) / cores.rate
        time = np.minimum(np.ceil(rounds, out=columns), resident, out=columns)
        time *= streaming + draining
        time += cores.latency
        time *= _whole(rounds * (1 / resident))
        np.maximum(time, transfer, out=time)
        np.maximum(time, own.floor, out=time)
        best.improve(time, filling, allowed)
        if scale == 1 or (resident >= 4) == (scale < 1):  # else it is a tile of another block as well
            possible = (rounds <= 1 / 2) & (own.pieces > 1)
            if possible.any():
                most = np.minimum(np.floor(1 / rounds), own.pieces)
                pieces = Pieces(streaming, draining + cores.latency, filling, most)
                self._try_pieces(pieces, own, best, possible if allowed is None else possible & allowed)
        return transfer

    def _try_pieces(self, pieces: Pieces, own: Products, best: Best, possible: BoolArray) -> None:
        """Try a tile with k in pieces, of the products of which some point may be split."""
        places = np.flatnonzero(possible.any(axis=0))
        found, split = best.take_kernels(places), pieces.take_kernels(places)
        for time, filling in split.fastest(own.take_kernels(places), self.cores):
            found.improve(time, filling, possible[:, places])
        best.put(places, found)


def _whole(values: FloatArray) -> FloatArray:
    """The values rounded up, in their place."""
    return np.ceil(values, out=values)


#: The tiles of a block, those of one size together.
_BY_SIZE = (TILE_SHARES[:2], TILE_SHARES[2:3], TILE_SHARES[3:5], TILE_SHARES[5:])
