"""The best assignment of splits to the kernels of a layer, for each design: exact, by elimination."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, concatenated, distinct_rows
from costmodel.kernels.roofline import pointwise_time
from costmodel.machine.system import System
from costmodel.solve.assignment import Link, optima
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.memory import fullest_stage, rank_memory, stage_memories
from costmodel.steps.microbatch import DIRECTIONS, PricedTable, depends_on, priced_table
from costmodel.steps.tensor_parallel import edge_work, sent_bytes
from costmodel.training.design import RECOMPUTE_FULL, SAMPLE, SOLVE, SOLVE_BYTES, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import Precision
from costmodel.training.sharding import ASSIGNMENTS, EDGES, KERNELS, Edge, ways_of
from costmodel.workload.kernels import Pointwise
from costmodel.workload.transformer import BIAS_GRADIENT, BIASED, PRODUCTS, biases, widths

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

#: Every assignment, a column each; (kernels, assignments).
EVERY: Final = np.array(list(itertools.product(*(range(len(ways)) for ways in KERNELS.values())))).T

#: Designs whose assignments are all priced at once.
TRIED: Final = 8

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
    "solve" takes the fastest step, of those that fit into the memory of the chip if any does. A layer's
    time is a sum over kernels and edges, whose least is found exactly, for each layout of the activation
    between layers; what the sum leaves out, waiting for the host and the ends of the model, decides among
    these and the named assignments. Where the fastest does not fit and another might, all are priced.
    "solve_bytes" takes the assignment in which a rank sends the fewest bytes. Ways that would cut a
    dimension into unequal shares are left out, unless there is no other.
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
    points = np.arange(design.num_points)
    rows, back = distinct_rows(*depends_on(design), design.recompute, *system.quantities().values())
    few = design.take(rows)
    layer = _Layer.of(model, system.take(rows), few, precision)
    candidates = [named(design, assignment) for assignment in ASSIGNMENTS]
    candidates += [told(design, **_by_kernel(splits[:, back])) for splits in layer.fastest()]
    every, shape = concatenated(candidates), (len(candidates), points.size)
    found = price(system.take(np.tile(points, len(candidates))), every)
    even = _even(model, every).reshape(shape)
    times = np.where(even | ~even.any(axis=0), found.step_time.reshape(shape), np.inf)
    fits = found.peak_memory.reshape(shape) <= system.dram.capacity
    best = np.where(fits | ~fits.any(axis=0), times, np.inf).argmin(axis=0)
    design = every.take(best * points.size + points)
    too_large = ~fits[times.argmin(axis=0), points]
    leanest = _least_memory(model, few, back, design, precision, system)
    tight = np.flatnonzero(too_large & (leanest <= system.dram.capacity))
    for block in (tight[start : start + TRIED] for start in range(0, tight.size, TRIED)):
        design = design.with_rows(block, _tried(model, system.take(block), design.take(block), price))
    return design


def _by_kernel(splits: IntArray) -> dict[str, IntArray]:
    """Rows of splits by the kernels that have a choice."""
    return dict(zip(KERNELS, splits, strict=False))


def _every(design: DesignPoints) -> tuple[IntArray, DesignPoints]:
    """Each design once for each assignment, and the row that it comes from."""
    rows = np.repeat(np.arange(design.num_points), EVERY.shape[1])
    return rows, told(design.take(rows), **_by_kernel(np.tile(EVERY, design.num_points)))


def _tried(model: ModelShape, system: System, design: DesignPoints, price: Price) -> DesignPoints:
    """The fastest of all assignments that fit, by pricing each; designs that none fits stay as they are."""
    rows, every = _every(design)
    found = price(system.take(rows), every)
    capacity = np.broadcast_to(system.dram.capacity, (design.num_points,))[rows]
    shape = (design.num_points, EVERY.shape[1])
    good = (_even(model, every) & (found.peak_memory <= capacity)).reshape(shape)
    times = np.where(good, found.step_time.reshape(shape), np.inf)
    best = every.take(times.argmin(axis=1) + np.arange(design.num_points) * EVERY.shape[1])
    there = np.flatnonzero(good.any(axis=1))
    return design.with_rows(there, best.take(there))


def _least_memory(
    model: ModelShape,
    few: DesignPoints,
    back: IntArray,
    design: DesignPoints,
    precision: Precision,
    system: System,
) -> FloatArray:
    """Bytes below which no assignment of a design gets: each part at its own least; (points,)."""
    rows, every = _every(few)
    parts = rank_memory(model, every, precision)
    least = parts.map(lambda part: np.broadcast_to(part, rows.shape).reshape(few.num_points, -1).min(axis=1))
    stage, reserved = fullest_stage(
        *stage_memories(model, named(design, "megatron_sp"), least.take(back), precision), system
    )
    return stage.total + reserved


def _even(model: ModelShape, design: DesignPoints) -> BoolArray:
    """Where every rank of a design has the same share of each kernel; (points,)."""
    shares = [
        np.take_along_axis(_even_ways(model, design, kernel), design.split(kernel)[:, np.newaxis], axis=1)
        for kernel in KERNELS
    ]
    even: BoolArray = np.all(np.concatenate(shares, axis=1), axis=1)
    return even


def _even_ways(model: ModelShape, design: DesignPoints, kernel: str) -> BoolArray:
    """Ways of a kernel that cut what they split into equal shares; (points, ways)."""
    size = widths(model)
    width = size["ffn"] if kernel == "activation" else size["hidden"]
    cut = {"replicated": 0.0, "sequence": model.seq_len, "column": width}
    if kernel in PRODUCTS:
        cut = {"row": size[PRODUCTS[kernel][0]], "column": size[PRODUCTS[kernel][1]]}
    return np.stack([cut[way] % design.tp == 0 for way in KERNELS[kernel]], axis=1)


def _fewest_bytes(
    model: ModelShape, system: System, design: DesignPoints, precision: Precision, price: Price
) -> DesignPoints:
    rows, back = distinct_rows(design.tp, design.micro_batch_size, design.recompute)
    splits = _Layer(model, system, design.take(rows), precision, ()).least_sending()[:, back]
    return told(design, **_by_kernel(splits))


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

    def fastest(self) -> list[IntArray]:
        """Splits of least time of the forward and backward pass, and of a full recomputation.

        Returns
        -------
        splits : list of (kernels, points) array
            Places among the ways of each of `NODES`, for each way of the last kernel. [-]
        """
        costs = [self._kernel_time(node) for node in NODES]
        links, last = [self._link(edge, self._edge_time) for edge in LAYER], NODES.index("mlp_residual")
        found = []
        for residual in range(costs[last].shape[1]):
            only = np.where(np.arange(costs[last].shape[1]) == residual, costs[last], np.inf)
            found.append(self._least([*costs[:last], only, *costs[last + 1 :]], links))
        return found

    def least_sending(self) -> IntArray:
        """Splits with which a rank sends the fewest bytes; (kernels, points). [-]"""
        nothing = [np.zeros((1, len(ways_of(node)))) for node in NODES]
        return self._least(nothing, [self._link(edge, self._edge_bytes) for edge in LAYER])

    def _least(self, costs: Sequence[FloatArray], links: Sequence[Link]) -> IntArray:
        """Splits of the least sum of what kernels and edges cost."""
        allowed = []
        for node, own in zip(NODES, costs, strict=True):
            even = _even_ways(self.model, self.design, node) if node in KERNELS else np.ones((1, 1), bool)
            possible = even & np.isfinite(own)
            allowed.append(np.where(even | ~possible.any(axis=1, keepdims=True), own, np.inf))
        return np.broadcast_to(optima(allowed, links)[1], (len(NODES), self.design.num_points))

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
        """A product's part of the kernel that reduces the gradients of biases, and one launch. [s]"""
        outputs = design.micro_batch_size * self.model.seq_len * biases(self.model, design, product)[1]
        row = (product, "weight_gradient", "layer", outputs, *BIAS_GRADIENT, 1.0)
        kernel = Pointwise.of_rows([row], element_bytes=self.precision.element_bytes)
        return pointwise_time(kernel, self.system)[0][:, 0]

    def _edge_bytes(self, edge: Edge, design: DesignPoints, end: int) -> FloatArray:
        """Bytes that a rank sends because of an edge. [B]"""
        forward, backward = sent_bytes(edge, self.model, design, self.precision)
        return np.broadcast_to(self._forward_passes * forward + backward, (design.num_points,))
