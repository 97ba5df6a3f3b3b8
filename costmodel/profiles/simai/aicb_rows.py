"""The rows that AICB's generator writes, block by block, those of experts included [AICB]_."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.profiles.simai.aicb_run import GeneratorRun, Release
from costmodel.profiles.simai.workload_rows import Pass, Row

#: What the reference states where it measures nothing. [s]
NOTHING = 1e-9

#: Product of latent attention -> its row, in the order of the forward pass.
LATENT_ROWS: Final = {
    "q_down": "attention_linear_q_lora",
    "q_up": "attention_q_column",
    "kv_down": "attention_linear_kv_lora",
    "kv_up": "attention_kv_column",
    "projection": "attention_o_row",
}


def halved(time: FloatArray) -> FloatArray:
    """Half of a time in whole nanoseconds. [s]"""
    return np.floor(np.rint(time * 1e9) / 2) * 1e-9


#: One way or another in which something may be sent, and where it is this one.
Ways = Sequence[tuple[Pass, BoolArray | bool]]


def prologue(
    gathered: Pass, reduced: Ways, update: FloatArray, cast: FloatArray | float = NOTHING
) -> list[Row]:
    """The gathering of weights, the reduction of gradients in one way or another, the optimizer's time."""
    idle = Pass(NOTHING)
    return [
        Row("grad_gather", "prologue", idle, idle, gathered),
        *(Row("grad_param_comm", "prologue", idle, idle, way, present) for way, present in reduced),
        Row("grad_param_compute", "prologue", Pass(cast), Pass(update), idle),
    ]


def embedding_gradients(run: GeneratorRun) -> Row:
    """Gradients of the embedding over the tensor-parallel group."""
    idle = Pass(NOTHING)
    reduced = Pass(NOTHING, "all_reduce", run.activation_bytes, happens=run.tp > 1)
    return Row("embedding_grads", "prologue", idle, reduced, idle)


def expert_gradients(run: GeneratorRun, experts: FloatArray) -> list[Row]:
    """Gradients of experts over the replicas of each, there even when nothing is sent."""
    gathered = Pass(NOTHING, "all_gather", 2 * experts, "dp_ep")
    reduced = Pass(NOTHING, "reduce_scatter", 4 * experts, "dp_ep")
    return expert_weight_rows(gathered, [(reduced, True)], run.ep != run.dp)


def expert_weight_rows(gathered: Pass, reduced: Ways, present: BoolArray) -> list[Row]:
    """The gathering of experts' weights, and the reduction of their gradients in one way or another."""
    idle = Pass(NOTHING)
    return [
        Row("moe_grad_norm1", "prologue", idle, idle, gathered, present),
        *(Row("moe_grad_norm2", "prologue", idle, idle, way, present & there) for way, there in reduced),
    ]


#: Times of the three passes. [s]
Times = Sequence[FloatArray]


def layer_rows(
    run: GeneratorRun, part: str, column: Times, row: Times, present: BoolArray, section: str = "layer"
) -> list[Row]:
    """Half a layer in sequence parallelism: a column-split and a row-split product."""
    return [
        column_row(f"{part}_column", section, run, column, present),
        row_row(f"{part}_row", section, run, row, present),
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


def row_row(name: str, section: str, run: GeneratorRun, times: Times, present: BoolArray) -> Row:
    """A row-split product: outputs scattered, their gradients gathered."""
    split, size = run.tp > 1, run.activation_bytes
    return Row(
        name,
        section,
        Pass(times[0], "reduce_scatter", size, happens=split),
        Pass(times[1], "all_gather", size, happens=split),
        Pass(times[2]),
        present,
    )


def latent_rows(run: GeneratorRun, times: Mapping[str, Times], present: BoolArray, section: str) -> list[Row]:
    """Latent attention in sequence parallelism; every rank has the products that make latents whole.

    `times` are of `LATENT_ROWS`; products that a model does not have have none, and no row.
    """
    rows = []
    for kernel, name in LATENT_ROWS.items():
        if kernel not in times:
            continue
        if kernel in ("q_up", "kv_up"):
            rows.append(column_row(name, section, run, times[kernel], present))
        elif kernel == "projection":
            rows.append(row_row(name, section, run, times[kernel], present))
        else:
            forward, backward, weights = (Pass(time) for time in times[kernel])
            rows.append(Row(name, section, forward, backward, weights, present))
    return rows


def whole_row(name: str, run: GeneratorRun, times: Times, present: BoolArray, section: str = "layer") -> Row:
    """Attention or an MLP without sequence parallelism: one row, with one reduction forward."""
    forward = Pass(times[0], "all_reduce", run.activation_bytes, happens=run.tp > 1)
    return Row(name, section, forward, Pass(times[1]), Pass(times[2]), present)


def epilogue(run: GeneratorRun) -> list[Row]:
    """The loss over the split vocabulary, and four numbers of the optimizer."""
    loss = Pass(0.0, "all_reduce", 4 * run.micro_batch_size * run.seq_len)
    number = Pass(0.0, "all_reduce", 4.0)
    return [
        *(Row(f"cross_entropy{i}", "epilogue", loss) for i in (1, 2, 3)),
        *(Row(f"optimizer{i}", "epilogue", number) for i in (1, 2, 3, 4)),
    ]


#: Bytes of what DeepSeek's models send to experts, 8 bits and a scale in 32 for every 128, over 16-bit ones.
NARROW = (1 + 4 / 128) / 2

#: Forward pass and gradient of the input.
Both = tuple[Pass, Pass]


def expert_rows(run: GeneratorRun, time: FloatArray, release: Release) -> list[Row]:
    """Those of layers that have been timed; `time` is of all experts of a rank, forward. [s]"""
    split, size = run.tp > 1, run.activation_bytes
    spread, sent = run.ep > 1, np.floor(size * run.experts_per_token / run.tp)
    if release == "2025-09":
        routed = Pass(time, "all_gather", routing_bytes(run), happens=split | spread)
        return rows_of(run, [(routed, Pass(time)), *exchanges(run, happens=(split, spread), sent=sent)])
    routed = Pass(time, "all_gather", 2 * run.micro_batch_size * run.seq_len * run.num_experts, happens=split)
    near = Pass(NOTHING, "all_to_all", np.floor(size / run.tp), happens=split)
    middle = exchanges(run, happens=(split, spread), sent=sent)
    return rows_of(run, [(routed, routed), (near, near), *middle, (near, near)])


def untimed_expert_rows(run: GeneratorRun, release: Release) -> list[Row]:
    """Those of layers that nobody has timed: all collectives are there, over groups of one too."""
    size, always = run.activation_bytes, np.ones_like(run.tp) > 0
    sent = np.floor(size * run.experts_per_token / run.tp)
    if release == "2025-09":
        routed = Pass(NOTHING, "all_gather", routing_bytes(run))
        middle = exchanges(run, happens=(always, always), sent=sent)
        return rows_of(run, [(routed, Pass(NOTHING)), *middle])
    routed = Pass(NOTHING, "all_gather", 2 * run.seq_len * run.num_experts)
    near = Pass(NOTHING, "all_to_all", np.floor(size / run.tp))
    far = Pass(NOTHING, "all_to_all", sent, "ep")
    part, whole = (Pass(NOTHING, "all_gather", each) for each in (sent, size * run.experts_per_token))
    scattered = Pass(NOTHING, "reduce_scatter", sent)
    one_way = [(routed, routed), (near, near), (far, far), (part, whole)]
    return rows_of(run, [*one_way, (scattered, part), (far, far), (near, near)])


def exchanges(run: GeneratorRun, *, happens: tuple[BoolArray, BoolArray], sent: FloatArray) -> list[Both]:
    """To the experts, over the tensor-parallel group there and back, and from the experts.

    `happens` says whether ranks exchange anything over the two groups, tensor-parallel and expert-parallel.
    """
    split, spread = happens
    narrow = np.where(run.is_latent, np.floor(NARROW * sent), sent)
    there, back = (Pass(NOTHING, "all_to_all", each, "ep", spread) for each in (narrow, sent))
    whole = run.activation_bytes * run.experts_per_token
    return [(there, back), *within_experts(whole, split), (back, back)]


def within_experts(whole: FloatArray, happens: BoolArray) -> list[Both]:
    """What ranks that share out experts gather and scatter."""
    gathered, scattered = (
        Pass(NOTHING, kind, whole, happens=happens) for kind in ("all_gather", "reduce_scatter")
    )
    return [(gathered, scattered), (scattered, gathered)]


def routing_bytes(run: GeneratorRun) -> FloatArray:
    """How many tokens each rank has for each expert, as all ranks learn. [B]"""
    return 2 * run.ep * run.num_experts * run.tp


def rows_of(run: GeneratorRun, pairs: list[Both]) -> list[Row]:
    """Rows of experts from their passes."""
    present = (run.num_experts > 0) & (run.sequence_parallel > 0)
    return [Row("mlp_moelayer", "layer", *pair, Pass(NOTHING), present) for pair in pairs]
