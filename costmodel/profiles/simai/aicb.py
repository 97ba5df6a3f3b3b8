"""AICB's workload generator: model and parallelism -> the rows of one rank's step [AICB]_.

Row by row what the reference writes, in both of its paths and in the one before its first release.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column
from costmodel.profiles.simai.aicb_rows import (
    NOTHING,
    column_row,
    embedding_gradients,
    epilogue,
    expert_gradients,
    expert_rows,
    halved,
    layer_rows,
    prologue,
    rows_without_sequence_parallelism,
)
from costmodel.profiles.simai.aicb_run import GeneratorRun, Release, check_release, parameters
from costmodel.profiles.simai.rows import Pass, Row, StepRows

__all__ = ["GeneratorRun", "LinearTimes", "Sections", "measured", "parameters", "placeholder", "prerelease"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sections(Columns):
    """Measured times of one micro-batch on one rank; (points,) columns. [s]"""

    attention: FloatArray = column("s")  #: of a layer, forward
    mlp: FloatArray = column("s")  #: of a layer, forward
    embedding: FloatArray = column("s")
    gradient_forward: FloatArray = column("s")  #: the two halves of the optimizer's time
    gradient_backward: FloatArray = column("s")


def measured(run: GeneratorRun, times: Sections, *, release: Release = "2025-09") -> StepRows:
    """The rows of a run whose sections have been timed on one device.

    Parameters
    ----------
    run : GeneratorRun
        Model and parallelism, (points,).
    times : Sections
        Times of the sections, (points,) or scalar. [s]
    release : str
        Which generator: the parameters it counts, and the rows of experts.

    Notes
    -----
    The backward pass takes as long as the forward pass. Both halves of a section get half its time, and so
    does the output projection, of the attention's. The weight gradient of an embedding row is what the
    reference happened to time last.
    """
    check_release(run, release)
    shared = run.sequence_parallel > 0
    repeated = np.where(run.recompute > 0, 2.0, 1.0)
    attention, mlp, half = times.attention, times.mlp, halved(times.attention)
    last = np.where(shared, half, mlp)

    def embedding(section: str, leaked: FloatArray) -> Row:
        forward = Pass(times.embedding, "all_reduce", run.activation_bytes, happens=run.tp > 1)
        return Row("embedding_layer", section, forward, Pass(NOTHING), Pass(leaked))

    dense, experts = parameters(run, release)
    gathered, reduced = (
        Pass(NOTHING, "all_gather", 2 * dense),
        [(Pass(NOTHING, "reduce_scatter", 4 * dense), True)],
    )
    update = times.gradient_forward + times.gradient_backward
    passes = {
        "attention": (halved(attention * repeated), half, half),
        "mlp": (halved(mlp), halved(mlp), halved(mlp)),
        "whole_attention": (attention, attention, attention),
        "whole_mlp": (mlp, mlp, mlp),
        "final": (half, half, half),
    }
    rows = [
        *prologue(gathered, reduced, update),
        Row("layernorm", "prologue", Pass(NOTHING), Pass(NOTHING, "all_reduce", 2 * (dense + experts)),
            Pass(NOTHING), present=~shared),
        embedding_gradients(run),
        *expert_gradients(run, experts),
        embedding("first", times.gradient_backward),
        embedding("next", last),
        *layer_rows(run, "attention", passes["attention"], passes["attention"], shared),
        *layer_rows(run, "mlp", passes["mlp"], passes["mlp"], shared & (run.num_experts == 0)),
        *rows_without_sequence_parallelism(run, passes["whole_attention"], passes["whole_mlp"]),
        *expert_rows(run, mlp, release),
        column_row("final_column", "closing", run, passes["final"], shared),
        *epilogue(run),
    ]  # fmt: skip
    return StepRows.of(rows, layers=run.stage_layers, micro_batches=run.micro_batches, layout=run.layout())


def placeholder(run: GeneratorRun, *, release: Release = "2025-09") -> StepRows:
    """The rows of a run that nobody has timed: sizes alone, every time 1 ns.

    Parameters
    ----------
    run : GeneratorRun
        Model and parallelism, (points,).
    release : str
        Which generator.
    """
    check_release(run, release)
    shared, size, idle = run.sequence_parallel > 0, run.activation_bytes, Pass(NOTHING)
    repeated = np.where(run.recompute > 0, 2.0, 1.0)
    dense, experts = parameters(run, release)
    everything = dense + experts

    def embedding(section: str) -> Row:
        forward = Pass(NOTHING, "all_reduce", size, happens=~shared)
        return Row("embedding_layer", section, forward, forward, idle)

    def layer(name: str, forward: Pass, backward: Pass, present: BoolArray, section: str = "layer") -> Row:
        return Row(name, section, forward, backward, idle, present)

    dense_layers = shared & (run.num_experts == 0)
    rows = [
        Row("grad_norm", "prologue", Pass(NOTHING, "all_gather", 2 * everything), idle,
            Pass(NOTHING, "reduce_scatter", 4 * everything)),
        Row("layernorm", "prologue", idle, Pass(NOTHING, "all_reduce", 2 * everything), idle, ~shared),
        *expert_gradients(run, experts),
        embedding("first"),
        embedding("next"),
    ]  # fmt: skip
    for name, scale, present in (("attention", repeated, shared), ("mlp", 1.0, dense_layers)):
        gather, scatter = (Pass(NOTHING, kind, scale * size) for kind in ("all_gather", "reduce_scatter"))
        rows += [
            layer(f"{name}_column", gather, idle, present),
            layer(f"{name}_row", scatter, Pass(NOTHING, message_bytes=size), present),
        ]
    reduced = Pass(NOTHING, "all_reduce", size)
    rows += [
        layer("attention_layer", Pass(NOTHING, "all_reduce", repeated * size), reduced, ~shared),
        layer("mlp_layer", reduced, reduced, ~shared),
        *expert_rows(run, NOTHING, release),
        layer("final_column", Pass(NOTHING, "all_gather", size), idle, shared, "closing"),
        Row("embedding_norm", "closing", Pass(NOTHING, "all_reduce", 2 * run.vocab_size * run.hidden_size),
            idle, idle),
        *epilogue(run),
    ]  # fmt: skip
    return StepRows.of(rows, layers=run.stage_layers, micro_batches=run.micro_batches, layout=run.layout())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LinearTimes(Columns):
    """Measured times of the linear layers, each the same in all three passes; (points,) columns. [s]"""

    attention_column: FloatArray = column("s")
    attention_row: FloatArray = column("s")
    mlp_column: FloatArray = column("s")
    mlp_row: FloatArray = column("s")
    gradient_forward: FloatArray = column("s")
    gradient_backward: FloatArray = column("s")


def prerelease(run: GeneratorRun, times: LinearTimes) -> StepRows:
    """The rows of the generator before its first release: every layer of the model on one rank.

    Parameters
    ----------
    run : GeneratorRun
        Model and parallelism, (points,); dense, in sequence parallelism.
    times : LinearTimes
        Times of the linear layers, (points,) or scalar. [s]
    """
    size, hidden, idle = run.activation_bytes, run.hidden_size, Pass(NOTHING)
    layer = (4 * hidden**2 + 2 * hidden * run.ffn_hidden_size) / run.tp
    tables = 2 * run.vocab_size / run.tp * hidden + run.seq_len * hidden
    weights = run.num_layers * layer + tables
    both = Pass(NOTHING, "all_reduce", size)
    broadcast = Pass(0.0, "broadcast", 8 * run.micro_batch_size * run.seq_len)
    rows = [
        Row("norm", "prologue", broadcast, idle, idle),
        Row("grad_norm", "prologue", Pass(times.gradient_forward, "all_gather", 2 * weights),
            Pass(times.gradient_backward), Pass(NOTHING, "reduce_scatter", 4 * weights)),
        Row("layernorm", "prologue", idle, Pass(NOTHING, "all_reduce", 2 * weights), idle),
        Row("embedding_layer", "first", both, both, idle),
        Row("embedding_layer", "next", both, both, idle),
    ]  # fmt: skip
    ways = {"column": ("all_gather", "reduce_scatter"), "row": ("reduce_scatter", "all_gather")}
    for part in ("attention", "mlp"):
        for way, kinds in ways.items():
            time = getattr(times, f"{part}_{way}")
            forward, backward = (Pass(time, kind, size) for kind in kinds)
            rows.append(Row(f"{part}_{way}_layer", "layer", forward, backward, Pass(time)))
    vocabulary = Pass(NOTHING, "all_reduce", 2 * run.vocab_size * hidden)
    rows += [
        Row("embedding_norm", "closing", vocabulary, idle, idle),
        *(replace(row, forward=replace(row.forward, time=NOTHING), activation_gradient=idle,
                  weight_gradient=idle) for row in epilogue(run)),
    ]  # fmt: skip
    layout = run.layout(pp_message_bytes=size)
    return StepRows.of(rows, layers=run.num_layers, micro_batches=run.micro_batches, layout=layout)
