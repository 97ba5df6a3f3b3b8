"""The workload of a design, row by row: AICB's rows, filled from the native model.

Arithmetic comes from the kernels that `micro_batch` prices, group sizes and messages from the design, and
parameters from the model as it is. What recomputation repeats is added to the forward pass, as AICB has it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from costmodel.columns import BoolArray, FloatArray, distinct_rows
from costmodel.errors import DseError
from costmodel.kernels.attention import fused_attention
from costmodel.machine.system import System
from costmodel.profiles.simai.aicb_rows import (
    NOTHING,
    column_row,
    embedding_gradients,
    epilogue,
    expert_gradients,
    layer_rows,
    prologue,
    unshared_rows,
)
from costmodel.profiles.simai.aicb_run import Run
from costmodel.profiles.simai.rows import Pass, Row, StepRows
from costmodel.steps.memory import layer_parameters, updated_parameters
from costmodel.steps.microbatch import (
    DIRECTIONS,
    KERNEL_CHUNK,
    MicroBatch,
    PricedTable,
    depends_on,
    micro_batches,
    priced_table,
)
from costmodel.steps.pipeline import stage_layers
from costmodel.steps.transformer import optimizer_step, repeated_work, settled_sharding, slowest_stage
from costmodel.training.design import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import MIXED_PRECISION, Precision
from costmodel.training.sharding import ASSIGNMENTS
from costmodel.workload.kernels import PASSES, total

#: Row -> the kernels of a layer that it stands for. Those of the attention core come first.
KERNELS: Mapping[str, tuple[str, ...]] = {
    "attention_column": (
        "attention_norm",
        "qkv",
        "rotary",
        "scores",
        "softmax",
        "attention_dropout",
        "context",
    ),
    "attention_row": ("projection", "projection_dropout_residual"),
    "mlp_column": ("mlp_norm", "mlp_up", "activation", "bias_gradient"),
    "mlp_row": ("mlp_down", "mlp_dropout_residual"),
}

#: Row -> times of its three passes, (points,) each. [s]
RowTimes = dict[str, list[FloatArray]]


#: Why a design has no rows.
UNKNOWN_SPLITS = "AICB's rows know two ways to split kernels; take sharding: megatron or megatron_sp"


def design_workload(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> StepRows:
    """Rows of the slowest stage of each design.

    Parameters
    ----------
    model, system, design, precision
        What is run, on what, laid out how, in which number format; designs are (points,).

    Returns
    -------
    workload : StepRows
        AICB's rows. Their times add up to the forward, backward, recomputation and optimizer time of
        `step`; an embedding or a head that the slowest stage does not have takes no time.

    Raises
    ------
    DseError
        Where kernels are split in a way of their own, told or solved.

    Notes
    -----
    Unlike AICB's own, messages of weights and gradients are as long as the rank's parameters, and say
    whether the optimizer is distributed; vpp is the design's.
    """
    points = max(design.num_points, *(values.size for values in system.quantities().values()))
    design = design.map(lambda values: np.broadcast_to(values, (points,)))
    design = settled_sharding(model, system, design, precision=precision)
    if not rows_know(design).all():
        raise DseError(UNKNOWN_SPLITS)
    rows, back = distinct_rows(*depends_on(design), *system.quantities().values())
    work = micro_batches(model, design.take(rows), system.take(rows), precision)
    pieces = [
        row_times(model, design.take(rows[part]), system.take(rows[part]), precision, work.take(part))
        for part in np.split(np.arange(rows.size), range(KERNEL_CHUNK, rows.size, KERNEL_CHUNK))
    ]
    times = {
        name: [np.concatenate([piece[name][place] for piece in pieces])[back] for place in range(3)]
        for name in pieces[0]
    }
    return filled_rows(model, system, design, precision, work.take(back), times)


def rows_know(design: DesignPoints) -> BoolArray:
    """Where kernels are split as one of the named assignments does: (points,)."""
    known = [
        np.all([design.is_split(kernel, way) for kernel, way in ways.items()], axis=0)
        for ways in ASSIGNMENTS.values()
    ]
    alike: BoolArray = np.any(known, axis=0) | (design.tp == 1)
    return alike


def row_times(
    model: ModelShape, design: DesignPoints, system: System, precision: Precision, work: MicroBatch
) -> RowTimes:
    """Arithmetic of each row of one layer, of the embedding and of the head.

    The rows share out what the pricing says of a whole layer, waiting for the host included, by the times
    of their kernels.
    """
    table = priced_table(model, design, system, precision)
    found = {
        name: [table.kernels_time(names, of_pass) for of_pass in PASSES] for name, names in KERNELS.items()
    }
    for place, of_pass in ((0, "forward"), (1, "backward")):
        core = fused_attention(model, design, system, precision, of_pass=of_pass)
        found["attention_column"][place] = found["attention_column"][place] + core.time
    for places, whole in (((0,), work.layer_forward), ((1, 2), work.layer_backward)):
        own = sum((passes[place] for passes in found.values() for place in places), start=np.zeros(()))
        for passes in found.values():
            for place in places:
                passes[place] = passes[place] * whole.time / own
    for name, part in (("embedding_layer", "embedding"), ("final_column", "head")):
        found[name] = outer_times(
            table, part, getattr(work, f"{part}_forward").time, getattr(work, f"{part}_backward").time
        )
    return found


def outer_times(table: PricedTable, part: str, forward: FloatArray, backward: FloatArray) -> list[FloatArray]:
    """Times of the passes over the embedding or the head. [s]"""
    shares = []
    for of_pass in DIRECTIONS["backward"]:
        dense, thin = table.gemms.select(of_pass, part), table.pointwise.select(of_pass, part)
        shares.append(total(table.gemm_costs.time[:, dense]) + total(table.pointwise_times[:, thin]))
    return [forward, *(backward * share / (shares[0] + shares[1]) for share in shares)]


def filled_rows(
    model: ModelShape,
    system: System,
    design: DesignPoints,
    precision: Precision,
    work: MicroBatch,
    times: RowTimes,
) -> StepRows:
    """The template with times, messages and counts of each design."""
    layer = work.layer_forward + work.layer_backward + repeated_work(design, work)
    embedding, head = work.embedding_forward + work.embedding_backward, work.head_forward + work.head_backward
    outer, inner = stage_layers(model.num_layers, design.pp, design.vpp)
    layers, has_embedding, has_head = slowest_stage(outer, inner, layer, embedding, head, design.pp)
    run = design_run(model, design)
    full, selective = design.recompute == RECOMPUTE_FULL, design.recompute == RECOMPUTE_SELECTIVE
    times = {name: [*passes] for name, passes in times.items()}
    for name in KERNELS:
        core = work.layer_core.time if name == "attention_column" else 0.0
        again = np.where(full, times[name][0], np.where(selective, core, 0.0))
        times[name][0] = times[name][0] + again
    first, last = ([own * there for own in times[name]] for name, there in (
        ("embedding_layer", has_embedding), ("final_column", has_head)))  # fmt: skip
    halves = {part: (times[f"{part}_column"], times[f"{part}_row"]) for part in ("attention", "mlp")}
    whole = {part: [a + b for a, b in zip(*both, strict=True)] for part, both in halves.items()}
    shared = design.is_split("mlp_residual", "sequence")
    reduced = Pass(first[0], "all_reduce", run.activation_bytes, happens=design.tp > 1)
    rows = [
        *weight_rows(model, system, design, precision, np.maximum(outer, inner)),
        embedding_gradients(run),
        *expert_gradients(run, np.zeros_like(design.tp)),
        *(Row("embedding_layer", section, reduced, Pass(first[1]), Pass(first[2]))
          for section in ("first", "next")),
        *(row for part, both in halves.items() for row in layer_rows(run, part, *both, shared)),
        *unshared_rows(run, whole["attention"], whole["mlp"]),
        column_row("final_column", "closing", run, last, shared),
        Row("final_layer", "closing", Pass(last[0]), Pass(last[1]), Pass(last[2]), ~shared),
        *epilogue(run),
    ]  # fmt: skip
    layout, steps = run.layout(vpp=design.vpp), design.gradient_accumulation_steps
    return StepRows.of(rows, layers=layers, micro_batches=steps, layout=layout)


def design_run(model: ModelShape, design: DesignPoints) -> Run:
    """A design as AICB's generator would be told it."""
    names = ("num_layers", "hidden_size", "ffn_hidden_size", "seq_len", "vocab_size")
    one = np.ones_like(design.tp)
    return Run(
        **{name: getattr(model, name) * one for name in names},
        **{name: getattr(design, name) for name in ("tp", "pp", "micro_batch_size")},
        sequence_parallel=design.is_split("mlp_residual", "sequence") * one,
        world_size=design.world_size,
        global_batch_size=design.global_batch_size,
    )


def weight_rows(
    model: ModelShape, system: System, design: DesignPoints, precision: Precision, layers: FloatArray
) -> list[Row]:
    """Gathering of weights and reduction of gradients, scattered where the optimizer is distributed."""
    sharded = design.distributed_optimizer > 0
    owned = updated_parameters(model, design, layers, layer_parameters(model, design))
    gradients = np.floor(owned * precision.gradient_bytes)
    weights = np.where(sharded, np.floor(owned * precision.element_bytes), 0.0)
    update = optimizer_step(owned / np.where(sharded, design.dp, 1.0), system, design.world_size).time
    ways = [
        (Pass(NOTHING, "reduce_scatter", gradients), sharded),
        (Pass(NOTHING, "all_reduce", gradients), ~sharded),
    ]
    return prologue(Pass(NOTHING, "all_gather", weights, happens=sharded), ways, update)
