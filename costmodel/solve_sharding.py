"""The best assignment of splits to the kernels of a layer, for each design: exact, by elimination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from costmodel.assignment import Link, optima
from costmodel.breakdown import Breakdown
from costmodel.columns import FloatArray, IntArray, distinct_rows
from costmodel.design import RECOMPUTE_FULL, SAMPLE, SOLVE, SOLVE_BYTES, DesignPoints
from costmodel.microbatch import DIRECTIONS, PricedTable, depends_on, priced_table
from costmodel.model import ModelShape
from costmodel.precision import Precision
from costmodel.roofline import pointwise_time
from costmodel.sharding import ASSIGNMENTS, EDGES, KERNELS, Edge, ways_of
from costmodel.system import System
from costmodel.tensor_parallel import edge_work, sent_bytes
from costmodel.workload.kernels import Pointwise
from costmodel.workload.transformer import BIAS_GRADIENT, BIASED, PRODUCTS, biases

#: A kernel's name in the kernel tables, where it is another.
LABELS: Final = {
    "attention_residual": "projection_dropout_residual",
    "mlp_residual": "mlp_dropout_residual",
}

#: Kernels of which the solver settles the splits; the core has one way.
NODES: Final = (*KERNELS, "core")
LAYER: Final = tuple(edge for edge in EDGES if edge.part == "layer")

#: Ways that are priced together, since a kernel's own time depends on its own split alone.
VARIANTS: Final = (("column", "replicated"), ("row", "sequence"), ("column", "column"))

#: Model, system and designs that leave nothing to solve -> their price.
Price = Callable[[System, DesignPoints], Breakdown]


def settled(
    model: ModelShape, system: System, design: DesignPoints, precision: Precision, price: Price
) -> DesignPoints:
    """The same designs with every sharding that is to be solved for told kernel by kernel.

    Parameters
    ----------
    model, system, design, precision
        What is run, on what, laid out how, in which number format; (points,) columns.
    price : callable
        What prices designs whose sharding is settled.

    Returns
    -------
    design : DesignPoints
        (points,) columns.

    Notes
    -----
    "solve" takes the fastest step, of those that fit in memory if any does, among
    the named assignments and, for each layout of the activation between layers, the one in which a layer
    takes the least time. That time is a sum over kernels and edges, whose least is found exactly. What it
    leaves out, the waiting for the host and the ends of the model, the choice among the candidates counts.
    "solve_bytes" takes the assignment in which a rank sends the fewest bytes.
    """
    for code, solve in ((SOLVE, _fastest), (SOLVE_BYTES, _fewest_bytes)):
        rows = np.flatnonzero(design.sharding == code)
        if rows.size:
            solved = solve(model, system.take(rows), design.take(rows), precision, price)
            design = design.with_rows(rows, solved)
    return design


def told(design: DesignPoints, **splits: IntArray | int) -> DesignPoints:
    """Designs whose kernels are split as told: (points,) places among each kernel's ways. [-]"""
    one = np.ones(design.num_points)
    columns = {f"{kernel}_sharding": one * place for kernel, place in splits.items()}
    return replace(design, sharding=one * SAMPLE, sequence_parallel=one * 0, **columns)


def named(design: DesignPoints, assignment: str) -> DesignPoints:
    """Designs whose kernels are split by a row of `ASSIGNMENTS`."""
    return told(design, **{k: list(KERNELS[k]).index(way) for k, way in ASSIGNMENTS[assignment].items()})


def _fastest(
    model: ModelShape, system: System, design: DesignPoints, precision: Precision, price: Price
) -> DesignPoints:
    candidates = [named(design, assignment) for assignment in ASSIGNMENTS]
    full = design.recompute == RECOMPUTE_FULL
    rows, back = distinct_rows(*depends_on(design), full * 1.0, *system.quantities().values())
    layer = _Layer.of(model, system.take(rows), design.take(rows), precision)
    for place in range(len(KERNELS["mlp_residual"])):
        choices = layer.least("time", residual=place)[1][:, back]
        candidates.append(told(design, **dict(zip(KERNELS, choices, strict=False))))
    found = [price(system, candidate) for candidate in candidates]
    times, needs = (
        np.stack([getattr(each, name) for each in found]) for name in ("step_time", "peak_memory")
    )
    fits = needs <= system.dram.capacity
    best = np.where(fits | ~fits.any(axis=0), times, np.inf).argmin(axis=0)
    for place, candidate in enumerate(candidates):
        chosen = np.flatnonzero(best == place)
        design = design.with_rows(chosen, candidate.take(chosen))
    return design


def _fewest_bytes(
    model: ModelShape, system: System, design: DesignPoints, precision: Precision, price: Price
) -> DesignPoints:
    layer = _Layer.of(model, system, design, precision)
    return told(design, **dict(zip(KERNELS, layer.least("bytes")[1], strict=False)))


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """What the solver prices of a layer: designs, and tables of their kernels for each of `VARIANTS`."""

    model: ModelShape
    system: System
    design: DesignPoints
    precision: Precision
    tables: tuple[PricedTable, ...]

    @classmethod
    def of(cls, model: ModelShape, system: System, design: DesignPoints, precision: Precision) -> Self:
        """Price the kernels in each way."""
        variants = []
        for product, other in VARIANTS:
            places = {}
            for kernel, ways in KERNELS.items():
                way = product if kernel in PRODUCTS else other
                places[kernel] = list(ways).index(way) if way in ways else 0
            variants.append(priced_table(model, told(design, **places), system, precision))
        return cls(model, system, design, precision, tuple(variants))

    def least(self, objective: str, residual: int | None = None) -> tuple[FloatArray, IntArray]:
        """Least time or bytes of a layer, and the splits; the last kernel's may be given.

        Returns
        -------
        least : (points,) array
            Of the forward and backward pass, and of a full recomputation. [s] or [B]
        splits : (kernels, points) array
            Places among the ways of each of `NODES`. [-]
        """
        in_time = objective == "time"
        costs = [self._kernel_time(node) if in_time else np.zeros((1, len(ways_of(node)))) for node in NODES]
        if residual is not None:
            last = NODES.index("mlp_residual")
            costs[last] = np.where(np.arange(costs[last].shape[1]) == residual, costs[last], np.inf)
        cost = self._edge_time if in_time else self._edge_bytes
        least, splits = optima(costs, [self._link(edge, cost) for edge in LAYER])
        points = (self.design.num_points,)
        return np.broadcast_to(least, points), np.broadcast_to(splits, (len(NODES), *points))

    @property
    def _forward_passes(self) -> FloatArray:
        """Runs of the forward pass. [-]"""
        return np.where(self.design.recompute == RECOMPUTE_FULL, 2.0, 1.0)

    def _table(self, kernel: str, place: int) -> PricedTable:
        """The table in which a kernel is split in one of its ways."""
        way, side = list(ways_of(kernel))[place], 0 if kernel in PRODUCTS else 1
        return self.tables[next(n for n, both in enumerate(VARIANTS) if way == both[side])]

    def _kernel_time(self, kernel: str) -> FloatArray:
        """Time of a kernel in all passes, split in each way; (points, ways). [s]"""
        if kernel not in KERNELS:
            return np.zeros((1, 1))
        times = []
        for place in range(len(KERNELS[kernel])):
            table = self._table(kernel, place)
            forward, backward = (
                sum(table.kernel_time(LABELS.get(kernel, kernel), of_pass) for of_pass in passes)
                for passes in DIRECTIONS.values()
            )
            times.append(self._forward_passes * forward + backward)
        return np.stack(times, axis=-1)

    def _link(self, edge: Edge, cost: Callable[[Edge, DesignPoints, int], FloatArray]) -> Link:
        """What an edge costs, (points, ways of its start, ways of its end)."""
        table = [
            [
                cost(edge, told(self.design, **{k: n for k, n in pair.items() if k in KERNELS}), end)
                for end in range(len(ways_of(edge.end)))
                for pair in [{edge.start: start, edge.end: end}]
            ]
            for start in range(len(ways_of(edge.start)))
        ]
        return NODES.index(edge.start), NODES.index(edge.end), np.moveaxis(np.array(table), -1, 0)

    def _edge_time(self, edge: Edge, design: DesignPoints, end: int) -> FloatArray:
        """Exposed collectives of an edge, and the gradient of a bias that is added on it. [s]"""
        product_time = self._table(edge.end, end).kernel_time
        forward, backward = edge_work(edge, self.model, design, self.system, self.precision, product_time)
        time = self._forward_passes * forward.tp_time + backward.tp_time
        if self.model.biases and BIASED.get(edge.start) == edge.end:
            time = time + self._bias_time(edge.start, design)
        return np.broadcast_to(time, (design.num_points,))

    def _bias_time(self, product: str, design: DesignPoints) -> FloatArray:
        """A product's part of the kernel that reduces the gradients of biases. [s]"""
        outputs = design.micro_batch_size * self.model.seq_len * biases(self.model, design, product)[1]
        row = (product, "weight_gradient", "layer", outputs, *BIAS_GRADIENT, 1.0)
        kernel = Pointwise.of_rows([row], element_bytes=self.precision.element_bytes)
        return pointwise_time(kernel, self.system)[0][:, 0] - self.system.chip.kernel_launch

    def _edge_bytes(self, edge: Edge, design: DesignPoints, end: int) -> FloatArray:
        """Bytes that a rank sends because of an edge. [B]"""
        forward, backward = sent_bytes(edge, self.model, design, self.precision)
        return np.broadcast_to(self._forward_passes * forward + backward, (design.num_points,))
