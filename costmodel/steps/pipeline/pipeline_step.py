"""Forward and backward passes of all micro-batches through the pipeline.

Each stage runs a forward and a backward pass for every micro-batch, and waits for its neighbours in between.
`schedule_step` adds up the passes of the slowest stage by their cause, such as kernels, exposed collectives and
messages. Its wait for other stages is the bubble: the time of the whole pipeline less the work of the busiest stage.
For example, 4 equal stages and 8 micro-batches under 1F1B take 11 passes each way; each stage runs 8, and waits for 3.

The time of the whole pipeline has a closed form for most schedules of equal stages; else every pass is simulated.
Where not all layers of a stage are recomputed as a whole, or hosts hold activations between the passes, the costs of
a stage depend on its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, UniqueRows, chosen, largest
from costmodel.kernels.collectives import collective, exposed_time, send_recv
from costmodel.kernels.kernel_cost import TIMES, WAITING, Item, Items, KernelCost, added, traffic_energy, weighted_sum
from costmodel.machine import System
from costmodel.steps.breakdown import schedule_items
from costmodel.steps.micro_batch.micro_batch import MicroBatch, launch_wait
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.pipeline.schedules import of_schedule, passes_run_beside
from costmodel.steps.pipeline.simulation import Sizes, TimedPasses, one_forward_one_backward_time
from costmodel.steps.pipeline.stages import (
    PLACING,
    Stage,
    chosen_stage,
    counts_layers,
    leading_layers,
    pipeline_stages,
    rank_layers,
    recomputed_shares,
)
from costmodel.steps.pipeline.timed_pipelines import PipelineRanks, design_pipelines, pipeline_ranks
from costmodel.training.design import RECOMPUTE_BLOCK, DesignPoints
from costmodel.training.run import RankRun, TransformerRun


def recomputed_shares_of_model(run: TransformerRun, *, least: bool = False) -> list[FloatArray] | None:
    """Recomputed shares of the layers of each kind, of all stages or the `least` of a stage; None where all are. [-]"""
    design, leading = run.design, leading_layers(run.design)
    if not np.isfinite(leading).any():
        return None
    unique = UniqueRows.of(np.broadcast_to(leading, design.pp.shape), *(getattr(design, name) for name in PLACING))
    placed = unique.take(design)
    layers = [rank_layers(run.model, placed, first) for first in (None, leading_layers(placed))]
    shares = recomputed_shares(*(layers if least else [counts.sum(axis=1, keepdims=True) for counts in layers]))
    return None if shares is None else [*unique.each(shares.min(axis=1)).T]


def with_shares(
    whole: Sequence[KernelCost], costs: MicroBatch, shares: Sequence[FloatArray] | None
) -> list[KernelCost]:
    """All passes of each part; a share of its layers is recomputed. [s], [J]

    `whole` are all passes, recomputation included (`costs.whole`); `shares` are those of each kind of layer, (points,)
    each, or None where all are recomputed. [-]
    """
    if shares is None:
        return [*whole]
    both = zip(whole, costs.again, shares, strict=False)
    return [*(cost + again * (share - 1) for cost, again, share in both), *whole[len(shares) :]]


def stage_parts(run: TransformerRun, stage: Stage, parts: Sequence[PartMemory]) -> Sequence[PartMemory]:
    """Memory of layers on a stage, the mean of those that are recomputed and those that are not, (points,). [-], [B]

    `parts` are those of the model, every layer recomputed for itself, (points,). [-], [B]

    Of n layers that are one checkpoint the input of the first is kept, and all n are there again at once.
    A layer in front of others that are not recomputed takes their place: their activations are free by then.
    """
    design, layers = run.design, parts[: len(stage.layers)]
    if (design.recomputed_modules > 0).any():
        layers = [_without_absent(design, *pair) for pair in zip(layers, stage.layers, strict=True)]
    if counts_layers(design).any():
        layers = _with_counted(run, stage, layers)
    return [*layers, *parts[len(layers) :]]


def _without_absent(design: DesignPoints, layer: PartMemory, count: FloatArray) -> PartMemory:
    """A kind of layer without recomputed modules, on a stage that has no layer of the kind."""
    absent = (design.recomputed_modules > 0) & (count == 0)
    return replace(layer, working=layer.working - np.where(absent, layer.everything - layer.kept, 0.0))


def _with_counted(run: TransformerRun, stage: Stage, layers: Sequence[PartMemory]) -> list[PartMemory]:
    """Layers of a stage where some are recomputed, or several at once."""
    design, leading = run.design, leading_layers(run.design)
    several = counts_layers(design) & (design.recompute_method != RECOMPUTE_BLOCK)
    together = np.where(several, design.recompute_layers, 1.0)  # layers that are one checkpoint
    shares = stage.recomputed_shares or [np.ones_like(together) for _ in layers]
    per_chunk, more = np.divmod(stage.num_layers, design.vpp)
    checkpoints = np.ceil(per_chunk / together) * (design.vpp - more) + np.ceil((per_chunk + 1) / together) * more
    inputs = np.divide(checkpoints, stage.num_layers, out=np.ones(checkpoints.shape), where=stage.num_layers > 0)
    alive = np.maximum(np.minimum(together, per_chunk + (more > 0)), 1.0)
    behind = np.where(np.isfinite(leading), np.maximum(per_chunk - leading, 0.0), 0.0)
    least = np.minimum.reduce(np.broadcast_arrays(*(layer.everything for layer in layers)))
    memories = []
    for layer, share in zip(layers, shares, strict=True):
        everything = layer.everything
        freed = np.where(behind > 0, np.minimum(behind * least, everything), 0.0)
        kept = layer.kept * inputs * share + everything * (1 - share)
        memories.append(replace(layer, kept=kept, working=layer.working + everything * (alive - 1) - freed))
    return memories


def host_transfer_time(moved: FloatArray, system: System) -> FloatArray:
    """Time of bytes between a chip and its share of the host's memory, in one direction. [s]"""
    return moved / np.minimum(system.host.link_bandwidth, system.host.memory_bandwidth)


def offloaded_activations(run: TransformerRun, costs: MicroBatch, parts: Sequence[PartMemory]) -> MicroBatch:
    """Passes that wait where a layer's activations take longer to a host or back than the layer, (points,). [s], [J]

    `parts` hold the bytes that layers keep, (points,). [-], [B]

    Each direction of the link overlaps with the passes of one direction: the activations of a layer leave while the
    next layer runs forward, and come back while the layer behind runs backward. Without stages, those of modules also
    overlap with layers of kinds that have fewer. Where a forward pass overlaps with a backward pass (`overlap_ep`),
    both directions have the time of both. Where some layers are recomputed, transfers are those of a mean layer of the
    stage that recomputes the smallest share. Layers that keep theirs (`activation_offload_fraction`) do not wait.
    Shards of weights come up for both passes, and gradients go down, where hosts hold them.
    """
    design, crossing = run.design, run.design.offload_optimizer * run.system.software.offloaded_shards
    if not (design.offloads_activations | (crossing > 0)).any():
        return costs
    offloading, beside = design.activation_offload_fraction, share_beside(design)
    paired = overlapped_experts(costs, np.where(beside > 0, 1.0, 0.0), run.system)
    shares = recomputed_shares_of_model(run, least=True) or [np.ones(())] * len(costs.again)
    again = [share * cost.total_time for share, cost in zip(shares, costs.again, strict=True)]
    moving, passes = list[FloatArray](), dict[str, tuple[KernelCost, ...]]()
    for share, part in zip(shares, parts, strict=False):
        kept = share * part.kept + (1 - share) * part.everything
        owned = (
            part.parameters / design.sharing.shards.size + part.expert_parameters / design.expert_sharing.shards.size
        )
        moved = design.offload_activations * kept + part.moved + crossing * owned
        moving.append(host_transfer_time(moved, run.system))
    pairs = [ahead.total_time + behind.total_time + more
             for ahead, behind, more in zip(paired.forward, paired.backward, again, strict=False)]  # fmt: skip
    for direction, later in (("forward", [np.zeros(())] * len(again)), ("backward", again)):
        alone = [*getattr(costs, direction)]
        times = [cost.total_time + more for cost, more in zip(alone, later, strict=False)]
        waits = transfer_waits(run, moving, times)
        for number, wait in enumerate(waits):
            behind = beside * np.maximum(moving[number] - pairs[number], 0.0) / 2
            alone[number] = replace(alone[number], offload_time=offloading * ((1 - beside) * wait + behind))
        passes[direction] = tuple(alone)
    return replace(costs, **passes)


def transfer_waits(run: TransformerRun, moving: Sequence[FloatArray], times: Sequence[FloatArray]) -> list[FloatArray]:
    """Time that a pass over a layer of each kind waits for transfers of its activations, (points,) each. [s]

    `moving` are transfers, `times` passes of each kind, (points,) each. [s] Without stages, time left by other layers
    hides transfers of modules (Megatron-LM, fine_grained_activation_offload.py), or exchanges of ZeRO from 2 on.
    """
    counts, beyond = [*run.model.kinds.values()], [one - other for one, other in zip(moving, times, strict=True)]
    waits = [np.maximum(time, 0.0) for time in beyond]
    alone = (run.design.pp == 1) & ~run.design.shards_layers
    if len(waits) == 1 or not (modules := (run.design.offloaded_modules > 0) & alone).any():
        return waits
    whole, left = weighted_sum(waits, counts), np.maximum(weighted_sum(beyond, counts), 0.0)
    part = np.where(modules & (whole > 0), left / np.where(whole > 0, whole, 1.0), 1.0)
    return [wait * part for wait in waits]


def share_beside(design: DesignPoints) -> FloatArray:
    """Share of a pipeline's passes that overlap with a pass of another micro-batch (`overlap_ep`), (points,). [-]

    Of m v passes forward, the last rank runs (v - 1) n + 1 before its first backward pass, and the same number of
    backward passes behind its last forward one; all between run in pairs (Megatron-LM, combined_1f1b.py and
    ``get_pp_rank_microbatches``). The p - 1 passes for which it waits until the pipeline has filled and drained have no
    partner. The share is that of the longest chain, of all m v + p - 1. It is 0 without `overlap_ep`, and where
    schedules pair passes themselves or run all forward passes first.
    """
    beside = passes_run_beside(design)
    if not beside.any():
        return np.zeros(())
    p, v, m = design.pp, design.vpp, _whole_groups(design)
    group = np.where(design.group_size > 0, design.group_size, p)
    paired = np.maximum(m * v - (v - 1) * group - 1, 0.0)
    return np.where(beside, paired / (m * v + p - 1), 0.0)


#: Columns of a design that its timetable follows from.
SIZES: Final = ("schedule", "pp", "vpp", "gradient_accumulation_steps", "group_size")


@dataclass(frozen=True, slots=True, eq=False)
class StagePasses:
    """Passes of a micro-batch through one chunk of each stage; (stages, points) arrays. [s]"""

    forward: FloatArray
    backward: FloatArray  #: gradient of the input, with the recomputation that it needs
    weight: FloatArray
    pair: FloatArray = field(default_factory=lambda: np.zeros(1))  #: overlapped passes; one 0 where none are

    def on_axes(self, shape: tuple[int, ...]) -> StagePasses:
        """The passes with the axes of all of them, and of a shape, behind that of stages."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        shape = np.broadcast_shapes(shape, *(times.shape[1:] for times in arrays.values()))
        for name, times in arrays.items():
            axes = [1] * (len(shape) + 1 - times.ndim)
            aligned = times.reshape(len(times), *axes, *times.shape[1:])
            arrays[name] = np.broadcast_to(aligned, (len(self.forward), *shape))
        return StagePasses(**arrays)

    @property
    def whole(self) -> FloatArray:
        """A forward and a whole backward pass, one after the other. [s]"""
        return self.forward + self.backward + self.weight


def pipeline_time(
    design: DesignPoints, times: StagePasses, message: FloatArray, stages: Sequence[Stage]
) -> tuple[FloatArray, FloatArray]:
    """Time from the first pass of each pipeline to its last, and overlapped pairs of passes on its stages.

    Raises `DseError` if a schedule other than 1F1B in groups of pp cannot run a design.

    Parameters
    ----------
    design : DesignPoints
        Schedules and sizes, (points,).
    times : StagePasses
        Passes through one chunk of each stage; (stages, ..., points), with all axes of `message`. [s]
    message : (..., points) array
        Time from the end of a pass to its successor's start on another rank. [s]
    stages : sequence of Stage
        First stages of runs of equal stages: `PipelineStages.runs`.

    Returns
    -------
    time : (..., points) array
        [s]
    pairs : (stages, ..., points) array
        Overlapped pairs of a forward and a backward pass; 0 where no schedule pairs them. [-]

    Notes
    -----
    Interleaved 1F1B needs a multiple of pp micro-batches, and frameworks refuse others. Here missing
    micro-batches leave their time empty.
    """
    p, v, whole = design.pp, design.vpp, _whole_groups(design)
    design = replace(design, gradient_accumulation_steps=whole)
    shape = times.forward.shape[1:]
    message = np.broadcast_to(message, shape)
    simulated = np.broadcast_to(_is_simulated(design, times, message), shape)
    pairs: Any = np.zeros(())
    if simulated.all():
        time = np.empty(shape)
    else:
        rank = np.stack([np.broadcast_to(stage.rank, shape[-1:]) for stage in stages])
        columns = (np.broadcast_to(sizes, shape[-1:]) for sizes in (p, v, v * whole))
        time = one_forward_one_backward_time(
            times.forward, times.backward + times.weight, message=message, sizes=Sizes(rank, *columns)
        )
    if simulated.any():
        places = np.nonzero(simulated)
        passes, _ = passes_on_ranks(design, times, message, stages, places)
        sizes: dict[str, FloatArray] = {name: getattr(design, name) for name in SIZES}
        rows = {name: np.broadcast_to(column, shape[-1:])[places[-1]] for name, column in sizes.items()}
        timed = simulated_pipelines(DesignPoints().with_columns(rows), passes)
        time[places] = timed.end.max(axis=1)
        if timed.pairs.any():
            pairs = np.zeros(times.forward.shape)
            for number, stage in enumerate(stages):
                rank = stage.rank[places[-1]].astype(np.intp)
                pairs[(number, *places)] = timed.pairs[np.arange(rank.size), rank]
    return time, pairs


def _whole_groups(design: DesignPoints) -> FloatArray:
    """Micro-batches for which interleaved 1F1B in groups of pp has time, (points,). [-]"""
    p, m = design.pp, design.gradient_accumulation_steps
    return np.where((design.vpp > 1) & _in_usual_groups(design), np.ceil(m / p) * p, m)


def _in_usual_groups(design: DesignPoints) -> BoolArray:
    """Where 1F1B, interleaved, takes micro-batches in groups of pp; (points,)."""
    usual = (design.vpp == 1) | (design.group_size == 0) | (design.group_size == design.pp)
    return np.asarray(design.is_1f1b & usual)


def _is_simulated(design: DesignPoints, times: StagePasses, message: FloatArray) -> BoolArray:
    """Where times follow from no closed form: other schedules and groups, and messages that set the pace."""
    in_turn = _in_usual_groups(design)
    if not (message > 0).any():
        return np.asarray(~in_turn)
    shortest = np.minimum(times.forward, times.backward + times.weight).min(axis=0)
    short = (design.pp == 1) | (message == 0) | ((design.vpp > 1) & (message <= shortest))
    return np.asarray(~(in_turn & short))


def simulated_pipelines(design: DesignPoints, passes: TimedPasses) -> PipelineRanks:
    """Timetables of pipelines, equal ones timed once; (points, ranks) arrays."""
    sizes = [getattr(design, name) for name in SIZES]
    tables = {field.name: getattr(passes, field.name) for field in fields(passes)}
    unique = UniqueRows.of(*sizes, *(column for table in tables.values() for column in np.atleast_2d(table.T)))
    rows = slice(None) if unique.places is None else unique.rows
    unique_passes = TimedPasses(**{name: table[rows] for name, table in tables.items()})
    return unique.spread(pipeline_ranks(design_pipelines(unique.take(design), unique_passes)))


def passes_on_ranks(
    design: DesignPoints, times: StagePasses, message: FloatArray, stages: Sequence[Stage], places: tuple[IntArray, ...]
) -> tuple[TimedPasses, IntArray]:
    """Passes on all ranks of some pipelines [s], and the stage that each rank is like [-]; (pipelines, ranks).

    `places` are the indices of the pipelines along (..., points); other arguments are those of `pipeline_time`. [-]
    """
    rows = places[-1]
    pp = np.broadcast_to(design.pp, message.shape[-1:])[rows, np.newaxis]
    firsts = np.stack([np.broadcast_to(stage.rank, message.shape[-1:])[rows] for stage in stages], axis=1)
    ranks = np.arange(int(pp.max()))
    like = (firsts[:, np.newaxis] <= ranks[:, np.newaxis]).sum(axis=2) - 1
    tables = {}
    for table in fields(times):
        of_stages = getattr(times, table.name)[(slice(None), *places)].T
        tables[table.name] = np.where(ranks < pp, np.take_along_axis(of_stages, like, axis=1), 0.0)
    return TimedPasses(message=message[places], **tables), like


#: Exchanges of experts that run behind the passes of another micro-batch.
BEHIND: Final = Item("hidden", "ep_communication_time", name="exchange behind another micro-batch")


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledPasses:
    """Passes of a step in the order of their schedule, and the stages that they run on."""

    costs: MicroBatch  #: with the exchanges that passes of several micro-batches hide
    stages: Sequence[Stage]  #: first ones of runs of equal stages
    times: StagePasses
    slowest: IntArray  #: place of the busiest among the stages; (points,) [-]
    idle: FloatArray  #: time that the busiest stage waits for others; (points,) [s]

    @property
    def stage(self) -> Stage:
        """The busiest stage of each pipeline."""
        return chosen_stage(self.stages, self.slowest)


def schedule_step(
    run: TransformerRun, ranks: RankRun, costs: MicroBatch, stages: Sequence[Stage]
) -> tuple[dict[str, FloatArray], Items, ScheduledPasses]:
    """Columns of a `Breakdown` for the passes of all micro-batches, their items, and the passes behind them.

    `costs` are those of one micro-batch [s], [J]; `stages` are `PipelineStages.runs`.
    Times are those of the slowest stage, energies those of all ranks, (points,). [s], [J]
    """
    design, hop = run.design, pipeline_hop(run, ranks)
    passes = scheduled_passes(run, costs, stages, hop)
    steps, with_overlaps, stage = design.gradient_accumulation_steps, passes.costs, passes.stage
    sent = sum(messages(design, stage))
    of_stage = [[cost.only((*TIMES, *WAITING)) for cost in of_parts] for of_parts in with_overlaps.passes[:3]]
    forward, backward = (weighted_sum(costs_of_parts, stage.counts) * steps for costs_of_parts in of_stage[:2])
    again = weighted_sum(of_stage[2], [count * steps for count in stage.recomputed_layers])
    work = forward + backward + again
    runs, everywhere = steps * design.dp * design.cp * design.tp, all_stages(run, with_overlaps, with_overlaps.whole)
    hops = np.where(design.pp > 1, 2 * (design.pp * design.vpp - 1), 0.0)
    columns = {
        "forward_time": forward.time,
        "backward_time": backward.time,
        "recompute_time": again.time,
        "memory_bound_time": work.memory_bound_time,
        "launch_bound_time": work.launch_bound_time,
        **{f"{kind}_communication_time": getattr(work, f"{kind}_time") for kind in ("tp", "cp", "ep")},
        "offload_time": work.offload_time,
        "pp_communication_time": steps * (sent * sending_time(design, hop)),
        "bubble_time": passes.idle,
        "compute_energy": runs * everywhere.compute_energy,
        "memory_energy": runs * everywhere.memory_energy,
        "link_energy": runs * (everywhere.link_energy + hops * hop.link_energy),
    }
    items: dict[Item, FloatArray] = {}
    if run.itemized:
        counts = [stage.counts] * 2 + [stage.recomputed_layers]
        items = {**schedule_items(run, of_stage, counts), Item("rank", name="slowest stage"): stage.rank}
        hidden = steps * sent * (hop.time - sending_time(design, hop))
        items[Item("hidden", "pp_communication_time", name="messages")] = hidden
    return columns, items, passes


def sending_time(design: DesignPoints, hop: KernelCost) -> FloatArray:
    """Time for which a message keeps its ranks from computing. [s]"""
    return np.where(design.overlap_p2p > 0, 0.0, hop.time)


def message_delay(design: DesignPoints, hop: KernelCost) -> FloatArray:
    """Time of a message that delays the stage that waits for it, and keeps no rank from computing. [s]"""
    overlaps = (design.overlap_p2p > 0) & (design.pp > 1)
    return np.where(overlaps, hop.time, 0.0) if overlaps.any() else np.zeros(())


def messages(design: DesignPoints, stage: Stage) -> tuple[FloatArray, FloatArray]:
    """Activations and gradients that a stage sends to its neighbours for each micro-batch. [-]

    Its last chunk, if it has the head, sends no activation; its first, if it has the embedding, no gradient.
    Where a V turns, both chunks are on one rank.
    """
    turns = of_schedule(design, "turns") & (stage.rank == design.pp - 1)
    chunks = design.vpp - turns
    several = design.pp > 1
    activations = np.where(several, chunks - stage.has_head, 0.0)
    return activations, np.where(several, chunks - stage.has_embedding, 0.0)


def scheduled_passes(
    run: TransformerRun, costs: MicroBatch, stages: Sequence[Stage], hop: KernelCost
) -> ScheduledPasses:
    """Times of the passes on all stages, and the time that the slowest stage waits for others.

    Exchanges of experts hide behind the pass that the schedule overlaps theirs with; or, where passes follow
    each other in turn, behind that of another micro-batch (`share_beside`). If forward passes come first, none hides.
    """
    design, steps, in_turn = run.design, run.design.gradient_accumulation_steps, share_beside(run.design)
    alone = together = overlapped_experts(costs, in_turn, run.system)
    paired = (design.overlap_ep > 0) & of_schedule(design, "pairs")
    if paired.any():
        together = overlapped_experts(costs, np.where(paired, 1.0, in_turn), run.system)
    times, delay = stage_passes(run, alone, together, stages, hop), message_delay(design, hop)
    times = times.on_axes(delay.shape)
    time, pairs = pipeline_time(design, times, delay, stages)
    number = steps * design.vpp
    busy = number * times.whole + (pairs * (times.pair - times.whole) if pairs.ndim else 0.0)
    slowest, busiest = largest([*busy]), busy.max(axis=0)
    if paired.any():
        share = np.where(paired, chosen([*np.broadcast_to(pairs, busy.shape)], slowest) / number, in_turn)
        alone = overlapped_experts(costs, share, run.system)
    idle = np.where(design.pp > 1, np.maximum(time - busiest, 0.0), 0.0)
    return ScheduledPasses(alone, stages, times, slowest, idle)


def stage_passes(
    run: TransformerRun, alone: MicroBatch, together: MicroBatch, stages: Sequence[Stage], hop: KernelCost
) -> StagePasses:
    """Passes of a micro-batch through one chunk of each stage; the chunks of a stage count as equal. [s]

    `alone` are passes that follow each other, `together` passes that overlap where schedules pair them; `hop` is a
    message to the next stage, which keeps a rank from computing unless it overlaps. [s]
    """
    sends, whole = sending_time(run.design, hop), total_times(alone.whole)
    forwards, weights = total_times(alone.forward), total_times(alone.weight)
    of_pairs, paired = [] if together is alone else total_times(together.whole), of_schedule(run.design, "pairs").any()
    rows: list[list[FloatArray]] = []
    for stage in stages:
        activations, gradients = (number * sends for number in messages(run.design, stage))
        forward, weight = weighted_sum(forwards, stage.counts), weighted_sum(weights, stage.counts)
        backward = (in_turn := stage_time(stage, whole, alone)) - forward - weight
        rows.append([forward + activations, backward + gradients, weight])
        if paired:
            pair = stage_time(stage, of_pairs, together) if of_pairs else in_turn
            rows[-1].append(pair + activations + gradients)
    columns = [np.stack(np.broadcast_arrays(*of_pass)) for of_pass in zip(*rows, strict=True)]
    for column in columns:
        column /= run.design.vpp
    return StagePasses(*columns)


def total_times(costs: Sequence[KernelCost]) -> list[FloatArray]:
    """Times of passes over each part: kernels, exposed collectives, and waiting for hosts. [s]"""
    return [cost.total_time for cost in costs]


def overlapped_experts(costs: MicroBatch, share: FloatArray, system: System) -> MicroBatch:
    """Passes with a share that runs exchanges of experts behind the kernels of another micro-batch.

    The forward pass of one micro-batch overlaps with the backward pass of the one before: each hides the exchanges of
    the other, up to the time of its kernels. The host launches the kernels of both meanwhile.
    """
    if not share.any():
        return costs
    pairs = [_beside(*both, share, system) for both in zip(costs.forward, costs.backward, strict=True)]
    forward, backward = zip(*pairs, strict=True)
    return replace(costs, forward=forward, backward=backward)


def _beside(
    forward: KernelCost, backward: KernelCost, share: FloatArray, system: System
) -> tuple[KernelCost, KernelCost]:
    """Two passes that overlap in a share of the pipeline's passes; (points,) columns."""
    both = (forward, backward)
    if not any(cost.ep_time.ndim for cost in both):
        return both
    rest = [cost.total_time - cost.ep_time - cost.launch_bound_time - cost.offload_time for cost in both]
    hidden = [np.minimum(cost.ep_time, other) for cost, other in zip(both, rest[::-1], strict=True)]
    exposed = [exposed_time(cost.ep_time, behind, system.chip, "ep") for cost, behind in zip(both, hidden, strict=True)]
    launches = forward.launches + backward.launches
    busy = sum([*rest[1:], *exposed], start=rest[0])
    waiting = launch_wait(launches, busy, system) / np.maximum(launches, 1.0)
    passes = []
    for cost, behind, lent, left in zip(both, hidden, hidden[::-1], exposed, strict=True):
        more = share * (waiting * cost.launches - cost.launch_bound_time)
        passes.append(
            replace(
                cost,
                time=cost.time + more,
                launch_bound_time=cost.launch_bound_time + more,
                ep_time=cost.ep_time + share * (left - cost.ep_time),
                lent_time=share * lent,
                items=added(cost.items, {BEHIND: share * behind}) if cost.items else {},
            )
        )
    return passes[0], passes[1]


def slowest_stage(run: TransformerRun, costs: MicroBatch, whole: Sequence[KernelCost]) -> Stage:
    """The stage whose layers, embedding and head take longest for a micro-batch, forward and backward."""
    stages, times = pipeline_stages(run.model, run.design).runs, total_times(whole)
    return chosen_stage(stages, largest([stage_time(stage, times, costs) for stage in stages]))


def stage_time(stage: Stage, times: Sequence[FloatArray], costs: MicroBatch) -> FloatArray:
    """Time of all passes of a micro-batch on a stage; `times` are those of each part, all layers recomputed. [s]"""
    if not stage.recomputed_shares:
        return weighted_sum(times, stage.counts)
    return weighted_sum(total_times(with_shares(costs.whole, costs, stage.recomputed_shares)), stage.counts)


def all_stages(run: TransformerRun, costs: MicroBatch, whole: Sequence[KernelCost]) -> KernelCost:
    """One micro-batch on all stages, one after the other: times and energies."""
    passes = with_shares(whole, costs, recomputed_shares_of_model(run))
    return weighted_sum(passes, [*run.model.kinds.values(), 1.0, 1.0, 1.0])


def pipeline_hop(run: TransformerRun, ranks: RankRun) -> KernelCost:
    """One message to the next stage: each rank sends its share, which the receivers gather again.

    Receivers whose layers start with a split activation keep their shares and gather nothing.
    """
    whole, design, shape, system = ranks.activation_bytes(), run.design, ranks.design, run.system
    sent = send_recv(hop_bytes(run, ranks), design.ranks.group("pp"), system.network)
    gathered = collective("all_gather", whole, design.ranks.group("tp"), system.network)
    gathers = np.where(shape.is_split(shape.stream, "replicated") & (design.pp > 1), 1.0, 0.0)
    return KernelCost(
        time=sent.time + gathers * gathered.time,
        link_energy=traffic_energy(sent.bytes_sent, system.network)
        + gathers * traffic_energy(gathered.bytes_sent, system.network),
    )


def hop_bytes(run: TransformerRun, ranks: RankRun) -> FloatArray:
    """Bytes that a rank sends to the next stage: its share of an activation, or of its gradient. [B]"""
    return ranks.activation_bytes() / run.design.tp
