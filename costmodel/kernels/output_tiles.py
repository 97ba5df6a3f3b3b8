"""Machines and matrix products as tilings read them: blocks of output tiles, and the room for them.

A tiling cuts the output of a product into tiles, and a core holds one block of tiles at a time. This module says
which edges may be fastest, and bounds the time of each block from below, so that `tiling` tries few of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, per_kernel
from costmodel.kernels.kernel_tables import Gemms
from costmodel.machine import System

#: Output tiles of a block, as shares of its edge. A core works on one block at a time: half the area of the square of
#: its edge, in one, two, four or eight tiles of one shape.
TILE_SHARES: tuple[tuple[float, float], ...] = (
    (1 / 2, 1),
    (1, 1 / 2),
    (1 / 2, 1 / 2),
    (1 / 4, 1 / 2),
    (1 / 2, 1 / 4),
    (1 / 4, 1 / 4),
)
BLOCK_AREA = 1 / 2

#: Most tiles of a block. [-]
MOST_TILES = max(BLOCK_AREA / (rows * columns) for rows, columns in TILE_SHARES)

#: Room that each output of a block takes in on-chip memory: accumulators are fp32, and operands are buffered
#: twice. [elements of operands]
BLOCK_ROOM = 6.0

#: Length of a piece of k that shorter ones take as long as, so that splitting is of use beyond it. [elements]
SHORTEST_SPLIT = 1024.0

ACCUMULATOR_BYTES = 4.0

#: Operands narrower than this make no larger blocks: accumulators of a block take two thirds of its memory by then. [B]
LEAST_TILED_BYTES = 1.0

#: Edge of a block, from which on all of its tiles have the edges that their shares say. [elements]
WHOLE_TILES = 4.0

#: Factor that makes a bound smaller, so that no rounding lifts it above the bounded value.
BELOW = 1 - 1e-12

#: Explicit edges of output tiles along m and n, (points, kernels) each; 0 where free. [elements]
ExplicitTiles = tuple[FloatArray, FloatArray]


def tile_edge(capacity: FloatArray, element_bytes: FloatArray | float) -> FloatArray:
    """Edge of the largest power-of-two square tile with room for three in a memory. [elements]

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


def has_room(tile_m: FloatArray, tile_n: FloatArray, system: System, element_bytes: FloatArray | float) -> BoolArray:
    """Mask of explicit tiles, 0 where free [elements], for which all cores together have on-chip memory for one block.

    `element_bytes` is the size of an operand's element, broadcast against `tile_m`. [B]
    """
    block = 2 * np.minimum(tile_m, tile_n) ** 2  # two square ones, or one
    return np.asarray(BLOCK_ROOM * np.maximum(element_bytes, LEAST_TILED_BYTES) * block <= system.memory[0].capacity)


def seconds_per_byte(system: System) -> FloatArray:
    """Time of a byte into the nearest memory from the next, 0 where there is none; (points, 1). [s/B]"""
    if len(system.memory) == 1:
        return np.zeros((1, 1))
    source = system.memory[1]
    return 1 / per_kernel(source.bandwidth * source.efficiency)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cores:
    """Cores of machines, as tilings read them; (points,) arrays, or of one value for all."""

    cores: FloatArray  #: [-]
    arrays: FloatArray  #: matrix units of a core [-]
    height: FloatArray  #: of one [-]
    width: FloatArray
    rate: FloatArray  #: cycles in which it multiplies [1/s]
    latency: FloatArray  #: of a wave [s]
    capacity: FloatArray  #: of the on-chip memory [B]
    output_room: FloatArray  #: of it, for each output of a block [B]
    edge: FloatArray  #: of the largest block that each core has room for [elements]
    seconds_per_byte: FloatArray  #: of the bytes that cross into it [s/B]

    @classmethod
    def of(cls, system: System, element_bytes: FloatArray | float) -> Self:
        """Cores of a system, for operands of some size. [B]"""
        chip, capacity = system.chip, system.memory[0].capacity
        tiled = np.maximum(np.ravel(element_bytes), LEAST_TILED_BYTES)
        return cls(
            cores=np.ravel(chip.cores),
            arrays=np.ravel(chip.arrays_per_core),
            height=np.ravel(chip.array_height),
            width=np.ravel(chip.array_width),
            rate=np.ravel(chip.clock * chip.sustained * chip.matrix_efficiency),
            latency=np.ravel(chip.tile_latency),
            capacity=np.ravel(capacity),
            output_room=BLOCK_ROOM * tiled,
            edge=np.maximum(tile_edge(np.ravel(capacity / chip.cores), tiled), 1.0),
            seconds_per_byte=np.ravel(seconds_per_byte(system)),
        )

    @cached_property
    def draining(self) -> FloatArray:
        """Time of a tile beyond its k steps. [s]"""
        return (self.height + self.width) / self.rate

    def room(self, scale: FloatArray | float) -> FloatArray:
        """Blocks of `scale` times the edge that there is room for, all cores together. [-]"""
        return np.floor(self.capacity / (self.output_room * (BLOCK_AREA * (scale * self.edge) ** 2)))

    def busy(self, scale: FloatArray | float) -> FloatArray:
        """Cores that have a block of `scale` times the edge, at least one. [-]"""
        return np.minimum(self.cores, np.maximum(self.room(scale), 1.0))

    def cycles(self, tile_m: FloatArray | float, tile_n: FloatArray | float) -> FloatArray:
        """Cycles of a core for each element of k of a tile. [-]"""
        return np.ceil(np.ceil(tile_m / self.height) * np.ceil(tile_n / self.width) / self.arrays)

    def seconds_alone(self, scale: float) -> FloatArray:
        """Time of a multiply-add, of all that cores with a block do at once; no more than it is. [s]"""
        at_once = self.busy(scale) * self.arrays * self.height * self.width
        return BELOW / (self.rate * at_once)


def useful_edges(system: System, element_bytes: FloatArray | float) -> tuple[float, ...]:
    """Edges that the fastest tile of a product may have on one of some machines, ascending. [elements]

    They are powers of two: from the smallest tile of the block from which on a core takes one cycle for each
    element of k, to the largest tile for which all cores together have on-chip memory.
    """
    cores, scale = Cores.of(system, element_bytes), 1.0
    while np.max(cores.cycles(scale * cores.edge / 2, scale * cores.edge)) > 1 or (
        np.max(cores.cycles(scale * cores.edge, scale * cores.edge / 2)) > 1
    ):
        scale /= 2
    smallest = np.maximum(scale * cores.edge * min(TILE_SHARES[-1]), 1.0)
    largest = np.maximum(np.sqrt(cores.capacity / (BLOCK_AREA * cores.output_room)), 1.0)
    lowest, highest = (int(np.frexp(edge)[1]) - 1 for edge in (smallest.min(), largest.max()))
    return tuple(float(2**power) for power in range(lowest, highest + 1))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Products:
    """Matrix products as tilings read them: (kernels, points) arrays, or (products,) of some of them.

    Values common to all kernels, or to all products, have one value along its axis.
    """

    at: IntArray | None  #: place of a product's machine among the points; None where these are the last axis
    batch: FloatArray  #: [-]
    m: FloatArray  #: [elements]
    n: FloatArray
    k: FloatArray
    output_bytes: FloatArray  #: moved per element of C [B]
    floor: FloatArray  #: time that no tiling can beat [s]
    element_bytes: FloatArray  #: of operands [B]
    rate: FloatArray  #: of the matrix units for these operands, over that for 16 bits [-]

    @classmethod
    def of(cls, gemms: Gemms, floor: FloatArray, element_bytes: FloatArray | float, rate: FloatArray | float) -> Self:
        """Products of a table of kernels; parameters are those of `fastest_tiling`."""
        columns = {name: getattr(gemms, name) for name in ("batch", "m", "n", "k", "output_bytes")}
        columns |= {"floor": floor, "element_bytes": element_bytes, "rate": rate}
        flat = {name: np.ascontiguousarray(np.atleast_2d(values).T) for name, values in columns.items()}
        return cls(at=None, **flat)

    @property
    def shape(self) -> tuple[int, ...]:
        """Kernels and points, or products."""
        return self.m.shape

    def of_kernels(self, kernels: slice) -> Self:
        """Products of some kernels of a whole table."""
        return self._map(lambda values: values[kernels] if values.shape[0] > 1 else values, at=None)

    def take(self, rows: IntArray) -> Self:
        """Products taken from a whole table, by their places in its (kernels, points), or from those already taken."""
        if self.at is not None:
            return self._map(lambda values: values.take(rows) if values.size > 1 else values, at=self.at.take(rows))
        shape, (kernel, point) = self.shape, np.divmod(rows, self.shape[1])

        def taken(values: FloatArray) -> FloatArray:
            if values.shape == shape:
                return values.take(rows)
            return values.ravel()[point if values.shape[1] > 1 else kernel] if values.size > 1 else values.ravel()

        return self._map(taken, at=point)

    def _map(self, function: Callable[[FloatArray], FloatArray], at: IntArray | None) -> Self:
        names = (f.name for f in fields(self) if f.name != "at")
        return type(self)(at=at, **{name: function(getattr(self, name)) for name in names})

    def each(self, values: FloatArray) -> FloatArray:
        """For each product the value of its machine."""
        return values if self.at is None or values.size == 1 else values.take(self.at)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ProductTraffic:
    """Traffic of matrix products of a whole batch; arrays as those of `Products`."""

    outputs: FloatArray  #: [elements]
    depth: FloatArray  #: k over the rate of narrow operands [elements]
    of_a: FloatArray  #: A, once [B]
    of_b: FloatArray
    of_c: FloatArray  #: bytes of C that are read and written

    @classmethod
    def of(cls, products: Products) -> Self:
        """The traffic of some products."""
        outputs, operands = products.batch * products.m, products.element_bytes * products.batch
        outputs *= products.n
        operands *= products.k
        return cls(
            outputs=outputs,
            depth=products.k if products.rate.size == 1 and products.rate == 1 else products.k / products.rate,
            of_a=operands * products.m,
            of_b=np.multiply(operands, products.n, out=operands),
            of_c=products.output_bytes * outputs,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tile:
    """An output tile of a block on each machine; (points,) arrays, or of one value for all."""

    shares: tuple[float, float]  #: of the block's edge, as in `TILE_SHARES` [-]
    per_row: FloatArray  #: one over its rows [1/elements]
    per_column: FloatArray
    cycles: FloatArray  #: of a core, for each element of k [-]
    streaming: FloatArray  #: time of a core, for each element of k [s]

    @property
    def resident(self) -> float:
        """Tiles of a block. [-]"""
        return BLOCK_AREA / (self.shares[0] * self.shares[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class CoreBlock:
    """The block of output that a core works on at once; (points,) arrays, or of one value for all."""

    scale: FloatArray  #: its edge over that of the largest that each core has room for [-]
    cores: Cores
    busy: FloatArray  #: cores that have one [-]
    tiles: dict[int, Tile]  #: place in `TILE_SHARES` -> those that were asked for

    @classmethod
    def of(cls, cores: Cores, scale: FloatArray | float) -> Self:
        """The block of some scale."""
        return cls(scale=np.ravel(scale), cores=cores, busy=cores.busy(scale), tiles={})

    def splits(self, tile: Tile) -> FloatArray:
        """1 where k is tried in pieces with one of its tiles, 0 where another block has that tile too. [-]

        A core has one tile at most then: of two blocks that consist of it the smaller one needs less memory.
        """
        return np.where((self.scale == 1) | ((tile.resident >= 4) == (self.scale < 1)), 1.0, 0.0)

    def tile(self, number: int) -> Tile:
        """One of its tiles, by its place in `TILE_SHARES`."""
        if number not in self.tiles:
            shares, edge = TILE_SHARES[number], self.scale * self.cores.edge
            rows, columns = (np.maximum(share * edge, 1.0) for share in shares)
            cycles = self.cores.cycles(rows, columns)
            self.tiles[number] = Tile(
                shares=shares,
                per_row=1 / rows,
                per_column=1 / columns,
                cycles=cycles,
                streaming=cycles / self.cores.rate,
            )
        return self.tiles[number]

    @cached_property
    def _whole(self) -> FloatArray:
        """1 over the edge where tiles have the edges that their shares say, else 0. [1/elements]"""
        edge = self.scale * self.cores.edge
        return np.where(edge >= WHOLE_TILES, 1 / edge, 0.0)

    @cached_property
    def _waves(self) -> FloatArray:
        """Waves that each output takes, at least. [-]"""
        return BELOW / (BLOCK_AREA * self.busy) * self._whole**2

    @cached_property
    def _streaming(self) -> FloatArray:
        """Time of a core for each element of k, at least. [s]"""
        return np.minimum(self.tile(0).streaming, self.tile(1).streaming)

    def crossing(self, products: Products, traffic: ProductTraffic) -> FloatArray:
        """Traffic of operands of a tile over the sum of 1 / its shares, as if tiles covered the outputs exactly. [B]"""
        crossing = traffic.of_a * products.n
        return np.multiply(crossing, products.each(self._whole), out=crossing)

    def bound(self, products: Products, traffic: ProductTraffic, *, whole_waves: bool = False) -> FloatArray:
        """Time that no tile of the block beats nor, unless waves are whole, any of a smaller one. [s]

        As if tiles covered the outputs exactly: all waves are as long as the block takes a core, and there
        are no more of them than the outputs fill.
        """
        cores = self.cores
        time = traffic.outputs * products.each(self._waves)
        if whole_waves:  # in rounds of the smallest tiles; 0 below one wave, where k may be in pieces
            time = np.minimum(np.ceil(MOST_TILES * time) / MOST_TILES, 2 * np.floor(time))
        wave = traffic.depth * products.each(self._streaming)
        wave += products.each(cores.draining)
        wave += products.each(cores.latency)
        time *= wave
        transfer = self.crossing(products, traffic)
        transfer *= sum(1 / share for share in TILE_SHARES[0])
        transfer += traffic.of_c
        transfer *= products.each(cores.seconds_per_byte)
        np.maximum(time, transfer, out=time)
        return np.maximum(time, products.floor, out=time)
