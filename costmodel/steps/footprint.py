"""Memory, chips, price and power of designs, without the times of their steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from costmodel.columns import FloatArray, UniqueRows
from costmodel.kernels.mixed_formats import is_possible
from costmodel.steps.memory.reserved import reserved_memory
from costmodel.steps.memory.stage_memory import fullest_stage
from costmodel.steps.micro_batch.rank_memory import rank_memory
from costmodel.steps.pipeline.stages import pipeline_stages
from costmodel.steps.result.assembly import assemble_breakdown, in_chunks, schedules_apart
from costmodel.steps.result.breakdown import PARTS, Breakdown
from costmodel.training.design import EXPLICIT_TILES, SOLVE, SOLVE_BYTES, canonical
from costmodel.training.run import TransformerRun, grouping_columns, once_each, rank_run
from costmodel.workload.quantisation import some_narrow

#: Columns of a breakdown that are known without times.
FOOTPRINT: Final = (
    *("peak_memory", *PARTS["peak_memory"]),
    *("model_flops", "world_size", "system_price", "system_power"),
)
#: Columns of designs that only times depend on.
TIMES_ALONE: Final = (*("overlap_grad_reduce", "overlap_p2p", "overlap_param_gather"), "tp_overlap")


def transformer_footprint(run: TransformerRun) -> dict[str, FloatArray] | None:
    """Memory, chips, price and power of designs, as in `transformer_step` to the last bit. [B], [-], [$], [W]

    The columns in `FOOTPRINT`; None where kernels are split as is fastest.

    Designs that differ in `TIMES_ALONE`, or in what changes nothing beside the others, are looked at once.
    """
    points, sharding = run.num_points, run.design.sharding
    if ((sharding == SOLVE) | (sharding == SOLVE_BYTES)).any():
        return None
    run = run.of(run.design.map(lambda values: np.broadcast_to(values, (points,))))
    reduced = run.of(canonical(run.design).with_columns(dict.fromkeys(TIMES_ALONE, np.zeros(points))))
    unique = UniqueRows.of(*reduced.columns())
    table = unique.spread(in_chunks(_chunk, unique.take(reduced), grouping=grouping_columns)).columns()
    some_limits = some_narrow(run) or bool((run.design.tiling == EXPLICIT_TILES).any())
    known = is_possible(rank_run(run)) if some_limits else np.ones(points, dtype=bool)
    return {name: np.where(known, table[name], np.nan) for name in FOOTPRINT}


def _chunk(run: TransformerRun) -> Breakdown:
    """The table of a step that takes no time."""
    if (mixed := schedules_apart(_chunk, run)) is not None:
        return mixed
    ranks = rank_run(run)
    stages = pipeline_stages(run.model, run.design).foremost
    memory = fullest_stage(run, ranks, once_each(ranks, rank_memory), stages).memory
    parts: Mapping[str, FloatArray] = {
        **{f"{name}_memory": values for name, values in memory.columns().items()},
        "reserved_memory": reserved_memory(run, ranks, memory.total),
    }
    with np.errstate(all="ignore"):  # rates of no time
        return assemble_breakdown(
            parts,
            run.system,
            world_size=run.design.world_size,
            tokens=run.design.global_batch_size * run.model.seq_len,
            model_flops=3 * run.model.forward_flops_per_sequence * run.design.global_batch_size,
        )
