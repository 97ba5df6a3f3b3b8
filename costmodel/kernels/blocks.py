"""What tilings read of machines and of matrix products: blocks of output tiles, and the room for them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from costmodel.columns import FloatArray, IntArray, per_kernel
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
    """What tilings read of machines; (points,) arrays, or of one value for all."""

    cores: FloatArray  #: [-]
    arrays: FloatArray  #: matrix units of a core [-]
    height: FloatArray  #: of one [-]
    width: FloatArray
    rate: FloatArray  #: cycles in which it multiplies [1/s]
    latency: FloatArray  #: of a wave [s]
    capacity: FloatArray  #: of the on-chip memory [B]
    output_room: FloatArray  #: of it, for each output of a block [B]
    edge: FloatArray  #: of the largest block that each core has room for [elements]
    seconds_per_byte: FloatArray  #: of what crosses into it [s/B]

    @classmethod
    def of(cls, system: System, element_bytes: FloatArray | float) -> Self:
        """Those of a system, for operands of some size. [B]"""
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

    def take(self, rows: slice) -> Self:
        """Those of some points."""
        every = {f.name: getattr(self, f.name) for f in fields(self)}
        return type(self)(**{name: own[rows] if own.size > 1 else own for name, own in every.items()})

    @property
    def draining(self) -> FloatArray:
        """What a tile takes beside its k. [s]"""
        return (self.height + self.width) / self.rate

    def room(self, scale: float) -> FloatArray:
        """Blocks of `scale` times the edge that there is room for, all cores together. [-]"""
        return np.floor(self.capacity / (self.output_room * (BLOCK_AREA * (scale * self.edge) ** 2)))

    def busy(self, scale: float) -> FloatArray:
        """Cores that have a block of `scale` times the edge, at least one. [-]"""
        return np.minimum(self.cores, np.maximum(self.room(scale), 1.0))

    def tile(self, scale: float, shares: tuple[float, float]) -> tuple[FloatArray, FloatArray]:
        """Rows and columns of a tile of such a block. [elements]"""
        tile_m, tile_n = (np.maximum(scale * share * self.edge, 1.0) for share in shares)
        return tile_m, tile_n

    def cycles(self, tile_m: FloatArray | float, tile_n: FloatArray | float) -> FloatArray:
        """Of a core, for each element of k of a tile. [-]"""
        return np.ceil(np.ceil(tile_m / self.height) * np.ceil(tile_n / self.width) / self.arrays)

    def seconds_alone(self, scale: float) -> FloatArray:
        """Time of a multiply-add, of all that cores with a block do at once; no more than it is. [s]"""
        at_once = self.busy(scale) * self.arrays * self.height * self.width
        return BELOW / (self.rate * at_once)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Products:
    """What tilings read of products, and where their machines stand; (products,) arrays.

    Bytes are those of the whole batch of a product.
    """

    at: IntArray  #: place of a product's machine among the points [-]
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
    share_m: FloatArray  #: of the edge, of explicit tiles; 0 where free [-]
    share_n: FloatArray

    @classmethod
    def of(
        cls,
        gemms: Gemms,
        floor: FloatArray,
        element_bytes: FloatArray | float,
        rate: FloatArray | float,
        tiles: ExplicitTiles | None,
    ) -> Self:
        """Those of a table of products; parameters are those of `fastest_tiling`."""
        m, n, k, batch = gemms.m, gemms.n, gemms.k, gemms.batch
        outputs, operands = batch * m * n, element_bytes * batch * k
        share_m, share_n = tiles or (np.zeros((1, 1)), np.zeros((1, 1)))
        values = {
            "batch": batch,
            "m": m,
            "n": n,
            "depth": k / rate,
            "pieces": np.maximum(k // SHORTEST_SPLIT, 1.0),
            "of_a": operands * m,
            "of_b": operands * n,
            "of_c": gemms.output_bytes * outputs,
            "partial": 2 * ACCUMULATOR_BYTES * outputs,
            "floor": floor,
            "share_m": share_m,
            "share_n": share_n,
        }
        points, kernels = floor.shape
        flat = {
            name: np.broadcast_to(array, floor.shape).ravel(order="F") if array.size > 1 else array.ravel()
            for name, array in values.items()
        }
        return cls(at=np.tile(np.arange(points), kernels), **flat)

    def take(self, rows: IntArray) -> Self:
        """Some of the products."""
        every = {f.name: getattr(self, f.name) for f in fields(self)}
        return type(self)(**{name: own[rows] if own.size > 1 else own for name, own in every.items()})

    def each(self, values: FloatArray) -> FloatArray:
        """For each product the value of its machine."""
        return values[self.at] if values.size > 1 else values
