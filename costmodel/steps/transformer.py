"""One optimizer step of designs of a transformer: micro-batches through the pipeline, then the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from costmodel.columns import FloatArray, chosen, distinct_rows, largest
from costmodel.kernels.collectives import collective, exposed_time, send_recv
from costmodel.kernels.cost import KernelCost, traffic_energy, weighted_sum
from costmodel.machine.system import System
from costmodel.steps.assembly import assemble_breakdown, host_time, in_chunks
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.memory import (
    PartMemory,
    fullest_stage,
    rank_memory,
    stage_expert_parameters,
    state_shards,
    updated_parameters,
)
from costmodel.steps.microbatch import MicroBatch, micro_batches
from costmodel.steps.optimizer import optimizer_step
from costmodel.steps.pipeline import Stage, bubble_time, chosen_stage, full_stages, slow_stages
from costmodel.steps.resolve_sharding import resolved
from costmodel.training.design import DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import MIXED_PRECISION, Precision
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun, Run, TransformerRun, rank_run
from costmodel.training.zero import ZERO, Exchange
from costmodel.workload.transformer import activation_bytes


def step(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> Breakdown:
    """Time, memory and energy of one optimizer step of each design.

    Parameters
    ----------
    model : ModelShape
        The transformer.
    system : System
        The machine; each quantity holds one value, or one per design.
    design : DesignPoints
        Parallel configurations, (points,). Nothing is refused here: whether layers, heads and batches
        divide is for the caller's rules to say.
    precision : Precision
        Bytes of operands, gradients and optimizer states.

    Returns
    -------
    breakdown : Breakdown
        (points,) columns; times of the slowest pipeline stage, memory of the fullest. [s], [B], [J], [$], [W]

    Notes
    -----
    Designs are evaluated in chunks, so that memory does not grow with their number except for the result.
    """
    return transformer_step(Run(model, system, design, precision))


def transformer_step(run: TransformerRun) -> Breakdown:
    """`step` of a run; its designs may have columns for other rules beside."""
    return in_chunks(transformer_chunk, run)


def resolve_sharding(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> DesignPoints:
    """Replace ``sharding: solve`` and ``solve_bytes`` by explicit shardings, kernel by kernel.

    Parameters are those of `step`, rules those of `costmodel.steps.resolve_sharding.resolved`.
    """
    return resolved(Run(model, system, design, precision), transformer_chunk)


def transformer_chunk(run: TransformerRun) -> Breakdown:
    """Costs of a chunk of designs, whose columns are all of one length."""
    run = run.of(resolved(run, transformer_chunk))
    design, ranks = run.design, rank_run(run)
    rows, back = distinct_rows(*ranks.columns())
    unique = ranks.take(rows)
    costs, memory = micro_batches(unique).take(back), [part.take(back) for part in rank_memory(unique)]
    schedule, update = schedule_step(run, ranks, costs), update_step(run, costs, memory)
    fullest = fullest_stage(run, ranks, memory)
    computing = schedule["forward_time"] + schedule["backward_time"] + schedule["recompute_time"]
    parts = {
        **schedule,
        **update,
        **{name: schedule[name] + update[name] for name in schedule.keys() & update.keys()},
        **{f"{name}_memory": values for name, values in fullest.columns().items()},
        "host_time": host_time(run.system, design.world_size, computing),
        "reserved_memory": np.broadcast_to(run.system.chip.reserved_memory, computing.shape),
    }
    return assemble_breakdown(
        parts,
        run.system,
        world_size=design.world_size,
        tokens=design.global_batch_size * run.model.seq_len,
        model_flops=3 * run.model.forward_flops_per_sequence * design.global_batch_size,
    )


def schedule_step(run: TransformerRun, ranks: RankRun, costs: MicroBatch) -> dict[str, FloatArray]:
    """Forward and backward passes of all micro-batches through the pipeline.

    Returns
    -------
    columns : mapping of (points,) arrays
        Columns of a `Breakdown`: times of the slowest stage, energies of all ranks. [s], [J]
    """
    costs = overlapped_experts(run.design, costs, run.system)
    design, whole, hop = run.design, costs.whole, pipeline_hop(run, ranks)
    messages = np.where(design.pp > 1, 2 * design.vpp, 0.0)  # an activation and a gradient per chunk
    hops, steps = messages * hop.time, design.gradient_accumulation_steps
    slowest = slowest_stage(run, whole)
    forward, backward = (weighted_sum(own, slowest.counts) * steps for own in (costs.forward, costs.backward))
    again = weighted_sum(costs.again, [count * steps for count in slowest.layers])
    stage = forward + backward + again
    kernels, *collectives = (
        weighted_sum([getattr(cost, name) for cost in whole], slowest.counts)
        for name in ("time", "tp_time", "cp_time", "ep_time")
    )
    busy = sum(collectives, start=kernels)
    everywhere = weighted_sum(whole, [*run.model.kinds.values(), 1.0, 1.0])
    runs = steps * design.dp * design.cp * design.tp
    return {
        "forward_time": forward.time,
        "backward_time": backward.time,
        "recompute_time": again.time,
        "memory_bound_time": stage.memory_bound_time,
        "launch_bound_time": stage.launch_bound_time,
        "tp_communication_time": stage.tp_time,
        "cp_communication_time": stage.cp_time,
        "ep_communication_time": stage.ep_time,
        "pp_communication_time": steps * hops,
        "bubble_time": bubble_time(
            busy + hops,
            everywhere.total_time + design.pp * hops,
            pp=design.pp,
            vpp=design.vpp,
            gradient_accumulation_steps=steps,
        ),
        "compute_energy": runs * everywhere.compute_energy,
        "memory_energy": runs * everywhere.memory_energy,
        "link_energy": runs * (everywhere.link_energy + (design.pp - 1) * messages * hop.link_energy),
    }


def overlapped_experts(design: DesignPoints, costs: MicroBatch, system: System) -> MicroBatch:
    """The same passes, with exchanges of experts behind the kernels of another micro-batch where asked for.

    The forward pass of one micro-batch runs beside the backward pass of the one before: each hides what the
    other exchanges. The first forward and the last backward pass have nothing beside them.
    """
    if not (design.overlap_ep > 0).any():
        return costs
    alone = 1 / design.gradient_accumulation_steps
    share = np.where(design.overlap_ep > 0, 1 - alone, 0.0)

    def beside(cost: KernelCost, other: KernelCost) -> KernelCost:
        hidden = share * np.minimum(cost.ep_time, other.time)
        return replace(cost, ep_time=exposed_time(cost.ep_time, hidden, system.chip))

    forward = [beside(*both) for both in zip(costs.forward, costs.backward, strict=True)]
    backward = [beside(*both) for both in zip(costs.backward, costs.forward, strict=True)]
    return replace(costs, forward=tuple(forward), backward=tuple(backward))


def slowest_stage(run: TransformerRun, whole: Sequence[KernelCost]) -> Stage:
    """The stage whose layers, embedding and head take longest for a micro-batch, forward and backward."""
    stages = slow_stages(run.model, run.design.pp, run.design.vpp)
    own = [cost.total_time for cost in whole]
    return chosen_stage(stages, largest([weighted_sum(own, stage.counts) for stage in stages]))


def pipeline_hop(run: TransformerRun, ranks: RankRun) -> KernelCost:
    """One message to the next stage: each rank sends its share, which the receivers gather again.

    Receivers whose layers start with a split activation keep their shares and gather nothing.
    """
    whole, design, shape, system = activation_bytes(ranks), run.design, ranks.design, run.system
    sent = send_recv(whole / design.tp, design.ranks.group("pp"), system.network)
    gathered = collective("all_gather", whole, design.ranks.group("tp"), system.network)
    gathers = np.where(shape.is_split(shape.stream, "replicated") & (design.pp > 1), 1.0, 0.0)
    return KernelCost(
        time=sent.time + gathers * gathered.time,
        link_energy=traffic_energy(sent.bytes_sent, system.network)
        + gathers * traffic_energy(gathered.bytes_sent, system.network),
    )


def update_step(run: TransformerRun, costs: MicroBatch, parts: Sequence[PartMemory]) -> dict[str, FloatArray]:
    """Reduction of gradients over replicas, clipping and the update, of the rank with most parameters.

    Returns
    -------
    columns : mapping of (points,) arrays
        Columns of a `Breakdown`. [s], [J]

    Notes
    -----
    What replicas exchange is a row of `ZERO`. Overlapped, it hides behind the last micro-batch's backward
    pass and the next step's first forward pass, all but the last bucket; what experts' replicas exchange
    comes behind it. What is exchanged for every micro-batch hides layer by layer behind the layer before.
    """
    design, ranks = run.design, run.design.world_size
    stages = full_stages(run.model, design.pp, design.vpp)
    owned = [updated_parameters(stage, parts) for stage in stages]
    routed = [stage_expert_parameters(stage, parts) for stage in stages]
    most = largest([own + experts for own, experts in zip(owned, routed, strict=True)])
    stage, parameters, experts = chosen_stage(stages, most), chosen(owned, most), chosen(routed, most)
    back = [
        own.total_time + again.total_time for own, again in zip(costs.backward, costs.again, strict=False)
    ]
    windows = {
        "backward": weighted_sum(back, stage.layers),
        "forward": weighted_sum([cost.total_time for cost in costs.forward], stage.layers),
    }
    owners = [(parameters, design.replicas)]
    owned_share = parameters / state_shards(design, "optimizer")
    if run.model.num_experts:
        owners.append((experts, design.expert_ranks.group("edp")))
        owned_share = owned_share + experts / state_shards(design, "optimizer", of_experts=True)
    reduced = replica_exchanges(run, owners, windows, stage.num_layers)
    tied = tied_embedding_reduction(run)
    update = optimizer_step(owned_share, run.system, design.ranks.all)
    return {
        "dp_communication_time": reduced.time + tied.time,
        "optimizer_time": update.time,
        "compute_energy": ranks * update.compute_energy,
        "memory_energy": ranks * update.memory_energy,
        "link_energy": ranks * reduced.link_energy + 2 * (ranks / design.pp) * tied.link_energy,
    }


def replica_exchanges(
    run: TransformerRun,
    owners: Sequence[tuple[FloatArray, Group]],
    windows: Mapping[str, FloatArray],
    layers: FloatArray,
) -> KernelCost:
    """All that replicas of some parameters exchange in a step, one after the other."""
    reduced, chosen_zero = KernelCost(), run.design.zero_stage
    for number, zero in enumerate(ZERO):
        happens, left = np.where(chosen_zero == number, 1.0, 0.0), dict(windows)
        for exchange in zero.exchanges if happens.any() else ():
            runs = happens * run.design.reshard_after_forward if exchange.again else happens
            for own, group in owners:
                cost, used = replica_exchange(run, exchange, own, group, left[exchange.behind], layers)
                left[exchange.behind] = left[exchange.behind] - used
                reduced += KernelCost(time=runs * cost.time, link_energy=runs * cost.link_energy)
    return reduced


def replica_exchange(
    run: TransformerRun,
    exchange: Exchange,
    parameters: FloatArray,
    group: Group,
    window: FloatArray,
    layers: FloatArray,
) -> tuple[KernelCost, FloatArray]:
    """A collective over replicas; overlapped, it hides behind a pass over the layers but for a bucket.

    Returns
    -------
    cost : KernelCost
        Of all times that it runs in a step. [s], [J]
    used : (points,) array
        Of the time that may hide it. [s]
    """
    design, system, precision = run.design, run.system, run.precision
    sizes = {"gradients": precision.gradient_bytes, "weights": precision.element_bytes}
    cost = collective(exchange.collective, parameters * sizes[exchange.of], group, system.network)
    bucket = cost.time / np.maximum(layers, 1.0)
    rest = np.maximum(cost.time - window, bucket)
    exposed = np.where(design.overlap_grad_reduce > 0, rest, cost.time)
    energy = traffic_energy(cost.bytes_sent, system.network)
    times = design.gradient_accumulation_steps if exchange.every == "micro_batch" else 1.0
    return KernelCost(time=times * exposed, link_energy=times * energy), cost.time - exposed


def tied_embedding_reduction(run: TransformerRun) -> KernelCost:
    """The word table lives on the first and last stage when tied: its gradients are added up."""
    model, design, system = run.model, run.design, run.system
    if not model.tied_embeddings:
        return KernelCost()
    message = model.vocab_size * model.hidden_size / design.tp * run.precision.gradient_bytes
    cost = collective("all_reduce", message, design.ranks.ends("pp"), system.network)
    return KernelCost(time=cost.time, link_energy=traffic_energy(cost.bytes_sent, system.network))
