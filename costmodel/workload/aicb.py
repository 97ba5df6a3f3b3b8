"""AICB's workload generator: model and parallelism -> the rows of one rank's step [AICB]_.

Row by row what the reference writes, in both of its paths, with its own count of parameters: two matrices
in an MLP whether gated or not, two or four word tables, and tables of words and positions on every stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, broadcast_columns, column, column_units
from costmodel.errors import DseError, suggestion
from costmodel.workload.rows import Parallelism, Pass, Row, StepRows

#: What the reference states where it measures nothing. [s]
NOTHING = 1e-9

#: Multiple of the tensor-parallel size that a vocabulary is padded to. [-]
VOCABULARY_MULTIPLE = 128

#: Releases of the generator, by the month of the change -> copies of the word table that it counts.
WORD_TABLES = {"2024-10": 2, "2024-11": 4, "2025-01": 4, "2025-09": 4}
Release = Literal["2024-10", "2024-11", "2025-01", "2025-09"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Run(Columns):
    """A training run as the generator is told it; (points,) columns. [-]"""

    num_layers: FloatArray = column("-")
    hidden_size: FloatArray = column("-")
    ffn_hidden_size: FloatArray = column("-")
    seq_len: FloatArray = column("-")
    vocab_size: FloatArray = column("-")
    world_size: FloatArray = column("-")
    global_batch_size: FloatArray = column("-")
    micro_batch_size: FloatArray = column("-", 1)
    tp: FloatArray = column("-", 1)
    pp: FloatArray = column("-", 1)
    ep: FloatArray = column("-", 1)
    num_experts: FloatArray = column("-", 0)  #: 0: a dense model
    experts_per_token: FloatArray = column("-", 1)
    sequence_parallel: FloatArray = column("-", 0)
    recompute: FloatArray = column("-", 0)  #: 1 where attention runs again in the backward pass

    @classmethod
    def of(cls, **values: object) -> Self:
        """Build from scalars, lists and arrays, broadcast to one length.

        Raises
        ------
        DseError
            For an unknown column, or numbers that no run can have.
        """
        units = column_units(cls)
        for name in values:
            if name not in units:
                raise DseError(f"run: {name}: unknown column{suggestion(name, units)}")
        given = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
        defaults = {name: array for name, array in cls(**cls._blank()).columns().items() if name not in given}
        run = cls(**broadcast_columns(**defaults, **given))
        run._check(set(_REQUIRED) - set(values))
        return run

    @staticmethod
    def _blank() -> dict[str, FloatArray]:
        return {name: np.ones(1) for name in _REQUIRED}

    def _check(self, missing: set[str]) -> None:
        if missing:
            raise DseError(f"run: {', '.join(sorted(missing))}: missing")
        ranks = self.tp * self.pp
        for wrong, what in (
            (self.world_size % ranks != 0, "world_size: not a multiple of tp * pp"),
            (self.micro_batches < 1, "global_batch_size: less than one micro-batch per replica"),
            (self.stage_layers < 1, "num_layers: less than one layer per stage"),
            ((self.num_experts > 0) & (self.sequence_parallel == 0),
             "num_experts: the generator knows experts with sequence_parallel only"),
            ((self.num_experts > 0) & (self.num_experts % self.ep != 0), "num_experts: not a multiple of ep"),
        ):  # fmt: skip
            if wrong.any():
                raise DseError(f"run: {what}")

    @property
    def dp(self) -> FloatArray:
        """Replicas. [-]"""
        return np.floor(self.world_size / (self.tp * self.pp))

    @property
    def stage_layers(self) -> FloatArray:
        """Layers of a stage. [-]"""
        return np.floor(self.num_layers / self.pp)

    @property
    def micro_batches(self) -> FloatArray:
        """Micro-batches of a replica and step. [-]"""
        return np.floor(self.global_batch_size / (self.micro_batch_size * self.dp))

    @property
    def activation_bytes(self) -> FloatArray:
        """The hidden states of a micro-batch, 16 bits each. [B]"""
        return 2 * self.micro_batch_size * self.seq_len * self.hidden_size

    @property
    def pp_message_bytes(self) -> FloatArray:
        """What a stage sends to the next: a rank's share in sequence parallelism. [B]"""
        shared = np.where(self.sequence_parallel > 0, self.tp, 1.0)
        return np.where(self.pp > 1, self.activation_bytes / shared, 0.0)

    def layout(self, **changes: FloatArray) -> Parallelism:
        """The header of a file, with vpp as the generator states it: one layer per model chunk."""
        columns = {
            "tp": self.tp,
            "pp": self.pp,
            "ep": self.ep,
            "vpp": self.stage_layers,
            "gradient_accumulation_steps": self.micro_batches,
            "world_size": self.world_size,
            "pp_message_bytes": self.pp_message_bytes,
        }
        return Parallelism(**{**columns, **changes})


_REQUIRED = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "seq_len",
    "vocab_size",
    "world_size",
    "global_batch_size",
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sections(Columns):
    """Measured times of one micro-batch on one rank; (points,) columns. [s]"""

    attention: FloatArray = column("s")  #: of a layer, forward
    mlp: FloatArray = column("s")  #: of a layer, forward
    embedding: FloatArray = column("s")
    gradient_forward: FloatArray = column("s")  #: the two halves of the optimizer's time
    gradient_backward: FloatArray = column("s")


def parameters(run: Run, release: Release) -> tuple[FloatArray, FloatArray]:
    """Parameters of a rank as the generator counts them: without experts, and of its experts. [-]"""
    hidden, tp = run.hidden_size, run.tp
    multiple = VOCABULARY_MULTIPLE * tp
    vocabulary = np.ceil(run.vocab_size / multiple) * multiple / tp
    shared = run.sequence_parallel > 0
    two_matrices = 2 * hidden * run.ffn_hidden_size / tp
    dense = np.where(run.num_experts > 0, 0.0, two_matrices)
    layer = 4 * hidden**2 / tp + dense + np.where(shared, 2 * hidden, 0.0)
    tables = (WORD_TABLES[release] + np.where(shared, 1.0, 0.0)) * vocabulary * hidden
    experts = run.stage_layers * two_matrices * run.num_experts / run.ep
    return run.stage_layers * layer + tables + run.seq_len * hidden, experts


def measured(run: Run, times: Sections, *, release: Release = "2025-09") -> StepRows:
    """The rows of a run whose sections have been timed on one device.

    Parameters
    ----------
    run : Run
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
        *unshared_rows(run, passes["whole_attention"], passes["whole_mlp"]),
        *expert_rows(run, mlp, release),
        column_row("final_column", "closing", run, passes["final"], shared),
        *epilogue(run),
    ]  # fmt: skip
    return StepRows.of(rows, layers=run.stage_layers, micro_batches=run.micro_batches, layout=run.layout())


def placeholder(run: Run, *, release: Release = "2025-09") -> StepRows:
    """The rows of a run that nobody has timed: sizes alone, every time 1 ns.

    Parameters
    ----------
    run : Run
        Model and parallelism, (points,).
    release : str
        Which generator.
    """
    check_release(run, release)
    shared = run.sequence_parallel > 0
    size = run.activation_bytes
    repeated = np.where(run.recompute > 0, 2.0, 1.0)
    dense, experts = parameters(run, release)
    everything = dense + experts
    idle = Pass(NOTHING)

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


def prerelease(run: Run, times: LinearTimes) -> StepRows:
    """The rows of the generator before its first release: every layer of the model on one rank.

    Parameters
    ----------
    run : Run
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


def check_release(run: Run, release: str) -> None:
    """Refuse a release that is not known, or rows of it that are not."""
    if release not in WORD_TABLES:
        raise DseError(f"AICB release {release}: unknown{suggestion(release, WORD_TABLES)}")
    if release < "2025-09" and ((run.num_experts > 0) & (run.ep == 1)).any():
        raise DseError(f"AICB release {release}: experts need ep above 1; or take release 2025-09")


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


def embedding_gradients(run: Run) -> Row:
    """Gradients of the embedding over the tensor-parallel group."""
    idle = Pass(NOTHING)
    reduced = Pass(NOTHING, "all_reduce", run.activation_bytes, happens=run.tp > 1)
    return Row("embedding_grads", "prologue", idle, reduced, idle)


def expert_gradients(run: Run, experts: FloatArray) -> list[Row]:
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


def layer_rows(run: Run, part: str, column: Times, row: Times, present: BoolArray) -> list[Row]:
    """Half a layer in sequence parallelism: a column-split and a row-split product."""
    return [
        column_row(f"{part}_column", "layer", run, column, present),
        row_row(f"{part}_row", run, row, present),
    ]


def column_row(name: str, section: str, run: Run, times: Times, present: BoolArray) -> Row:
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


def row_row(name: str, run: Run, times: Times, present: BoolArray) -> Row:
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


def unshared_rows(run: Run, attention: Times, mlp: Times) -> list[Row]:
    """A layer without sequence parallelism: one row for attention and one for the MLP."""
    rows = []
    for name, times in (("attention_layer", attention), ("mlp_layer", mlp)):
        forward = Pass(times[0], "all_reduce", run.activation_bytes, happens=run.tp > 1)
        row = Row(name, "layer", forward, Pass(times[1]), Pass(times[2]), run.sequence_parallel == 0)
        rows.append(row)
    return rows


def expert_rows(run: Run, time: FloatArray | float, release: Release) -> list[Row]:
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


def epilogue(run: Run) -> list[Row]:
    """The loss over the split vocabulary, and four numbers of the optimizer."""
    loss = Pass(0.0, "all_reduce", 4 * run.micro_batch_size * run.seq_len)
    number = Pass(0.0, "all_reduce", 4.0)
    return [
        *(Row(f"cross_entropy{i}", "epilogue", loss) for i in (1, 2, 3)),
        *(Row(f"optimizer{i}", "epilogue", number) for i in (1, 2, 3, 4)),
    ]
