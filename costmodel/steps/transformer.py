"""One optimizer step of designs of a transformer: micro-batches through the pipeline, then the update.

`step` makes open shardings explicit, and then evaluates designs in chunks. `pass_costs` times one micro-batch on a
rank, once for ranks that are alike. `step_parts` sends all micro-batches through the pipeline (`schedule_step`),
reduces gradients and updates weights (`update_step`), and finds the stage that needs most memory (`fullest_stage`).
Each of these functions reads few columns of a design, and designs that agree in these columns share its work.

Designs on several machines, all with all, compute each number once for its inputs. `footprint` gives memory, chips,
price and power without times; the itemized step is the same evaluation, which keeps the terms of its sums.
`parameter_groups` splits clipping and update of a rank by groups of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from costmodel.columns import FloatArray, IntArray, UniqueRows, distinct_rows, in_rows, is_long
from costmodel.errors import DseError, ParameterError, shortened
from costmodel.kernels.kernel_cost import Items, added
from costmodel.kernels.kernel_tables import has_units, optimizer_work, some_narrow, transformer_gemms
from costmodel.kernels.products import best_tiles, is_possible
from costmodel.machine import System
from costmodel.steps.breakdown import CELLS, PARTS, Breakdown, assemble_breakdown, host_time, in_chunks, schedules_apart
from costmodel.steps.micro_batch.micro_batch import MicroBatch, micro_batches, quantities_of_kernels, quantities_read
from costmodel.steps.micro_batch.rank_memory import (
    MEMORY_READS,
    PartMemory,
    expert_parameters_of,
    kernel_parameters_of,
    rank_memory,
)
from costmodel.steps.optimizer import weight_kernel
from costmodel.steps.parameter_states import moment_bytes, state_shards
from costmodel.steps.pipeline.pipeline_step import offloaded_activations, schedule_step
from costmodel.steps.pipeline.stages import pipeline_stages
from costmodel.steps.stage_memory import (
    fullest_stage,
    head_parameters,
    memory_items,
    reserved_memory,
    trained_parameters,
)
from costmodel.steps.update import fullest_update, update_step
from costmodel.training.design import EXPLICIT_TILES, SOLVE, SOLVE_BYTES, DesignPoints, canonical
from costmodel.training.model import ModelShape
from costmodel.training.precision import ADAM, FORMATS, MIXED_PRECISION, Precision
from costmodel.training.run import RankRun, Run, TransformerRun, grouping_columns, once_each, rank_run, trained_share

#: Most combinations for each point that is asked for: some may be missing.
MOST_CELLS: Final = 1.25


@dataclass(frozen=True, slots=True, eq=False)
class Combinations:
    """All combinations of some designs, some chips and some surroundings of chips.

    Quantities that kernels read are (chips, 1), others (surroundings, 1, 1), and columns of designs (designs,): they
    broadcast against each other, and each result has only the axes that it depends on.
    """

    run: TransformerRun
    shape: tuple[int, ...]  #: surroundings, chips, designs
    places: tuple[IntArray, ...]  #: of each point along them; (points,) each [-]

    @classmethod
    def of(cls, run: TransformerRun) -> Self | None:
        """The combinations that points make up, in any order; None where they do not, or have one machine."""
        quantities, points = run.system.quantities(), run.num_points
        long = {name for name, values in quantities.items() if is_long(values)}
        if not long:
            return None
        chips = long & quantities_of_kernels(run.system)
        surroundings = long - chips
        tables = [[quantities[name] for name in names] for names in (surroundings, chips)]
        rows: list[IntArray] = []
        places: list[IntArray] = []
        shape: tuple[int, ...] = ()
        for columns in (*tables, run.design.arrays()):
            different, back = distinct_rows(*columns, np.zeros(points))  # columns may have one value each
            rows, places, shape = [*rows, different], [*places, back], (*shape, different.size)
            if math.prod(shape) > MOST_CELLS * points:
                return None
        if math.prod(shape[:-1]) == 1 or shape[1] > CELLS:
            return None
        pp, uneven = run.design.pp, run.model.num_layers % (run.design.pp * run.design.vpp) > 0
        kinds = np.broadcast_to(np.minimum(pp, 3) + uneven, (run.num_points,))  # of stages: few where layers are even
        order = np.argsort(kinds[rows[2]], kind="stable")  # a chunk times the most of its pipelines
        rows[2], places[2] = rows[2][order], np.argsort(order)[places[2]]
        axes = {name: _behind(1, quantities[name][rows[1]]) for name in chips}
        axes |= {name: _behind(2, quantities[name][rows[0]]) for name in surroundings}
        design = run.design.map(lambda values: np.broadcast_to(values, (points,))[rows[2]])
        combined = replace(run, system=run.system.with_quantities(axes), design=design)
        return cls(combined, shape, tuple(np.broadcast_arrays(*places)))

    def evaluated(
        self, chunk: Callable[[TransformerRun], Breakdown], grouping: Callable[[DesignPoints], Sequence[FloatArray]]
    ) -> Breakdown:
        """Costs of the points; arguments are those of `in_chunks`."""
        surroundings, *others = self.shape
        step, tables = max(CELLS // self.shape[1], 1), []
        for rows in (slice(start, start + step) for start in range(0, surroundings, step)):
            system = self.run.system.map(lambda v: v[rows] if v.ndim > 2 else v)  # noqa: B023  (called at once)
            tables.append(in_chunks(chunk, replace(self.run, system=system), grouping))
        sizes = [min(step, surroundings - start) for start in range(0, surroundings, step)]
        columns, known = {}, {}
        for name in tables[0].columns():
            parts = [getattr(table, name) for table in tables]
            if len(parts) > 1:
                full = zip(parts, sizes, strict=True)
                parts = [np.concatenate([np.broadcast_to(part, (size, *others)) for part, size in full])]
            [whole] = parts
            if whole.shape not in known:
                axes = (1,) * (len(self.shape) - whole.ndim) + whole.shape  # a column may have only some of them
                indices = [np.minimum(index, size - 1) for index, size in zip(self.places, axes, strict=True)]
                known[whole.shape] = np.ravel_multi_index(indices, axes)
            columns[name] = whole.reshape(-1).take(known[whole.shape])
        return tables[0].with_columns(columns)


def _behind(axes: int, values: FloatArray) -> FloatArray:
    """A quantity with `axes` further axes behind its axis; one value has none."""
    return values.reshape(-1, *[1] * axes) if values.size > 1 else values.reshape(())


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

    Designs that differ only in `TIMES_ALONE`, or in columns that change nothing with the others, are evaluated once.
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
        return breakdown_of(run, parts)


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
        (points,) columns; times of the slowest pipeline stage, memory of the fullest; NaN where chips have no units for
        the `precision`. MFU is over the peak of 16 bits in every format, as published. [s], [B], [J], [$], [W]

    Notes
    -----
    Designs are evaluated in chunks, so that memory does not grow with their number except for the result.
    """
    kinds = (ModelShape, System, DesignPoints, Precision)
    for argument, kind in zip((model, system, design, precision), kinds, strict=True):
        if not isinstance(argument, kind):
            raise ParameterError(f"step: expected an object of class {kind.__name__}, not {shortened(repr(argument))}")
    return transformer_step(Run(model, system, design, precision))


def transformer_step(run: TransformerRun) -> Breakdown:
    """`step` of a run; its designs may also have columns for other rules."""
    if not leaves_shardings_open(run):
        return _evaluated(run)
    from costmodel.steps.resolve_sharding import solution

    solved = solution(run, cost_of_passes)
    run = run.of(solved.design)
    if solved.costs is None:
        return _evaluated(run)
    others = np.setdiff1d(np.arange(run.num_points), solved.rows)
    if not others.size:
        return solved.costs.map(np.copy)  # solutions are remembered
    return in_rows([(solved.rows, solved.costs), (others, _evaluated(run.take(others)))], run.num_points)


def leaves_shardings_open(run: TransformerRun) -> bool:
    """True if a design of a run leaves its shardings to the solver, which is loaded only for these designs."""
    return bool(np.isin(run.design.sharding, (SOLVE, SOLVE_BYTES)).any())


def explicit_design(run: TransformerRun) -> DesignPoints:
    """Designs of a run, with explicit shardings in the place of those that are to be solved for."""
    if not leaves_shardings_open(run):
        return run.design
    from costmodel.steps.resolve_sharding import solution

    return solution(run, cost_of_passes).design


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

    Parameters are those of `step`, rules those of `costmodel.steps.resolve_sharding.solution`.
    """
    return explicit_design(Run(model, system, design, precision))


def resolve_tiling(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> DesignPoints:
    """Replace ``tiling: solve`` by explicit output tiles, product by product and pass by pass.

    Shardings are explicit afterwards too (`resolve_sharding`). Steps with these tiles take the same time, to
    the bit, unless a product of one name has several sizes. Parameters are those of `step`.
    """
    run = Run(model, system, design, precision)
    run = run.of(design := explicit_design(run))
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
    [costs] = once_each(passes, lambda run: [micro_batches(run)])
    return costs


def cost_of_passes(run: TransformerRun, ranks: RankRun, costs: MicroBatch) -> Breakdown:
    """Costs of a chunk of designs of one kind of pipeline; `costs` are those of their micro-batches. [s], [J]"""
    breakdown = breakdown_of(run, step_parts(run, ranks, costs)[0])
    if not (some_narrow(run) or ranks.design.tiles):
        return breakdown
    known = is_possible(ranks)
    return breakdown.map(lambda values: np.where(known, values, np.nan))


def breakdown_of(run: TransformerRun, parts: Mapping[str, FloatArray]) -> Breakdown:
    """The breakdown of a run from parts of its time, memory and energy."""
    tokens = run.design.global_batch_size * run.model.seq_len
    sizes = {"world_size": run.design.world_size, "tokens": tokens, "model_flops": model_flops(run)}
    return assemble_breakdown(parts, run.system, **sizes)


def model_flops(run: TransformerRun) -> FloatArray:
    """FLOP that MFU counts: three forward passes, of frozen weights two (Megatron-Bridge, flop_utils.py). [FLOP]"""
    forward, of_cores = run.model.forward_flops_per_sequence, run.model.forward_core_flops_per_sequence
    passes: FloatArray = np.where(trained_share(run) > 0, 3 * forward, 2 * forward + of_cores)
    return (passes + forward * run.design.reference_model) * run.design.global_batch_size


def step_parts(run: TransformerRun, ranks: RankRun, costs: MicroBatch) -> tuple[dict[str, FloatArray], Items]:
    """Parts of a step: columns of a `Breakdown`, (points,).

    Parameters are those of `cost_of_passes`. The terms of the parts are returned if the run is itemized. [s], [B], [J]
    """
    design = run.design
    costs, memory = rank_costs(run, ranks, costs)
    stages = pipeline_stages(run.model, design)
    schedule, of_schedule, passes = schedule_step(run, ranks, costs, stages.runs)
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
    """Micro-batches with the time that waits for hosts, and the memory of parts of the model. [s], [J], [B]"""
    memory = once_each(ranks.reading(MEMORY_READS), rank_memory)
    return offloaded_activations(run, costs, memory), memory


def reasons(run: TransformerRun) -> list[str]:
    """Reasons why the first of several designs has no number, with remedies; empty where it has one."""
    if is_possible(rank_run(run))[0]:
        return []
    if has_units(run)[0]:
        return [f"tiling=sample: system {run.system.name} has no on-chip memory for a tile; take smaller ones"]
    word = [*FORMATS][int(run.design.precision[0])]
    units = FORMATS[word].units.replace("block", "fp8")
    return [
        f"precision={word}: system {run.system.name} has no {units} units ({units}_speedup is 0); take precision=bf16"
    ]


def remedies(run: TransformerRun) -> str:
    """Remedies for designs without a number, with how many designs each is for."""
    units, possible = has_units(run), is_possible(rank_run(run))
    sentences = []
    if missing := int((~units).sum()):
        sentences.append(f"for precision ({missing}): {run.system.name} lacks its units; take --set precision=bf16")
    if large := int((units & ~possible).sum()):
        sentences.append(f"for tiles ({large}) that on-chip memory has no room for; take smaller ones")
    return "; ".join(sentences)


def transformer_items(run: TransformerRun) -> Items:
    """Items that columns of the breakdown of one design add up; (1,) arrays. [s], [B], [FLOP], [-]

    Times of kernels are those of the slowest stage, memory that of the fullest.
    """
    design = explicit_design(run)
    run = replace(run.of(design), itemized=True, system=run.system.sliced(design.world_size))
    ranks = rank_run(run)
    return step_parts(run, ranks, pass_costs(run, ranks))[1]


def parameter_groups(run: TransformerRun) -> dict[str, dict[str, FloatArray]]:
    """Clipping and update of the parameters of a rank of the stage that has most, by part and kernel.

    Raises `DseError` if an optimizer updates matrices whole, or hosts update states: groups share these costs. The
    shardings of designs are explicit.

    Returns
    -------
    groups : mapping
        Name, such as "layers mlp_up" or "embedding" -> columns, (points,) each: parameters, those of them whose states
        the rank has and updates (`owned`) [-], and for both kernels, such as "gradclip", ``gradclip_flops`` [FLOP],
        ``gradclip_bytes`` [B] and ``gradclip_time_s`` [s]. Their times add up to those of `optimizer_step`, less the
        launches.

    Notes
    -----
    Rule OP1 of [DeepFlow]_: clipping takes 4 FLOP and 3 accesses for each parameter, Adam 3 FLOP and 7.
    """
    design = run.design
    if (design.optimizer != 0).any() or (design.offload_optimizer > 0).any() or (design.lora_rank > 0).any():
        raise DseError("parameter groups: known for optimizer=adam with offload_optimizer=0 and lora_rank=0 only")
    ranks = rank_run(run)
    parts, stages = rank_memory(ranks), pipeline_stages(run.model, design).foremost
    stage, *_ = fullest_update(stages, [trained_parameters(run, stage, parts) for stage in stages])
    sizes = {
        name: (stage.counts[part] * parameters, of_experts)
        for part, name, parameters, of_experts in _on_rank(ranks, parts)
    }
    sizes["head"] = (stage.has_head * head_parameters(run, stage), False)
    kernels = {"gradclip": None, "apply_grad": ADAM.accesses(moment_bytes(design))}
    groups = {}
    for name, (parameters, of_experts) in sizes.items():
        owned = parameters / state_shards(design, "optimizer", of_experts=of_experts)
        if (owned > 0).any():
            columns = {"parameters": parameters, "owned": owned}
            for kernel, accesses in kernels.items():
                flops, moved = optimizer_work(kernel, owned, element_bytes=4.0, accesses=accesses)
                busy = weight_kernel(kernel, owned, run.system, accesses).time - run.system.chip.kernel_launch
                columns |= {f"{kernel}_flops": flops, f"{kernel}_bytes": moved, f"{kernel}_time_s": busy}
            groups[name] = {column: values + np.zeros(1) for column, values in columns.items()}
    return groups


def _on_rank(run: RankRun, parts: Sequence[PartMemory]) -> Iterator[tuple[int, str, FloatArray, bool]]:
    """Place of a part in `Stage.counts`, name of a group, its parameters on a rank [-], and if they are of experts.

    `parts` are those of `rank_memory`; the head is not part of them.
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
