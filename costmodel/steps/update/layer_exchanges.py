"""What replicas exchange for every micro-batch, a layer at a time, and what of it other layers hide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.kernels.collectives import collective, input_bytes
from costmodel.kernels.items import Item, Items, added, quantities_of
from costmodel.kernels.kernel_cost import KernelCost, traffic_energy, weighted_sum
from costmodel.steps.memory.quantised_weights import exchanged_bytes
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.pipeline.recomputed_layers import recomputed_shares
from costmodel.steps.pipeline.stages import Stage
from costmodel.training.design import DesignPoints
from costmodel.training.optimizer_states import Exchange
from costmodel.training.ranks import Sharing
from costmodel.training.run import TransformerRun

#: Layers whose gradients may still be on their way while the next are made: working memory holds as many.
LAYERS_BEHIND = 2.0
#: All of them together.
BY_LAYERS = Item(column="dp_communication_time", name="layers' exchanges of every micro-batch")


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """Parameters of a rank, and who has the same ones; (points,) columns."""

    parameters: FloatArray  #: [-]
    quantised: FloatArray  #: those of them that products read in fewer bits [-]
    sharing: Sharing
    ranks: str = "dp"  #: what those are called; "edp" of experts


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Weights that are gathered, and whose gradients are reduced, together; (points,) columns."""

    owners: tuple[Owner, ...]
    times: Mapping[str, FloatArray]  #: of the passes over them, "forward" and "backward" [s]
    count: FloatArray  #: on a stage [-]
    is_layer: bool


def stage_units(
    run: TransformerRun, stage: Stage, costs: MicroBatch, parts: Sequence[PartMemory]
) -> list[Unit]:
    """Layers of each kind, the embedding, and what stands beside the head where that has something."""
    design, units, back = run.design, [], backward_windows(run, stage, costs)
    for place, (part, count) in enumerate(zip(parts, stage.counts, strict=False)):
        is_layer = place < len(stage.layers)
        backward = back[place] if is_layer else costs.backward[place].window
        owners = [Owner(part.parameters, part.quantised, design.sharing)]
        if run.model.num_experts:
            owners.append(Owner(part.expert_parameters, part.quantised_experts, design.expert_sharing, "edp"))
        there = tuple(owner for owner in owners if owner.parameters.ndim)
        times = {"forward": costs.forward[place].window, "backward": backward}
        units += [Unit(there, times, count, is_layer)] if there else []
    return units


def backward_windows(run: TransformerRun, stage: Stage, costs: MicroBatch) -> list[FloatArray]:
    """Time of a backward pass over a layer of each kind, with what is recomputed of a usual one. [s]"""
    shares = recomputed_shares(run, stage) or [np.ones(()) for _ in stage.layers]
    return [
        own.window + again.window * share
        for own, again, share in zip(costs.backward, costs.again, shares, strict=False)
    ]


def hides(design: DesignPoints, exchange: Exchange) -> BoolArray:
    """Where an exchange runs beside kernels; (points,)."""
    there: BoolArray = design.overlap_grad_reduce > 0
    return there & (design.overlap_param_gather > 0) if exchange.of == "weights" else there


def exchange_cost(run: TransformerRun, exchange: Exchange, owner: Owner) -> KernelCost:
    """A collective of some weights or their gradients, nothing hidden. [s], [J], [B]"""
    network, group = run.system.network, getattr(owner.sharing, exchange.over)
    message = exchanged_bytes(run, exchange, owner.parameters, owner.quantised)
    if exchange.over == "copies":
        message = message / owner.sharing.shards.size
    cost = collective(exchange.collective, message, group, network)
    items: Items = {}
    if run.itemized:
        ranks, used = f"{owner.ranks} {exchange.over}", exchange.collective
        label = Item(column="dp_communication_time", name=exchange.of, group=ranks, collective=used)
        items = quantities_of(label, {"message": input_bytes(used, message, group.size)})
    return KernelCost(time=cost.time, link_energy=traffic_energy(cost.bytes_sent, network), items=items)


def unit_exchanges(
    run: TransformerRun, exchanges: Sequence[Exchange], units: Sequence[Unit], stage: Stage
) -> tuple[KernelCost, dict[str, FloatArray]]:
    """Exchanges of every micro-batch of a step.

    Returns
    -------
    cost : KernelCost
        Of all of them, less what hides. [s], [J]
    used : mapping of (points,) arrays
        Pass -> time of it beside which something runs, in one micro-batch. [s]

    Notes
    -----
    Weights of a layer are gathered beside the layer before, forward and backward, and gradients reduced
    beside the layer behind: of each layer is exposed what is longer than its own pass, of the step the first
    gather and the last reduction. What hides takes cores from kernels. Gradients of the last layers of a
    chunk of the model are on their way while the next forward pass runs. What one pass hides runs one after
    the other.
    """
    design, micro_batches = run.design, run.design.gradient_accumulation_steps
    kept = (design.reshard_after_forward == 0) & (design.pp > 1)  # for all micro-batches that are under way
    often = {"forward": np.where(kept, 1.0, micro_batches), "backward": micro_batches}
    beside = {way: [0.0 * unit.count for unit in units] for way in often}
    reduced, opened, energy = 0.0 * micro_batches, 0.0 * micro_batches, 0.0 * micro_batches
    items: Items = {}
    for exchange in exchanges:
        runs = design.reshard_after_forward if exchange.again else np.ones_like(micro_batches)
        hidden, way = np.where(hides(design, exchange), runs, 0.0), exchange.behind
        for place, unit in enumerate(units):
            cost = KernelCost()
            for owner in unit.owners:
                cost += exchange_cost(run, exchange, owner) * np.where(owner.parameters > 0, 1.0, 0.0)
            beside[way][place] = beside[way][place] + hidden * cost.time
            opened = opened + often[way] * (runs - hidden) * unit.count * cost.time
            energy = energy + often[way] * runs * unit.count * cost.link_energy
            items = added(items, (cost * (often[way] * runs * unit.count)).items)
            if exchange.of == "gradients":
                reduced = reduced + hidden * unit.count * cost.time
    open_forward, used_forward = pass_exposure(units, beside["forward"], "forward")
    open_backward, used_backward = pass_exposure(units, beside["backward"], "backward")
    layers = np.maximum(stage.num_layers, 1.0)
    forward = weighted_sum([unit.times["forward"] for unit in units], [unit.count for unit in units])
    free = np.maximum(forward - np.where(kept, 0.0, used_forward), 0.0)
    behind = np.minimum(LAYERS_BEHIND * design.vpp, layers) * reduced / layers
    later = np.minimum(np.minimum(free, behind), open_backward)
    first, last = used_forward / layers, np.minimum(reduced / layers, used_backward)
    time = often["forward"] * open_forward + first + opened
    time = time + micro_batches * open_backward - (micro_batches - 1) * later + last
    beside_kernels = often["forward"] * used_forward + often["backward"] * used_backward
    time = time + beside_kernels * run.system.chip.taken_cores("dp") / run.system.chip.cores
    if run.itemized:
        items = added(items, quantities_of(BY_LAYERS, {"time": time, "hidden": beside_kernels}))
    return (
        KernelCost(time=time, link_energy=energy, items=items),
        {"forward": used_forward, "backward": used_backward},
    )


def pass_exposure(
    units: Sequence[Unit], beside: Sequence[FloatArray], way: str
) -> tuple[FloatArray, FloatArray]:
    """What a pass over the units leaves exposed of their exchanges, and what it hides. [s]

    Each layer hides the exchange of a layer of its kind; what layers have left hides those of other units.
    """
    over, spare, others = 0.0 * units[0].count, 0.0 * units[0].count, 0.0 * units[0].count
    for unit, time in zip(units, beside, strict=True):
        left = unit.count * (time - unit.times[way])
        if unit.is_layer:
            over, spare = over + np.maximum(left, 0.0), spare + np.maximum(-left, 0.0)
        else:
            others = others + left
    exposed = over + np.maximum(others - spare, 0.0)
    whole = weighted_sum(beside, [unit.count for unit in units])
    exposed = np.minimum(exposed, whole)
    return exposed, whole - exposed
