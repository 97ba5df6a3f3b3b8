"""What ranks that share a sequence exchange around the attention core, and how much of it the core hides."""

from __future__ import annotations

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.collectives import CollectiveCost, all_to_all, collective, exposed_time, send_recv
from costmodel.kernels.cost import KernelCost, exchange_items, traffic_energy
from costmodel.training.design import CP_A2A, CP_A2A_P2P, CP_ALL_GATHER
from costmodel.training.ranks import Group
from costmodel.training.run import RankRun
from costmodel.workload.transformer import tokens


def context_parallel(run: RankRun, core_time: FloatArray, direction: str) -> KernelCost:
    """Exchanges of one attention core in one direction.

    Parameters
    ----------
    run : RankRun
        Model, machines and what a rank sees of the designs, (points,).
    core_time : (points,) array
        Time of the core in that direction, which hides a ring. [s]
    direction : str
        "forward" or "backward".

    Returns
    -------
    cost : KernelCost
        (points,) columns; nothing in a group of one. [s], [J]

    Notes
    -----
    Keys and values go around a ring, each step beside one of as many steps of the core [Liu2023]_; or they
    are gathered before it [Llama2024]_; or heads are exchanged for tokens, before and behind it
    [Jacobs2023]_; or heads within small groups, and rings between those. Backward a ring carries gradients
    too, and gathered keys and values are gathered again and their gradients scattered.
    """
    shape, model, system = run.design, run.model, run.system
    cp, how = shape.cp, shape.cp_communication
    share = tokens(run) * run.precision.element_bytes / shape.tp
    keys_values = share * 2 * model.key_value_size
    heads = share * (model.query_size + model.attention_size) + keys_values
    inner = np.where(how == CP_A2A, cp, np.where(how == CP_A2A_P2P, np.minimum(shape.cp_a2a, cp), 1.0))
    gathers = how == CP_ALL_GATHER
    backward = direction == "backward"

    swapped = all_to_all(heads, Group(inner, shape.tp), system.network)
    outer = np.where(gathers, 1.0, cp / inner)
    ring = send_recv(keys_values * (2.0 if backward else 1.0), Group(outer, shape.tp * inner), system.network)
    group = Group(np.where(gathers, cp, 1.0), shape.tp)
    gathered = collective("all_gather", keys_values * cp, group, system.network)
    cost = _exposed(run, "all_to_all", swapped, 0.0, 4.0)
    cost += _exposed(run, "send_recv", ring, core_time / outer, 1.0) * (outer - 1)
    cost += _exposed(run, "all_gather", gathered, 0.0, 1.0)
    if backward:
        scattered = collective("reduce_scatter", keys_values * cp, group, system.network)
        cost += _exposed(run, "reduce_scatter", scattered, 0.0, 1.0)
    return cost


def _exposed(
    run: RankRun, name: str, cost: CollectiveCost, hidden_by: FloatArray | float, launches: float
) -> KernelCost:
    """An exchange, less what kernels hide of it."""
    system, hidden = run.system, np.minimum(cost.time, hidden_by)
    exposed = exposed_time(cost.time, hidden, system.chip, "cp")
    return KernelCost(
        cp_time=exposed,
        link_energy=traffic_energy(cost.bytes_sent, system.network),
        launches=np.where(cost.time > 0, launches, 0.0) * system.software.collective_launches,
        items=exchange_items(f"cp/{name}", exposed, hidden) if run.itemized else {},
    )
