"""Weights in the format that products read them in: their copies, their casts, and what replicas gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.kernels.kernel_cost import KernelCost
from costmodel.training.optimizer_states import Exchange
from costmodel.training.precision import is_narrow, of_formats
from costmodel.training.run import TransformerRun, gradient_bytes
from costmodel.workload.quantisation import needs_transposed


@dataclass(frozen=True, slots=True, eq=False)
class WeightCopies:
    """Bytes of a quantised weight, beyond the 16 bits of every weight; (points,) each. [B]"""

    primary: FloatArray  #: what replicas may share out: negative where it has no 16-bit copy
    cast: FloatArray  #: copies of a weight that is whole, for products


def weight_copies(run: TransformerRun) -> WeightCopies:
    """Copies of the weights of layers' products.

    Beside 16 bits stand a copy in the format, and its transpose where one is needed. With `fp8_parameters`
    there are no 16 bits: the copy is what the optimizer writes from its fp32 weights, and MX formats have
    both copies of it, since their scales run along one axis. Four bits keep 16 beside them [NVIDIA2026]_.
    """
    codes = run.design.precision
    size, narrow = of_formats(codes, "weight_bytes"), is_narrow(codes)
    copies = size * (np.where(narrow, 1.0, 0.0) + np.where(needs_transposed(codes, run.system), 1.0, 0.0))
    primary = np.where(run.design.fp8_parameters > 0, of_formats(codes, "primary_bytes"), 0.0)
    alone = primary > 0
    return WeightCopies(
        primary=np.where(alone, primary - run.precision.element_bytes, 0.0),
        cast=np.where(alone, np.maximum(copies - primary, 0.0), copies),
    )


def exchanged_bytes(
    run: TransformerRun, exchange: Exchange, parameters: FloatArray, quantised: FloatArray
) -> FloatArray:
    """Message of an exchange of gradients, or of weights, which may be gathered as they are kept, (points,). [B]

    `parameters` are those of a rank, `quantised` those of them that products read in the format, (points,). [-]
    """
    if exchange.of == "gradients":
        return parameters * gradient_bytes(run)
    whole: FloatArray = parameters * run.precision.element_bytes
    if not (run.design.fp8_parameters > 0).any():
        return whole
    gathered = gathered_bytes(run, of_shards=exchange.every == "micro_batch")
    return whole - quantised * np.where(gathered > 0, run.precision.element_bytes - gathered, 0.0)


def gathered_bytes(run: TransformerRun, *, of_shards: bool) -> FloatArray:
    """Bytes of a quantised weight as replicas gather it, once a step or for each pass; 0: 16 bits. [B]"""
    name = "gathered_shard_bytes" if of_shards else "gathered_bytes"
    return np.where(run.design.fp8_parameters > 0, of_formats(run.design.precision, name), 0.0)


def weight_casts(
    run: TransformerRun, quantised: Sequence[FloatArray], owned: Sequence[FloatArray], resharded: BoolArray
) -> KernelCost:
    """Casts of weights in a step, by a rank: memory traffic alone.

    `quantised` are weights that products read in the format, of layers and of experts; `owned` are those of them that
    the rank updates, (points,) each. [-] `resharded` marks points whose weights are gathered for each micro-batch.

    A weight is cast once a step and kept for all micro-batches, as Megatron-LM does; where it is gathered for
    each, for each. What is gathered in the format is cast once a step, by its owner. The transposed copy is
    made of a whole weight.
    """
    design, codes, w = run.design, run.design.precision, run.precision.element_bytes
    size, maxima = of_formats(codes, "weight_bytes"), of_formats(codes, "maxima")
    once = np.where(resharded, design.gradient_accumulation_steps, 1.0)
    passes = np.where(resharded & (design.reshard_after_forward > 0), 2.0, 1.0)
    narrow = np.where(is_narrow(codes), 1.0, 0.0)
    by_owner = np.where(resharded, gathered_bytes(run, of_shards=True), gathered_bytes(run, of_shards=False))
    moved = np.zeros(codes.shape)
    for whole, share in zip(quantised, owned, strict=True):
        cast = np.where(by_owner > 0, share, whole * once * passes)
        copied = np.where(needs_transposed(codes, run.system), whole * once, 0.0)
        moved = moved + narrow * (cast * (w * (1 + maxima) + size) + copied * 2 * size)
    dram = run.system.dram
    time = moved / (dram.bandwidth * dram.efficiency)
    return KernelCost(time=time, memory_bound_time=time, memory_energy=moved * dram.energy)
