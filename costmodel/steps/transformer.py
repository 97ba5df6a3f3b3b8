"""One optimizer step of every design: the one module that knows all the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column, distinct_rows
from costmodel.kernels.collectives import collective, send_recv
from costmodel.kernels.work import Work, link_energy
from costmodel.machine.system import System
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.memory import RankMemory, fullest_stage, rank_memory, stage_memories, updated_parameters
from costmodel.steps.microbatch import MicroBatch, depends_on, micro_batches
from costmodel.steps.pipeline import bubble_time, stage_layers
from costmodel.steps.solve_sharding import settled
from costmodel.steps.total import added_up, host_time, in_chunks
from costmodel.training.design import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import MIXED_PRECISION, Precision
from costmodel.training.ranks import Group
from costmodel.workload.optimizer import optimizer_work
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
    return in_chunks(partial(priced_chunk, model, precision=precision), system, design)


def priced_chunk(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision
) -> Breakdown:
    """Price a chunk of designs."""
    design = settled_sharding(model, system, design, precision=precision)
    rows, back = distinct_rows(*depends_on(design), design.recompute, *system.quantities().values())
    few = design.take(rows)
    work = micro_batches(model, few, system.take(rows), precision).take(back)
    rank = rank_memory(model, few, precision).take(back)
    schedule = schedule_step(model, system, design, work, precision)
    update = update_step(model, system, design, work, rank, precision)
    stage, reserved = fullest_stage(*stage_memories(model, design, rank, precision), system)

    computing = schedule.forward_time + schedule.backward_time + schedule.recompute_time
    parts = {
        **schedule.columns(),
        "dp_communication_time": update.dp_communication_time,
        "optimizer_time": update.optimizer_time,
        "host_time": host_time(system, design.world_size, computing),
        "weights_memory": stage.weights,
        "gradients_memory": stage.gradients,
        "optimizer_memory": stage.optimizer,
        "activations_memory": stage.activations,
        "buffers_memory": stage.buffers,
        "reserved_memory": reserved,
        "compute_energy": schedule.compute_energy + update.compute_energy,
        "memory_energy": schedule.memory_energy + update.memory_energy,
        "link_energy": schedule.link_energy + update.link_energy,
    }
    return added_up(
        parts,
        system,
        world_size=design.world_size,
        tokens=design.global_batch_size * model.seq_len,
        model_flops=3 * model.forward_flops_per_sequence * design.global_batch_size,
    )


def settled_sharding(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> DesignPoints:
    """The same designs with every sharding that is to be solved for told kernel by kernel.

    Parameters and rules as for `solve_sharding.settled`; a candidate's price is that of its step.
    """
    return settled(model, system, design, precision, partial(priced_chunk, model, precision=precision))


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


def schedule_step(
    model: ModelShape, system: System, design: DesignPoints, work: MicroBatch, precision: Precision
) -> Schedule:
    """Forward and backward passes of all micro-batches through the pipeline."""
    repeated = repeated_work(design, work)
    layer = work.layer_forward + work.layer_backward + repeated
    embedding = work.embedding_forward + work.embedding_backward
    head = work.head_forward + work.head_backward
    hop = pipeline_hop(model, system, design, precision)
    messages = np.where(design.pp > 1, 2 * design.vpp, 0.0)  # an activation and a gradient per chunk

    hops, steps = messages * hop.time, design.gradient_accumulation_steps

    outer, inner = stage_layers(model.num_layers, design.pp, design.vpp)
    slowest = slowest_stage(outer, inner, layer, embedding, head, design.pp)
    forward = repeats(slowest, work.layer_forward, work.embedding_forward, work.head_forward).times(steps)
    backward = repeats(slowest, work.layer_backward, work.embedding_backward, work.head_backward).times(steps)
    again = repeated.times(slowest[0] * steps)
    stage = forward + backward + again
    everywhere = layer.times(model.num_layers) + embedding + head
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
            repeats(slowest, layer, embedding, head).total_time + hops,
            everywhere.total_time + design.pp * hops,
            pp=design.pp,
            vpp=design.vpp,
            gradient_accumulation_steps=steps,
        ),
        compute_energy=runs * everywhere.compute_energy,
        memory_energy=runs * everywhere.memory_energy,
        link_energy=runs * (everywhere.link_energy + (design.pp - 1) * messages * hop.link_energy),
    )


def repeats(counts: tuple[FloatArray, FloatArray, FloatArray], *works: Work) -> Work:
    """Work of a layer, the embedding and the head, so many times each."""
    layer, embedding, head = (work.times(count) for work, count in zip(works, counts, strict=True))
    return layer + embedding + head


def repeated_work(design: DesignPoints, work: MicroBatch) -> Work:
    """What recomputation runs again in the backward pass of one layer."""
    core, forward = work.layer_core.columns(), work.layer_forward.columns()
    selective, full = design.recompute == RECOMPUTE_SELECTIVE, design.recompute == RECOMPUTE_FULL
    return Work(
        **{name: np.where(full, forward[name], np.where(selective, core[name], 0.0)) for name in core}
    )


def slowest_stage(
    outer: FloatArray, inner: FloatArray, layer: Work, embedding: Work, head: Work, pp: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Layers of the stage that takes longest, and whether it has the embedding and the head. [-]"""
    single = pp == 1
    first_is_slower = embedding.total_time > head.total_time
    outer_time = outer * layer.total_time + np.maximum(embedding.total_time, head.total_time)
    inner_is_slower = ~single & (inner * layer.total_time > outer_time)
    has_embedding = single | (~inner_is_slower & first_is_slower)
    has_head = single | (~inner_is_slower & ~first_is_slower)
    return np.where(inner_is_slower, inner, outer), has_embedding.astype(float), has_head.astype(float)


def pipeline_hop(model: ModelShape, system: System, design: DesignPoints, precision: Precision) -> Work:
    """One message to the next stage: each rank sends its share, which the receivers gather again.

    Receivers whose layers start with a split activation keep their shares and gather nothing.
    """
    whole = activation_bytes(model, design, precision)
    ranks = design.ranks
    sent = send_recv(whole / design.tp, ranks.group("pp"), system.network)
    gathered = collective("all_gather", whole, ranks.group("tp"), system.network)
    gathers = np.where(design.is_split("mlp_residual", "replicated") & (design.pp > 1), 1.0, 0.0)
    return Work(
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


def update_step(
    model: ModelShape,
    system: System,
    design: DesignPoints,
    work: MicroBatch,
    rank: RankMemory,
    precision: Precision,
) -> Update:
    """Reduction of gradients over replicas, clipping and the update, of the rank with most parameters.

    Notes
    -----
    Without a distributed optimizer gradients are all-reduced. With one they are reduce-scattered, each
    replica updates its share, and weights are gathered. Overlapped, the collectives hide behind the
    last micro-batch's backward pass and the next step's first forward pass, all but the last bucket.
    """
    outer, inner = stage_layers(model.num_layers, design.pp, design.vpp)
    layers = np.maximum(outer, inner)
    parameters = updated_parameters(model, design, layers, rank.layer_parameters)
    sharded = design.distributed_optimizer > 0
    gradients, weights = parameters * precision.gradient_bytes, parameters * precision.element_bytes

    backward = work.layer_backward.total_time + repeated_work(design, work).total_time
    forward = work.layer_forward.total_time
    over_replicas = partial(replica_collective, system=system, design=design, layers=layers)
    reduced = (
        over_replicas("all_reduce", gradients, ~sharded, behind=backward)
        + over_replicas("reduce_scatter", gradients, sharded, behind=backward)
        + over_replicas("all_gather", weights, sharded, behind=forward)
    )
    tied = tied_embedding_reduction(model, system, design, precision)
    owned = parameters / np.where(sharded, design.dp, 1.0)
    update = optimizer_step(owned, system, design.world_size)
    ranks = design.world_size
    return Update(
        dp_communication_time=reduced.time + tied.time,
        optimizer_time=update.time,
        compute_energy=ranks * update.compute_energy,
        memory_energy=ranks * update.memory_energy,
        link_energy=ranks * reduced.link_energy + 2 * design.tp * design.dp * tied.link_energy,
    )


def replica_collective(
    name: str,
    message: FloatArray,
    happens: BoolArray,
    *,
    system: System,
    design: DesignPoints,
    layers: FloatArray,
    behind: FloatArray,
) -> Work:
    """A collective over replicas; overlapped, it hides behind a pass of each layer but for a bucket."""
    cost = collective(name, message, design.ranks.group("dp"), system.network)
    bucket = cost.time / np.maximum(layers, 1.0)
    hidden = np.maximum(cost.time - layers * behind, bucket)
    exposed = np.where(design.overlap_grad_reduce > 0, hidden, cost.time)
    share = np.where(happens, 1.0, 0.0)
    return Work(time=share * exposed, link_energy=share * link_energy(cost.bytes_sent, system))


def tied_embedding_reduction(
    model: ModelShape, system: System, design: DesignPoints, precision: Precision
) -> Work:
    """The word table lives on the first and last stage when tied: its gradients are added up."""
    if not model.tied_embeddings:
        return Work()
    message = model.vocab_size * model.hidden_size / design.tp * precision.gradient_bytes
    cost = collective("all_reduce", message, design.ranks.ends("pp"), system.network)
    return Work(time=cost.time, link_energy=link_energy(cost.bytes_sent, system))


def optimizer_step(owned: FloatArray, system: System, world_size: FloatArray) -> Work:
    """Gradient clipping, with the all-reduce of its norm over all ranks, and the update of owned weights."""
    dram, chip = system.dram, system.chip
    update = Work()
    for kernel in ("gradclip", "apply_grad"):
        flops, moved = optimizer_work(kernel, owned, element_bytes=4.0)
        busy = np.maximum(flops / chip.vector_flop_rate, moved / (dram.bandwidth * dram.efficiency))
        update += Work(
            time=busy + chip.kernel_launch,
            compute_energy=flops * chip.energy_per_flop,
            memory_energy=moved * dram.energy,
        )
    everyone = Group.of_neighbours(world_size)
    norm = collective("all_reduce", 4.0 * np.ones_like(owned), everyone, system.network)
    return update + Work(time=norm.time)
