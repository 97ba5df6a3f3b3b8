"""Items of the memory of the fullest stage: parts of the model, and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.items import Item, Items
from costmodel.steps.memory.reserved import reserved_parts
from costmodel.steps.memory.stage_memory import (
    WORKSPACE_BYTES,
    FullestStage,
    StageMemory,
    held_states,
    loss_buffers,
    message_buffers,
    stage_activations,
    stage_parameters,
    state_sizes,
    unit_buffers,
    updated_parameters,
    working_buffers,
)
from costmodel.steps.memory.states import state_shards
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.pipeline.recomputed_layers import stage_parts
from costmodel.steps.pipeline.stages import Stage
from costmodel.training.optimizer_states import STATES
from costmodel.training.run import RankRun, TransformerRun
from costmodel.workload.transformer import every_part


def memory_items(run: TransformerRun, ranks: RankRun, parts: Sequence[PartMemory], fullest: FullestStage) -> Items:
    """Items of the peak memory, with the rank of the fullest stage and the micro-batches that it holds.

    Parameters are those of `fullest_stage`, and what it found; (points,) values. [B], [-]

    Optimizer states that hosts hold, or that owners have of whole matrices, are shared out by parameters.
    """
    stage, memory, held = fullest.stage, fullest.memory, fullest.micro_batches
    items = {
        **_states(run, stage, parts, memory),
        **_activations(run, stage, parts, held, memory),
        **_buffers(run, ranks, stage, parts),
        **{
            Item("bytes", "reserved_memory", name=name): values
            for name, values in reserved_parts(run, ranks, memory.total).items()
        },
    }
    name = "fullest stage"
    return {
        **{item: values + np.zeros(1) for item, values in items.items()},
        Item("rank", name=name): stage.rank,
        Item("micro-batches held", name=name): held,
    }


def _states(
    run: TransformerRun, stage: Stage, parts: Sequence[PartMemory], memory: StageMemory
) -> dict[Item, FloatArray]:
    """Weights, gradients and optimizer states of each part on a stage."""
    sizes = state_sizes(run)
    shards = [state_shards(run.design, state) for state in STATES]
    of_experts = [state_shards(run.design, state, of_experts=True) for state in STATES]
    output = stage_parameters(run, stage, parts) - updated_parameters(stage, parts)
    owned = {("output", ""): held_states(output, stage, sizes, shards)}
    for part, memory_of_part, count in zip(every_part(run.model), parts, stage.counts, strict=False):
        owned[part.name, ""] = held_states(count * memory_of_part.parameters, stage, sizes, shards)
        if memory_of_part.expert_parameters.ndim:
            experts = count * memory_of_part.expert_parameters
            owned[part.name, "experts"] = held_states(experts, stage, sizes, of_experts)
    items: dict[Item, FloatArray] = {}
    for number, state in enumerate(STATES):
        of_state = {name: values[number] for name, values in owned.items()}
        whole: FloatArray = sum(of_state.values(), start=np.zeros(()))
        if state == "weights":
            items[Item("bytes", "weights_memory", name="copies in fewer bits")] = memory.weights - whole
        here = memory.optimizer / whole if state == "optimizer" else 1.0
        items |= {
            Item("bytes", f"{state}_memory", part, name=name): memory_of_part * here
            for (part, name), memory_of_part in of_state.items()
        }
    return items


def _activations(
    run: TransformerRun, stage: Stage, parts: Sequence[PartMemory], held: FloatArray, memory: StageMemory
) -> dict[Item, FloatArray]:
    """Activations of each part on a stage, and what of them is on its way to hosts."""
    of_stage = stage_parts(run, stage, parts)
    here = run.of(replace(run.design, offload_activations=np.zeros(1)))
    items: dict[Item, FloatArray] = {}
    for number, part in enumerate(every_part(run.model)):
        alone = [memory_of_part if n == number else PartMemory() for n, memory_of_part in enumerate(of_stage)]
        kept = stage_activations(here, stage, alone, held)
        away = run.design.offload_activations if number < len(stage.layers) else 0.0
        items[Item("bytes", "activations_memory", part.name)] = kept * (1 - away)
    moving = memory.activations - sum(items.values(), start=np.zeros(()))
    if (run.design.offload_activations > 0).any():
        items[Item("bytes", "activations_memory", name="on the way to hosts")] = moving
    return items


def _buffers(run: TransformerRun, ranks: RankRun, stage: Stage, parts: Sequence[PartMemory]) -> Items:
    """Items of buffers that are allocated for a part of the step."""
    layers = parts[: len(run.model.kinds)]
    working = working_buffers(stage_parts(run, stage, parts)[: len(layers)])
    loss = np.where(stage.has_head > 0, loss_buffers(run, parts), 0.0)
    buffers = {
        "layer that runs": np.where(loss > working, 0.0, working),
        "workspaces": np.full(1, WORKSPACE_BYTES),
        "messages of the pipeline": message_buffers(run, ranks),
        "whole weights and gradients": unit_buffers(run, layers),
        "logits and loss": np.where(loss > working, loss, 0.0),
    }
    return {Item("bytes", "buffers_memory", name=name): values for name, values in buffers.items()}
