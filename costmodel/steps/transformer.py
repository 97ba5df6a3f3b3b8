"""One optimizer step of designs of a transformer: micro-batches through the pipeline, then the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.columns import Columns, FloatArray, chosen, column, distinct_rows, largest
from costmodel.kernels.collectives import collective, send_recv
from costmodel.kernels.cost import KernelCost, link_energy
from costmodel.machine.system import System
from costmodel.steps.assembly import assemble_breakdown, host_time, in_chunks
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.memory import (
    RankMemory,
    fullest_stage,
    layer_sum,
    rank_memory,
    state_shards,
    updated_parameters,
)
from costmodel.steps.microbatch import MicroBatch, PartCost, micro_batches
from costmodel.steps.optimizer import optimizer_step
from costmodel.steps.pipeline import Stage, bubble_time, chosen_stage, full_stages, slow_stages
from costmodel.steps.resolve_sharding import resolved
from costmodel.training.design import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import MIXED_PRECISION, Precision
from costmodel.training.run import RankRun, Run, TransformerRun, rank_run
from costmodel.training.zero import ZERO, Exchange
from costmodel.workload.transformer import activation_bytes


def step(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> Breakdown:
    """Price one optimizer step of each design.

    Parameters
    ----------
    model : ModelShape
        The transformer.
    system : System
        The machine; each quantity holds one value, or one per design.
    design : DesignPoints
        Layouts, (points,). Nothing is refused here: whether layers, heads and batches divide is for
        the caller's rules to say.
    precision : Precision
        Bytes of operands, gradients and optimizer states.

    Returns
    -------
    breakdown : Breakdown
        (points,) columns; times of the slowest pipeline stage, memory of the fullest. [s], [B], [J], [$], [W]

    Notes
    -----
    Designs are priced in chunks, so that memory does not grow with their number except for the result.
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
    """Price a chunk of designs, whose columns are all of one length."""
    run = run.of(resolved(run, transformer_chunk))
    ranks = rank_run(run)
    rows, back = distinct_rows(*ranks.columns())
    unique = ranks.take(rows)
    costs, memory = micro_batches(unique).take(back), rank_memory(unique).take(back)
    schedule = schedule_step(run, ranks, costs)
    update = update_step(run, costs, memory)
    fullest = fullest_stage(run, ranks, memory)

    design = run.design
    computing = schedule.forward_time + schedule.backward_time + schedule.recompute_time
    parts = {
        **schedule.columns(),
        "dp_communication_time": update.dp_communication_time,
        "optimizer_time": update.optimizer_time,
        "host_time": host_time(run.system, design.world_size, computing),
        **{f"{name}_memory": values for name, values in fullest.columns().items()},
        "reserved_memory": np.broadcast_to(run.system.chip.reserved_memory, computing.shape),
        "compute_energy": schedule.compute_energy + update.compute_energy,
        "memory_energy": schedule.memory_energy + update.memory_energy,
        "link_energy": schedule.link_energy + update.link_energy,
    }
    return assemble_breakdown(
        parts,
        run.system,
        world_size=design.world_size,
        tokens=design.global_batch_size * run.model.seq_len,
        model_flops=3 * run.model.forward_flops_per_sequence * design.global_batch_size,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Schedule(Columns):
    """All micro-batches of a step: times of the slowest stage, energies of all ranks; (points,) each."""

    forward_time: FloatArray = column("s")
    backward_time: FloatArray = column("s")
    recompute_time: FloatArray = column("s")
    memory_bound_time: FloatArray = column("s")
    launch_bound_time: FloatArray = column("s")
    tp_communication_time: FloatArray = column("s")
    pp_communication_time: FloatArray = column("s")
    bubble_time: FloatArray = column("s")
    compute_energy: FloatArray = column("J")
    memory_energy: FloatArray = column("J")
    link_energy: FloatArray = column("J")


def schedule_step(run: TransformerRun, ranks: RankRun, costs: MicroBatch) -> Schedule:
    """Forward and backward passes of all micro-batches through the pipeline."""
    design = run.design
    repeated = [recomputed(design, layer) for layer in costs.layers]
    layers = [
        layer.forward + layer.backward + again for layer, again in zip(costs.layers, repeated, strict=True)
    ]
    ends = (costs.embedding.forward + costs.embedding.backward, costs.head.forward + costs.head.backward)
    hop = pipeline_hop(run, ranks)
    messages = np.where(design.pp > 1, 2 * design.vpp, 0.0)  # an activation and a gradient per chunk
    hops, steps = messages * hop.time, design.gradient_accumulation_steps

    slowest = slowest_stage(run, layers, ends)
    forward, backward = (pass_cost(slowest, costs, name).times(steps) for name in ("forward", "backward"))
    again = kinds_cost(repeated, [count * steps for count in slowest.layers])
    stage = forward + backward + again
    everywhere = whole_cost(run.model, layers, ends)
    runs = steps * design.dp * design.tp
    return Schedule(
        forward_time=forward.time,
        backward_time=backward.time,
        recompute_time=again.time,
        memory_bound_time=stage.memory_bound_time,
        launch_bound_time=stage.launch_bound_time,
        tp_communication_time=stage.tp_time,
        pp_communication_time=steps * hops,
        bubble_time=bubble_time(
            stage_time(slowest, layers, ends) + hops,
            everywhere.total_time + design.pp * hops,
            pp=design.pp,
            vpp=design.vpp,
            gradient_accumulation_steps=steps,
        ),
        compute_energy=runs * everywhere.compute_energy,
        memory_energy=runs * everywhere.memory_energy,
        link_energy=runs * (everywhere.link_energy + (design.pp - 1) * messages * hop.link_energy),
    )


def kinds_cost(costs: Sequence[KernelCost], counts: Sequence[FloatArray | float]) -> KernelCost:
    """So many layers of each kind."""
    first, *others = (cost.times(count) for cost, count in zip(costs, counts, strict=True))
    return sum(others, start=first)


def pass_cost(stage: Stage, costs: MicroBatch, direction: str) -> KernelCost:
    """A forward or a backward pass of a stage, with the embedding and the head where it has them."""
    layers = kinds_cost([getattr(layer, direction) for layer in costs.layers], stage.layers)
    embedding = getattr(costs.embedding, direction).times(stage.has_embedding)
    head = getattr(costs.head, direction).times(stage.has_head)
    total: KernelCost = layers + embedding + head
    return total


def whole_cost(
    model: ModelShape, layers: Sequence[KernelCost], ends: tuple[KernelCost, KernelCost]
) -> KernelCost:
    """All layers of a model, its embedding and its head."""
    counts = [sum(count for kind, count in model.sequence if kind == layer) for layer in model.kinds]
    return kinds_cost(layers, counts) + ends[0] + ends[1]


def stage_time(stage: Stage, layers: Sequence[KernelCost], ends: tuple[KernelCost, KernelCost]) -> FloatArray:
    """Kernels and exposed collectives of a stage for one micro-batch. [s]"""
    kernels, collectives = (
        layer_sum(stage, [getattr(layer, name) for layer in layers])
        + stage.has_embedding * getattr(ends[0], name)
        + stage.has_head * getattr(ends[1], name)
        for name in ("time", "tp_time")
    )
    total: FloatArray = kernels + collectives
    return total


def recomputed(design: DesignPoints, layer: PartCost) -> KernelCost:
    """What recomputation runs again in the backward pass of one layer."""
    core, forward = (layer.core or KernelCost()).columns(), layer.forward.columns()
    selective, full = design.recompute == RECOMPUTE_SELECTIVE, design.recompute == RECOMPUTE_FULL
    return KernelCost(
        **{name: np.where(full, forward[name], np.where(selective, core[name], 0.0)) for name in core}
    )


def slowest_stage(
    run: TransformerRun, layers: Sequence[KernelCost], ends: tuple[KernelCost, KernelCost]
) -> Stage:
    """The stage whose layers, embedding and head take longest for a micro-batch, forward and backward."""
    stages = slow_stages(run.model, run.design.pp, run.design.vpp)
    own, (embedding, head) = [layer.total_time for layer in layers], [end.total_time for end in ends]
    times = [layer_sum(s, own) + s.has_embedding * embedding + s.has_head * head for s in stages]
    return chosen_stage(stages, largest(times))


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
        link_energy=link_energy(sent.bytes_sent, system) + gathers * link_energy(gathered.bytes_sent, system),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Update(Columns):
    """The end of a step: gradients reduced, weights updated; (points,) each."""

    dp_communication_time: FloatArray = column("s")
    optimizer_time: FloatArray = column("s")
    compute_energy: FloatArray = column("J")
    memory_energy: FloatArray = column("J")
    link_energy: FloatArray = column("J")


def update_step(run: TransformerRun, costs: MicroBatch, rank: RankMemory) -> Update:
    """Reduction of gradients over replicas, clipping and the update, of the rank with most parameters.

    Notes
    -----
    What replicas exchange is a row of `ZERO`. Overlapped, it hides behind the last micro-batch's backward
    pass and the next step's first forward pass, all but the last bucket.
    """
    design = run.design
    stages = full_stages(run.model, design.pp, design.vpp)
    owned = [updated_parameters(run, stage, rank) for stage in stages]
    most = largest(owned)
    stage, parameters = chosen_stage(stages, most), chosen(owned, most)
    backward = [layer.backward.total_time + recomputed(design, layer).total_time for layer in costs.layers]
    windows = {
        "backward": layer_sum(stage, backward),
        "forward": layer_sum(stage, [layer.forward.total_time for layer in costs.layers]),
    }
    reduced, chosen_zero = KernelCost(), design.zero
    for number, zero in enumerate(ZERO):
        happens = np.where(chosen_zero == number, 1.0, 0.0)
        for exchange in zero.exchanges:
            window = windows[exchange.behind]
            own = replica_exchange(run, exchange, parameters, window, stage.num_layers)
            reduced += KernelCost(time=happens * own.time, link_energy=happens * own.link_energy)
    tied = tied_embedding_reduction(run)
    update = optimizer_step(parameters / state_shards(design, "optimizer"), run.system, design.ranks.all)
    ranks = design.world_size
    return Update(
        dp_communication_time=reduced.time + tied.time,
        optimizer_time=update.time,
        compute_energy=ranks * update.compute_energy,
        memory_energy=ranks * update.memory_energy,
        link_energy=ranks * reduced.link_energy + 2 * design.tp * design.dp * tied.link_energy,
    )


def replica_exchange(
    run: TransformerRun, exchange: Exchange, parameters: FloatArray, window: FloatArray, layers: FloatArray
) -> KernelCost:
    """A collective over replicas; overlapped, it hides behind a pass over the layers but for a bucket."""
    design, system, precision = run.design, run.system, run.precision
    sizes = {"gradients": precision.gradient_bytes, "weights": precision.element_bytes}
    group = design.ranks.group(*exchange.axes)
    cost = collective(exchange.collective, parameters * sizes[exchange.of], group, system.network)
    bucket = cost.time / np.maximum(layers, 1.0)
    hidden = np.maximum(cost.time - window, bucket)
    exposed = np.where(design.overlap_grad_reduce > 0, hidden, cost.time)
    energy = link_energy(cost.bytes_sent, system)
    times = design.gradient_accumulation_steps if exchange.every == "micro_batch" else 1.0
    return KernelCost(time=times * exposed, link_energy=times * energy)


def tied_embedding_reduction(run: TransformerRun) -> KernelCost:
    """The word table lives on the first and last stage when tied: its gradients are added up."""
    model, design, system = run.model, run.design, run.system
    if not model.tied_embeddings:
        return KernelCost()
    message = model.vocab_size * model.hidden_size / design.tp * run.precision.gradient_bytes
    cost = collective("all_reduce", message, design.ranks.ends("pp"), system.network)
    return KernelCost(time=cost.time, link_energy=link_energy(cost.bytes_sent, system))
