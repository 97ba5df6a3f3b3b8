"""The end of a step: gradients are reduced over replicas and clipped, weights updated and gathered.

Replicas exchange gradients and weights once a step, or for every micro-batch, as their row of `ZERO` states. Where
they overlap, exchanges run beside the last backward pass and the next forward pass. The stage that is done last
counts: one with many parameters may finish its exchanges while the slowest stage still computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from costmodel.columns import FloatArray, chosen, largest
from costmodel.kernels.collectives import collective
from costmodel.kernels.items import Item, Items, added, quantities_of
from costmodel.kernels.kernel_cost import KernelCost, traffic_energy, weighted_sum
from costmodel.steps.memory.quantised_weights import weight_casts
from costmodel.steps.memory.stage_memory import stage_expert_parameters, stage_parameters
from costmodel.steps.memory.states import owned_parameters, resharded, state_shards
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.pipeline.pipeline_step import ScheduledPasses
from costmodel.steps.pipeline.stages import Stage, chosen_stage
from costmodel.steps.update.layer_exchanges import Unit, backward_windows, stage_units, unit_exchanges
from costmodel.steps.update.optimizer import optimizer_step
from costmodel.steps.update.replica_collectives import ReplicaCollectives, ReplicatedParameters, overlaps
from costmodel.steps.update.state_update import state_update
from costmodel.training.optimizer_states import ZERO, Exchange, ZeroStage
from costmodel.training.ranks import Sharing
from costmodel.training.run import TransformerRun, gradient_bytes, padded_vocabulary
from costmodel.workload.quantisation import some_narrow

#: Part of the exchanges of a stage that runs while the slowest stage is still at its passes.
BEHIND_SLOWEST = Item(column="dp_communication_time", name="beside passes of the slowest stage")


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
    those of the model on a rank, (points,) [-], [B]; `stages` are those that have more of something than others:
    `PipelineStages.foremost`; `alone` are passes with nothing beside them, as the first and the last of a step. [s]

    Replicas exchange what a row of `ZERO` lists. Overlapped, an exchange hides behind the last micro-batch's backward
    pass and the next step's first forward pass, all but the last bucket; that of experts' replicas comes behind it. An
    exchange of every micro-batch hides layer by layer: `unit_exchanges`. Ranks with most parameters update last.
    """
    design, ranks = run.design, run.design.world_size
    reduced = late_exchanges(run, passes, parts, stages, alone)
    tied = tied_embedding_reduction(run)
    update, cast = weight_update(run, parts, stages)
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
    passes: ScheduledPasses,
    parts: Sequence[PartMemory],
    stages: Sequence[Stage],
    alone: MicroBatch,
) -> KernelCost:
    """Exchanges of replicas that go on after the passes of the slowest stage, on the stage that is done last.

    Parameters are those of `update_step`.
    """
    sharing = run.design.sharing, run.design.expert_sharing if run.model.num_experts else None
    replicas = [replicated_parameters(run, stage, parts, sharing) for stage in stages]
    sharded = bool((run.design.zero > 1).any())
    units = [stage_units(run, stage, passes.costs, parts, replicas[0]) if sharded else [] for stage in stages]
    rows = [(number, zero) for number, zero in enumerate(ZERO) if (run.design.zero_row == number).any()]
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
    waits = [passes.slack(stage) for stage in stages]
    last = largest([cost.time - wait for cost, wait in zip(exchanged, waits, strict=True)])
    exposed = chosen([cost.time for cost in exchanged], last)
    late = np.maximum(exposed - chosen(waits, last), 0.0)
    items: dict[Item, FloatArray] = {}
    if run.itemized:
        nothing, share = np.zeros(()), np.divide(late, exposed, out=np.zeros_like(late), where=exposed > 0)
        for item in dict.fromkeys(item for cost in exchanged for item in cost.items):
            values = chosen([cost.items.get(item, nothing) for cost in exchanged], last)
            items[item] = values * share if item.quantity == "time" else values
        items |= quantities_of(BEHIND_SLOWEST, {"hidden": exposed - late})
    energy = chosen([cost.link_energy for cost in exchanged], last)
    return KernelCost(time=late, link_energy=energy, items=items)


def replicated_parameters(
    run: TransformerRun, stage: Stage, parts: Sequence[PartMemory], sharing: tuple[Sharing, Sharing | None]
) -> list[ReplicatedParameters]:
    """Parameters of a stage and the replicas that hold the same (`sharing`): those of experts second.

    A rank has the parameters of two stages where a pipeline has two ends.
    """
    quantised, (replicas, of_experts) = stage_quantised(run, stage, parts), sharing
    number = stage_parameters(run, stage, parts) * stage.copies
    parameters = [ReplicatedParameters(number, quantised[0] * stage.copies, replicas)]
    if of_experts is not None:
        experts = stage_expert_parameters(stage, parts) * stage.copies
        parameters.append(ReplicatedParameters(experts, quantised[1] * stage.copies, of_experts, "edp"))
    return parameters


def weight_update(
    run: TransformerRun, parts: Sequence[PartMemory], stages: Sequence[Stage]
) -> tuple[KernelCost, KernelCost]:
    """Clipping and update of the weights, and their casts, on the stage with most parameters.

    Parameters are those of `update_step`.
    """
    stage, parameters, experts = fullest_update(run, parts, stages)
    plain, matrices = owned_parameters(run, stage, parameters, experts if run.model.num_experts else None)
    update = optimizer_step(
        plain + matrices, run.system, run.design.ranks.all, update=state_update(run, stage, plain, matrices)
    )
    return update, weight_casts_step(run, stage_quantised(run, stage, parts))


def fullest_update(
    run: TransformerRun, parts: Sequence[PartMemory], stages: Sequence[Stage]
) -> tuple[Stage, FloatArray, FloatArray]:
    """The stage with most parameters, and those of a rank of it: of all but routed experts, and of these. [-]"""
    every = [
        (stage_parameters(run, candidate, parts), stage_expert_parameters(candidate, parts)) for candidate in stages
    ]
    most = largest([parameters + experts for parameters, experts in every])
    parameters, experts = (chosen([*candidate], most) for candidate in zip(*every, strict=True))
    return chosen_stage(stages, most), parameters, experts


def pass_times(run: TransformerRun, stage: Stage, costs: MicroBatch) -> dict[str, FloatArray]:
    """Time of one micro-batch in the layers of a stage, by pass: what exchanges may hide behind. [s]"""
    return {
        "backward": weighted_sum(backward_windows(run, stage, costs), stage.layers),
        "forward": weighted_sum([cost.window for cost in costs.forward], stage.layers),
    }


def stage_quantised(run: TransformerRun, stage: Stage, parts: Sequence[PartMemory]) -> list[FloatArray]:
    """Weights of a rank of a stage that products read in fewer bits: of all but experts, and of these. [-]"""
    if not some_narrow(run):
        return [np.zeros(()), np.zeros(())]
    return [
        weighted_sum([getattr(part, name) for part in parts], stage.counts)
        for name in ("quantised", "quantised_experts")
    ]


def weight_casts_step(run: TransformerRun, quantised: Sequence[FloatArray]) -> KernelCost:
    """Casts of weights in a step, which the first forward passes wait for; nothing where there are none."""
    if not some_narrow(run):
        return KernelCost()
    owned = [
        whole / state_shards(run.design, "optimizer", of_experts=of_experts)
        for whole, of_experts in zip(quantised, (False, True), strict=True)
    ]
    return weight_casts(run, quantised, owned, resharded(run.design))


def replica_exchanges(
    collectives: ReplicaCollectives,
    rows: Sequence[tuple[int, ZeroStage]],
    replicas: Sequence[ReplicatedParameters],
    windows: Mapping[str, FloatArray],
    units: Sequence[Unit],
    stage: Stage,
) -> KernelCost:
    """All that replicas of the parameters of a stage exchange in a step, one after the other.

    `rows` are those of `ZERO` that some designs have, with their numbers.
    """
    reduced = KernelCost()
    for number, zero in rows:
        happens, left = np.where(collectives.run.design.zero_row == number, 1.0, 0.0), dict(windows)
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
                left[exchange.behind] = window - used
                reduced += cost * happens
    return reduced


def replica_exchange(
    collectives: ReplicaCollectives,
    exchange: Exchange,
    parameters: ReplicatedParameters,
    window: FloatArray,
    layers: FloatArray,
) -> tuple[KernelCost, FloatArray]:
    """A collective over replicas [s], [J], and the time used of the window that may hide it, (points,). [s]

    Overlapped, it hides behind a pass over the layers but for a bucket.
    """
    run, whole = collectives.run, collectives.of(exchange, parameters)
    bucket = whole.time / np.maximum(layers, 1.0)
    rest = np.maximum(whole.time - window, bucket)
    exposed = np.where(overlaps(run.design, exchange), rest, whole.time)
    chip, hidden = run.system.chip, whole.time - exposed
    slowed = hidden * chip.taken_cores("dp") / chip.cores
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
    return KernelCost(time=cost.time, link_energy=traffic_energy(cost.bytes_sent, system.network), items=items)
