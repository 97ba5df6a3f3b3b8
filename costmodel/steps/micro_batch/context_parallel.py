"""Exchanges of ranks that share a sequence: keys and values around attention cores, or states of mixers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.collectives import CollectiveCost, all_to_all, collective, exposed_time, send_recv
from costmodel.kernels.items import Item, Items, quantities_of
from costmodel.kernels.kernel_cost import KernelCost, traffic_energy
from costmodel.training.design import CP_A2A, CP_A2A_P2P, CP_ALL_GATHER
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun


def context_parallel(run: RankRun, key_features: float, core_time: FloatArray, direction: str) -> KernelCost:
    """Exchanges of the keys and values of one attention core, "forward" or "backward"; 0 in groups of one. [s], [J]

    `key_features` are those of a token's keys and values together [elements]; `core_time` is the time of the core in
    that direction, which hides a ring, (points,). [s]

    Keys and values go around a ring, each step beside a step of the core [Liu2023]_; or they
    are gathered before it [Llama2024]_; or heads are exchanged for tokens, before and behind it
    [Jacobs2023]_; or heads within small groups, and rings between those. Backward a ring carries gradients
    too, and gathered keys and values are gathered again and their gradients scattered.
    """
    shape, model, system = run.design, run.model, run.system
    cp = shape.cp
    share = run.tokens * run.precision.element_bytes / shape.tp
    key_share = run.key_tokens * run.precision.element_bytes / shape.tp
    groups = exchange_groups(run)
    keys_values = key_share * key_features
    heads = share * (model.query_size + model.attention_size) + keys_values
    backward = direction == "backward"

    swapped = all_to_all(heads, groups["all_to_all"], system.network)
    outer, around = groups["send_recv"].size, keys_values * (2.0 if backward else 1.0)
    ring = send_recv(around, groups["send_recv"], system.network)
    gathered = collective("all_gather", keys_values * cp, groups["all_gather"], system.network)
    cost = _exposed(run, "all_to_all", swapped, 0.0, 4.0, heads)
    cost += _exposed(run, "send_recv", ring, core_time / outer, 1.0, around) * (outer - 1)
    cost += _exposed(run, "all_gather", gathered, 0.0, 1.0, keys_values)
    if backward:
        scattered = collective("reduce_scatter", keys_values * cp, groups["reduce_scatter"], system.network)
        cost += _exposed(run, "reduce_scatter", scattered, 0.0, 1.0, keys_values * cp)
    return cost


def state_passing(run: RankRun, state_bytes: float) -> KernelCost:
    """Passing of a linear mixer's state through the ranks of a sequence, or of its gradient on the way back. [s], [J]

    `state_bytes` are those of one sequence, all heads together [B]; a group of one sends nothing.

    A rank waits for the state of the one before, adds what its own tokens make of it, and passes it on; all
    but the last send one message. Ranks run late by a message each, but stay so from layer to layer: what a
    layer adds for each is one message, which nothing hides. That the last rank is late by all of them once in
    a pass over the layers is left out.
    """
    shape = run.design
    state = shape.micro_batch_size * state_bytes / shape.tp
    hop = send_recv(state, Group(shape.cp, shape.tp), run.system.network)
    cost = _exposed(run, "send_recv", hop, 0.0, 1.0, state, name="state")
    return replace(cost, link_energy=cost.link_energy * (1 - 1 / shape.cp))


def exchange_groups(run: RankRun) -> dict[str, Group]:
    """Ranks that share a sequence, by the collective that they take; one rank where they do not take it."""
    cp, tp, how = run.design.cp, run.design.tp, run.design.cp_communication
    inner = np.where(how == CP_A2A, cp, np.where(how == CP_A2A_P2P, np.minimum(run.design.cp_a2a, cp), 1.0))
    gathers = how == CP_ALL_GATHER
    gathering = Group(np.where(gathers, cp, 1.0), tp)
    return {
        "all_to_all": Group(inner, tp),
        "send_recv": Group(np.where(gathers, 1.0, cp / inner), tp * inner),
        "all_gather": gathering,
        "reduce_scatter": gathering,
    }


def _exposed(
    run: RankRun,
    used: str,
    cost: CollectiveCost,
    hidden_by: FloatArray | float,
    launches: float,
    message: FloatArray,
    name: str = "",
) -> KernelCost:
    """An exchange, less the part that kernels hide; `message` are the bytes that each rank puts into it. [B]"""
    system, hidden = run.system, np.minimum(cost.time, hidden_by)
    exposed = exposed_time(cost.time, hidden, system.chip, "cp")
    items: Items = {}
    if run.itemized:
        group = f"cp {name or used}"
        label = Item(column="cp_communication_time", name=name, group=group, collective=used)
        sent = np.where(cost.time > 0, message, 0.0)
        items = quantities_of(label, {"time": exposed, "hidden": hidden, "message": sent})
    return KernelCost(
        cp_time=exposed,
        link_energy=traffic_energy(cost.bytes_sent, system.network),
        launches=np.where(cost.time > 0, launches, 0.0) * system.software.collective_launches,
        items=items,
    )
