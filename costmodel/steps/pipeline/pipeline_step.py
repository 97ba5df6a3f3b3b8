"""Forward and backward passes of all micro-batches through the pipeline.

Each stage runs a forward and a backward pass for every micro-batch, and waits for its neighbours in between.
`schedule_step` adds up the passes of the slowest stage by their cause, such as kernels, exposed collectives and
messages. Its wait for other stages is the bubble: the time of the whole pipeline less the work of the busiest stage.
For example, 4 equal stages and 8 micro-batches under 1F1B take 11 passes each way, of which each stage runs 8: 3 are
bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.columns import FloatArray, IntArray, chosen, largest
from costmodel.kernels.collectives import collective, exposed_time, send_recv
from costmodel.kernels.items import Item, Items, added
from costmodel.kernels.kernel_cost import TIMES, WAITING, KernelCost, traffic_energy, weighted_sum
from costmodel.machine.system import System
from costmodel.steps.micro_batch.kernel_sums import launch_wait
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.pipeline.pipeline_time import StagePasses, pipeline_time
from costmodel.steps.pipeline.recomputed_layers import recomputed_shares_of_model, with_shares
from costmodel.steps.pipeline.schedules import of_schedule
from costmodel.steps.pipeline.stages import Stage, chosen_stage, pipeline_stages
from costmodel.steps.result.items import schedule_items
from costmodel.training.design import DesignPoints
from costmodel.training.run import RankRun, TransformerRun

#: Exchanges of experts that run behind the passes of another micro-batch.
BEHIND: Final = Item("hidden", "ep_communication_time", name="exchange behind another micro-batch")


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledPasses:
    """Passes of a step in the order of their schedule, and the stages that they run on."""

    costs: MicroBatch  #: with the exchanges that passes of several micro-batches hide
    stages: Sequence[Stage]  #: corners of the pipeline
    times: StagePasses
    slowest: IntArray  #: place of the busiest among the stages; (points,) [-]
    busiest: FloatArray  #: its work in a step; (points,) [s]
    busy: FloatArray  #: work of each stage in a step; (stages, points) [s]
    idle: FloatArray  #: time that the busiest stage waits for others; (points,) [s]

    @property
    def stage(self) -> Stage:
        """The busiest stage of each pipeline."""
        return chosen_stage(self.stages, self.slowest)

    def slack(self, stage: Stage) -> FloatArray:
        """Work that the busiest stage has in a step beyond another stage. [s]"""
        before = [other.rank < stage.rank for other in self.stages]
        corner: IntArray = np.sum(before, axis=0, dtype=np.intp)  # its corner, the first at or behind its rank
        slack: FloatArray = self.busiest - chosen([*self.busy], corner)
        return slack


def schedule_step(
    run: TransformerRun, ranks: RankRun, costs: MicroBatch, stages: Sequence[Stage]
) -> tuple[dict[str, FloatArray], Items, ScheduledPasses]:
    """Columns of a `Breakdown` for the passes of all micro-batches, their items, and the passes behind them.

    `costs` are those of one micro-batch [s], [J]; `stages` are the corners of each pipeline: `PipelineStages.corners`.
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
        "tp_communication_time": work.tp_time,
        "cp_communication_time": work.cp_time,
        "ep_communication_time": work.ep_time,
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
    time: FloatArray = np.where(design.overlap_p2p > 0, 0.0, hop.time)
    return time


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
    each other in turn, behind the pass of another micro-batch, in all passes but the first forward and the
    last backward one. Where all forward passes come first none hides.
    """
    design, steps = run.design, run.design.gradient_accumulation_steps
    overlaps = (design.overlap_ep > 0) & ~of_schedule(design, "chunk_by_chunk")
    paired = of_schedule(design, "pairs")
    in_turn = np.where(overlaps & ~paired, 1 - 1 / steps, 0.0)
    alone = together = overlapped_experts(costs, in_turn, run.system)
    if (overlaps & paired).any():
        together = overlapped_experts(costs, np.where(overlaps & paired, 1.0, in_turn), run.system)
    times, delay = stage_passes(run, alone, together, stages, hop), message_delay(design, hop)
    times = times.on_axes(delay.shape)
    time, pairs = pipeline_time(design, times, delay, stages)
    number = steps * design.vpp
    busy = number * times.whole + (pairs * (times.pair - times.whole) if pairs.ndim else 0.0)
    slowest, busiest = largest([*busy]), busy.max(axis=0)
    if (overlaps & paired).any():
        share = np.where(paired, chosen([*np.broadcast_to(pairs, busy.shape)], slowest) / number, 1.0)
        alone = overlapped_experts(costs, np.where(overlaps & paired, share, in_turn), run.system)
    idle = np.where(design.pp > 1, np.maximum(time - busiest, 0.0), 0.0)
    return ScheduledPasses(alone, stages, times, slowest, busiest, busy, idle)


def stage_passes(
    run: TransformerRun, alone: MicroBatch, together: MicroBatch, stages: Sequence[Stage], hop: KernelCost
) -> StagePasses:
    """Passes of a micro-batch through one chunk of each stage; the chunks of a stage count as equal. [s]

    `alone` are passes that follow each other, `together` passes that overlap where schedules pair them; `hop` is a
    message to the next stage, which keeps a rank from computing unless it overlaps. [s]
    """
    sends, whole = sending_time(run.design, hop), total_times(alone.whole)
    forwards, weights = total_times(alone.forward), total_times(alone.weight)
    of_pairs = [] if together is alone else total_times(together.whole)
    rows: list[list[FloatArray]] = []
    for stage in stages:
        activations, gradients = (number * sends for number in messages(run.design, stage))
        forward, weight = weighted_sum(forwards, stage.counts), weighted_sum(weights, stage.counts)
        backward = stage_time(stage, whole, alone) - forward - weight
        pair = stage_time(stage, of_pairs, together) if of_pairs else forward + backward + weight
        rows.append([forward + activations, backward + gradients, weight, pair + activations + gradients])
    columns = [np.stack(np.broadcast_arrays(*of_pass)) for of_pass in zip(*rows, strict=True)]
    for column in columns:
        column /= run.design.vpp
    return StagePasses(**dict(zip(("forward", "backward", "weight", "pair"), columns, strict=True)))


def total_times(costs: Sequence[KernelCost]) -> list[FloatArray]:
    """Times of passes over each part: kernels, exposed collectives, and waiting for hosts. [s]"""
    return [cost.total_time for cost in costs]


def overlapped_experts(costs: MicroBatch, share: FloatArray, system: System) -> MicroBatch:
    """Passes of which a share runs with exchanges of experts behind those of another micro-batch.

    The forward pass of one micro-batch runs beside the backward pass of the one before: each hides the
    exchanges of the other, as far as its own kernels take time. The host launches the kernels of both meanwhile.
    """
    if not share.any():
        return costs
    pairs = [
        _beside(forward, backward, share, system)
        for forward, backward in zip(costs.forward, costs.backward, strict=True)
    ]
    return replace(
        costs, forward=tuple(forward for forward, _ in pairs), backward=tuple(backward for _, backward in pairs)
    )


def _beside(
    forward: KernelCost, backward: KernelCost, share: FloatArray, system: System
) -> tuple[KernelCost, KernelCost]:
    """Two passes, a share of them beside each other; (points,) columns."""
    both = (forward, backward)
    if not any(cost.ep_time.ndim for cost in both):
        return both
    rest = [cost.total_time - cost.ep_time - cost.launch_bound_time for cost in both]
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
    stages, times = pipeline_stages(run.model, run.design).corners, total_times(whole)
    return chosen_stage(stages, largest([stage_time(stage, times, costs) for stage in stages]))


def stage_time(stage: Stage, times: Sequence[FloatArray], costs: MicroBatch) -> FloatArray:
    """Time of all passes of a micro-batch on a stage; `times` are those of each part, all layers recomputed. [s]"""
    if stage.recomputed_shares is None:
        return weighted_sum(times, stage.counts)
    passes = with_shares(costs.whole, costs, stage.recomputed_shares)
    return weighted_sum(total_times(passes), stage.counts)


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
