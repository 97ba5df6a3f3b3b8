"""One optimizer step of designs of a transformer: micro-batches through the pipeline, then the update.

`step` is the public function of this package. It evaluates designs in chunks. Each stage of the evaluation reads a
narrow part of a design and evaluates its unique rows: shapes of ranks (`rank_run`), costs and memory of one
micro-batch (`pass_costs`, `rank_costs`), the pipeline (`schedule_step`), the update (`update_step`), and memory
(`fullest_stage`). `assemble_breakdown` adds the parts up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.columns import FloatArray, in_rows
from costmodel.kernels.items import Items, added
from costmodel.kernels.mixed_formats import best_tiles, is_possible
from costmodel.machine.system import System
from costmodel.steps.combinations import Combinations
from costmodel.steps.memory.memory_items import memory_items
from costmodel.steps.memory.reserved import reserved_memory
from costmodel.steps.memory.stage_memory import fullest_stage
from costmodel.steps.micro_batch.micro_batch import MicroBatch, micro_batches, quantities_read
from costmodel.steps.micro_batch.rank_memory import MEMORY_READS, PartMemory, rank_memory
from costmodel.steps.pipeline.host_offload import offloaded_activations
from costmodel.steps.pipeline.pipeline_step import schedule_step
from costmodel.steps.pipeline.stages import pipeline_stages
from costmodel.steps.result.assembly import assemble_breakdown, host_time, in_chunks, schedules_apart
from costmodel.steps.result.breakdown import Breakdown
from costmodel.steps.sharding.resolve_sharding import solution
from costmodel.steps.update.update import update_step
from costmodel.training.design import EXPLICIT_TILES, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import FORMATS, MIXED_PRECISION, Precision
from costmodel.training.run import RankRun, Run, TransformerRun, grouping_columns, once_each, rank_run
from costmodel.workload.quantisation import has_units, some_narrow
from costmodel.workload.transformer import transformer_gemms


def step(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> Breakdown:
    """Time, memory and energy of one optimizer step of each design.

    Parameters
    ----------
    model : ModelShape
        The transformer.
    system : System
        The machine; each quantity holds one value, or one per design.
    design : DesignPoints
        Parallel configurations, (points,). Nothing is refused here: whether layers, heads and batches
        divide is for the caller's rules to say.
    precision : Precision
        Bytes of operands, gradients and optimizer states, where no column of a design says otherwise.

    Returns
    -------
    breakdown : Breakdown
        (points,) columns; times of the slowest pipeline stage, memory of the fullest; NaN where chips have no
        units for the design's `precision`. MFU is over the peak of 16 bits whatever the format, as published
        figures are. [s], [B], [J], [$], [W]

    Notes
    -----
    Designs are evaluated in chunks, so that memory does not grow with their number except for the result.
    """
    return transformer_step(Run(model, system, design, precision))


def transformer_step(run: TransformerRun) -> Breakdown:
    """`step` of a run; its designs may have columns for other rules beside."""
    solved = solution(run, cost_of_passes)
    run = run.of(solved.design)
    if solved.costs is None:
        return _evaluated(run)
    others = np.setdiff1d(np.arange(run.num_points), solved.rows)
    if not others.size:
        return solved.costs
    return in_rows([(solved.rows, solved.costs), (others, _evaluated(run.take(others)))], run.num_points)


def _evaluated(run: TransformerRun) -> Breakdown:
    """`step` of designs that leave nothing to solve."""
    all_with_all = Combinations.of(run)
    if all_with_all is None:
        return in_chunks(transformer_chunk, run, grouping=grouping_columns)
    return all_with_all.evaluated(transformer_chunk, grouping=grouping_columns)


def resolve_sharding(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> DesignPoints:
    """Replace ``sharding: solve`` and ``solve_bytes`` by explicit shardings, kernel by kernel.

    Parameters are those of `step`, rules those of `costmodel.steps.sharding.resolve_sharding.solution`.
    """
    return solution(Run(model, system, design, precision), cost_of_passes).design


def resolve_tiling(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> DesignPoints:
    """Replace ``tiling: solve`` by explicit output tiles, product by product and pass by pass.

    Shardings are explicit afterwards too (`resolve_sharding`). Steps with these tiles take the same time, to
    the bit, unless a product of one name has several sizes. Parameters are those of `step`.
    """
    run = Run(model, system, design, precision)
    run = run.of(design := solution(run, cost_of_passes).design)
    ranks = rank_run(replace(run, system=system.sliced(design.world_size)))
    free = replace(ranks, design=replace(ranks.design, tiles={}))
    best = best_tiles(free, transformer_gemms(free))
    explicit = np.broadcast_to(design.tiling == EXPLICIT_TILES, (run.num_points,))
    given = {name: np.where(explicit, ranks.design.tiles.get(name, 0.0), 0.0) for name in best}
    edges = {name: np.where(given[name] > 0, given[name], edge) for name, edge in best.items()}
    return replace(design, tiling=np.ones(run.num_points), tile_edges=edges)


def transformer_chunk(run: TransformerRun) -> Breakdown:
    """Costs of a chunk of designs, whose columns are all of one length."""
    if (mixed := schedules_apart(transformer_chunk, run)) is not None:
        return mixed
    run = replace(run, system=run.system.sliced(run.design.world_size))
    ranks = rank_run(run)
    return cost_of_passes(run, ranks, pass_costs(run, ranks))


def pass_costs(run: TransformerRun, ranks: RankRun) -> MicroBatch:
    """Costs of one micro-batch on a rank, evaluated once for ranks that are alike. [s], [J]"""
    passes = ranks.reading(quantities_read(run.system))
    [costs] = once_each(passes, lambda unique: [micro_batches(unique)])
    return costs


def cost_of_passes(run: TransformerRun, ranks: RankRun, costs: MicroBatch) -> Breakdown:
    """Costs of a chunk of designs of one kind of pipeline; `costs` are those of their micro-batches. [s], [J]"""
    breakdown = assemble_breakdown(
        step_parts(run, ranks, costs)[0],
        run.system,
        world_size=run.design.world_size,
        tokens=run.design.global_batch_size * run.model.seq_len,
        model_flops=3 * run.model.forward_flops_per_sequence * run.design.global_batch_size,
    )
    if not (some_narrow(run) or ranks.design.tiles):
        return breakdown
    known = is_possible(ranks)
    return breakdown.map(lambda values: np.where(known, values, np.nan))


def step_parts(run: TransformerRun, ranks: RankRun, costs: MicroBatch) -> tuple[dict[str, FloatArray], Items]:
    """Parts of a step: columns of a `Breakdown`, (points,).

    Parameters are those of `cost_of_passes`. What the parts add up stands beside them where the run is
    itemized. [s], [B], [J]
    """
    design = run.design
    costs, memory = rank_costs(run, ranks, costs)
    stages = pipeline_stages(run.model, design)
    schedule, of_schedule, passes = schedule_step(run, ranks, costs, stages.corners)
    update, of_update = update_step(run, passes, memory, stages.foremost, alone=costs)
    fullest = fullest_stage(run, ranks, memory, stages.foremost)
    kernels = schedule["forward_time"] + schedule["backward_time"] + schedule["recompute_time"]
    computing = kernels - schedule["launch_bound_time"]
    items: Items = {}
    if run.itemized:
        items = {**memory_items(run, ranks, memory, fullest), **added(of_schedule, of_update)}
    columns = {
        **schedule,
        **update,
        **{name: schedule[name] + update[name] for name in schedule.keys() & update.keys()},
        **{f"{name}_memory": values for name, values in fullest.memory.columns().items()},
        "host_time": host_time(run.system, design.world_size, computing),
        "reserved_memory": reserved_memory(run, ranks, fullest.memory.total),
    }
    return columns, items


def rank_costs(run: TransformerRun, ranks: RankRun, costs: MicroBatch) -> tuple[MicroBatch, Sequence[PartMemory]]:
    """Micro-batches with what waits for hosts, and what parts of the model need of memory. [s], [J], [B]"""
    memory = once_each(ranks.reading(MEMORY_READS), rank_memory)
    return offloaded_activations(run, costs, memory), memory


def reasons(run: TransformerRun) -> list[str]:
    """Why the first of some designs has no number, and what would do; nothing where it has one."""
    if is_possible(rank_run(run))[0]:
        return []
    if has_units(run)[0]:
        return [f"tiling=sample: system {run.system.name} has no on-chip memory for a tile; take smaller ones"]
    word = [*FORMATS][int(run.design.precision[0])]
    units = FORMATS[word].units
    return [
        f"precision={word}: system {run.system.name} has no {units} units ({units}_speedup is 0); take precision=bf16"
    ]


def remedies(run: TransformerRun) -> str:
    """Remedies for designs without a number, with how many designs each is for."""
    units, possible = has_units(run), is_possible(rank_run(run))
    sentences = []
    if missing := int((~units).sum()):
        sentences.append(f"for precision ({missing}), whose units {run.system.name} has not; take --set precision=bf16")
    if large := int((units & ~possible).sum()):
        sentences.append(f"for tiles ({large}) that on-chip memory has no room for; take smaller ones")
    return "; ".join(sentences)
