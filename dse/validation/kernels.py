"""Measured kernels as the cost model takes them: single products, streams, attention cores, collectives.

The formulas are those of kernels within a step (`costmodel.kernels`), for one kernel that runs by itself: at the full
clock while it is short (`burst_time`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from costmodel import DseError, ModelShape, System
from costmodel.columns import BoolArray, FloatArray
from costmodel.kernels.collectives import RING, CollectiveCost, all_to_all, collective, send_recv
from costmodel.kernels.kernel_cost import pointwise_time
from costmodel.kernels.kernel_tables import Gemms, Label, Pointwise
from costmodel.kernels.products import (
    FUSED_PASSES,
    HEAD_MULTIPLE,
    QUERY_TILE,
    AttentionWork,
    attention_cost,
    gemm_cost,
    visited_share,
)
from costmodel.training.design import ATTENTION, FUSED
from costmodel.training.precision import FORMATS
from costmodel.training.ranks import Group
from dse.validation.expressed import Machine, NotExpressed, machine_of, systems
from dse.validation.rows import plain, precision_of
from dse.validation.table import WORDS, MeasuredRow

#: A kernel timed alone ends before the clock falls to the rate that a chip holds for hours.
BURST: Final = {"sustained": 1.0}

#: Switches that could reduce do not: "NVLS off" in the column `op` of a row.
PLAIN_SWITCHES: Final = {"node_in_switch": 0.0}

#: Words of kernels: of collectives, as `plain` leaves them -> ours, of `op` of kernels that read and write memory once
#: -> how they run, as `Label.runs`, and of `mask` -> whether it is causal.
COLLECTIVES: Final[Mapping[str, str]] = WORDS["kernels"]["collectives"]
PASSES, MASKS = WORDS["kernels"]["passes"], WORDS["kernels"]["masks"]
#: Type of row -> columns that the time of such a kernel depends on.
SIZES: Final[Mapping[str, Sequence[str]]] = WORDS["kernels"]["sizes"]

#: `op` of products whose time includes the cast of the input to 8 or 4 bits.
CASTING: Final = "cast"

#: `op` of products of experts that are launched one by one; others are one call.
SEQUENTIAL: Final = "sequential"

#: Bytes of an output element of a product: 16 bits, for any operands. [B]
OUTPUT_BYTES: Final = 2.0


def kind_of(row: MeasuredRow) -> str:
    """The kind of a kernel: "gemm", "grouped", "stream", "attention forward", or the name of its collective."""
    if row.row_type == "kernel_coll":
        return COLLECTIVES.get(plain(row.op), row.op)
    kind = row.row_type.removeprefix("kernel_")
    return f"{kind} {row.op}" if kind == "attention" else kind


def size_of(row: MeasuredRow) -> tuple[float, str]:
    """Size by which kernels of a kind are set apart, and its unit. [FLOP, B]"""
    if row.row_type in ("kernel_gemm", "kernel_grouped"):
        return 2 * row.m * row.n * row.k, "FLOP"
    if row.row_type == "kernel_attention":  # both products of a forward pass
        return 4 * row.mbs * row.seq**2 * row.hidden, "FLOP"
    return row.msg_bytes, "B"


def measured_kernel_time(row: MeasuredRow) -> float:
    """Time of a kernel, as it is printed or follows from a printed rate; `NotExpressed` without either. [s]

    The bus bandwidth of a collective is the number of bytes that each rank sends in a ring, over its time.
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
    alone = row.row_type == "kernel_coll" and row.source in WORDS["one_at_a_time"]
    floors = {f"{tier.name}_launch": (tier.launch + tier.call).item() for tier in machine.system.network if alone}
    return Machine(machine.name, {**machine.quantities, **floors, **quiet})


def kernel_times(rows: Sequence[MeasuredRow], system: str | None) -> list[float | DseError]:
    """Predicted time of each kernel, or the reason why it cannot be evaluated; kernels of a machine together. [s]"""
    of_rows: list[float | DseError] = [0.0] * len(rows)
    groups: dict[tuple[str, str, str], list[tuple[int, Machine]]] = {}
    for number, row in enumerate(rows):
        try:
            machine, how = kernel_machine(row, system), checked_kernel(row)
            groups.setdefault((machine.name, row.row_type, how), []).append((number, machine))
        except DseError as error:
            of_rows[number] = error
    for (_, row_type, how), members in groups.items():
        group = [rows[number] for number, _ in members]
        times = times_alone(row_type, group, how, systems([machine for _, machine in members]))
        for (number, _), time in zip(members, times, strict=True):
            of_rows[number] = float(time) if np.isfinite(time) else NotExpressed(f"a rate of its chip for {how}")
    return of_rows


def times_alone(row_type: str, rows: Sequence[MeasuredRow], how: str, system: System) -> FloatArray:
    """Times of kernels that run by themselves, on a machine or on one for each; (rows,). [s]"""
    if row_type in ("kernel_coll", "kernel_stream"):
        return KERNEL_TIMES[row_type](rows, how, system)
    return burst_time(lambda machine: KERNEL_TIMES[row_type](rows, how, machine), system)


def checked_kernel(row: MeasuredRow) -> str:
    """Format of a product, pass of attention, or name of a collective, of a row that its time follows from.

    Raises `NotExpressed` if a row leaves any of that out.
    """
    lacking = [name for name in SIZES[row.row_type] if not getattr(row, name)]
    if lacking or 0 < row.n_ranks < 2:
        raise NotExpressed(f"its size ({', '.join(lacking or ['n_ranks'])})")
    if row.row_type in ("kernel_gemm", "kernel_grouped"):
        return precision_of(row.dtype, "dtype")
    if row.row_type == "kernel_coll":
        if plain(row.op) not in COLLECTIVES:
            raise NotExpressed(f"a collective {row.op}")
        return COLLECTIVES[plain(row.op)]
    if row.row_type == "kernel_attention":
        if row.op not in FUSED_PASSES:
            raise NotExpressed(f"a pass of attention {row.op}")
        if row.mask not in MASKS:
            raise NotExpressed(f"a mask of attention {row.mask}; expected causal or full")
        ModelShape(num_layers=1, hidden_size=row.hidden, num_attention_heads=row.heads, num_query_groups=row.kv_heads,
                   seq_len=row.seq)  # fmt: skip  # which its numbers may contradict
    return row.op


def gemm_times(rows: Sequence[MeasuredRow], precision: str, system: System) -> FloatArray:
    """Times of single products in one format, on a machine or on one for each; (rows,). [s]

    Operands come in the format, but those of `op` `CASTING`, which a kernel casts as in `casts`.
    """
    m, n, k = (np.array([getattr(row, name) for row in rows]) for name in ("m", "n", "k"))
    casting = np.array([float(row.op == CASTING) for row in rows])
    return product_time(m, n, k, precision, system, casting=casting)


def product_time(
    m: FloatArray, n: FloatArray, k: FloatArray, precision: str, system: System,
    *, casting: FloatArray, maxima: float | None = None,
) -> FloatArray:  # fmt: skip
    """Times of products in a key of `FORMATS`, (rows,) [s]; nan where the chip has no units for it.

    Dimensions are (rows,) [elements]. `casting` is 1 where the time includes the cast of A from 16 bits, else 0 [-];
    `maxima` are passes over A before, by default those of the format. [-]
    """
    number_format = FORMATS[precision]
    gemms = Gemms.stack([(Label("product", "forward", "layer"), (m, n, k, 1.0, OUTPUT_BYTES, 1.0))])
    if not number_format.units:
        return gemm_cost(gemms, system, element_bytes=OUTPUT_BYTES, rate=np.ones(1)).time[:, 0]
    rate, size, elements = system.chip.format_rate(number_format.units), number_format.element_bytes, m * k
    times = gemm_cost(gemms, system, element_bytes=size, rate=np.where(rate > 0, rate, np.nan)).time[:, 0]
    passes = casting * (number_format.maxima if maxima is None else maxima)
    casts = Pointwise.stack([
        (Label("maximum", "forward", "layer", runs="casting"), (elements * OUTPUT_BYTES, elements, passes)),
        (Label("cast", "forward", "layer", runs="casting"), (elements * (OUTPUT_BYTES + size), elements, casting)),
    ])  # fmt: skip
    return np.asarray(times + pointwise_time(casts, system)[0].sum(axis=1))


def burst_time(times: Callable[[System], FloatArray], system: System) -> FloatArray:
    """Time of kernels that run by themselves, from one without a loss of clock, (rows,). [s]

    Short kernels run at the full clock, long ones at `Chip.sustained`; half of the loss is reached at `Chip.burst`.
    """
    chip, full = system.chip, times(system.with_quantities(BURST))
    if np.isinf(chip.burst).all():
        return full
    known = np.where(np.isfinite(full), full, 0.0)
    return np.asarray(full * (1 + (1 / chip.sustained - 1) * known / (known + chip.burst)))


def collective_times(rows: Sequence[MeasuredRow], name: str, system: System) -> FloatArray:
    """Times of single collectives of one kind, over neighbours on a machine or on one for each; (rows,). [s]"""
    message, ranks = (np.array([getattr(row, column) for row in rows]) for column in SIZES["kernel_coll"])
    return collective_time(name, message, ranks, system)


def collective_time(name: str, message_bytes: FloatArray, ranks: FloatArray, system: System) -> FloatArray:
    """Times of single collectives of one kind, over neighbours, (rows,). [s]

    A message [B] is the whole tensor; of an all-to-all, the bytes of one rank. `ranks` are those of the group. [-]
    """
    group = Group.of_neighbours(ranks)
    others: dict[str, Callable[..., CollectiveCost]] = {"all_to_all": all_to_all, "send_recv": send_recv}
    if name in others:
        return others[name](message_bytes, group, system.network).time
    return collective(name, message_bytes, group, system.network).time


def grouped_times(rows: Sequence[MeasuredRow], precision: str, system: System) -> FloatArray:
    """Times of products of experts in one format, with as many rows each, on a machine or on one for each; (rows,). [s]

    They are one call, or one call each where the row's `op` is `SEQUENTIAL`.
    """
    m, n, k, experts = (np.array([getattr(row, name) for row in rows]) for name in SIZES["kernel_grouped"])
    number_format, one_by_one = FORMATS[precision], np.array([row.op == SEQUENTIAL for row in rows])
    gemms = Gemms.stack([
        (Label("experts", "forward", "layer", runs="grouped"), (m / experts, n, k, experts, OUTPUT_BYTES, 1.0))
    ])  # fmt: skip
    rate = system.chip.format_rate(number_format.units) if number_format.units else np.ones(1)
    size = number_format.element_bytes if number_format.units else OUTPUT_BYTES
    together = gemm_cost(gemms, system, element_bytes=size, rate=np.where(rate > 0, rate, np.nan)).time[:, 0]
    alone = experts * product_time(m / experts, n, k, precision, system, casting=np.zeros(1))
    return np.where(one_by_one, alone, together)


def stream_times(rows: Sequence[MeasuredRow], name: str, system: System) -> FloatArray:
    """Times of kernels that read and write memory once, on a machine or on one for each; (rows,). [s]

    The message of a row is all that one reads and writes; its name says whether it casts or sorts.
    """
    moved = np.array([row.msg_bytes for row in rows])
    label = Label(name, "forward", "layer", runs=PASSES.get(name, ""))
    return pointwise_time(Pointwise.stack([(label, (moved, np.zeros(1), 1.0))]), system)[0][:, 0]


def attention_times(rows: Sequence[MeasuredRow], of_pass: str, system: System) -> FloatArray:
    """Times of one pass of attention in 16 bits, on a machine or on one for each; (rows,). [s]"""
    mbs, seq, heads, groups, hidden, values = (
        np.array([getattr(row, name) for row in rows])
        for name in ("mbs", "seq", "heads", "kv_heads", "hidden", "value_size")
    )
    kv_heads, size = np.where(groups > 0, groups, heads), hidden / heads
    kind = np.array([ATTENTION.index(row.attn_kernel if row.attn_kernel in ATTENTION else "fused") for row in rows])
    work = attention_work(
        mbs, seq, heads, kv_heads, size, kind.astype(float), value_size=np.where(values > 0, values, size),
        causal=np.array([MASKS[row.mask] for row in rows]), of_pass=of_pass,
    )  # fmt: skip
    return attention_cost(work, of_pass, system).time


def attention_work(
    sequences: FloatArray, seq_len: FloatArray, heads: FloatArray, kv_heads: FloatArray, size: FloatArray,
    kind: FloatArray | float = float(FUSED), *, value_size: FloatArray | None = None,
    causal: BoolArray | bool = True, of_pass: str = "forward",
) -> AttentionWork:  # fmt: skip
    """Work of one pass of attention in 16 bits over whole sequences, (rows,).

    Sequences [-] have `seq_len` tokens [-]; heads of queries and of keys [-] are `size` wide, those of values
    `value_size`, by default the same [elements]; `kind` is a code of `ATTENTION`. [-]
    """
    lengths, row = np.unique(seq_len, return_inverse=True)
    share = np.where(causal, np.array([visited_share(length) for length in lengths])[row], 1.0)
    work, values = FUSED_PASSES[of_pass], size if value_size is None else value_size
    is_flash_2, products = np.asarray(kind) > FUSED, work.score_products + work.value_products
    padded = np.ceil(size / HEAD_MULTIPLE) * HEAD_MULTIPLE
    fused = np.where(np.asarray(kind) > 0, 1.0, 0.0)
    every_head = fused * sequences * heads
    return AttentionWork(
        fused=fused,
        scores=every_head * seq_len**2 * share,
        tiles=every_head * np.ceil(seq_len / QUERY_TILE),
        keys=seq_len * share,
        size=np.where(is_flash_2, padded, (work.score_products * size + work.value_products * values) / products),
        once=OUTPUT_BYTES * fused * sequences * seq_len * (size + values) * (heads + kv_heads),
        element_bytes=OUTPUT_BYTES,
        kind=kind,
    )


#: Type of row -> times of its kernels on a machine, or on one for each: rows, kind of kernel, the machine.
KERNEL_TIMES: Final[Mapping[str, Callable[[Sequence[MeasuredRow], str, System], FloatArray]]] = {
    "kernel_gemm": gemm_times,
    "kernel_grouped": grouped_times,
    "kernel_coll": collective_times,
    "kernel_stream": stream_times,
    "kernel_attention": attention_times,
}
