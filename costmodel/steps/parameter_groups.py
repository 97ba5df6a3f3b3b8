"""Clipping and update of each parameter group of a rank: the same costs as `optimizer_step`, group by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.kernels.kernel_cost import KernelCost
from costmodel.kernels.kernel_tables import optimizer_work
from costmodel.steps.micro_batch.rank_memory import PartMemory, expert_parameters_of, kernel_parameters_of, rank_memory
from costmodel.steps.optimizer import weight_kernel
from costmodel.steps.parameter_states import moment_bytes, state_shards
from costmodel.steps.pipeline.stages import pipeline_stages
from costmodel.steps.stage_memory import head_parameters
from costmodel.steps.update import fullest_update
from costmodel.training.precision import ADAM
from costmodel.training.run import RankRun, TransformerRun, rank_run


@dataclass(frozen=True, slots=True, eq=False)
class GroupUpdate:
    """Clipping and update of the parameters of one group on one rank; (points,) each.

    Times are those of the kernels without their launch, which all groups share.
    """

    parameters: FloatArray  #: on the rank [-]
    owned: FloatArray  #: of them, whose optimizer states the rank has and updates [-]
    clip_flops: FloatArray  #: [FLOP]
    clip_bytes: FloatArray  #: [B]
    clip_time: FloatArray  #: [s]
    apply_flops: FloatArray  #: [FLOP]
    apply_bytes: FloatArray  #: [B]
    apply_time: FloatArray  #: [s]


def parameter_groups(run: TransformerRun) -> dict[str, GroupUpdate]:
    """Groups of the parameters of a rank of the stage that has most, by part and kernel.

    Parameters
    ----------
    run : TransformerRun
        Model, machines and designs with explicit shardings, (points,).

    Returns
    -------
    groups : mapping
        Name, such as "layers mlp_up" or "embedding" -> costs. Their times add up to those of
        `optimizer_step`, less the launches.

    Raises
    ------
    DseError
        If an optimizer updates matrices whole, or hosts update states: groups share such costs.

    Notes
    -----
    Rule OP1 of [DeepFlow]_: clipping takes 4 FLOP and 3 accesses for each parameter, Adam 3 FLOP and 7.
    """
    design = run.design
    if (design.optimizer != 0).any() or (design.offload_optimizer > 0).any():
        raise DseError("parameter groups: known for optimizer=adam with offload_optimizer=0 only")
    ranks = rank_run(run)
    parts, stages = rank_memory(ranks), pipeline_stages(run.model, design).foremost
    stage, *_ = fullest_update(run, parts, stages)
    sizes = {
        name: (stage.counts[part] * parameters, of_experts)
        for part, name, parameters, of_experts in _on_rank(ranks, parts)
    }
    sizes["head"] = (stage.has_head * head_parameters(run, stage), False)
    accesses = ADAM.accesses(moment_bytes(design))
    groups = {}
    for name, (parameters, of_experts) in sizes.items():
        owned = parameters / state_shards(design, "optimizer", of_experts=of_experts)
        if (owned > 0).any():
            clip, apply = (weight_kernel(kernel, owned, run.system, often) for kernel, often in
                           (("gradclip", None), ("apply_grad", accesses)))  # fmt: skip
            clip_work = optimizer_work("gradclip", owned, element_bytes=4.0)
            apply_work = optimizer_work("apply_grad", owned, element_bytes=4.0, accesses=accesses)
            groups[name] = GroupUpdate(parameters + np.zeros(1), owned + np.zeros(1), *clip_work,
                                       _busy(clip, run), *apply_work, _busy(apply, run))  # fmt: skip
    return groups


def _busy(cost: KernelCost, run: TransformerRun) -> FloatArray:
    """Time of a kernel without its launch. [s]"""
    return cost.time - run.system.chip.kernel_launch


def _on_rank(run: RankRun, parts: Sequence[PartMemory]) -> Iterator[tuple[int, str, FloatArray, bool]]:
    """Place of a part in `Stage.counts`, name of a group, its parameters on a rank [-], and if they are of experts.

    `parts` are those of `rank_memory`; the head is no part of them.
    """
    kinds = run.model.kinds
    for number, layer in enumerate(kinds):
        name = "layers" if len(kinds) == 1 else f"layers {number}"
        for kernel, parameters in kernel_parameters_of(run, layer).items():
            yield number, f"{name} {kernel}", parameters, False
        for kernel, parameters in expert_parameters_of(run, layer).items():
            yield number, f"{name} {kernel}", parameters, True
    yield len(kinds), "embedding", parts[len(kinds)].parameters, False
    if run.model.mtp_layers:
        mtp = len(kinds) + 2  # behind embedding and head
        yield mtp, "multi-token prediction dense", parts[mtp].parameters, False
        yield mtp, "multi-token prediction experts", parts[mtp].expert_parameters, True
