"""What a pass of a micro-batch through a chunk of each rank of a pipeline computes, moves and exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.kernels.items import Items, added
from costmodel.kernels.kernel_cost import weighted_sum
from costmodel.steps.itemized import transformer_items
from costmodel.steps.micro_batch.context_parallel import exchange_groups
from costmodel.steps.micro_batch.expert_parallel import expert_groups
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.pipeline.pipeline_step import hop_bytes, pipeline_hop
from costmodel.steps.pipeline.recomputed_layers import recomputed_layers
from costmodel.steps.pipeline.stages import Stage, every_stage
from costmodel.steps.sharding.resolve_sharding import solution
from costmodel.steps.transformer import cost_of_passes, pass_costs, rank_costs
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun, TransformerRun, rank_run

#: Pass of the kernels of a backward pass that make gradients of weights.
WEIGHT_GRADIENT: Final = "weight_gradient"


@dataclass(frozen=True, slots=True)
class PassExchange:
    """Collectives of one kind of a pass, or of a step, together."""

    kind: str  #: "tp", "cp", "ep" or "dp"
    group: str  #: key of `StepWork.groups`
    collective: str  #: such as "all_gather"
    message_bytes: float  #: that a rank puts in [B]


@dataclass(frozen=True, slots=True)
class PassWork:
    """One pass of a micro-batch through one of the chunks of a rank, all alike."""

    flops: float  #: [FLOP]
    dram_bytes: float  #: read and written in the farthest memory [B]
    exchanges: tuple[PassExchange, ...] = ()


def together(one: PassWork, other: PassWork) -> PassWork:
    """Both passes as one. [FLOP], [B]"""
    return PassWork(
        one.flops + other.flops, one.dram_bytes + other.dram_bytes, (*one.exchanges, *other.exchanges)
    )


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step of one design."""

    #: Of each rank of the pipeline: "forward", "backward", "weight_gradient".
    passes: tuple[Mapping[str, PassWork], ...]
    replicas: tuple[PassExchange, ...]  #: behind all passes
    update: Mapping[str, float]  #: what the optimizer does, in turn [s]
    groups: Mapping[str, Group]  #: of ranks, by name, as the first rank of a stage sees them
    hop_bytes: float  #: that a rank sends to the next stage after a pass [B]
    hop_time: float  #: that the next stage waits for it where messages overlap, else 0 [s]
    stage_stride: int  #: from a rank to that of the next stage [-]
    world_size: int  #: [-]


def step_work(run: TransformerRun) -> StepWork:
    """Work of the ranks of one design in a step.

    Parameters
    ----------
    run : TransformerRun
        Model, machine and one design.

    Notes
    -----
    A rank's layers, embedding and head are shared out over its chunks evenly, as `timeline` shares out their
    time. What is recomputed belongs to the backward pass. What replicas exchange is that of the rank with
    most parameters.
    """
    design = solution(run, cost_of_passes).design
    run = replace(run.of(design), itemized=True, system=run.system.sliced(design.world_size))
    ranks, items = rank_run(run), transformer_items(run)
    costs, _ = rank_costs(run, ranks, pass_costs(run, ranks))
    waits = np.where(design.overlap_p2p > 0, pipeline_hop(run, ranks).time, 0.0)
    return StepWork(
        passes=tuple(_of_stage(run, costs, stage) for stage in every_stage(run.model, design)),
        replicas=tuple(_of_replicas(items)),
        update={
            item.name: np.asarray(values).item()
            for item, values in items.items()
            if item.column == "optimizer_time" and item.quantity == "time"
        },
        groups=_groups(run, ranks),
        hop_bytes=hop_bytes(run, ranks).item(),
        hop_time=waits.item(),
        stage_stride=int(design.ranks.group("pp").stride.item()),
        world_size=int(design.world_size.item()),
    )


def _of_stage(run: TransformerRun, costs: MicroBatch, stage: Stage) -> dict[str, PassWork]:
    """Passes through one chunk of a stage."""
    forward, backward = (weighted_sum(each, stage.counts) for each in (costs.forward, costs.backward))
    again = weighted_sum(costs.again, recomputed_layers(run, stage))
    weights = {item: own for item, own in backward.items.items() if item.kernel_pass == WEIGHT_GRADIENT}
    rest = {item: own for item, own in backward.items.items() if item not in weights}
    vpp, dram = run.design.vpp.item(), run.system.dram.name
    every = {"forward": forward.items, "backward": added(rest, again.items), WEIGHT_GRADIENT: weights}
    return {
        name: PassWork(_sum(own, "flops") / vpp, _sum(own, f"{dram} bytes") / vpp, _exchanges(own, vpp))
        for name, own in every.items()
    }


def _sum(items: Items, quantity: str) -> float:
    """One quantity of all items. [its unit]"""
    return sum(values.item() for item, values in items.items() if item.quantity == quantity)


def _exchanges(items: Items, vpp: float) -> tuple[PassExchange, ...]:
    """Collectives of a pass through one of so many chunks, those of a kind over one group together."""
    found: dict[tuple[str, str, str], float] = {}
    for item, values in items.items():
        if item.quantity == "message":
            key = item.column.removesuffix("_communication_time"), item.group, item.collective
            found[key] = found.get(key, 0.0) + values.item()
    return tuple(PassExchange(*key, message / vpp) for key, message in found.items() if message > 0)


def _of_replicas(items: Items) -> Iterator[PassExchange]:
    """Collectives of a step: gradients are reduced before weights are gathered."""
    messages = [
        (item, np.asarray(values).item())
        for item, values in items.items()
        if item.column == "dp_communication_time" and item.quantity == "message"
    ]
    for item, message in sorted(messages, key=lambda pair: pair[0].name):
        if message > 0:
            yield PassExchange("dp", item.group, item.collective, message)


def _groups(run: TransformerRun, ranks: RankRun) -> dict[str, Group]:
    """Groups that exchanges name; one value each."""
    design = run.design
    sharings = {"dp": design.sharing}
    found = {"tp": design.ranks.group("tp"), "world": design.ranks.all, "embedding": design.ranks.ends("pp")}
    found |= {f"cp {name}": group for name, group in exchange_groups(ranks).items()}
    found["cp state"] = Group(ranks.cp, ranks.tp)
    if run.model.num_experts:
        sharings["edp"] = design.expert_sharing
        found |= dict(zip(("ep", "etp", "etp ep"), expert_groups(ranks), strict=True))
    for of, sharing in sharings.items():
        found |= {f"{of} {over}": getattr(sharing, over) for over in ("whole", "shards", "copies")}
    return found
