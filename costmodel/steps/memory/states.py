"""States of parameters on one rank: among how many replicas they are shared out, in how many bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.steps.pipeline.stages import Stage
from costmodel.training.design import DesignPoints
from costmodel.training.optimizer_states import MOMENTS, OPTIMIZERS, ZERO, OptimizerRule, State
from costmodel.training.run import TransformerRun
from costmodel.workload.optimizer import WeightMatrix, weight_matrices


def state_shards(design: DesignPoints, state: State, *, of_experts: bool = False) -> FloatArray:
    """Replicas that share out a state of the parameters of a rank, or of its experts. [-]

    Weights that are not resharded after the forward pass are whole on every rank while a step lasts.
    """
    sharing = design.expert_sharing if of_experts else design.sharing
    shards: FloatArray = np.where(is_sharded(design, state), sharing.shards.size, 1.0)
    return np.where(design.reshard_after_forward > 0, shards, 1.0) if state == "weights" else shards


def is_sharded(design: DesignPoints, state: State) -> BoolArray:
    """Where replicas share out a state; (points,)."""
    stages = np.array([state in stage.sharded for stage in ZERO])
    return np.asarray(stages[design.zero_row.astype(np.intp)])


def resharded(design: DesignPoints) -> BoolArray:
    """Where a rank has whole weights for a pass over their layer alone; (points,)."""
    return np.asarray(is_sharded(design, "weights") & (design.reshard_after_forward > 0))


def moment_bytes(design: DesignPoints) -> FloatArray:
    """Bytes of a moment of a parameter; (points,). [B]"""
    return np.array([*MOMENTS.values()])[design.moments.astype(np.intp)]


def is_orthogonal(design: DesignPoints) -> BoolArray:
    """Where updates of matrices are made orthogonal, so that they are owned whole; (points,)."""
    rules = np.array([rule.newton_schulz_steps > 0 for rule in OPTIMIZERS.values()])
    return np.asarray(rules[design.optimizer.astype(np.intp)])


def state_bytes(run: TransformerRun, rule: OptimizerRule) -> FloatArray:
    """Bytes of the states of a parameter, by one of the optimizers; (points,). [B]"""
    design = run.design
    return rule.state_bytes(run.precision.state_bytes, moment_bytes(design), design.store_param_remainders)


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


def matrix_share(design: DesignPoints, matrix: WeightMatrix) -> FloatArray:
    """Entries of a matrix on one rank. [-]"""
    split = design.etp if matrix.of_experts else design.tp
    return matrix.size / np.where(matrix.whole, 1.0, split)


def owned_parameters(
    run: TransformerRun, stage: Stage, parameters: FloatArray, experts: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Parameters whose states a rank keeps: each by itself, and in matrices with orthogonal updates; (points,). [-]

    `parameters` and `experts` are those of a rank of the stage without and of routed experts, (points,); None in models
    without experts. [-]
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
        size = matrix_share(design, matrix)
        within[matrix.of_experts] = within[matrix.of_experts] + held * size
        owned = owned + fullest * size
    others = (parameters - within[0]) / shards[0]
    if experts is not None:
        others = others + (experts - within[1]) / shards[1]
    return np.where(orthogonal, others, plain), np.where(orthogonal, owned, 0.0)
