"""Products of a micro-batch, each in the format of its operands: those of layers in fewer bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.kernels.gemm import GemmCost, gemm_cost
from costmodel.kernels.output_tiles import ExplicitTiles, has_room, useful_edges
from costmodel.training.design import tile_columns, tiled_kernel
from costmodel.training.kernel_kind import PASSES
from costmodel.training.run import RankRun
from costmodel.workload.kernel_tables import Gemms
from costmodel.workload.quantisation import (
    has_units,
    is_quantised,
    narrow_places,
    operand_bytes,
    product_rate,
    some_narrow,
)
from costmodel.workload.transformer import every_part, explicit_edges


def products_cost(run: RankRun, gemms: Gemms) -> GemmCost:
    """Time, work and traffic of some products of a micro-batch, (points, kernels).

    Operands of layers' products have the bytes and the rate of their design's format, tiles follow the bytes; what they
    make keeps 16 bits, and accumulators 32. A design whose format the chip has no units for gets the rate of 16 bits
    here, one whose tiles the chip has no room for the best ones: `step` has no number for either (`is_possible`).
    """
    first, back = distinct_products(run, gemms)
    if first.size < back.size:
        distinct = gemms.take_kernels(first)
        return kernels_of(_each_cost(run, distinct, _possible_edges(run, distinct)), back)
    return _each_cost(run, gemms, _possible_edges(run, gemms))


def best_tiles(run: RankRun, gemms: Gemms) -> dict[str, FloatArray]:
    """Edges of the fastest output tiles of products, by the names of `tile_columns`; (points,). [elements]

    Where a product stands in several parts of a model, its tile is that of the least time of all. A design
    without a product has 0; products that no design has are left out. Tiles of the run are free.
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
    """Products of a table that differ in some row, ascending, and the place of each product's kind among them. [-]

    Gradients of inputs of one are often the forward pass of another.
    """
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
    system = run.system
    if not some_narrow(run):
        return gemm_cost(gemms, system, element_bytes=run.precision.element_bytes, tiles=tiles)
    rate = product_rate(run.design.precision, system)
    narrow = narrow_places(run.model, gemms.labels)
    others = np.setdiff1d(np.arange(len(gemms.labels)), narrow)
    sixteen_bits: tuple[IntArray, FloatArray | float, FloatArray | float]
    sixteen_bits = others, run.precision.element_bytes, 1.0
    costs = []
    for places, size, own_rate in (sixteen_bits, (narrow, operand_bytes(run), np.where(rate > 0, rate, 1.0))):
        own_tiles = None if tiles is None else (tiles[0][:, places], tiles[1][:, places])
        of_format = gemms.take_kernels(places)
        costs.append(gemm_cost(of_format, system, element_bytes=size, rate=own_rate, tiles=own_tiles))
    return _side_by_side(costs, np.argsort(np.concatenate([others, narrow])))


def _side_by_side(costs: Sequence[GemmCost], order: IntArray) -> GemmCost:
    """Costs of several tables of products as those of one, its columns in the given order."""
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
