"""Exposed time of the collectives of tensor parallelism, which no kernel hides.

`layout_changes` says which collectives each edge of a block needs in a pass. In the backward pass of a product, one of
them runs beside the gradient of the weight or of the input, which do not wait for it. With `tp_overlap: chunked` the
product that needs it, or makes its input, runs in pieces meanwhile [Wang2023]_. Hidden collectives take cores from
those kernels. For example, a reduce-scatter of 1 ms beside a weight gradient of 0.8 ms exposes 0.2 ms; if it takes 24
of 120 cores, the weight gradient takes 0.8 * 24 / 120 = 0.16 ms more. Equal collectives beside equal kernels are
evaluated once and counted. Arrays are (points,) unless shapes say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np

from costmodel.columns import EACH_ITS_OWN, FloatArray, UniqueRows
from costmodel.kernels.collectives import CollectiveCost, all_to_all, collective, exposed_time, input_bytes
from costmodel.kernels.items import Item, added, labelled, quantities_of
from costmodel.kernels.kernel_cost import KernelCost, traffic_energy
from costmodel.machine.system import System
from costmodel.steps.micro_batch.expert_parallel import expert_parallel
from costmodel.steps.micro_batch.layout_changes import NOTHING, PIECES, KernelsOfPass, LayoutChange, layout_changes
from costmodel.training.blocks import Edge
from costmodel.training.design import CHUNKED, NO_OVERLAP
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun

#: Time of kernels in a pass, (points,). [s]
KernelsTime = Callable[[tuple[str, ...], str], FloatArray]

#: Share of a collective that pieces of a product hide, over the share that they could: copies and pieces slow
#: each other down. Seconds that asynchronous tensor parallelism saved in Llama 3 8B with tp=8 on 64 H100s,
#: over those that it could (torchtitan, benchmarks/asyncTP_llama3_h100_2025-06): 0.69 in bf16, 0.61 in fp8.
HIDDEN_BY_PIECES: Final = 0.65


class Exchanges:
    """Collectives of tensor-parallel groups and of experts, each evaluated once; shardings do not matter."""

    def __init__(self, run: RankRun) -> None:
        self.run = run
        self.several_ranks = np.where(run.design.tp > 1, 1.0, 0.0)  #: 0 where a group has one rank; (points,) [-]
        self._costs: dict[tuple[str, float], KernelCost] = {}

    @cached_property
    def of_experts(self) -> KernelCost:
        """Exchanges of one layer of experts in either direction, nothing hidden; (points,) columns."""
        return expert_parallel(self.run)

    def cost(self, name: str, features: str) -> KernelCost:
        """Time and energy of a collective, as if all designs had it; (points,) columns. [s], [J]"""
        key = name, self.run.model.features[features]
        if key not in self._costs:
            cost = exchange(name, self.run.activation_bytes(features), self.run.design.tp, self.run.system)
            energy = traffic_energy(cost.bytes_sent, self.run.system.network)
            self._costs[key] = KernelCost(tp_time=cost.time, link_energy=energy)
        return self._costs[key]


def exchange(name: str, message_bytes: FloatArray, tp: FloatArray, system: System) -> CollectiveCost:
    """A collective of a tensor-parallel group of neighbours; the message is the whole tensor."""
    group = Group.of_neighbours(tp)
    if name == "all_to_all":
        return all_to_all(message_bytes / tp, group, system.network)
    return collective(name, message_bytes, group, system.network)


def tensor_parallel(
    run: RankRun, edges: Iterable[Edge], kernels_time: KernelsTime, exchanges: Exchanges
) -> tuple[KernelCost, KernelCost]:
    """Exposed collectives of the edges of one part of the model, forward and backward, (points,). [s], [J]

    `kernels_time` returns the time, (points,), of kernels of a pass that collectives may hide behind. [s]
    """
    if run.itemized:
        costs = [edge_cost(run, edge, kernels_time, exchanges) for edge in edges]
        forward, backward = (sum((cost[of_pass] for cost in costs), start=KernelCost()) for of_pass in (0, 1))
        return forward, backward
    unique, split = EACH_ITS_OWN, run
    if run.design.assignment.ndim == 1:  # layouts depend on nothing else
        unique = UniqueRows.of(run.design.assignment)
        split = run.with_shape(unique.take(run.design))
    of_edges = [layout_changes(split, edge) for edge in edges]
    forward, backward = (
        exposed_collectives(run, chain(*changes), unique, kernels_time, exchanges)
        for changes in ([of_edge[of_pass] for of_edge in of_edges] for of_pass in (0, 1))
    )
    return forward, backward


def edge_cost(
    run: RankRun, edge: Edge, kernels_time: KernelsTime, exchanges: Exchanges
) -> tuple[KernelCost, KernelCost]:
    """Exposed collectives of one edge; parameters and result are those of `tensor_parallel`."""
    name, changes = f"{edge.start.name} to {edge.end.name}", layout_changes(run, edge)
    costs = [exposed_collectives(run, of_pass, EACH_ITS_OWN, kernels_time, exchanges) for of_pass in changes]
    forward, backward = (replace(cost, items=labelled(cost.items, name=name)) for cost in costs)
    return forward, backward


def exposed_collectives(
    run: RankRun, changes: Iterable[LayoutChange], unique: UniqueRows, kernels_time: KernelsTime, exchanges: Exchanges
) -> KernelCost:
    """Time of the collectives of one pass that no kernels hide, with the cores that hidden ones take. [s], [J]

    `changes` are those of the `unique` rows among the points; other arguments are those of `tensor_parallel`.
    """
    counts: dict[tuple[str, str, KernelsOfPass], dict[KernelsOfPass, FloatArray]] = {}
    for change in changes:
        by_product = counts.setdefault((change.name, change.features, change.hidden_by), {})
        by_product[change.in_pieces] = by_product.get(change.in_pieces, np.zeros(())) + change.happens
    chunked, total = np.asarray(run.design.tp_overlap == CHUNKED), KernelCost()
    for (name, features, hidden_by), by_product in sorted(counts.items()):  # the order does not depend on designs
        numbers = {key: exchanges.several_ranks * unique.of_points(count) for key, count in by_product.items()}
        number, single = sum(numbers.values(), start=np.zeros(())), exchanges.cost(name, features)
        if chunked.any():
            for product in {NOTHING, *numbers}:
                whole = number if product == NOTHING else 0.0
                numbers[product] = np.where(chunked, numbers.get(product, 0.0), whole)
        else:
            numbers = {NOTHING: number}
        time, items = np.zeros(()), dict[Item, FloatArray]()
        for product, count in sorted(numbers.items()):
            hidden = hidden_time(run, name, single.tp_time, kernels_time, hidden_by, product)
            exposed = exposed_time(single.tp_time, hidden, run.system.chip, "tp")
            time = time + count * exposed
            if run.itemized:
                label = Item(column="tp_communication_time", group="tp", collective=name)
                message, tp = run.activation_bytes(features), run.design.tp
                sent = message / tp if name == "all_to_all" else input_bytes(name, message, tp)
                quantities = {"time": exposed, "hidden": hidden, "message": sent}
                of_product = quantities_of(label, {key: count * value for key, value in quantities.items()})
                items = {**items, **added(items, of_product)}
        energy, launches = number * single.link_energy, number * run.system.software.collective_launches
        total += KernelCost(tp_time=time, link_energy=energy, launches=launches, items=items)
    return total


def hidden_time(
    run: RankRun, name: str, time: FloatArray, time_of: KernelsTime, hidden_by: KernelsOfPass, product: KernelsOfPass
) -> FloatArray:
    """Part of a collective's time that runs beside kernels: a product in pieces, or else other kernels. [s]

    Pieces hide all transfers but one: that of the first tile of a gather, that of the last piece of a scatter.
    """
    if product != NOTHING:
        share = HIDDEN_BY_PIECES * (1 - 1 / (PIECES[name] or run.design.tp))
        return np.minimum(time, time_of(*product)) * share
    if hidden_by == NOTHING:
        return np.zeros(())
    return np.where(run.design.tp_overlap > NO_OVERLAP, np.minimum(time, time_of(*hidden_by)), 0.0)
