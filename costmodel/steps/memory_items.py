"""What the memory of the fullest stage is made of: each part of the model, and each buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from costmodel.columns import FloatArray, chosen, largest
from costmodel.steps.memory import (
    StageMemory,
    held_micro_batches,
    held_on_ranks,
    held_states,
    message_buffers,
    stage_activations,
    stage_memories,
    stage_parameters,
    state_sizes,
    unit_buffers,
    updated_parameters,
    working_buffers,
)
from costmodel.steps.pipeline import Stage, chosen_stage, full_stages
from costmodel.steps.rank_memory import PartMemory
from costmodel.steps.recomputed_layers import stage_parts
from costmodel.steps.states import state_shards
from costmodel.training.run import RankRun, TransformerRun
from costmodel.training.zero import STATES
from costmodel.workload.transformer import every_part


def memory_items(run: TransformerRun, ranks: RankRun, parts: Sequence[PartMemory]) -> dict[str, FloatArray]:
    """Items of the peak memory, as `costmodel.steps.items` names them, and the rank of the fullest stage.

    Parameters are those of `fullest_stage`; (points,) columns. [B]

    Notes
    -----
    Optimizer states that hosts hold, or that owners have of whole matrices, are shared out by parameters.
    """
    tables, on_ranks = stage_memories(run, ranks, parts), held_on_ranks(run.design)
    stages = full_stages(run.model, run.design, on_ranks)
    fullest = largest([table.total for table in tables])
    held = chosen(held_micro_batches(run.design, stages, on_ranks), fullest)
    stage = chosen_stage(stages, fullest)
    memory = StageMemory(
        **{name: chosen([t.columns()[name] for t in tables], fullest) for name in tables[0].columns()}
    )
    items = {
        **_states(run, stage, parts, memory),
        **_activations(run, stage, parts, held, memory),
        **_buffers(run, ranks, stage, parts),
    }
    reserved = {"reserved_memory:bytes": run.system.chip.reserved_memory}
    found = {name: values + np.zeros(1) for name, values in {**items, **reserved}.items()}
    return {**found, "fullest stage:rank": stage.rank, "fullest stage:micro-batches held": held}


def _states(
    run: TransformerRun, stage: Stage, parts: Sequence[PartMemory], memory: StageMemory
) -> dict[str, FloatArray]:
    """Weights, gradients and optimizer states of each part on a stage."""
    sizes = state_sizes(run)
    shards = [state_shards(run.design, state) for state in STATES]
    of_experts = [state_shards(run.design, state, of_experts=True) for state in STATES]
    output = stage_parameters(run, stage, parts) - updated_parameters(stage, parts)
    owned = {"output": held_states(output, stage, sizes, shards)}
    for part, own, count in zip(every_part(run.model), parts, stage.counts, strict=False):
        owned[part.name] = held_states(count * own.parameters, stage, sizes, shards)
        if own.expert_parameters.ndim:
            experts = count * own.expert_parameters
            owned[f"{part.name}/experts"] = held_states(experts, stage, sizes, of_experts)
    found: dict[str, FloatArray] = {}
    for place, state in enumerate(STATES):
        each = {name: values[place] for name, values in owned.items()}
        whole: FloatArray = sum(each.values(), start=np.zeros(()))
        if state == "weights":
            found["weights_memory/copies in fewer bits:bytes"] = memory.weights - whole
        here = memory.optimizer / whole if state == "optimizer" else 1.0
        found |= {f"{state}_memory/{name}:bytes": own * here for name, own in each.items()}
    return found


def _activations(
    run: TransformerRun,
    stage: Stage,
    parts: Sequence[PartMemory],
    held: FloatArray,
    memory: StageMemory,
) -> dict[str, FloatArray]:
    """Activations of each part on a stage, and what of them is on its way to hosts."""
    own = stage_parts(run, stage, parts)
    here = run.of(replace(run.design, offload_activations=np.zeros(1)))
    found: dict[str, FloatArray] = {}
    for place, part in enumerate(every_part(run.model)):
        alone = [each if n == place else PartMemory() for n, each in enumerate(own)]
        kept = run.system.software.kept_activations * stage_activations(here, stage, alone, held)
        away = run.design.offload_activations if place < len(stage.layers) else 0.0
        found[f"activations_memory/{part.name}:bytes"] = kept * (1 - away)
    moving = memory.activations - sum(found.values(), start=np.zeros(()))
    if (run.design.offload_activations > 0).any():
        found["activations_memory/on the way to hosts:bytes"] = moving
    return found


def _buffers(
    run: TransformerRun, ranks: RankRun, stage: Stage, parts: Sequence[PartMemory]
) -> Mapping[str, FloatArray]:
    """What is there for a while."""
    kinds = len(run.model.kinds)
    layers, head = parts[:kinds], parts[kinds + 1]
    own = stage_parts(run, stage, parts)[:kinds]
    return {
        "buffers_memory/layer that runs:bytes": working_buffers(own),
        "buffers_memory/messages of the pipeline:bytes": message_buffers(run, ranks),
        "buffers_memory/whole weights and gradients:bytes": unit_buffers(run, layers),
        "buffers_memory/logits:bytes": np.where(stage.has_head > 0, head.working, 0.0),
    }
