"""Rows of AICB's workload files, block by block: the order, names and collectives of its generator [AICB]_."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.columns import BoolArray, Columns, FloatArray, column
from dse.adapters.simai.workload_rows import Pass, Row


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MessageShape(Columns):
    """Shape of a training run that sets the sizes of messages; (points,) columns. [-]"""

    hidden_size: FloatArray = column("-")
    seq_len: FloatArray = column("-")
    micro_batch_size: FloatArray = column("-")
    tp: FloatArray = column("-")
    ep: FloatArray = column("-")
    dp: FloatArray = column("-")
    num_experts: FloatArray = column("-")  #: 0: a dense model
    sequence_parallel: FloatArray = column("-")  #: 1 where tensor-parallel ranks divide the sequence

    @property
    def activation_bytes(self) -> FloatArray:
        """The hidden states of a micro-batch, 16 bits each. [B]"""
        return 2 * self.micro_batch_size * self.seq_len * self.hidden_size


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


#: One way or another in which something may be sent, and where it is this one.
Ways = Sequence[tuple[Pass, BoolArray | bool]]


def prologue(gathered: Pass, reduced: Ways, update: FloatArray, cast: FloatArray | float = NOTHING) -> list[Row]:
    """The gathering of weights, the reduction of gradients in one way or another, the optimizer's time."""
    idle = Pass(NOTHING)
    return [
        Row("grad_gather", "prologue", idle, idle, gathered),
        *(Row("grad_param_comm", "prologue", idle, idle, way, present) for way, present in reduced),
        Row("grad_param_compute", "prologue", Pass(cast), Pass(update), idle),
    ]


def embedding_gradients(run: MessageShape) -> Row:
    """Gradients of the embedding over the tensor-parallel group."""
    idle = Pass(NOTHING)
    reduced = Pass(NOTHING, "all_reduce", run.activation_bytes, happens=run.tp > 1)
    return Row("embedding_grads", "prologue", idle, reduced, idle)


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
    run: MessageShape, part: str, column: Times, row: Times, present: BoolArray, section: str = "layer"
) -> list[Row]:
    """Half a layer in sequence parallelism: a column-split and a row-split product."""
    return [
        column_row(f"{part}_column", section, run, column, present),
        row_row(f"{part}_row", section, run, row, present),
    ]


def column_row(name: str, section: str, run: MessageShape, times: Times, present: BoolArray) -> Row:
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


def row_row(name: str, section: str, run: MessageShape, times: Times, present: BoolArray) -> Row:
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


def latent_rows(run: MessageShape, times: Mapping[str, Times], present: BoolArray, section: str) -> list[Row]:
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


def whole_row(name: str, run: MessageShape, times: Times, present: BoolArray, section: str = "layer") -> Row:
    """Attention or an MLP without sequence parallelism: one row, with one reduction forward."""
    forward = Pass(times[0], "all_reduce", run.activation_bytes, happens=run.tp > 1)
    return Row(name, section, forward, Pass(times[1]), Pass(times[2]), present)


def epilogue(run: MessageShape) -> list[Row]:
    """The loss over the split vocabulary, and four numbers of the optimizer."""
    loss = Pass(0.0, "all_reduce", 4 * run.micro_batch_size * run.seq_len)
    number = Pass(0.0, "all_reduce", 4.0)
    return [
        *(Row(f"cross_entropy{i}", "epilogue", loss) for i in (1, 2, 3)),
        *(Row(f"optimizer{i}", "epilogue", number) for i in (1, 2, 3, 4)),
    ]


#: Forward pass and gradient of the input.
Both = tuple[Pass, Pass]


def within_experts(whole: FloatArray, happens: BoolArray) -> list[Both]:
    """Tensors that ranks of an expert-parallel group gather and scatter."""
    gathered, scattered = (Pass(NOTHING, kind, whole, happens=happens) for kind in ("all_gather", "reduce_scatter"))
    return [(gathered, scattered), (scattered, gathered)]


def routing_bytes(run: MessageShape) -> FloatArray:
    """Bytes of the exchange that tells all ranks the number of tokens for each expert. [B]"""
    return 2 * run.ep * run.num_experts * run.tp
