"""SimAI as a profile: its closed forms for designs of transformers, arithmetic by the native kernels."""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodel.machine import System
from costmodel.rules.rules import TRAINING, TRANSFORMER_TOTALS, Rules
from costmodel.steps.breakdown import BOUNDS, PARTS, Breakdown, assemble_breakdown
from costmodel.steps.transformer import transformer_step
from costmodel.training.design import MODERN, DesignPoints
from costmodel.training.run import TransformerRun
from dse.adapters.simai.bandwidth import Links
from dse.adapters.simai.design_rows import check_equal_layers, design_workload
from dse.adapters.simai.time import price

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


def simai_step(run: TransformerRun) -> Breakdown:
    """Evaluate one optimizer step of each design, as `costmodel.step` does.

    (points,) columns. Communication, bubble and so the step are SimAI's, which hides nothing behind arithmetic and
    knows no host; arithmetic, memory, costs and the energy of the work are the native model's. NaN where SimAI has no
    number. [s], [B], [J], [$], [W]

    Raises `DseError` where `design_workload` does, and for models with experts or latent attention.
    """
    check_equal_layers(run.model)
    native = transformer_step(run)
    totals = price(design_workload(run), machine_links(run.system), revision=REVISION).totals
    others = native.backward_time + native.recompute_time + native.optimizer_time
    parts = {
        **{name: values for name, values in native.columns().items() if name in _PARTS},
        "forward_time": totals.total_compute_time - others,
        "tp_communication_time": totals.exposed_tp_time + totals.exposed_ep_time,
        "pp_communication_time": totals.exposed_pp_time,
        "bubble_time": totals.bubble_time,
        "dp_communication_time": totals.exposed_dp_time + totals.exposed_dp_ep_time,
        "host_time": np.zeros_like(others),
    }
    return assemble_breakdown(
        parts,
        run.system,
        world_size=native.world_size,
        tokens=run.design.global_batch_size * run.model.seq_len,
        model_flops=native.model_flops,
    )


#: Columns that add up to others, but for the idle energy, which follows from the time of the step.
_PARTS: Final = {*BOUNDS, *(name for parts in PARTS.values() for name in parts)} - {"idle_energy"}


def rules_of(version: str) -> tuple[Rules[DesignPoints], ...]:
    """The rules for designs, of one version."""
    return (
        Rules(
            work=TRAINING, design=DesignPoints, cost=simai_step, products=TRANSFORMER_TOTALS, unread=MODERN.__contains__
        ),
    )
