"""The workload of a design, row by row: AICB's rows, filled from the native model.

Arithmetic comes from the kernels that `micro_batches` finds, group sizes and messages from the design, and
parameters from the model as it is. What recomputation repeats is added to the forward pass, as AICB has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, distinct_rows
from costmodel.errors import DseError
from costmodel.kernels.attention import fused_attention
from costmodel.kernels.cost import KernelCost
from costmodel.profiles.simai.aicb_rows import (
    NOTHING,
    column_row,
    embedding_gradients,
    epilogue,
    expert_gradients,
    layer_rows,
    prologue,
    whole_row,
)
from costmodel.profiles.simai.aicb_run import GeneratorRun
from costmodel.profiles.simai.rows import Pass, Row, StepRows
from costmodel.steps.cost_table import DIRECTIONS, CostTable
from costmodel.steps.memory import updated_parameters
from costmodel.steps.microbatch import KERNEL_CHUNK, MicroBatch, cost_table, micro_batches
from costmodel.steps.optimizer import optimizer_step
from costmodel.steps.passes import slowest_stage
from costmodel.steps.pipeline import full_stages
from costmodel.steps.rank_memory import PartMemory, rank_memory
from costmodel.steps.states import state_shards
from costmodel.steps.transformer import resolve_sharding
from costmodel.training.blocks import kinds_beyond
from costmodel.training.design import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, recomputes_otherwise
from costmodel.training.run import RankRun, TransformerRun, rank_run
from costmodel.workload.kernels import PASSES, total
from costmodel.workload.transformer import BIAS_GRADIENTS, Part, parts_of

#: Blocks that the rows of a layer stand for, a column-split and a row-split half of each.
HALVES: Final = ("attention", "mlp")

#: Row -> times of its three passes, (points,) each. [s]
RowTimes = dict[str, list[FloatArray]]


#: Why a design, or a model, has no rows.
UNKNOWN_SPLITS: Final = "AICB's rows know two ways to split kernels; take sharding: megatron or megatron_sp"
UNKNOWN_LAYERS: Final = "AICB's rows are of layers of attention and an MLP, all alike"


def design_workload(run: TransformerRun) -> StepRows:
    """Rows of the slowest stage of each design.

    Parameters
    ----------
    run : TransformerRun
        Model, machines and designs, (points,).

    Returns
    -------
    workload : StepRows
        AICB's rows. Their times add up to the forward, backward, recomputation and optimizer time of
        `step`; an embedding or a head that the slowest stage does not have takes no time.

    Raises
    ------
    DseError
        Where kernels are split in a way of their own, explicit or solved, or layers are not attention and
        an MLP, all alike.

    Notes
    -----
    Unlike AICB's own, messages of weights and gradients are as long as the rank's parameters, and say
    whether the optimizer is distributed; vpp is the design's.
    """
    names = tuple(block.name for layer in run.model.kinds for block in layer.blocks)
    if names != HALVES or kinds_beyond(run.model.kinds):
        raise DseError(f"model {run.model.name}: {UNKNOWN_LAYERS}")
    if (run.design.cp > 1).any():
        raise DseError("AICB's rows know no context parallelism; take cp: 1")
    if unlike := recomputes_otherwise(run.design):
        raise DseError(
            f"AICB's rows repeat attention cores or whole layers, all of them; leave out {unlike[0]}"
        )
    run = run.of(run.design.map(lambda values: np.broadcast_to(values, (run.num_points,))))
    run = run.of(resolve_sharding(run.model, run.system, run.design, precision=run.precision))
    ranks = rank_run(run)
    if not rows_know(ranks).all():
        raise DseError(UNKNOWN_SPLITS)
    rows, back = distinct_rows(*ranks.columns())
    unique = ranks.take(rows)
    costs = micro_batches(unique)
    pieces = [
        row_times(unique.take(part), costs.take(part))
        for part in np.split(np.arange(rows.size), range(KERNEL_CHUNK, rows.size, KERNEL_CHUNK))
    ]
    times = {
        name: [np.concatenate([piece[name][place] for piece in pieces])[back] for place in range(3)]
        for name in pieces[0]
    }
    parameters = [part.take(back) for part in rank_memory(unique)]
    return filled_rows(run, ranks, costs.take(back), parameters, times)


def rows_know(ranks: RankRun) -> BoolArray:
    """Where kernels are split as one of the named assignments does: (points,)."""
    named = [*ranks.design.assignments.named.values()]
    known: BoolArray = np.isin(ranks.design.assignment, named) | (ranks.design.tp == 1)
    return known


def rows_of(part: Part) -> dict[str, tuple[str, ...]]:
    """Row -> the kernels of a layer that it stands for: a block up to its last product, and from there on.

    The one kernel that reduces the gradients of all biases goes with the first half of the last block.
    """
    found: dict[str, tuple[str, ...]] = {}
    for block in part.layer.blocks if part.layer else ():
        names = [kernel.name for kernel in block.kernels]
        last = max(place for place, kernel in enumerate(block.kernels) if kernel.kind == "product")
        found |= {f"{block.name}_column": tuple(names[:last]), f"{block.name}_row": tuple(names[last:])}
    found[f"{HALVES[-1]}_column"] += (BIAS_GRADIENTS,)
    return found


def row_times(run: RankRun, costs: MicroBatch) -> RowTimes:
    """Arithmetic of each row of one layer, of the embedding and of the head.

    The rows share out what the evaluation says of a whole layer, waiting for the host included, by the times
    of their kernels.
    """
    table, forward, backward = cost_table(run), costs.forward, costs.backward
    part, embedding, head = parts_of(run.model)
    found = {
        name: [table.kernels_time(part, kernels, of_pass) for of_pass in PASSES]
        for name, kernels in rows_of(part).items()
    }
    core = f"{HALVES[0]}_column"
    for kernel in (kernel for kernel in part.kernels if kernel.is_core):
        for place, of_pass in ((0, "forward"), (1, "backward")):
            found[core][place] = found[core][place] + fused_attention(run, kernel, of_pass).time
    for places, whole in (((0,), forward[0]), ((1, 2), backward[0])):
        own = sum((passes[place] for passes in found.values() for place in places), start=np.zeros(()))
        for passes in found.values():
            for place in places:
                passes[place] = passes[place] * whole.time / own
    found["embedding_layer"] = outer_times(table, embedding.name, forward[1], backward[1])
    found["final_column"] = outer_times(table, head.name, forward[2], backward[2])
    return found


def outer_times(table: CostTable, part: str, forward: KernelCost, backward: KernelCost) -> list[FloatArray]:
    """Times of the passes over the embedding or the head. [s]"""
    shares = []
    for of_pass in DIRECTIONS["backward"]:
        dense, thin = table.gemms.select(of_pass, part), table.pointwise.select(of_pass, part)
        shares.append(total(table.gemm_costs.time[:, dense]) + total(table.pointwise_times[:, thin]))
    return [forward.time, *(backward.time * share / (shares[0] + shares[1]) for share in shares)]


def filled_rows(
    run: TransformerRun,
    ranks: RankRun,
    costs: MicroBatch,
    parameters: list[PartMemory],
    times: RowTimes,
) -> StepRows:
    """The template with times, messages and counts of each design."""
    design, stage = run.design, slowest_stage(run, costs, costs.whole)
    generated = generator_run(run, ranks)
    times = with_recomputation(run, costs, times)
    first, last = ([own * there for own in times[name]] for name, there in (
        ("embedding_layer", stage.has_embedding), ("final_column", stage.has_head)))  # fmt: skip
    halves = {part: (times[f"{part}_column"], times[f"{part}_row"]) for part in HALVES}
    whole = {part: [a + b for a, b in zip(*both, strict=True)] for part, both in halves.items()}
    sequence_parallel = generated.sequence_parallel > 0
    reduced = Pass(first[0], "all_reduce", generated.activation_bytes, happens=design.tp > 1)
    rows = [
        *weight_rows(run, parameters),
        embedding_gradients(generated),
        *expert_gradients(generated, np.zeros_like(design.tp)),
        *(Row("embedding_layer", section, reduced, Pass(first[1]), Pass(first[2]))
          for section in ("first", "next")),
        *(row for part, both in halves.items()
          for row in layer_rows(generated, part, *both, sequence_parallel)),
        *(whole_row(f"{part}_layer", generated, whole[part], ~sequence_parallel) for part in HALVES),
        column_row("final_column", "closing", generated, last, sequence_parallel),
        Row("final_layer", "closing", Pass(last[0]), Pass(last[1]), Pass(last[2]), ~sequence_parallel),
        *epilogue(generated),
    ]  # fmt: skip
    layout, steps = generated.layout(vpp=design.vpp), design.gradient_accumulation_steps
    return StepRows.of(
        rows,
        layers=stage.num_layers,
        micro_batches=steps,
        layout=layout,
        sequence_parallel=generated.sequence_parallel,
    )


def with_recomputation(run: TransformerRun, costs: MicroBatch, times: RowTimes) -> RowTimes:
    """Times of rows with what the backward pass repeats in the forward pass, where AICB has it. [s]"""
    full, selective = (run.design.recompute == code for code in (RECOMPUTE_FULL, RECOMPUTE_SELECTIVE))
    times = {name: [*passes] for name, passes in times.items()}
    for name in (f"{part}_{half}" for part in HALVES for half in ("column", "row")):
        core = costs.again[0].time if name == f"{HALVES[0]}_column" else 0.0
        again = np.where(full, times[name][0], np.where(selective, core, 0.0))
        times[name][0] = times[name][0] + again
    return times


def generator_run(run: TransformerRun, ranks: RankRun) -> GeneratorRun:
    """A design as AICB's generator would take it."""
    names = ("num_layers", "hidden_size", "ffn_hidden_size", "seq_len", "vocab_size")
    design, shape, one = run.design, ranks.design, np.ones_like(run.design.tp)
    return GeneratorRun(
        **{name: getattr(run.model, name) * one for name in names},
        **{name: getattr(design, name) for name in ("tp", "pp", "micro_batch_size")},
        sequence_parallel=shape.is_split(shape.stream, "sequence") * one,
        world_size=design.world_size,
        global_batch_size=design.global_batch_size,
    )


def weight_rows(run: TransformerRun, parameters: list[PartMemory]) -> list[Row]:
    """Gathering of weights and reduction of gradients, scattered where the optimizer is distributed."""
    design, precision = run.design, run.precision
    sharded = design.zero_stage > 0
    first, *others = full_stages(run.model, design)
    most = np.maximum.reduce([stage.counts[0] for stage in (first, *others)])  # rounded up on all stages
    owned = updated_parameters(replace(first, counts=(most, *first.counts[1:])), parameters)
    gradients = np.floor(owned * precision.gradient_bytes)
    weights = np.where(sharded, np.floor(owned * precision.element_bytes), 0.0)
    update = optimizer_step(owned / state_shards(design, "optimizer"), run.system, design.ranks.all).time
    ways = [
        (Pass(NOTHING, "reduce_scatter", gradients), sharded),
        (Pass(NOTHING, "all_reduce", gradients), ~sharded),
    ]
    return prologue(Pass(NOTHING, "all_gather", weights, happens=sharded), ways, update)
