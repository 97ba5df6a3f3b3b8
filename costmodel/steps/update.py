"""The end of a step: gradients are reduced over replicas and clipped, weights updated and gathered.

Replicas exchange gradients and weights once a step, or for every micro-batch, as their row of `ZERO` states. Where they
overlap, exchanges run during the last backward pass and the next forward pass. Exposed exchanges of the stage with
most of them follow the passes of the pipeline, since clipping waits for the gradients of all stages.

A rank holds parameters of two kinds: those of dense layers, which all `dp * cp` ranks at the same place of the model
have in common, and those of its experts, which fewer ranks do. The rows of `ZERO` list the exchanges of replicas. The
message of an exchange is the size of all weights or gradients that take part: 10.3 GB of bf16 gradients where a rank of
GPT-3 175B holds 5.1 billion parameters. Many designs of a study exchange the same messages in the same groups, so that
each collective is evaluated once for its distinct rows, and once for all parameters that the same group shares.

With ZeRO 2 replicas reduce-scatter the gradients of each layer in every micro-batch. With ZeRO 3, PyTorch's fully
sharded data parallelism, they also gather the weights of a layer before each pass over it. One layer is one FSDP unit
[Zhao2023]_: its exchanges overlap with the pass over a neighbouring layer. F and B are passes of a stage of three
layers, G gathers of weights, R reductions of gradients:

    kernels          F1 F2 F3   B3 B2 B1      F1 of the next micro-batch
    gathers       G1 G2 G3   G3 G2 G1      G1
    reductions                     R3 R2 R1

A layer hides the exchange of its neighbour. Exposed are the time of each exchange beyond that of the neighbouring
layer, and once a step the first gather and the last reduction, which overlap with nothing. For example, passes of 2 ms,
gathers and reductions of 3 ms a layer, eight micro-batches: a forward pass exposes 3 (3 - 2) = 3 ms of its gathers and
hides 6 ms, a backward pass exposes 3 (3 + 3 - 2) = 12 ms and hides 6 ms. The step exposes 8 (3 + 12) ms, 2 ms of the
first gather (its part that others hide) and 3 ms of the last reduction: 125 ms. Reductions of the last layers of a
chunk may also overlap with the next forward pass, in the time that its gathers leave; here they leave none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from costmodel.columns import BoolArray, FloatArray, chosen, grouped, largest, taken
from costmodel.kernels.collectives import COSTS_AS, collective, input_bytes
from costmodel.kernels.kernel_cost import Item, Items, KernelCost, added, quantities_of, traffic_energy, weighted_sum
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.optimizer import optimizer_step, state_update
from costmodel.steps.parameter_states import exchanged_bytes, owned_parameters, weight_casts
from costmodel.steps.pipeline.pipeline_step import ScheduledPasses
from costmodel.steps.pipeline.stages import Stage, chosen_stage
from costmodel.steps.stage_memory import head_parameters, stage_quantised, trained_parameters
from costmodel.training.design import DesignPoints
from costmodel.training.precision import FULL_BYTES, WHOLE_GRADIENTS, ZERO, Exchange, ZeroStage
from costmodel.training.ranks import Group, Sharing
from costmodel.training.run import TransformerRun, gradient_bytes, padded_vocabulary, some_adapters, trained_share


@dataclass(frozen=True, slots=True, eq=False)
class ReplicatedParameters:
    """Parameters of one rank that the same replicas hold; (points,) columns."""

    number: FloatArray  #: whose weights are gathered [-]
    trained: FloatArray  #: whose gradients are reduced [-]
    quantised: FloatArray  #: of them, those that products read in fewer bits [-]
    sharing: Sharing  #: the replicas
    kind: str = "dp"  #: of replicas, as labels of items name it; "edp" of experts

    def group(self, exchange: Exchange) -> Group:
        """Replicas that take part in an exchange."""
        group: Group = getattr(self.sharing, exchange.over)
        return group

    def exchanged(self, exchange: Exchange) -> FloatArray:
        """Parameters that take part in an exchange: frozen ones have no gradient. [-]"""
        return self.trained if exchange.of == "gradients" else self.number

    def has_group(self, exchange: Exchange) -> bool:
        """False if no design has copies of sharded states, and the exchange is between these copies."""
        return exchange.over != "copies" or bool((self.sharing.copies.size > 1).any())


def overlaps(design: DesignPoints, exchange: Exchange) -> BoolArray:
    """Where an exchange overlaps with kernels; (points,)."""
    gradients: BoolArray = design.overlap_grad_reduce > 0
    return gradients & (design.overlap_param_gather > 0) if exchange.of == "weights" else gradients


def message_bytes(run: TransformerRun, exchange: Exchange, parameters: ReplicatedParameters) -> FloatArray:
    """Message of a collective over replicas, the share of one of them between copies of sharded states. [B]"""
    message = exchanged_bytes(run, exchange, parameters.exchanged(exchange), parameters.quantised)
    return message / parameters.sharing.shards.size if exchange.over == "copies" else message


#: Exchanges with equal keys cost the same: collective, states, how often, group; and whose parameters they are.
_Key = tuple[str, str, str, str, ReplicatedParameters]


def _key(exchange: Exchange, parameters: ReplicatedParameters) -> _Key:
    return exchange.collective, exchange.of, exchange.every, exchange.over, parameters


class ReplicaCollectives:
    """Costs of the `wanted` collectives that replicas take part in, nothing hidden; (points,)."""

    def __init__(self, run: TransformerRun, wanted: Iterable[tuple[Exchange, ReplicatedParameters]]) -> None:
        self.run = run
        exchanges = {_key(*pair): pair for pair in wanted}
        messages = {key: message_bytes(run, *pair) for key, pair in exchanges.items()}
        tiers = run.system.network
        axes = max(1, *(values.ndim for tier in tiers for values in tier.arrays())) - 1  # of machines, before points
        of_group = grouped(
            ((COSTS_AS.get(one.collective, one.collective), one.over, id(parameters.sharing)), key)
            for key, (one, parameters) in exchanges.items()
        )
        self._costs: dict[_Key, KernelCost] = {}
        for (name, *_), keys in of_group.items():
            exchange, parameters = exchanges[keys[0]]
            stacked = np.stack(np.broadcast_arrays(*(messages[key] for key in keys)))
            apart = stacked.reshape(len(keys), *[1] * (axes + 2 - stacked.ndim), *stacked.shape[1:])
            cost = collective(name, apart, parameters.group(exchange), tiers)
            energy = traffic_energy(cost.bytes_sent, tiers)
            for key, time, joules in zip(keys, cost.time, energy, strict=True):
                self._costs[key] = KernelCost(time=time, link_energy=joules)
                if run.itemized:
                    self._costs[key] = replace(self._costs[key], items=_items(*exchanges[key], messages[key]))

    def of(self, exchange: Exchange, parameters: ReplicatedParameters) -> KernelCost:
        """A collective of weights, or of their gradients; (points,). [s], [J], [B]"""
        return self._costs[_key(exchange, parameters)]


def _items(exchange: Exchange, parameters: ReplicatedParameters, message: FloatArray) -> Items:
    """Bytes that a rank puts into an exchange, as an item. [B]"""
    group = f"{parameters.kind} {exchange.over}"
    label = Item(column="dp_communication_time", name=exchange.of, group=group, collective=exchange.collective)
    return quantities_of(label, {"message": input_bytes(exchange.collective, message, parameters.group(exchange).size)})


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
        trained = part.trained + trained_share(run) * head_parameters(run, stage) if is_head else part.trained
        experts = part.expert_parameters, part.trained_experts, part.quantised_experts
        sizes = (number, trained, part.quantised), experts
        parameters = tuple(
            replace(like, number=size, trained=updated, quantised=narrow)
            for (size, updated, narrow), like in zip(sizes, replicas, strict=False)
            if size.ndim
        )
        times = {"forward": costs.forward[index].window, "backward": backward[index]}
        units += [Unit(parameters, times, count, index < len(stage.layers))] if parameters else []
    return units


def backward_windows(run: TransformerRun, stage: Stage, costs: MicroBatch) -> list[FloatArray]:
    """Time of a backward pass over a layer of each kind, with the usual recomputation. [s]"""
    shares = stage.recomputed_shares or [np.ones(()) for _ in stage.layers]
    passes = zip(costs.backward, costs.again, shares, strict=False)
    return [backward.window + again.window * share for backward, again, share in passes]


def unit_exchanges(
    collectives: ReplicaCollectives, exchanges: Sequence[Exchange], units: Sequence[Unit], stage: Stage
) -> tuple[KernelCost, dict[str, FloatArray]]:
    """Exposed exchanges of every micro-batch of a step [s], [J], and the time that one pass of each kind hides. [s]

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

    hideable: dict[str, list[FloatArray]]  #: pass -> time of each unit that may overlap with it, in a micro-batch [s]
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
                cost += collectives.of(exchange, parameters) * np.where(parameters.exchanged(exchange) > 0, 1.0, 0.0)
            if exchange.behind == "forward":
                cost = cost * (1 + design.reference_model)
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


def update_step(
    run: TransformerRun,
    passes: ScheduledPasses,
    parts: Sequence[PartMemory],
    stages: Sequence[Stage],
    *,
    alone: MicroBatch,
) -> tuple[dict[str, FloatArray], Items]:
    """Columns of a `Breakdown` for the exchanges of replicas, clipping and the update, with their items. [s], [J]

    `passes` are those of the step, with the exchanges that passes of several micro-batches hide [s], [J]; `parts` are
    those of the model on a rank, (points,) [-], [B]; `stages` are those with the most of any quantity:
    `PipelineStages.foremost`; `alone` are passes without overlap, as the first and the last of a step. [s]

    Replicas exchange the tensors that a row of `ZERO` lists. Overlapped, an exchange hides behind the last
    micro-batch's backward pass and the next step's first forward pass, except for the last bucket; that of experts'
    replicas comes behind it. An exchange of every micro-batch hides layer by layer: `unit_exchanges`.
    """
    design, ranks = run.design, run.design.world_size
    trained = [trained_parameters(run, stage, parts) for stage in stages]
    reduced = late_exchanges(run, passes.costs.windows(), parts, stages, trained, alone.windows())
    tied = tied_embedding_reduction(run)
    update, cast = weight_update(run, parts, stages, trained)
    items: Items = {}
    if run.itemized:
        casts = {Item("time", "forward_time", name="casts of weights"): cast.time}
        items = {**(reduced + tied).items, **update.items, **casts}
    columns = {
        **({"forward_time": cast.time, "memory_bound_time": cast.memory_bound_time} if cast.present() else {}),
        "dp_communication_time": reduced.time + tied.time,
        "optimizer_time": update.time,
        "compute_energy": ranks * update.compute_energy,
        "memory_energy": ranks * (update.memory_energy + cast.memory_energy),
        "link_energy": ranks * (reduced.link_energy + update.link_energy) + 2 * (ranks / design.pp) * tied.link_energy,
    }
    return columns, items


def late_exchanges(
    run: TransformerRun,
    passes: MicroBatch,
    parts: Sequence[PartMemory],
    stages: Sequence[Stage],
    trained: Sequence[tuple[FloatArray, FloatArray]],
    alone: MicroBatch,
) -> KernelCost:
    """Exposed exchanges of replicas, on the stage that exposes most.

    Parameters are those of `update_step`, passes as `MicroBatch.windows`, and the `trained_parameters` of each stage.
    The first stage ends its passes with the pipeline, and clipping waits for the norm of all stages. Stages behind it
    end their passes earlier, by the last backward passes of those before them, which is left out: more micro-batches
    never hide more of an exchange. Designs with exchanges in every micro-batch are apart from others.
    """
    kinds = np.unique(kind_of := np.maximum(run.design.zero_row, 1))
    if kinds.size > 1 and not run.itemized:
        time, energy = np.empty((2, *run.axes, kind_of.size))
        for designs in (np.flatnonzero(kind_of == kind) for kind in kinds):
            cost = late_exchanges(*taken((run, passes, parts, stages, trained, alone), designs))
            time[..., designs], energy[..., designs] = cost.time, cost.link_energy
        return KernelCost(time=time, link_energy=energy)
    sharing = run.design.sharing, run.design.expert_sharing if run.model.num_experts else None
    replicas = [replicated_parameters(run, *both, parts, sharing) for both in zip(stages, trained, strict=True)]
    sharded = bool((run.design.zero > 1).any())
    units = [stage_units(run, stage, passes, parts, replicas[0]) if sharded else [] for stage in stages]
    rows = zero_rows(run)
    once = [parameters for of_stage in replicas for parameters in of_stage]
    often = [parameters for of_stage in units for unit in of_stage for parameters in unit.parameters]
    wanted = (
        (exchange, parameters)
        for exchange in dict.fromkeys(exchange for _, zero in rows for exchange in zero.exchanges)
        for parameters in (often if exchange.every == "micro_batch" else once)
        if parameters.has_group(exchange)
    )
    collectives = ReplicaCollectives(run, wanted)
    exchanged = [
        replica_exchanges(collectives, rows, values, pass_times(run, stage, alone), of_stage, stage)
        for values, of_stage, stage in zip(replicas, units, stages, strict=True)
    ]
    last, nothing = largest([cost.time for cost in exchanged]), np.zeros(())
    names = dict.fromkeys(item for cost in exchanged for item in cost.items)
    items = {item: chosen([cost.items.get(item, nothing) for cost in exchanged], last) for item in names}
    time, energy = (chosen([getattr(cost, name) for cost in exchanged], last) for name in ("time", "link_energy"))
    return KernelCost(time=time, link_energy=energy, items=items)


def zero_rows(run: TransformerRun) -> list[tuple[BoolArray, ZeroStage]]:
    """Where designs follow each row of `ZERO`, or `WHOLE_GRADIENTS`; rows that none follows are left out."""
    whole, follows = run.system.software.whole_gradients > 0, [run.design.zero_row == row for row in range(len(ZERO))]
    rows = [(follows[1] & whole, WHOLE_GRADIENTS), *zip(follows, ZERO, strict=True)]
    rows[2] = follows[1] & ~whole, ZERO[1]
    return [(where, zero) for where, zero in rows if where.any()]


def replicated_parameters(
    run: TransformerRun,
    stage: Stage,
    trained: tuple[FloatArray, FloatArray],
    parts: Sequence[PartMemory],
    sharing: tuple[Sharing, Sharing | None],
) -> list[ReplicatedParameters]:
    """Trained parameters of a stage and the replicas that hold the same (`sharing`): those of experts second.

    A rank has the parameters of two stages where a pipeline has two ends.
    """
    quantised, (replicas, of_experts) = stage_quantised(run, stage, parts), sharing
    number, experts = (of_rank * stage.copies for of_rank in trained)
    narrow = [trained_share(run) * whole * stage.copies for whole in quantised]  # adapters have 16 bits
    parameters = [ReplicatedParameters(number, number, narrow[0], replicas)]
    if of_experts is not None:
        parameters.append(ReplicatedParameters(experts, experts, narrow[1], of_experts, "edp"))
    return parameters


def weight_update(
    run: TransformerRun,
    parts: Sequence[PartMemory],
    stages: Sequence[Stage],
    trained: Sequence[tuple[FloatArray, FloatArray]],
) -> tuple[KernelCost, KernelCost]:
    """Clipping and update of the weights, and their casts, on the stage with most parameters.

    Parameters are those of `update_step`, and the `trained_parameters` of each stage.
    """
    stage, parameters, experts = fullest_update(stages, trained)
    plain, matrices = owned_parameters(run, stage, parameters, experts if run.model.num_experts else None)
    width, design = gradient_bytes(run), run.design
    copies = np.where(width < FULL_BYTES, (width + FULL_BYTES) * (plain + matrices), 0.0)
    moved = run.system.software.update_copies * np.where(
        design.shards_layers, 0, width * (parameters + experts) + copies
    )
    everyone, update = design.ranks.all, state_update(run, stage, plain, matrices)
    update = optimizer_step(plain + matrices, run.system, everyone, update=update, moved=moved)
    return update, weight_casts(run, stage_quantised(run, stage, parts))


def fullest_update(
    stages: Sequence[Stage], trained: Sequence[tuple[FloatArray, FloatArray]]
) -> tuple[Stage, FloatArray, FloatArray]:
    """The stage that trains most parameters, and those of a rank of it: all but routed experts, and these. [-]"""
    most = largest([parameters + experts for parameters, experts in trained])
    parameters, experts = (chosen([*candidate], most) for candidate in zip(*trained, strict=True))
    return chosen_stage(stages, most), parameters, experts


def pass_times(run: TransformerRun, stage: Stage, costs: MicroBatch) -> dict[str, FloatArray]:
    """Time of one micro-batch in the layers of a stage, by pass: exchanges may hide behind it. [s]"""
    return {
        "backward": weighted_sum(backward_windows(run, stage, costs), stage.layers),
        "forward": weighted_sum([cost.window for cost in costs.forward], stage.layers),
    }


def replica_exchanges(
    collectives: ReplicaCollectives,
    rows: Sequence[tuple[BoolArray, ZeroStage]],
    replicas: Sequence[ReplicatedParameters],
    windows: Mapping[str, FloatArray],
    units: Sequence[Unit],
    stage: Stage,
) -> KernelCost:
    """All that replicas of the parameters of a stage exchange in a step, one after the other.

    `rows` are those of `zero_rows`.
    """
    reduced = KernelCost()
    for where, zero in rows:
        happens, left = np.where(where, 1.0, 0.0) if len(rows) > 1 else np.ones(()), dict(windows)
        often = [exchange for exchange in zero.exchanges if exchange.every == "micro_batch"]
        if often:
            cost, hidden = unit_exchanges(collectives, often, units, stage)
            left = {direction: np.maximum(window - hidden[direction], 0.0) for direction, window in left.items()}
            reduced += cost * happens
        once = (exchange for exchange in zero.exchanges if exchange not in often)
        for exchange, parameters in product(once, replicas):
            if parameters.has_group(exchange):
                window = left[exchange.behind]
                cost, used = replica_exchange(collectives, exchange, parameters, window, stage.num_layers)
                runs = collectives.run.design.reshard_after_forward if exchange.again else 1.0
                left[exchange.behind] = window - used * runs
                reduced += cost * (happens * runs)
    return reduced


def replica_exchange(
    collectives: ReplicaCollectives,
    exchange: Exchange,
    parameters: ReplicatedParameters,
    window: FloatArray,
    layers: FloatArray,
) -> tuple[KernelCost, FloatArray]:
    """A collective over replicas [s], [J], and the time used of the window that may hide it, (points,). [s]

    Overlapped, it hides behind a pass over the layers, except for a bucket.
    """
    run, whole = collectives.run, collectives.of(exchange, parameters)
    bucket = whole.time / np.maximum(layers, 1.0)
    rest = np.maximum(whole.time - window, bucket)
    exposed = np.where(overlaps(run.design, exchange), rest, whole.time)
    cores, hidden = run.system.chip.taken_cores("dp"), whole.time - exposed
    slowed = hidden * cores / run.system.chip.cores if cores.any() else np.zeros(())
    items: Items = {}
    if run.itemized:
        label = Item(column="dp_communication_time", name=f"{exchange.collective} of {exchange.of}")
        items = added(whole.items, quantities_of(label, {"time": exposed + slowed, "hidden": hidden}))
    return KernelCost(time=exposed + slowed, link_energy=whole.link_energy, items=items), hidden


def tied_embedding_reduction(run: TransformerRun) -> KernelCost:
    """The word table lives on the first and last stage when tied: its gradients are added up."""
    model, design, system = run.model, run.design, run.system
    if not model.tied_embeddings:
        return KernelCost()
    entries = padded_vocabulary(model, design.tp)
    message = entries * model.hidden_size / design.tp * gradient_bytes(run)
    cost = collective("all_reduce", message, design.ranks.ends("pp"), system.network)
    items: Items = {}
    if run.itemized:
        label = Item(column="dp_communication_time", name="all_reduce of the tied embedding")
        of_all = replace(label, name="gradients", group="embedding", collective="all_reduce")
        items = {
            **quantities_of(label, {"time": cost.time, "hidden": 0 * cost.time}),
            **quantities_of(of_all, {"message": message}),
        }
    reduced = KernelCost(time=cost.time, link_energy=traffic_energy(cost.bytes_sent, system.network), items=items)
    return reduced * trained_share(run) if some_adapters(run) else reduced
