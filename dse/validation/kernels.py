"""Measured kernels as the cost model takes them: single products, streams, attention cores, collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from costmodel import DesignPoints, DseError, ModelShape, System
from costmodel.columns import FloatArray, concatenated
from costmodel.kernels.collectives import RING, CollectiveCost, all_to_all, collective, send_recv
from costmodel.kernels.kernel_cost import pointwise_time
from costmodel.kernels.kernel_tables import Gemms, Label, Pointwise
from costmodel.kernels.products import FUSED_PASSES, fused_attention, gemm_cost
from costmodel.training.design import ATTENTION
from costmodel.training.precision import FORMATS
from costmodel.training.ranks import Group
from costmodel.training.run import Run, rank_run
from dse.validation.expressed import Machine, NotExpressed, systems
from dse.validation.hardware import machine_of
from dse.validation.rows import plain, precision_of
from dse.validation.table import MeasuredRow

#: A kernel timed for itself is over before the clock falls to what a chip holds for hours.
BURST: Final = {"sustained": 1.0}

#: Switches that could reduce do not: what a row's `op` says with "NVLS off".
PLAIN_SWITCHES: Final = {"node_in_switch": 0.0}

#: Name of a collective, as `plain` leaves it -> ours.
COLLECTIVES: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}

#: `op` of products whose time includes the cast of the input to 8 or 4 bits.
CASTING: Final = "cast"

#: Bytes of what a product writes: 16 bits, whatever its operands. [B]
OUTPUT_BYTES: Final = 2.0


#: Type of row -> columns that the time of such a kernel depends on.
SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "kernel_gemm": ("m", "n", "k"),
    "kernel_coll": ("msg_bytes", "n_ranks"),
    "kernel_stream": ("msg_bytes",),
    "kernel_attention": ("mbs", "seq", "heads", "hidden"),
}


def kind_of(row: MeasuredRow) -> str:
    """The kind of a kernel: "gemm", "stream", "attention forward", or the name of its collective."""
    if row.row_type == "kernel_coll":
        return COLLECTIVES.get(plain(row.op), row.op)
    kind = row.row_type.removeprefix("kernel_")
    return f"{kind} {row.op}" if kind == "attention" else kind


def size_of(row: MeasuredRow) -> tuple[float, str]:
    """Size by which kernels of a kind are set apart, and its unit. [FLOP, B]"""
    if row.row_type == "kernel_gemm":
        return 2 * row.m * row.n * row.k, "FLOP"
    if row.row_type == "kernel_attention":  # both products of a forward pass
        return 4 * row.mbs * row.seq**2 * row.hidden, "FLOP"
    return row.msg_bytes, "B"


def measured_kernel_time(row: MeasuredRow) -> float:
    """Time of a kernel, as it is printed or follows from a printed rate; `NotExpressed` without either. [s]

    The bus bandwidth of a collective is what each rank sends in a ring over its time.
    """
    if row.latency_us:
        return row.latency_us * 1e-6
    if row.kernel_tflops:
        return size_of(row)[0] / (row.kernel_tflops * 1e12)
    if row.busbw_gbps:
        name, ranks = kind_of(row), np.asarray(row.n_ranks)
        sent = RING[name](ranks)[1] if name in RING else (ranks - 1) / ranks if name == "all_to_all" else 1.0
        return float(sent * row.msg_bytes / (row.busbw_gbps * 1e9))
    raise NotExpressed("its time")


def kernel_machine(row: MeasuredRow, system: str | None) -> Machine:
    """The machine of a kernel that runs by itself."""
    machine = machine_of(row, system)
    quiet = PLAIN_SWITCHES if "NVLS off" in row.op else {}
    return Machine(machine.name, {**machine.quantities, **BURST, **quiet})


def kernel_times(rows: Sequence[MeasuredRow], system: str | None) -> list[float | DseError]:
    """Predicted time of each kernel, or what keeps it from being priced; those of a machine together. [s]"""
    found: list[float | DseError] = [0.0] * len(rows)
    groups: dict[tuple[str, str, str], list[tuple[int, Machine]]] = {}
    for place, row in enumerate(rows):
        try:
            machine, how = kernel_machine(row, system), checked_kernel(row)
            groups.setdefault((machine.name, row.row_type, how), []).append((place, machine))
        except DseError as error:
            found[place] = error
    for (_, row_type, how), members in groups.items():
        own = [rows[place] for place, _ in members]
        times = KERNEL_TIMES[row_type](own, how, systems([machine for _, machine in members]))
        for (place, _), time in zip(members, times, strict=True):
            found[place] = float(time) if np.isfinite(time) else NotExpressed(f"a rate of its chip for {how}")
    return found


def checked_kernel(row: MeasuredRow) -> str:
    """Format of a product, pass of attention, or name of a collective, of a row that its time follows from.

    Raises `NotExpressed` if a row leaves any of that out.
    """
    lacking = [name for name in SIZES[row.row_type] if not getattr(row, name)]
    if lacking or 0 < row.n_ranks < 2:
        raise NotExpressed(f"its size ({', '.join(lacking or ['n_ranks'])})")
    if row.row_type == "kernel_gemm":
        return precision_of(row.dtype, "dtype")
    if row.row_type == "kernel_coll":
        if plain(row.op) not in COLLECTIVES:
            raise NotExpressed(f"a collective {row.op}")
        return COLLECTIVES[plain(row.op)]
    if row.row_type == "kernel_attention":
        if row.op not in FUSED_PASSES:
            raise NotExpressed(f"a pass of attention {row.op}")
        attention_run(row)  # which its numbers may contradict
    return row.op


def gemm_times(rows: Sequence[MeasuredRow], precision: str, system: System) -> FloatArray:
    """Times of single products in one format, on a machine or on one for each; (rows,). [s]

    Operands come in the format, but those of `op` `CASTING`, which a kernel casts as in `casts`. A format
    that the chip has no units for has no time, nan.
    """
    own = FORMATS[precision]
    m, n, k = (np.array([getattr(row, name) for row in rows]) for name in ("m", "n", "k"))
    gemms = Gemms.stack([(Label("product", "forward", "layer"), (m, n, k, 1.0, OUTPUT_BYTES, 1.0))])
    rate = system.chip.format_rate(own.units) if own.units else np.ones(1)
    size = own.element_bytes if own.units else OUTPUT_BYTES
    known = np.where(rate > 0, rate, np.nan)
    times = gemm_cost(gemms, system, element_bytes=size, rate=known).time[:, 0]
    if not own.units:
        return times
    casting = np.array([float(row.op == CASTING) for row in rows])
    moved = m * k * ((1 + own.maxima) * OUTPUT_BYTES + own.element_bytes)
    casts = Pointwise.stack([(Label("cast", "forward", "layer"), (moved, m * k, casting))])
    return times + pointwise_time(casts, system)[0][:, 0]


def collective_times(rows: Sequence[MeasuredRow], name: str, system: System) -> FloatArray:
    """Times of single collectives of one kind, over neighbours on a machine or on one for each; (rows,). [s]

    The message of a row is counted as ours is: the whole tensor; of an all-to-all, what one rank holds.
    """
    message = np.array([row.msg_bytes for row in rows])
    group = Group.of_neighbours(np.array([row.n_ranks for row in rows]))
    others: dict[str, Callable[..., CollectiveCost]] = {"all_to_all": all_to_all, "send_recv": send_recv}
    if name in others:
        return others[name](message, group, system.network).time
    return collective(name, message, group, system.network).time


def stream_times(rows: Sequence[MeasuredRow], name: str, system: System) -> FloatArray:
    """Times of kernels that read and write memory once, on a machine or on one for each; (rows,). [s]

    The message of a row is all that one reads and writes; its name says what it does, and does not matter.
    """
    moved = np.array([row.msg_bytes for row in rows])
    kernels = Pointwise.stack([(Label(name, "forward", "layer"), (moved, np.zeros(1), 1.0))])
    return pointwise_time(kernels, system)[0][:, 0]


def attention_run(row: MeasuredRow) -> tuple[ModelShape, DesignPoints]:
    """The layer and the design of a row of attention; a `DseError` where they contradict themselves."""
    model = ModelShape(
        num_layers=1,
        hidden_size=row.hidden,
        num_attention_heads=row.heads,
        num_query_groups=row.kv_heads,
        seq_len=row.seq,
    )
    kernel = row.attn_kernel if row.attn_kernel in ATTENTION else "fused"
    return model, DesignPoints.of(micro_batch_size=row.mbs, attention=kernel)


def attention_times(rows: Sequence[MeasuredRow], of_pass: str, system: System) -> FloatArray:
    """Times of one pass of causal attention in 16 bits, on a machine or on one for each; (rows,). [s]"""
    shapes: dict[ModelShape, list[int]] = {}
    found = [attention_run(row) for row in rows]
    for place, (model, _) in enumerate(found):
        shapes.setdefault(model, []).append(place)
    times = np.zeros(len(rows))
    for model, places in shapes.items():
        design = concatenated([found[place][1] for place in places])
        run = rank_run(Run(model, system.take(np.array(places)), design))
        [core] = [kernel for layer in model.kinds for kernel in layer.kernels if kernel.is_core]
        times[places] = fused_attention(run, core, of_pass).time
    return times


#: Type of row -> times of such kernels on a machine, or on one for each: rows, what they are, the machine.
KERNEL_TIMES: Final[Mapping[str, Callable[[Sequence[MeasuredRow], str, System], FloatArray]]] = {
    "kernel_gemm": gemm_times,
    "kernel_coll": collective_times,
    "kernel_stream": stream_times,
    "kernel_attention": attention_times,
}
