"""AICB's generator before its first release, of which published texts alone are left [AICB]_.

It writes every layer of the model on one rank, and counts three matrices in gated MLPs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodel.columns import Columns, FloatArray, column
from costmodel.errors import DseError
from costmodel.profiles.simai.aicb_parameters import padded_vocabulary
from costmodel.profiles.simai.aicb_rows import NOTHING, epilogue
from costmodel.profiles.simai.aicb_run import GeneratorRun
from costmodel.profiles.simai.rows import Pass, Row, StepRows


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LinearTimes(Columns):
    """Measured times of the linear layers, each the same in all three passes; (points,) columns. [s]"""

    attention_column: FloatArray = column("s")
    attention_row: FloatArray = column("s")
    mlp_column: FloatArray = column("s")
    mlp_row: FloatArray = column("s")
    gradient_forward: FloatArray = column("s")
    gradient_backward: FloatArray = column("s")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerTimes(Columns):
    """Measured times of the two halves of a layer, of both gradients the same; (points,) columns. [s]"""

    attention_forward: FloatArray = column("s")
    attention_backward: FloatArray = column("s")
    mlp_forward: FloatArray = column("s")
    mlp_backward: FloatArray = column("s")
    gradient_forward: FloatArray = column("s", NOTHING)
    gradient_backward: FloatArray = column("s", NOTHING)


def prerelease(run: GeneratorRun, times: LinearTimes | LayerTimes) -> StepRows:
    """The rows of the generator before its first release.

    Parameters
    ----------
    run : GeneratorRun
        Model and parallelism, (points,); dense.
    times : LinearTimes or LayerTimes
        Times of the linear layers in sequence parallelism, and of whole layers without it; (points,) or
        scalar. [s]

    Raises
    ------
    DseError
        For a model with experts, or times of the other mode than the run's.

    Notes
    -----
    The texts share out a vocabulary of 32,000 as it is: it is padded to whole entries on each rank alone.
    """
    shared = isinstance(times, LinearTimes)
    if ((run.sequence_parallel > 0) != shared).any():
        wanted = "LayerTimes" if shared else "LinearTimes"
        mode = "without" if shared else "with"
        raise DseError(f"run: {mode} sequence_parallel the rows are others; give their times as {wanted}")
    if (run.num_experts > 0).any():
        raise DseError("run: num_experts: the generator knew none before its first release")
    size, idle = run.activation_bytes, Pass(NOTHING)
    weights = counted_weights(run)
    both = Pass(NOTHING, "all_reduce", size)
    broadcast = Pass(0.0, "broadcast", 8 * run.micro_batch_size * run.seq_len)
    vocabulary = Pass(NOTHING, "all_reduce", 2 * run.vocab_size * run.hidden_size)
    rows = [
        Row("norm", "prologue", broadcast, idle, idle),
        Row("grad_norm", "prologue", Pass(times.gradient_forward, "all_gather", 2 * weights),
            Pass(times.gradient_backward), Pass(NOTHING, "reduce_scatter", 4 * weights)),
        Row("layernorm", "prologue", idle, Pass(NOTHING, "all_reduce", 2 * weights), idle),
        *(Row("embedding_layer", section, both, both, idle) for section in ("first", "next")),
        *(linear_rows(run, times) if isinstance(times, LinearTimes) else whole_layer_rows(run, times)),
        Row("embedding_norm", "closing", vocabulary, idle, idle),
        *(replace(row, forward=replace(row.forward, time=NOTHING), activation_gradient=idle,
                  weight_gradient=idle) for row in epilogue(run)),
    ]  # fmt: skip
    return StepRows.of(
        rows,
        layers=run.num_layers,
        micro_batches=run.micro_batches,
        layout=run.layout(pp_message_bytes=size),
        sequence_parallel=run.sequence_parallel,
    )


def counted_weights(run: GeneratorRun) -> FloatArray:
    """Parameters of a rank as these texts count them. [-]"""
    hidden, matrices = run.hidden_size, np.where(run.gated_mlp > 0, 3.0, 2.0)
    layer = (4 * hidden**2 + matrices * hidden * run.ffn_hidden_size) / run.tp
    tables = 2 * padded_vocabulary(run, run.tp) / run.tp * hidden + run.seq_len * hidden
    return run.num_layers * layer + tables


def linear_rows(run: GeneratorRun, times: LinearTimes) -> Iterator[Row]:
    """A layer in sequence parallelism: a row for each linear layer."""
    ways = {"column": ("all_gather", "reduce_scatter"), "row": ("reduce_scatter", "all_gather")}
    for part in ("attention", "mlp"):
        for way, kinds in ways.items():
            time = getattr(times, f"{part}_{way}")
            forward, backward = (Pass(time, kind, run.activation_bytes) for kind in kinds)
            yield Row(f"{part}_{way}_layer", "layer", forward, backward, Pass(time))


def whole_layer_rows(run: GeneratorRun, times: LayerTimes) -> Iterator[Row]:
    """A layer without sequence parallelism: a row for each half, reduced in both directions."""
    for part in ("attention", "mlp"):
        forward, backward = (getattr(times, f"{part}_{way}") for way in ("forward", "backward"))
        there, back = (Pass(time, "all_reduce", run.activation_bytes) for time in (forward, backward))
        yield Row(f"{part}_layer", "layer", there, back, Pass(backward))
