"""Work, traffic and messages of a pass of a micro-batch through one chunk, for each rank of a pipeline.

A trace has no node for each kernel: it needs the work of a pass as a whole, and its collectives by kind and group. The
numbers are the items that the native model adds up to a step, sorted by pass again. The time of a kind of collective
is shared among its exchanges by the time that each would take as one collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.kernels.collectives import all_to_all, collective, send_recv
from costmodel.kernels.kernel_cost import Items, added, weighted_sum
from costmodel.machine import Chip, LinkTier
from costmodel.steps.micro_batch.exchanges import exchange_groups, expert_groups
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.pipeline.pipeline_step import hop_bytes, pipeline_hop
from costmodel.steps.pipeline.stages import Stage, every_stage
from costmodel.steps.transformer import explicit_design, pass_costs, rank_costs, transformer_items
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun, TransformerRun, rank_run

#: Kinds of collectives of passes.
KINDS: Final = ("tp", "cp", "ep")
#: Pass of the kernels of a backward pass that make gradients of weights.
WEIGHT_GRADIENT: Final = "weight_gradient"


@dataclass(frozen=True, slots=True)
class PassExchange:
    """Collectives of one kind of a pass, or of a step, together."""

    kind: str  #: "tp", "cp", "ep" or "dp"
    group: str  #: key of `StepWork.groups`
    collective: str  #: such as "all_gather"
    message_bytes: float  #: that a rank puts in [B]
    time: float = 0.0  #: that they take, hidden or not [s]


@dataclass(frozen=True, slots=True)
class PassWork:
    """One pass of a micro-batch through one of the chunks of a rank, all alike."""

    flops: float  #: [FLOP]
    dram_bytes: float  #: read and written in the farthest memory [B]
    exchanges: tuple[PassExchange, ...] = ()


def together(one: PassWork, other: PassWork) -> PassWork:
    """Both passes as one. [FLOP], [B]"""
    return PassWork(one.flops + other.flops, one.dram_bytes + other.dram_bytes, (*one.exchanges, *other.exchanges))


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Where the ranks of one design stand."""

    groups: Mapping[str, Group]  #: of ranks, by name, as the first rank of a stage sees them
    stage_stride: int  #: from a rank to that of the next stage [-]
    world_size: int  #: [-]


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step of one design."""

    #: Of each rank of the pipeline: "forward", "backward", "weight_gradient".
    passes: tuple[Mapping[str, PassWork], ...]
    replicas: tuple[PassExchange, ...]  #: behind all passes
    update: Mapping[str, float]  #: steps of the optimizer, in turn [s]
    grid: RankGrid
    hop_bytes: float  #: that a rank sends to the next stage after a pass [B]
    hop_time: float  #: of that [s]
    overlaps_hops: bool  #: whether ranks compute meanwhile, all but the one that waits for it


def step_work(run: TransformerRun) -> StepWork:
    """Work of the ranks of the one design of a run in a step.

    A rank's layers, embedding and head are shared out over its chunks evenly, as `timeline` shares out their
    time. Recomputation belongs to the backward pass. Exchanges of replicas are those of the stage that is
    done last.
    """
    design = explicit_design(run)
    run = replace(run.of(design), itemized=True, system=run.system.sliced(design.world_size))
    ranks, items = rank_run(run), transformer_items(run)
    costs, _ = rank_costs(run, ranks, pass_costs(run, ranks))
    return StepWork(
        passes=tuple(_of_stage(run, costs, stage) for stage in every_stage(run.model, design)),
        replicas=_of_replicas(items, run),
        update={
            item.name: np.asarray(values).item()
            for item, values in items.items()
            if item.column == "optimizer_time" and item.quantity == "time"
        },
        grid=rank_grid(run),
        hop_bytes=hop_bytes(run, ranks).item(),
        hop_time=np.where(design.pp > 1, pipeline_hop(run, ranks).time, 0.0).item(),
        overlaps_hops=bool(design.overlap_p2p.item() > 0),
    )


def rank_grid(run: TransformerRun) -> RankGrid:
    """Ranks of one design and all of their groups."""
    ranks = run.design.ranks
    return RankGrid(
        groups=_groups(run, rank_run(run)),
        stage_stride=int(ranks.group("pp").stride.item()),
        world_size=int(run.design.world_size.item()),
    )


def _of_stage(run: TransformerRun, passes: MicroBatch, stage: Stage) -> dict[str, PassWork]:
    """Passes through one chunk of a stage."""
    forward, backward = (
        weighted_sum(costs_of_layers, stage.counts) for costs_of_layers in (passes.forward, passes.backward)
    )
    again = weighted_sum(passes.again, stage.recomputed_layers)
    weights = {item: values for item, values in backward.items.items() if item.kernel_pass == WEIGHT_GRADIENT}
    rest = {item: values for item, values in backward.items.items() if item not in weights}
    vpp, dram = run.design.vpp.item(), run.system.dram.name
    every = {
        "forward": ((forward,), forward.items),
        "backward": ((backward, again), added(rest, again.items)),
        WEIGHT_GRADIENT: ((), weights),
    }
    return {
        name: PassWork(
            _sum(cost_items, "flops") / vpp,
            _sum(cost_items, f"{dram} bytes") / vpp,
            _exchanges(cost_items, {k: sum(getattr(cost, f"{k}_time").item() for cost in costs) for k in KINDS}, run),
        )
        for name, (costs, cost_items) in every.items()
    }


def _sum(items: Items, quantity: str) -> float:
    """One quantity of all items. [its unit]"""
    return sum(values.item() for item, values in items.items() if item.quantity == quantity)


def _exchanges(items: Items, exposed: Mapping[str, float], run: TransformerRun) -> tuple[PassExchange, ...]:
    """Collectives of a pass through one of the chunks, those of a kind over one group together."""
    sent_bytes: dict[tuple[str, str, str], float] = {}
    for item, values in items.items():
        if item.quantity == "message":
            key = item.column.removesuffix("_communication_time"), item.group, item.collective
            sent_bytes[key] = sent_bytes.get(key, 0.0) + values.item()
    vpp = run.design.vpp.item()
    exchanges = [PassExchange(*key, sent / vpp) for key, sent in sent_bytes.items() if sent > 0]
    times = {kind: (time + _hidden(items, kind, run.system.chip)) / vpp for kind, time in exposed.items()}
    return _timed(exchanges, times, run)


def _of_replicas(items: Items, run: TransformerRun) -> tuple[PassExchange, ...]:
    """Collectives of a step: gradients are reduced before weights are gathered."""
    replica_times = {item: np.asarray(v).item() for item, v in items.items() if item.column == "dp_communication_time"}
    exposed = sum(values for item, values in replica_times.items() if item.quantity == "time")
    exchanges_of_step = [
        PassExchange("dp", item.group, item.collective, sent)
        for item, sent in sorted(replica_times.items(), key=lambda pair: pair[0].name)
        if item.quantity == "message" and sent > 0
    ]
    return _timed(exchanges_of_step, {"dp": exposed + _hidden(items, "dp", run.system.chip)}, run)


def _hidden(items: Items, kind: str, chip: Chip) -> float:
    """Hidden time of collectives of a kind, without the time that kernels lose (`exposed_time`). [s]"""
    column, lost = f"{kind}_communication_time", (chip.taken_cores(kind) / chip.cores).item()
    hides = (hidden for item, hidden in items.items() if (item.column, item.quantity) == (column, "hidden"))
    return (1 - lost) * sum(np.asarray(hidden).item() for hidden in hides)


def _timed(
    exchanges: Sequence[PassExchange], times: Mapping[str, float], run: TransformerRun
) -> tuple[PassExchange, ...]:
    """Exchanges with their shares of the time of their kind, by the time of each as one collective. [s]"""
    groups, network = _groups(run, rank_run(run)), run.system.network
    alone = [_alone(exchange, groups[exchange.group], network) for exchange in exchanges]
    whole = dict.fromkeys(times, 0.0)
    for exchange, time in zip(exchanges, alone, strict=True):
        whole[exchange.kind] += time
    return tuple(
        replace(exchange, time=times[exchange.kind] * time / whole[exchange.kind] if time else 0.0)
        for exchange, time in zip(exchanges, alone, strict=True)
    )


def _alone(exchange: PassExchange, group: Group, network: Sequence[LinkTier]) -> float:
    """Time of an exchange as one collective. [s]"""
    others = {"all_to_all": all_to_all, "send_recv": send_recv}
    message = np.full(1, exchange.message_bytes)
    if exchange.collective in others:
        return float(others[exchange.collective](message, group, network).time.item())
    whole = message * group.size if exchange.collective == "all_gather" else message
    return float(collective(exchange.collective, whole, group, network).time.item())


def _groups(run: TransformerRun, ranks: RankRun) -> dict[str, Group]:
    """Groups that exchanges name; one value each."""
    design = run.design
    sharings = {"dp": design.sharing}
    groups = {name: design.ranks.group(name) for name in ("tp", "pp")}
    groups |= {"world": design.ranks.all, "embedding": design.ranks.ends("pp")}
    groups |= {f"cp {name}": group for name, group in exchange_groups(ranks).items()}
    groups["cp state"] = Group(design.cp, design.tp)
    if run.model.num_experts:
        sharings["edp"] = design.expert_sharing
        groups |= dict(zip(("ep", "etp", "etp ep"), expert_groups(ranks), strict=True))
    for of, sharing in sharings.items():
        groups |= {f"{of} {over}": getattr(sharing, over) for over in ("whole", "shards", "copies")}
    return groups
