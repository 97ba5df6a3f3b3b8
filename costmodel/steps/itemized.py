"""One step of each design with all that it is made of: the same evaluation, which says what it adds up."""

from __future__ import annotations

from dataclasses import replace

from costmodel.kernels.items import Items
from costmodel.steps.sharding.resolve_sharding import solution
from costmodel.steps.transformer import cost_of_passes, pass_costs, step_parts
from costmodel.training.run import TransformerRun, rank_run


def transformer_items(run: TransformerRun) -> Items:
    """Items that columns of the breakdown of one design add up; (1,) arrays. [s], [B], [FLOP], [-]

    Times of kernels are those of the slowest stage, memory that of the fullest.
    """
    design = solution(run, cost_of_passes).design
    run = replace(run.of(design), itemized=True, system=run.system.sliced(design.world_size))
    ranks = rank_run(run)
    return step_parts(run, ranks, pass_costs(run, ranks))[1]
