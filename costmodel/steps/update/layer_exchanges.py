"""Exposed time of exchanges that replicas repeat for every micro-batch, layer by layer.

With ZeRO 2 replicas reduce-scatter the gradients of each layer in every micro-batch. With ZeRO 3, PyTorch's fully
sharded data parallelism, they also gather the weights of a layer before each pass over it. One layer is one FSDP
unit [Zhao2023]_: its exchanges run beside the pass over a neighbouring layer. F and B are passes of a stage of three
layers, G gathers of weights, R reductions of gradients:

    kernels          F1 F2 F3   B3 B2 B1      F1 of the next micro-batch
    gathers       G1 G2 G3   G3 G2 G1      G1
    reductions                     R3 R2 R1

A layer hides the exchange of its neighbour. Exposed are the time of each exchange beyond that of the layer beside it,
and once a step the first gather and the last reduction, which run beside nothing. For example, passes of 2 ms, gathers
and reductions of 3 ms a layer, eight micro-batches: a forward pass exposes 3 (3 - 2) = 3 ms of its gathers and hides
6 ms, a backward pass exposes 3 (3 + 3 - 2) = 12 ms and hides 6 ms. The step exposes 8 (3 + 12) ms, 2 ms of the first
gather (its part that others hide) and 3 ms of the last reduction: 125 ms. Reductions of the last layers of a chunk may
also run beside the next forward pass, as far as its gathers leave time; here they leave none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.items import Item, Items, added, quantities_of
from costmodel.kernels.kernel_cost import KernelCost, weighted_sum
from costmodel.steps.memory.stage_memory import head_parameters
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.pipeline.stages import Stage
from costmodel.steps.update.replica_collectives import ReplicaCollectives, ReplicatedParameters, overlaps
from costmodel.training.optimizer_states import Exchange
from costmodel.training.run import TransformerRun

#: Layers whose gradients may still be on their way while the next are made: working memory holds as many.
LAYERS_BEHIND = 2.0
#: Label of all exchanges of units together.
BY_LAYERS = Item(column="dp_communication_time", name="layers' exchanges of every micro-batch")


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Weights that are gathered, and whose gradients are reduced, together; (points,) columns."""

    parameters: tuple[ReplicatedParameters, ...]  #: without and of routed experts
    times: Mapping[str, FloatArray]  #: of the passes over them, "forward" and "backward" [s]
    count: FloatArray  #: on a stage [-]
    is_layer: bool


def stage_units(
    run: TransformerRun,
    stage: Stage,
    costs: MicroBatch,
    parts: Sequence[PartMemory],
    replicas: Sequence[ReplicatedParameters],
) -> list[Unit]:
    """Layers of each kind, the embedding, the head with the last norm, and multi-token prediction.

    `replicas` are parameters of some stage without and of routed experts; units share theirs with the same replicas.
    """
    units, others = [], [cost.window for cost in costs.backward[len(stage.layers) :]]
    backward = [*backward_windows(run, stage, costs), *others]
    for index, (part, count) in enumerate(zip(parts, stage.counts, strict=False)):
        is_head = index == len(stage.layers) + 1
        number = part.parameters + head_parameters(run, stage) if is_head else part.parameters
        sizes = (number, part.quantised), (part.expert_parameters, part.quantised_experts)
        parameters = tuple(
            replace(like, number=size, quantised=narrow)
            for (size, narrow), like in zip(sizes, replicas, strict=False)
            if size.ndim
        )
        times = {"forward": costs.forward[index].window, "backward": backward[index]}
        units += [Unit(parameters, times, count, index < len(stage.layers))] if parameters else []
    return units


def backward_windows(run: TransformerRun, stage: Stage, costs: MicroBatch) -> list[FloatArray]:
    """Time of a backward pass over a layer of each kind, with what is recomputed of a usual one. [s]"""
    shares = stage.recomputed_shares or [np.ones(()) for _ in stage.layers]
    passes = zip(costs.backward, costs.again, shares, strict=False)
    return [backward.window + again.window * share for backward, again, share in passes]


def unit_exchanges(
    collectives: ReplicaCollectives, exchanges: Sequence[Exchange], units: Sequence[Unit], stage: Stage
) -> tuple[KernelCost, dict[str, FloatArray]]:
    """Exposed exchanges of every micro-batch of a step [s], [J], and what one pass of each kind hides, (points,). [s]

    Weights that stay whole behind the forward pass are gathered once where a pipeline has several micro-batches under
    way. Hidden exchanges take cores.
    """
    run, design = collectives.run, collectives.run.design
    steps, layers = design.gradient_accumulation_steps, np.maximum(stage.num_layers, 1.0)
    keeps_weights = (design.reshard_after_forward == 0) & (design.pp > 1)
    passes = {"forward": np.where(keeps_weights, 1.0, steps), "backward": steps}
    total = _summed(collectives, exchanges, units, passes)
    exposed, hidden = {}, {}
    for direction in passes:
        exposed[direction], hidden[direction] = pass_exposure(units, total.hideable[direction], direction)
    forward_pass = weighted_sum([unit.times["forward"] for unit in units], [unit.count for unit in units])
    free = np.maximum(forward_pass - np.where(keeps_weights, 0.0, hidden["forward"]), 0.0)
    on_their_way = np.minimum(LAYERS_BEHIND * design.vpp, layers) * total.reductions / layers
    in_next_forward = np.minimum(np.minimum(free, on_their_way), exposed["backward"])
    first_gather = hidden["forward"] / layers
    last_reduction = np.minimum(total.reductions / layers, hidden["backward"])
    time = passes["forward"] * exposed["forward"] + first_gather + total.never_hidden
    time = time + steps * exposed["backward"] - (steps - 1) * in_next_forward + last_reduction
    hidden_of_step = passes["forward"] * hidden["forward"] + passes["backward"] * hidden["backward"]
    time = time + hidden_of_step * run.system.chip.taken_cores("dp") / run.system.chip.cores
    items = total.items
    if run.itemized:
        items = added(items, quantities_of(BY_LAYERS, {"time": time, "hidden": hidden_of_step}))
    return KernelCost(time=time, link_energy=total.energy, items=items), hidden


@dataclass(slots=True, eq=False)
class _ExchangeSums:
    """Exchanges of every micro-batch, summed over the units of a stage; (points,) arrays."""

    hideable: dict[str, list[FloatArray]]  #: pass -> time of each unit that may run beside it, in a micro-batch [s]
    reductions: FloatArray  #: of it, reductions of gradients, of all units [s]
    never_hidden: FloatArray  #: of a whole step [s]
    energy: FloatArray  #: of a whole step [J]
    items: Items


def _summed(
    collectives: ReplicaCollectives,
    exchanges: Sequence[Exchange],
    units: Sequence[Unit],
    passes: Mapping[str, FloatArray],
) -> _ExchangeSums:
    """Sums over units and exchanges; `passes` are those of a step that exchange something, (points,). [-]"""
    design = collectives.run.design
    nothing = 0.0 * design.gradient_accumulation_steps
    hideable = {direction: [0.0 * unit.count for unit in units] for direction in passes}
    sums = _ExchangeSums(hideable, nothing, nothing, nothing, {})
    for exchange in exchanges:
        runs = design.reshard_after_forward if exchange.again else np.ones_like(nothing)
        hidden = np.where(overlaps(design, exchange), runs, 0.0)
        often, exposed = passes[exchange.behind] * runs, passes[exchange.behind] * (runs - hidden)
        of_units = sums.hideable[exchange.behind]
        for index, unit in enumerate(units):
            cost = KernelCost()
            for parameters in unit.parameters:
                cost += collectives.of(exchange, parameters) * np.where(parameters.number > 0, 1.0, 0.0)
            of_units[index] = of_units[index] + hidden * cost.time
            sums.never_hidden = sums.never_hidden + exposed * unit.count * cost.time
            sums.energy = sums.energy + often * unit.count * cost.link_energy
            sums.items = added(sums.items, (cost * (often * unit.count)).items)
            if exchange.of == "gradients":
                sums.reductions = sums.reductions + hidden * unit.count * cost.time
    return sums


def pass_exposure(
    units: Sequence[Unit], hideable: Sequence[FloatArray], direction: str
) -> tuple[FloatArray, FloatArray]:
    """Exposed and hidden time of the `hideable` exchanges of units in one pass. [s]

    Each layer hides the exchange of a layer of its kind; the time that layers have left hides exchanges of other units.
    """
    longer = spare = others = 0.0 * units[0].count
    for unit, time in zip(units, hideable, strict=True):
        beyond = unit.count * (time - unit.times[direction])
        if unit.is_layer:
            longer, spare = longer + np.maximum(beyond, 0.0), spare + np.maximum(-beyond, 0.0)
        else:
            others = others + beyond
    whole = weighted_sum(hideable, [unit.count for unit in units])
    exposed = np.minimum(longer + np.maximum(others - spare, 0.0), whole)
    return exposed, whole - exposed
