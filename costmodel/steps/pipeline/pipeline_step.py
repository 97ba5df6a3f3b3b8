"""Forward and backward passes of all micro-batches through the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, UniqueRows, largest
from costmodel.kernels.collectives import collective, exposed_time, send_recv
from costmodel.kernels.items import Item, Items, added
from costmodel.kernels.kernel_cost import TIMES, WAITING, KernelCost, traffic_energy, weighted_sum
from costmodel.machine.system import System
from costmodel.steps.micro_batch.kernel_sums import launch_wait
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.pipeline.recomputed_layers import (
    recomputed_layers,
    recomputed_shares,
    recomputed_shares_of_model,
    with_shares,
)
from costmodel.steps.pipeline.schedules import of_schedule
from costmodel.steps.pipeline.stages import Stage, bubble_time, chosen_stage, every_stage, slow_stages
from costmodel.steps.pipeline.timed_pipelines import PipelineRanks, design_pipelines, pipeline_ranks
from costmodel.steps.result.items import schedule_items
from costmodel.training.design import DesignPoints
from costmodel.training.run import RankRun, TransformerRun

#: Exchanges of experts that run behind the passes of another micro-batch.
BEHIND: Final = Item("hidden", "ep_communication_time", name="exchange behind another micro-batch")


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """How a pipeline runs its micro-batches: its slowest stage, and what that one waits for."""

    costs: MicroBatch  #: with what passes of several micro-batches hide of each other
    stage: Stage  #: the one that takes longest
    idle: FloatArray  #: of it in a step, (points,) [s]
    everywhere: KernelCost  #: one micro-batch on all stages, one after the other


def schedule_step(
    run: TransformerRun, ranks: RankRun, costs: MicroBatch
) -> tuple[dict[str, FloatArray], Items, MicroBatch]:
    """Forward and backward passes of all micro-batches through the pipeline.

    Returns
    -------
    columns : mapping of (points,) arrays
        Columns of a `Breakdown`: times of the slowest stage, energies of all ranks. [s], [J]
    items : Items
        What they are made of, where the run is itemized. [s], [FLOP], [B], [-]
    costs : MicroBatch
        The passes, with what those of several micro-batches hide of each other. [s], [J]
    """
    design, hop = run.design, pipeline_hop(run, ranks)
    pace = (plain_pace if design.plain_pipeline.all() else timed_pace)(run, costs, hop)
    messages = np.where(design.pp > 1, 2 * design.vpp, 0.0)  # an activation and a gradient per chunk
    steps, own = design.gradient_accumulation_steps, pace.costs
    of_stage = [[cost.only((*TIMES, *WAITING)) for cost in of_parts] for of_parts in own.passes[:3]]
    forward, backward = (weighted_sum(each, pace.stage.counts) * steps for each in of_stage[:2])
    again = weighted_sum(of_stage[2], [count * steps for count in recomputed_layers(run, pace.stage)])
    stage = forward + backward + again
    runs, everywhere = steps * design.dp * design.cp * design.tp, pace.everywhere
    columns = {
        "forward_time": forward.time,
        "backward_time": backward.time,
        "recompute_time": again.time,
        "memory_bound_time": stage.memory_bound_time,
        "launch_bound_time": stage.launch_bound_time,
        "tp_communication_time": stage.tp_time,
        "cp_communication_time": stage.cp_time,
        "ep_communication_time": stage.ep_time,
        "offload_time": stage.offload_time,
        "pp_communication_time": steps * (messages * sending_time(design, hop)),
        "bubble_time": pace.idle,
        "compute_energy": runs * everywhere.compute_energy,
        "memory_energy": runs * everywhere.memory_energy,
        "link_energy": runs * (everywhere.link_energy + (design.pp - 1) * messages * hop.link_energy),
    }
    items: dict[Item, FloatArray] = {}
    if run.itemized:
        counts = [pace.stage.counts] * 2 + [recomputed_layers(run, pace.stage)]
        items = {**schedule_items(run, of_stage, counts), Item("rank", name="slowest stage"): pace.stage.rank}
        hidden = steps * messages * (hop.time - sending_time(design, hop))
        items[Item("hidden", "pp_communication_time", name="messages")] = hidden
    return columns, items, own


def sending_time(design: DesignPoints, hop: KernelCost) -> FloatArray:
    """Time for which a message keeps its ranks from computing. [s]"""
    time: FloatArray = np.where(design.overlap_p2p > 0, 0.0, hop.time)
    return time


def plain_pace(run: TransformerRun, costs: MicroBatch, hop: KernelCost) -> Pace:
    """1F1B, interleaved or not, by its closed form.

    Messages that overlap delay those that wait for them: 2 ((p - 1) m / p + p - 2) times the time of one in
    1F1B, where every round waits, 2 (p v - 1) times interleaved, where only filling and draining do.
    """
    design, steps = run.design, run.design.gradient_accumulation_steps
    alone = 1 / steps  # the first forward and the last backward pass have nothing beside them
    costs = overlapped_experts(costs, np.where(design.overlap_ep > 0, 1 - alone, 0.0), run.system)
    pp, vpp, every = design.pp, design.vpp, costs.whole
    stage = slowest_stage(run, costs, every)
    whole = with_shares(every, costs, recomputed_shares(run, stage))
    times = ([getattr(cost, name) for cost in whole] for name in TIMES)
    kernels, *others = (
        weighted_sum(of_parts, stage.counts) for of_parts in times if any(own.ndim for own in of_parts)
    )
    busy = sum(others, start=kernels)
    everywhere = all_stages(run, costs, every)
    hops = np.where(pp > 1, 2 * vpp, 0.0) * sending_time(design, hop)
    idle = bubble_time(
        busy + hops, everywhere.total_time + pp * hops, pp=pp, vpp=vpp, gradient_accumulation_steps=steps
    )
    if (design.overlap_p2p > 0).any():
        rounds = np.where(vpp > 1, pp * vpp - 1, (pp - 1) * steps / pp + np.maximum(pp - 2, 0.0))
        idle = idle + np.where((design.overlap_p2p > 0) & (pp > 1), 2 * rounds * hop.time, 0.0)
    return Pace(costs, stage, idle, everywhere)


def timed_pace(run: TransformerRun, costs: MicroBatch, hop: KernelCost) -> Pace:
    """Any schedule over any stages, pass by pass."""
    design, steps, ranks = run.design, run.design.gradient_accumulation_steps, ranks_passes(run, costs)
    slowest, points = ranks.slowest, np.arange(ranks.slowest.size)
    timed = timed_pipelines(design, ranks.times, hop, ranks.scale)
    share = np.where(ranks.paired, timed.pairs[points, slowest] / (steps * design.vpp), 1.0)
    own = overlapped_experts(costs, np.where(ranks.overlaps & ranks.paired, share, ranks.in_turn), run.system)
    idle = np.maximum(timed.end.max(axis=1) - timed.busy[points, slowest], 0.0)  # rounding falls below
    return Pace(own, ranks.stage, idle, all_stages(run, own, own.whole))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RanksPasses:
    """What a micro-batch takes on the ranks of each pipeline, and what its passes hide of each other."""

    times: PassTimes  #: of the slowest rank
    scale: FloatArray  #: of the times of each rank over those of the slowest; (points, ranks) [-]
    slowest: IntArray  #: rank; (points,) [-]
    stage: Stage  #: what it runs
    alone: MicroBatch  #: passes that follow each other
    together: MicroBatch  #: passes that overlap where schedules pair them
    paired: BoolArray  #: where schedules do; (points,)
    overlaps: BoolArray  #: where exchanges of experts hide; (points,)
    in_turn: FloatArray  #: share of passes in which they do where schedules do not pair; (points,) [-]


def ranks_passes(run: TransformerRun, costs: MicroBatch) -> RanksPasses:
    """Passes on the ranks of any schedule over any stages.

    Exchanges of experts hide behind the pass that the schedule overlaps theirs with, or as in `plain_pace`
    where passes follow each other in turn; where all forward passes come first nothing does. A rank's passes
    are those of the slowest, longer or shorter by its share of work.
    """
    design, steps = run.design, run.design.gradient_accumulation_steps
    overlaps = (design.overlap_ep > 0) & ~of_schedule(design, lambda schedule: schedule.chunk_by_chunk)
    paired = of_schedule(design, lambda schedule: schedule.pairs)
    in_turn = np.where(overlaps & ~paired, 1 - 1 / steps, 0.0)
    alone = overlapped_experts(costs, in_turn, run.system)
    together = overlapped_experts(costs, np.where(overlaps & paired, 1.0, in_turn), run.system)
    stages, whole = every_stage(run.model, design), alone.whole
    times = np.stack([stage_time(run, stage, whole, alone) for stage in stages], axis=1)
    slowest, points = times.argmax(axis=1), np.arange(times.shape[0])
    stage, time = chosen_stage(stages, slowest), times[points, slowest]
    forward, weight = (
        weighted_sum([cost.total_time for cost in of_parts], stage.counts)
        for of_parts in (alone.forward, alone.weight)
    )
    passes = PassTimes(
        forward=forward,
        backward=time - forward - weight,
        weight=weight,
        pair=stage_time(run, stage, together.whole, together),
    )
    return RanksPasses(
        times=passes,
        scale=times / time[:, np.newaxis],
        slowest=slowest,
        stage=stage,
        alone=alone,
        together=together,
        paired=paired,
        overlaps=overlaps,
        in_turn=in_turn,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PassTimes:
    """What the slowest rank takes for one micro-batch in all of its chunks; (points,) columns. [s]"""

    forward: FloatArray
    backward: FloatArray  #: gradient of the input, with what is recomputed for it
    weight: FloatArray
    pair: FloatArray  #: all of them, where a forward pass overlaps with a backward pass


def timed_pipelines(
    design: DesignPoints, passes: PassTimes, hop: KernelCost, scale: FloatArray
) -> PipelineRanks:
    """What each rank of each design's pipeline does, equal ones timed once; (points, ranks) arrays.

    Messages that do not overlap make the passes longer that send them; others delay those that wait.
    """
    vpp, times = design.vpp, chunk_times(design, passes, hop)
    placed = [design.schedule, design.pp, vpp, design.gradient_accumulation_steps, design.group_size]
    unique = UniqueRows.of(*placed, *times.values(), *scale.T)
    own = {name: unique.pick(np.broadcast_to(time, scale.shape[:1])) for name, time in times.items()}
    timed = pipeline_ranks(design_pipelines(unique.take(design), own, unique.pick(scale)))
    return unique.spread(timed)


def chunk_times(design: DesignPoints, passes: PassTimes, hop: KernelCost) -> dict[str, FloatArray]:
    """Arguments of `pipeline_times`: passes through a chunk of the slowest rank, and messages. [s]"""
    sends, vpp = np.where(design.pp > 1, sending_time(design, hop), 0.0), design.vpp
    return {
        "forward_time": passes.forward / vpp + sends,
        "input_gradient_time": passes.backward / vpp + sends,
        "weight_gradient_time": passes.weight / vpp,
        "pair_time": passes.pair / vpp + 2 * sends,
        "message_time": np.where(design.overlap_p2p > 0, hop.time, 0.0),
    }


def overlapped_experts(costs: MicroBatch, share: FloatArray, system: System) -> MicroBatch:
    """Passes of which a share runs with exchanges of experts behind those of another micro-batch.

    The forward pass of one micro-batch runs beside the backward pass of the one before: each hides what the
    other exchanges, by all that it does but exchange. The host launches the kernels of both meanwhile.
    """
    if not share.any():
        return costs
    pairs = [
        _beside(forward, backward, share, system)
        for forward, backward in zip(costs.forward, costs.backward, strict=True)
    ]
    return replace(
        costs,
        forward=tuple(forward for forward, _ in pairs),
        backward=tuple(backward for _, backward in pairs),
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
    exposed = [
        exposed_time(cost.ep_time, own, system.chip, "ep") for cost, own in zip(both, hidden, strict=True)
    ]
    launches = forward.launches + backward.launches
    busy = sum([*rest[1:], *exposed], start=rest[0])
    waiting = launch_wait(launches, busy, system) / np.maximum(launches, 1.0)
    passes = []
    for cost, own, lent, left in zip(both, hidden, hidden[::-1], exposed, strict=True):
        more = share * (waiting * cost.launches - cost.launch_bound_time)
        passes.append(
            replace(
                cost,
                time=cost.time + more,
                launch_bound_time=cost.launch_bound_time + more,
                ep_time=cost.ep_time + share * (left - cost.ep_time),
                lent_time=share * lent,
                items=added(cost.items, {BEHIND: share * own}) if cost.items else {},
            )
        )
    return passes[0], passes[1]


def slowest_stage(run: TransformerRun, costs: MicroBatch, whole: Sequence[KernelCost]) -> Stage:
    """The stage whose layers, embedding and head take longest for a micro-batch, forward and backward."""
    stages = slow_stages(run.model, run.design)
    return chosen_stage(stages, largest([stage_time(run, stage, whole, costs) for stage in stages]))


def stage_time(
    run: TransformerRun, stage: Stage, whole: Sequence[KernelCost], costs: MicroBatch
) -> FloatArray:
    """Time of all passes of a micro-batch on a stage. [s]"""
    own = with_shares(whole, costs, recomputed_shares(run, stage))
    return weighted_sum([cost.total_time for cost in own], stage.counts)


def all_stages(run: TransformerRun, costs: MicroBatch, whole: Sequence[KernelCost]) -> KernelCost:
    """One micro-batch on all stages, one after the other: times and energies."""
    own = with_shares(whole, costs, recomputed_shares_of_model(run))
    return weighted_sum(own, [*run.model.kinds.values(), 1.0, 1.0, 1.0])


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
    """What a rank sends to the next stage: its share of an activation, or of its gradient. [B]"""
    return ranks.activation_bytes() / run.design.tp
