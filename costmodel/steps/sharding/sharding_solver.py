"""The assignment of shardings in which a layer takes least time, or sends the fewest bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from costmodel.columns import BoolArray, FloatArray, chosen
from costmodel.kernels.roofline import pointwise_time
from costmodel.solve.assignment import Link, optima
from costmodel.steps.micro_batch.kernel_sums import DIRECTIONS, CostTable
from costmodel.steps.micro_batch.layout_changes import sent_bytes
from costmodel.steps.micro_batch.recomputed_modules import forward_passes, product_of
from costmodel.steps.micro_batch.tensor_parallel import Exchanges, edge_cost
from costmodel.steps.sharding.sharded_kernels import with_options
from costmodel.training.blocks import Edge
from costmodel.training.run import RankRun
from costmodel.training.sharding import Assignments
from costmodel.workload.kernel_tables import Pointwise
from costmodel.workload.transformer import Part, bias_gradient_row, parts_of


@dataclass(frozen=True)
class Solver:
    """A layer of each kind, as a sum over kernels and edges."""

    run: RankRun  #: (points,); its own assignments do not matter

    @cached_property
    def assignments(self) -> Assignments:
        """Assignments of the model's kernels, which are the nodes of the sum."""
        return self.run.design.assignments

    @cached_property
    def exchanges(self) -> Exchanges:
        """Collectives, which do not depend on how kernels are split."""
        return Exchanges(self.run)

    @cached_property
    def even_options(self) -> list[BoolArray]:
        """Where each option of each kernel cuts into equal shares; (options, points)."""
        return [*even_options(self.run).values()]

    @cached_property
    def parts(self) -> list[tuple[Part, float]]:
        """Kinds of layers, and the share of each in all layers."""
        model = self.run.model
        shares = [count / model.num_layers for count in model.kinds.values()]
        return list(zip(parts_of(model), shares, strict=False))

    def fastest(self, tables: Sequence[CostTable]) -> list[FloatArray]:
        """Assignments of least time of the forward and backward pass, and of a full recomputation, (points,) each. [-]

        One for each layout of the residual stream between layers. `tables` have kernels at their first option, their
        second ..., of the same points: those of `OptionTables`.
        """
        costs = [self._kernel_time(name, tables) for name in self.assignments.kernels]
        links = self._links(partial(self._edge_time, tables))
        streams = {layer.stream.name for layer in self.run.model.kinds}
        nodes = [number for number, name in enumerate(self.assignments.kernels) if name in streams]
        return [
            self._least(costs, links, dict.fromkeys(nodes, option))
            for option in range(len(self.run.design.stream.kind.shardings))
        ]

    def least_sending(self) -> FloatArray:
        """Assignments with which a rank sends the fewest bytes; (points,). [-]"""
        nothing = [np.zeros((len(node.kind.shardings), 1)) for node in self.assignments.kernels.values()]
        return self._least(nothing, self._links(self._edge_bytes), {})

    def least_sending_of_all(self) -> FloatArray:
        """Least sending where edges share collectives, by counting for every assignment; (points,). [-]"""
        every = with_every_assignment(self.run)
        sent = np.zeros((*every.axes, every.num_points))
        for part, share in self.parts:
            for edge in part.edges:
                sent = sent + share * self._edge_bytes(part, edge, every, {})
        even = is_even(every, np.broadcast_to(every.design.assignment, sent.shape))
        least = np.where(even, sent, np.inf).argmin(axis=0).astype(np.float64)
        return np.where(even.any(axis=0), least, self.assignments.named["megatron"])

    def _least(self, costs: Sequence[FloatArray], links: Sequence[Link], fixed: Mapping[int, int]) -> FloatArray:
        """Assignments of the least sum of what kernels and edges cost, some kernels at a fixed option."""
        allowed = []
        for number, (whole, cost) in enumerate(zip(self.even_options, costs, strict=True)):
            open_options = _open_options(fixed.get(number), cost.shape[0])
            even, cost = whole[open_options], cost[open_options]
            possible = even & np.isfinite(cost)
            allowed.append(np.where(even | ~possible.any(axis=0), cost, np.inf))
        left = []
        for node, other, pairs in links:
            open_options, others = map(_open_options, (fixed.get(node), fixed.get(other)), pairs.shape[:2])
            left.append((node, other, pairs[open_options, others]))
        places = optima(allowed, left)[1]
        for number, option in fixed.items():
            places[number] = min(option, costs[number].shape[0] - 1)
        numbers = self.assignments.numbers(dict(zip(self.assignments.options, places, strict=False)))
        return np.broadcast_to(numbers, (self.run.num_points,))

    def _kernel_time(self, kernel: str, tables: Sequence[CostTable]) -> FloatArray:
        """Time of a kernel in all passes and kinds of layers, by its options; (options, points). [s]"""
        if kernel not in self.assignments.options:
            return np.zeros((1, 1))
        times = []
        for table in tables[: len(self.assignments.options[kernel])]:
            time = np.zeros(1)
            for part, share in self.parts:
                forward, backward = (
                    sum(table.kernels_time(part, (kernel,), of_pass) for of_pass in passes)
                    for passes in DIRECTIONS.values()
                )
                runs = forward_passes(self.run.design, self.assignments.kernels[kernel])
                time = time + share * (runs * forward + backward)
            times.append(time)
        return np.stack(times)

    def _links(self, cost: Callable[[Part, Edge, RankRun, Mapping[str, int]], FloatArray]) -> list[Link]:
        """Costs of edges, their ends split by each pair of options: (options, options, points)."""
        nodes, links = [*self.assignments.kernels], []
        for part, share in self.parts:
            for edge in part.edges:
                start, end = edge.start.name, edge.end.name
                firsts, lasts = (range(len(kernel.kind.shardings)) for kernel in (edge.start, edge.end))
                ends = [[{start: first, end: last} for last in lasts] for first in firsts]
                table = [
                    [share * cost(part, edge, with_options(self.run, places), places) for places in row] for row in ends
                ]
                links.append((nodes.index(start), nodes.index(end), np.array(table)))
        return links

    def _edge_time(
        self, tables: Sequence[CostTable], part: Part, edge: Edge, run: RankRun, places: Mapping[str, int]
    ) -> FloatArray:
        """Exposed collectives of an edge, and the gradient of a bias that is added on it. [s]"""

        def kernels_time(kernels: tuple[str, ...], of_pass: str) -> FloatArray:
            return sum(
                (tables[places[kernel]].kernels_time(part, (kernel,), of_pass) for kernel in kernels),
                start=np.zeros(()),
            )

        forward, backward = edge_cost(run, edge, kernels_time, self.exchanges)
        time = forward_passes(run.design, product_of(edge)) * forward.tp_time + backward.tp_time
        is_biased = run.model.has_bias(edge.start)
        if part.layer and is_biased and edge.end == part.layer.reader_of(edge.start):
            row = bias_gradient_row(run, part.layer, [edge.start], part.name)
            kernel = Pointwise.of_rows([row], element_bytes=run.precision.element_bytes)
            time = time + pointwise_time(kernel, run.system)[0][:, 0]
        return np.broadcast_to(time, (run.num_points,))

    def _edge_bytes(self, part: Part, edge: Edge, run: RankRun, places: Mapping[str, int]) -> FloatArray:
        """Bytes that a rank sends because of an edge, in all passes. [B]"""
        forward, backward = sent_bytes(run, edge)
        runs = forward_passes(run.design, product_of(edge))
        return np.broadcast_to(runs * forward + backward, (*run.axes, run.num_points))


def _open_options(fixed: int | None, count: int) -> slice:
    """Places of the options of a kernel that are open: all, or the fixed one, the last if there are fewer."""
    return slice(None) if fixed is None else slice(min(fixed, count - 1), fixed + 1)


def with_every_assignment(run: RankRun) -> RankRun:
    """Each point with every assignment of its model's kernels, on an axis before that of points."""
    every = np.arange(run.design.assignments.count, dtype=np.float64)[:, np.newaxis]
    return run.with_shape(replace(run.design, assignment=every))


def is_even(ranks: RankRun, numbers: FloatArray) -> BoolArray:
    """Where every rank has the same share of each kernel; shaped as the numbers, (..., points)."""
    assignments, even = ranks.design.assignments, np.ones(numbers.shape, dtype=bool)
    for name, options in even_options(ranks).items():
        if name in assignments.options and not options.all():
            even &= chosen([*options], assignments.place(numbers, name))
    return even


def even_options(ranks: RankRun) -> dict[str, BoolArray]:
    """Kernel -> where each of its options cuts what it splits into equal shares; (options, points)."""
    model, known = ranks.model, dict[float, BoolArray]()

    def is_whole(size: float) -> BoolArray:
        if size not in known:
            known[size] = size % ranks.design.tp == 0
        return known[size]

    options = {}
    for kernel in ranks.design.assignments.kernels.values():
        cut = {
            "replicated": 0.0,
            "sequence": model.seq_len,
            "column": model.features[kernel.makes],
            "row": model.features[kernel.reads],
        }
        options[kernel.name] = np.stack([is_whole(cut[option]) for option in kernel.kind.shardings])
    return options
