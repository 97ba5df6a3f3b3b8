"""Activations that hosts hold between the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.kernel_cost import KernelCost
from costmodel.machine.system import System
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.pipeline.schedules import of_schedule
from costmodel.training.run import TransformerRun


def host_transfer_time(moved: FloatArray, system: System) -> FloatArray:
    """Time of bytes between a chip and its share of the host's memory, in one direction. [s]"""
    return moved / np.minimum(system.host.link_bandwidth, system.host.memory_bandwidth)


def offloaded_activations(run: TransformerRun, costs: MicroBatch, parts: Sequence[PartMemory]) -> MicroBatch:
    """Passes that wait where a layer's activations take longer to a host or back than the layer, (points,). [s], [J]

    `parts` hold the bytes that layers keep, (points,). [-], [B]

    Each direction of the link has the passes of one direction beside it: what a layer keeps leaves while the
    next layer runs forward, and comes back while the layer behind runs backward. Where exchanges of experts
    hide behind another micro-batch (`overlap_ep`), passes that have one beside them are shorter by these.
    """
    design = run.design
    if not (design.offload_activations > 0).any():
        return costs
    overlaps = (design.overlap_ep > 0) & ~of_schedule(design, "chunk_by_chunk")
    beside = np.where(overlaps, 1 - 1 / design.gradient_accumulation_steps, 0.0)
    forward, backward = list(costs.forward), list(costs.backward)
    for number, again in enumerate(costs.again):
        moving = host_transfer_time(design.offload_activations * parts[number].kept, run.system)
        out, back = forward[number].total_time, backward[number].total_time + again.total_time
        forward[number] = _waiting(forward[number], out, moving, beside)
        backward[number] = _waiting(backward[number], back, moving, beside)
    return replace(costs, forward=tuple(forward), backward=tuple(backward))


def _waiting(cost: KernelCost, time: FloatArray, moving: FloatArray, beside: FloatArray) -> KernelCost:
    """A pass of some time that waits for what moves meanwhile; a share of them has another pass beside it.

    What a pass then exchanges with experts, and waits for its host, is what the other leaves of it: neither
    counts as time for moving.
    """
    alone = np.maximum(moving - time, 0.0)
    without = np.maximum(moving - (time - cost.ep_time - cost.launch_bound_time), 0.0)
    return replace(cost, offload_time=(1 - beside) * alone + beside * without)
