"""States of parameters on one rank: how many replicas share them, their bytes, and weights in the format of products.

The state of a parameter is its weight, gradient, master copy and moments. ZeRO divides states among replicas. Where
products read weights in 8 bits, the rank holds a copy in that format, casts weights to it, or gathers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.kernels.kernel_cost import KernelCost
from costmodel.kernels.kernel_tables import WeightMatrix, needs_transposed, some_narrow, weight_matrices
from costmodel.steps.pipeline.stages import Stage
from costmodel.training.design import DesignPoints
from costmodel.training.precision import (
    MOMENTS,
    OPTIMIZERS,
    ZERO,
    Exchange,
    OptimizerRule,
    State,
    is_narrow,
    of_formats,
)
from costmodel.training.run import TransformerRun, gradient_bytes


def state_shards(design: DesignPoints, state: State, *, of_experts: bool = False) -> FloatArray:
    """Replicas that share out a state of the parameters of a rank, or of its experts. [-]

    Weights that are not resharded after the forward pass are whole on every rank while a step lasts.
    """
    shards: FloatArray = np.where(is_sharded(design, state), shard_ranks(design, of_experts=of_experts), 1.0)
    if (outer := is_sharded(design, state, "outer")).any():
        shards = np.where(outer, (design.expert_sharing if of_experts else design.sharing).whole.size, shards)
    return np.where(design.reshard_after_forward > 0, shards, 1.0) if state == "weights" else shards


def shard_ranks(design: DesignPoints, *, of_experts: bool) -> FloatArray:
    """Ranks that divide the states of parameters, or of experts, if the ZeRO stage asks for it; (points,). [-]"""
    return (design.expert_sharing if of_experts else design.sharing).shards.size


def is_sharded(design: DesignPoints, state: State, within: Literal["sharded", "outer"] = "sharded") -> BoolArray:
    """Where the ZeRO stage shards a state, or copies of sharded states divide it, if several have it; (points,)."""
    stages = np.array([state in getattr(stage, within) for stage in ZERO])
    return np.asarray(stages[design.zero_row.astype(np.intp)])


def resharded(design: DesignPoints, *, of_experts: bool) -> BoolArray:
    """Where a rank has whole weights, or experts, for a pass over their layer only; (points,)."""
    of_pass = is_sharded(design, "weights") & (design.reshard_after_forward > 0)
    return np.asarray(of_pass & (shard_ranks(design, of_experts=of_experts) > 1))


def moment_bytes(design: DesignPoints) -> FloatArray:
    """Bytes of a moment of a parameter; (points,). [B]"""
    return np.array([*MOMENTS.values()])[design.moments.astype(np.intp)]


def is_orthogonal(design: DesignPoints) -> BoolArray:
    """Where updates of matrices are made orthogonal, so that they are owned whole; not of adapters; (points,)."""
    rules = np.array([rule.newton_schulz_steps > 0 for rule in OPTIMIZERS.values()])
    return np.asarray(rules[design.optimizer.astype(np.intp)] & (design.lora_rank == 0))


def state_bytes(run: TransformerRun, rule: OptimizerRule) -> FloatArray:
    """Bytes of the states of a parameter, by one of the optimizers; (points,). [B]"""
    return rule.state_bytes(run.precision.state_bytes, moment_bytes(run.design), run.design.store_param_remainders)


def owned_matrices(
    run: TransformerRun, stage: Stage, matrices: Sequence[WeightMatrix]
) -> list[tuple[FloatArray, FloatArray]]:
    """Number of each matrix that a rank of a stage holds, and that its fullest owner has. [-]

    Replicas that share out the optimizer's states own whole matrices. Owners come in turn, the largest
    matrices first, as Megatron-LM's layer-wise distributed optimizer deals them out.
    """
    design, numbers = run.design, {}
    for of_experts in (False, True):
        owners = state_shards(design, "optimizer", of_experts=of_experts)
        copies = run.model.num_experts / design.ep if of_experts else 1.0
        before, dealt = np.zeros(()), np.zeros(())
        for matrix in matrices:
            if matrix.of_experts == of_experts:
                held = stage.counts[matrix.part] * matrix.repeats * copies
                before, turns = before + held, np.ceil((before + held) / owners)
                numbers[matrix], dealt = (held, turns - dealt), turns
    return [numbers[matrix] for matrix in matrices]


def owned_parameters(
    run: TransformerRun, stage: Stage, parameters: FloatArray, experts: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Parameters whose states a rank keeps: each by itself, and in matrices with orthogonal updates; (points,). [-]

    `parameters` and `experts` are those of a rank, without and of routed experts, (points,); None without experts. [-]
    """
    design = run.design
    shards = [state_shards(design, "optimizer", of_experts=of_experts) for of_experts in (False, True)]
    plain = parameters / shards[0] if experts is None else parameters / shards[0] + experts / shards[1]
    orthogonal = is_orthogonal(design)
    if not orthogonal.any():
        return plain, np.zeros(())
    matrices = weight_matrices(run.model)
    within = [np.zeros(()), np.zeros(())]  # of all parameters, and of experts
    owned = np.zeros(())
    for matrix, (held, fullest) in zip(matrices, owned_matrices(run, stage, matrices), strict=True):
        split = design.etp if matrix.of_experts else design.tp
        size = matrix.size / np.where(matrix.whole, 1.0, split)  # entries on one rank
        within[matrix.of_experts] = within[matrix.of_experts] + held * size
        owned = owned + fullest * size
    others = (parameters - within[0]) / shards[0]
    if experts is not None:
        others = others + (experts - within[1]) / shards[1]
    return np.where(orthogonal, others, plain), np.where(orthogonal, owned, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class WeightCopies:
    """Bytes of a quantised weight, beyond the 16 bits of every weight; (points,) each. [B]"""

    primary: FloatArray  #: bytes that replicas can shard: negative where it has no 16-bit copy
    cast: FloatArray  #: copies of a weight that is whole, for products


def weight_copies(run: TransformerRun) -> WeightCopies:
    """Copies of the weights of layers' products.

    In addition to 16 bits there are a copy in the format, and its transpose where one is needed. With `fp8_parameters`
    there are no 16 bits: the copy is written by the optimizer from its fp32 weights, and MX formats have both copies of
    it, since their scales run along one axis. Four bits keep 16 bits in addition [NVIDIA2026]_, unless they are frozen.
    """
    codes = run.design.precision
    size, narrow = of_formats(codes, "weight_bytes"), is_narrow(codes)
    copies = size * (np.where(narrow, 1.0, 0.0) + np.where(needs_transposed(codes, run.system), 1.0, 0.0))
    kept = np.where(run.design.lora_rank > 0, np.where(narrow, size, 0.0), 0.0)
    primary = np.where(run.design.fp8_parameters > 0, np.maximum(of_formats(codes, "primary_bytes"), kept), 0.0)
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
    gathered = gathered_bytes(run, of_shards=exchange.every == "micro_batch" or exchange.over == "copies")
    return whole - quantised * np.where(gathered > 0, run.precision.element_bytes - gathered, 0.0)


def gathered_bytes(run: TransformerRun, *, of_shards: bool) -> FloatArray:
    """Bytes of a quantised weight as replicas gather it, once a step or for each pass; 0: 16 bits. [B]"""
    name = "gathered_shard_bytes" if of_shards else "gathered_bytes"
    return np.where(run.design.fp8_parameters > 0, of_formats(run.design.precision, name), 0.0)


def owned_quantised(run: TransformerRun, quantised: Sequence[FloatArray]) -> list[FloatArray]:
    """Weights that a rank updates of those that products read in a format, of layers and of experts; (points,). [-]"""
    every = zip(quantised, (False, True), strict=True)
    return [whole / state_shards(run.design, "optimizer", of_experts=of_experts) for whole, of_experts in every]


def weight_casts(run: TransformerRun, quantised: Sequence[FloatArray]) -> KernelCost:
    """Casts of weights in a step, by a rank, which the first forward passes wait for: memory traffic alone.

    `quantised` are weights that products read in the format, of layers and of experts; (points,) each. [-]

    A weight is cast once a step and kept for all micro-batches, as Megatron-LM does; where it is gathered for each, for
    each. Weights that are gathered in the format are cast once a step, by their owner. The transposed copy is whole.
    """
    if not some_narrow(run):
        return KernelCost()
    design, codes, w = run.design, run.design.precision, run.precision.element_bytes
    size, maxima = of_formats(codes, "weight_bytes"), of_formats(codes, "maxima")
    narrow = np.where(is_narrow(codes), 1.0, 0.0)
    moved = np.zeros(codes.shape)
    for whole, share, of_experts in zip(quantised, owned_quantised(run, quantised), (False, True), strict=True):
        of_pass = resharded(design, of_experts=of_experts)
        once = np.where(of_pass, design.gradient_accumulation_steps, 1.0)
        passes = np.where(of_pass, 2.0, 1.0)
        by_owner = np.where(of_pass, gathered_bytes(run, of_shards=True), gathered_bytes(run, of_shards=False))
        cast = np.where(by_owner > 0, share, whole * once * passes)
        copied = np.where(needs_transposed(codes, run.system), whole * once, 0.0)
        moved = moved + narrow * (cast * (w * (1 + maxima) + size) + copied * 2 * size)
    dram = run.system.dram
    time = moved / (dram.bandwidth * dram.efficiency)
    return KernelCost(time=time, memory_bound_time=time, memory_energy=moved * dram.energy)
