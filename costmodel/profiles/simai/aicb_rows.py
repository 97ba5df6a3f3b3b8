"""The rows that AICB's generator writes, block by block [AICB]_."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.profiles.simai.aicb_run import GeneratorRun, Release
from costmodel.profiles.simai.rows import Pass, Row

#: What the reference states where it measures nothing. [s]
NOTHING = 1e-9


def halved(time: FloatArray) -> FloatArray:
    """Half of a time in whole nanoseconds. [s]"""
    return np.floor(np.rint(time * 1e9) / 2) * 1e-9


def prologue(
    gathered: Pass, reduced: Sequence[tuple[Pass, BoolArray | bool]], update: FloatArray
) -> list[Row]:
    """The gathering of weights, the reduction of gradients in one way or another, the optimizer's time."""
    idle = Pass(NOTHING)
    return [
        Row("grad_gather", "prologue", idle, idle, gathered),
        *(Row("grad_param_comm", "prologue", idle, idle, way, present) for way, present in reduced),
        Row("grad_param_compute", "prologue", idle, Pass(update), idle),
    ]


def embedding_gradients(run: GeneratorRun) -> Row:
    """Gradients of the embedding over the tensor-parallel group."""
    idle = Pass(NOTHING)
    reduced = Pass(NOTHING, "all_reduce", run.activation_bytes, happens=run.tp > 1)
    return Row("embedding_grads", "prologue", idle, reduced, idle)


def expert_gradients(run: GeneratorRun, experts: FloatArray) -> list[Row]:
    """Gradients of experts over the replicas of each, there even when nothing is sent."""
    idle, present = Pass(NOTHING), run.ep != run.dp
    gathered = Pass(NOTHING, "all_gather", 2 * experts, "dp_ep")
    reduced = Pass(NOTHING, "reduce_scatter", 4 * experts, "dp_ep")
    return [
        Row("moe_grad_norm1", "prologue", idle, idle, gathered, present),
        Row("moe_grad_norm2", "prologue", idle, idle, reduced, present),
    ]


#: Times of the three passes. [s]
Times = Sequence[FloatArray]


def layer_rows(run: GeneratorRun, part: str, column: Times, row: Times, present: BoolArray) -> list[Row]:
    """Half a layer in sequence parallelism: a column-split and a row-split product."""
    return [
        column_row(f"{part}_column", "layer", run, column, present),
        row_row(f"{part}_row", run, row, present),
    ]


def column_row(name: str, section: str, run: GeneratorRun, times: Times, present: BoolArray) -> Row:
    """A column-split product: inputs gathered; their gradients are scattered beside the arithmetic."""
    split = run.tp > 1
    return Row(
        name,
        section,
        Pass(times[0], "all_gather", run.activation_bytes, happens=split),
        Pass(times[1], "reduce_scatter", 0.0, happens=split),
        Pass(times[2]),
        present,
    )


def row_row(name: str, run: GeneratorRun, times: Times, present: BoolArray) -> Row:
    """A row-split product: outputs scattered, their gradients gathered."""
    split, size = run.tp > 1, run.activation_bytes
    return Row(
        name,
        "layer",
        Pass(times[0], "reduce_scatter", size, happens=split),
        Pass(times[1], "all_gather", size, happens=split),
        Pass(times[2]),
        present,
    )


def rows_without_sequence_parallelism(run: GeneratorRun, attention: Times, mlp: Times) -> list[Row]:
    """A layer without sequence parallelism: one row for attention and one for the MLP."""
    rows = []
    for name, times in (("attention_layer", attention), ("mlp_layer", mlp)):
        forward = Pass(times[0], "all_reduce", run.activation_bytes, happens=run.tp > 1)
        row = Row(name, "layer", forward, Pass(times[1]), Pass(times[2]), run.sequence_parallel == 0)
        rows.append(row)
    return rows


def expert_rows(run: GeneratorRun, time: FloatArray | float, release: Release) -> list[Row]:
    """The experts of a layer: tokens are sent to them, gathered over the tensor-parallel group, and back."""
    size, tp, chosen = run.activation_bytes, run.tp, run.experts_per_token
    present = (run.num_experts > 0) & (run.sequence_parallel > 0)
    split, sent = tp > 1, size * chosen / tp
    idle, far = Pass(NOTHING), Pass(NOTHING, "all_to_all", sent, "ep", run.ep > 1)
    gathered = Pass(NOTHING, "all_gather", size * chosen, happens=split)
    scattered = Pass(NOTHING, "reduce_scatter", size * chosen, happens=split)
    middle = [(far, far), (gathered, scattered), (scattered, gathered), (far, far)]
    if release == "2025-09":
        routed = Pass(time, "all_gather", 2 * run.ep * run.num_experts * tp, happens=split)
        pairs = [(routed, Pass(time)), *middle]
    else:
        tokens = 2 * run.micro_batch_size * run.seq_len * run.num_experts
        routed = Pass(time, "all_gather", tokens, happens=split)
        near = Pass(NOTHING, "all_to_all", size / tp, happens=split)
        pairs = [(routed, routed), (near, near), *middle, (near, near)]
    return [Row("mlp_moelayer", "layer", forward, back, idle, present) for forward, back in pairs]


def epilogue(run: GeneratorRun) -> list[Row]:
    """The loss over the split vocabulary, and four numbers of the optimizer."""
    loss = Pass(0.0, "all_reduce", 4 * run.micro_batch_size * run.seq_len)
    number = Pass(0.0, "all_reduce", 4.0)
    return [
        *(Row(f"cross_entropy{i}", "epilogue", loss) for i in (1, 2, 3)),
        *(Row(f"optimizer{i}", "epilogue", number) for i in (1, 2, 3, 4)),
    ]
