"""What replicas exchange for every micro-batch, a layer at a time, and what of it other layers hide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.columns import BoolArray, FloatArray, UniqueRows
from costmodel.kernels.collectives import collective, input_bytes
from costmodel.kernels.items import Item, Items, added, quantities_of
from costmodel.kernels.kernel_cost import KernelCost, traffic_energy, weighted_sum
from costmodel.steps.memory.quantised_weights import exchanged_bytes
from costmodel.steps.memory.stage_memory import head_parameters
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


def part_owners(like: Sequence[Owner], parts: Sequence[PartMemory]) -> list[list[Owner]]:
    """Parameters of each part of the model, the last norm and the output matrix aside, and their replicas.

    `like` are the parameters of a stage, those of experts second: they have the same replicas.
    """
    owners = []
    for part in parts:
        sizes = (part.parameters, part.quantised), (part.expert_parameters, part.quantised_experts)
        owners.append([Owner(*own, whole.sharing, whole.ranks) for own, whole in zip(sizes, like, strict=False)])
    return owners


def stage_units(run: TransformerRun, stage: Stage, costs: MicroBatch, owners: Sequence[Sequence[Owner]]) -> list[Unit]:
    """Layers of each kind, the embedding, the head with the last norm, and multi-token prediction.

    `owners` are those of `part_owners`.
    """
    units, back = [], backward_windows(run, stage, costs)
    for place, (own, count) in enumerate(zip(owners, stage.counts, strict=False)):
        is_layer = place < len(stage.layers)
        backward = back[place] if is_layer else costs.backward[place].window
        if place == len(stage.layers) + 1:
            whole = own[0].parameters + head_parameters(run, stage)
            own = [replace(own[0], parameters=whole), *own[1:]]
        there = tuple(owner for owner in own if owner.parameters.ndim)
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


class ExchangeCosts:
    """Collectives of weights and gradients over their replicas, nothing hidden.

    Each is evaluated once for all points with equal messages and groups on equal networks.

    Parameters
    ----------
    run : TransformerRun
        Model, machines and designs, (points,).
    wanted : iterable of (Exchange, Owner)
        The collectives.
    """

    def __init__(self, run: TransformerRun, wanted: Iterable[tuple[Exchange, Owner]]) -> None:
        self.run = run
        messages = {_key(*pair): exchange_bytes(run, *pair) for pair in wanted}
        owners = {id(key[-1].sharing): key[-1].sharing for key in messages}
        groups = [group for sharing in owners.values() for group in sharing.groups]
        network = [values for tier in run.system.network for values in tier.columns().values()]
        unique = UniqueRows.of(
            *messages.values(), *(values for group in groups for values in group.columns()), *network
        )
        tiers = [unique.take(tier) for tier in run.system.network]
        self._costs: dict[_Key, KernelCost] = {}
        for key, message in messages.items():
            name, _, _, over, owner = key
            group = unique.take(getattr(owner.sharing, over))
            cost = collective(name, unique.values(message), group, tiers)
            own = KernelCost(time=cost.time, link_energy=traffic_energy(cost.bytes_sent, tiers))
            self._costs[key] = self._with_items(unique.spread(own), key, message)

    def _with_items(self, cost: KernelCost, key: _Key, message: FloatArray) -> KernelCost:
        if not self.run.itemized:
            return cost
        name, of, _, over, owner = key
        label = Item(column="dp_communication_time", name=of, group=f"{owner.ranks} {over}", collective=name)
        size = getattr(owner.sharing, over).size
        return replace(cost, items=quantities_of(label, {"message": input_bytes(name, message, size)}))

    def of(self, exchange: Exchange, owner: Owner) -> KernelCost:
        """A collective of the weights of an owner, or of their gradients; (points,). [s], [J], [B]"""
        return self._costs[_key(exchange, owner)]


#: What tells collectives apart: name, states, how often, replicas that take part, and whose states they are.
_Key = tuple[str, str, str, str, Owner]


def _key(exchange: Exchange, owner: Owner) -> _Key:
    return exchange.collective, exchange.of, exchange.every, exchange.over, owner


def exchange_bytes(run: TransformerRun, exchange: Exchange, owner: Owner) -> FloatArray:
    """Message of a collective over replicas. [B]"""
    message = exchanged_bytes(run, exchange, owner.parameters, owner.quantised)
    return message / owner.sharing.shards.size if exchange.over == "copies" else message


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeSums:
    """Exchanges of every micro-batch, summed over the units of a stage; (points,) columns."""

    beside: Mapping[str, Sequence[FloatArray]]  #: pass -> what it may hide of each unit, in a micro-batch [s]
    reductions: FloatArray  #: of those, what reduces gradients, of all units [s]
    never_hidden: FloatArray  #: of a whole step [s]
    energy: FloatArray  #: of a whole step [J]
    items: Items


def unit_exchanges(
    costs: ExchangeCosts, exchanges: Sequence[Exchange], units: Sequence[Unit], stage: Stage
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
    A micro-batch on a stage of three layers, F and B their passes, G gathers of weights, R reductions:

        kernels          F1 F2 F3   B3 B2 B1      F1 of the next micro-batch
        gathers       G1 G2 G3   G3 G2 G1      G1
        reductions                     R3 R2 R1

    Each exchange runs beside the pass of another layer. Exposed are its time beyond that pass, the first
    gather of the step and the last reduction. In other micro-batches reductions of the last layers of a chunk
    run beside the next forward pass, as far as its gathers leave time. Hidden exchanges take cores.
    """
    run, design = costs.run, costs.run.design
    micro_batches = design.gradient_accumulation_steps
    keeps_weights = (design.reshard_after_forward == 0) & (design.pp > 1)  # for all micro-batches under way
    passes = {"forward": np.where(keeps_weights, 1.0, micro_batches), "backward": micro_batches}
    total = summed_exchanges(costs, exchanges, units, passes)
    exposed, hidden = {}, {}
    for way in passes:
        exposed[way], hidden[way] = pass_exposure(units, total.beside[way], way)
    layers = np.maximum(stage.num_layers, 1.0)
    forward_pass = weighted_sum([unit.times["forward"] for unit in units], [unit.count for unit in units])
    free = np.maximum(forward_pass - np.where(keeps_weights, 0.0, hidden["forward"]), 0.0)
    on_their_way = np.minimum(LAYERS_BEHIND * design.vpp, layers) * total.reductions / layers
    in_next_forward = np.minimum(np.minimum(free, on_their_way), exposed["backward"])
    first_gather = hidden["forward"] / layers
    last_reduction = np.minimum(total.reductions / layers, hidden["backward"])
    time = passes["forward"] * exposed["forward"] + first_gather + total.never_hidden
    time = time + micro_batches * exposed["backward"] - (micro_batches - 1) * in_next_forward + last_reduction
    hidden_of_step = passes["forward"] * hidden["forward"] + passes["backward"] * hidden["backward"]
    time = time + hidden_of_step * run.system.chip.taken_cores("dp") / run.system.chip.cores
    items = total.items
    if run.itemized:
        items = added(items, quantities_of(BY_LAYERS, {"time": time, "hidden": hidden_of_step}))
    return KernelCost(time=time, link_energy=total.energy, items=items), hidden


def summed_exchanges(
    costs: ExchangeCosts, exchanges: Sequence[Exchange], units: Sequence[Unit], passes: Mapping[str, FloatArray]
) -> ExchangeSums:
    """Sums of some exchanges over the units of a stage.

    `passes` maps a pass to the number of them in a step that exchange something, (points,). [-] Other arguments are
    those of `unit_exchanges`.
    """
    design = costs.run.design
    nothing = 0.0 * design.gradient_accumulation_steps
    beside = {way: [0.0 * unit.count for unit in units] for way in passes}
    reductions = never_hidden = energy = nothing
    items: Items = {}
    for exchange in exchanges:
        way = exchange.behind
        runs = design.reshard_after_forward if exchange.again else np.ones_like(nothing)
        hidden = np.where(hides(design, exchange), runs, 0.0)
        for place, unit in enumerate(units):
            cost = KernelCost()
            for owner in unit.owners:
                cost += costs.of(exchange, owner) * np.where(owner.parameters > 0, 1.0, 0.0)
            beside[way][place] = beside[way][place] + hidden * cost.time
            never_hidden = never_hidden + passes[way] * (runs - hidden) * unit.count * cost.time
            energy = energy + passes[way] * runs * unit.count * cost.link_energy
            items = added(items, (cost * (passes[way] * runs * unit.count)).items)
            if exchange.of == "gradients":
                reductions = reductions + hidden * unit.count * cost.time
    return ExchangeSums(beside, reductions, never_hidden, energy, items)


def pass_exposure(units: Sequence[Unit], beside: Sequence[FloatArray], way: str) -> tuple[FloatArray, FloatArray]:
    """What a pass over the units leaves exposed of their exchanges (`beside`), and what it hides. [s]

    Each layer hides the exchange of a layer of its kind; the time that layers have left hides exchanges of
    other units.
    """
    longer = spare = others = 0.0 * units[0].count
    for unit, time in zip(units, beside, strict=True):
        beyond = unit.count * (time - unit.times[way])
        if unit.is_layer:
            longer, spare = longer + np.maximum(beyond, 0.0), spare + np.maximum(-beyond, 0.0)
        else:
            others = others + beyond
    whole = weighted_sum(beside, [unit.count for unit in units])
    exposed = np.minimum(longer + np.maximum(others - spare, 0.0), whole)
    return exposed, whole - exposed
