"""Prices designs by SimAI's closed forms, arithmetic by the native kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from costmodel.breakdown import Breakdown
from costmodel.design import DesignPoints
from costmodel.design_rows import design_workload
from costmodel.model import ModelShape
from costmodel.precision import MIXED_PRECISION, Precision
from costmodel.profiles.simai.bandwidth import Links
from costmodel.profiles.simai.time import price
from costmodel.step import step
from costmodel.system import System

#: The revision that derives bandwidths from a machine.
REVISION: Final = "simai-2025-07"


def machine_links(system: System) -> Links:
    """A system as the reference sees it: servers of the first tier's size, a NIC for every chip."""
    node, fabric = system.network[0], system.network[-1]
    return Links(
        gpus_per_server=node.size,
        nics_per_server=node.size,
        nvlink_bandwidth=node.bandwidth * node.efficiency,
        nic_bandwidth=fabric.bandwidth * fabric.efficiency,
    )


def price_designs(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> Breakdown:
    """Price one optimizer step of each design, as `costmodel.step` does.

    Parameters
    ----------
    model, system, design, precision
        As for `costmodel.step`.

    Returns
    -------
    breakdown : Breakdown
        (points,) columns. Communication, bubble and so the step are SimAI's, which hides nothing behind
        arithmetic and knows no host; arithmetic, memory, prices and the energy of the work are the native
        model's. NaN where SimAI has no number. [s], [B], [J], [$], [W]
    """
    native = step(model, system, design, precision=precision)
    workload = design_workload(model, system, design, precision=precision)
    totals = price(workload, machine_links(system), revision=REVISION).totals
    others = native.backward_time + native.recompute_time + native.optimizer_time
    step_time = totals.total_time
    slower = step_time / native.step_time
    idle = native.idle_energy * slower
    energy = native.energy_per_step - native.idle_energy + idle
    return replace(
        native,
        step_time=step_time,
        forward_time=totals.total_compute_time - others,
        tp_communication_time=totals.exposed_tp_time + totals.exposed_ep_time,
        pp_communication_time=totals.exposed_pp_time,
        bubble_time=totals.bubble_time,
        dp_communication_time=totals.exposed_dp_time + totals.exposed_dp_ep_time,
        host_time=np.zeros_like(step_time),
        idle_energy=idle,
        energy_per_step=energy,
        tokens_per_second=native.tokens_per_second / slower,
        mfu=native.mfu / slower,
        average_power=energy / step_time * system.host.power_overhead,
    )
