"""DeepFlow's step: kernels with their counts and times, passes of each part, collectives, and the schedule.

Kernels are matrix products, pointwise kernels and the optimizer. Products split over devices add collectives. The
schedule has a closed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column, per_kernel
from costmodel.formats.input_files import data_beside
from costmodel.kernels.collectives import RING
from costmodel.kernels.kernel_tables import Gemms, Label, optimizer_work
from costmodel.kernels.products import Reload, reload_orders
from costmodel.lstm import Dimensions, Split
from dse.adapters.deepflow.configuration import MEMORY_LATENCY, Configuration, Hardware, roofline

#: Kernel launches of a pointwise kernel that runs whole; one that is split is launched once.
LSTM_LAUNCHES, SOFTMAX_LAUNCHES, SPLIT_LAUNCHES = 15, 4, 1

#: Matrix product -> part of the model whose split it has, and its role.
GEMMS: Final[Mapping[str, tuple[str, str]]] = {
    name: (words[0], words[1]) for name, words in data_beside(__file__, "tables.yaml")["gemms"].items()
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GemmPrices:
    """Every product of `GEMMS`; arrays have shape (points, kernels)."""

    gemms: Gemms
    flops: FloatArray  #: [FLOP]
    dram: tuple[Reload, Reload]  #: direct and swapped order
    l2: tuple[Reload, Reload]
    swapped: BoolArray  #: where the swapped order is strictly faster
    time: FloatArray  #: [s]

    def intensity(self, order: int) -> FloatArray:
        """Work over DRAM traffic of an order; rule RF2. [FLOP/B]"""
        return self.flops / self.dram[order].traffic

    def traffic(self, level: str) -> FloatArray:
        """Bytes moved at "dram" or "l2" in the order that is run. [B]"""
        direct, swapped = self.dram if level == "dram" else self.l2
        return np.where(self.swapped, swapped.traffic, direct.traffic)


@dataclass(frozen=True, slots=True)
class KernelPrice:
    """A kernel without reuse; (points,) columns."""

    flops: FloatArray  #: [FLOP]
    dram_bytes: FloatArray  #: [B]
    time: FloatArray  #: launches included [s]

    @property
    def intensity(self) -> FloatArray:
        """Arithmetic intensity: work over traffic. [FLOP/B]"""
        return self.flops / self.dram_bytes


def part_sizes(config: Configuration, part: str, role: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(m, n, k) of a part's forward product. [elements]

    The product into the vocabulary has inner dimension hidden_size while it is whole, and projection_size
    once it is split, save for the gradients of row-column splits: the reference is not of one mind.
    The native model uses projection_size throughout.
    """
    if part == "hidden":
        return config.shard_batch, config.gate_size, 2 * config.hidden_size
    if part == "projection":
        return config.tokens, config.projection_size, config.hidden_size
    split = config.split("softmax")
    projected = split.sharded if role == "forward" else split.is_cr
    inner = np.where(projected, config.projection_size, config.hidden_size)
    return config.tokens, config.vocab_size, inner


def shares(split: Split, role: str, m: FloatArray, n: FloatArray, k: FloatArray) -> Dimensions:
    """One device's share of a product or of one of its gradients. [elements]

    Gradients of row-column splits are shared out like results, after gathering what they need, where the
    native model adds up partial sums.
    """
    if role == "activation_gradient":
        return m / split.rows, k / (split.inner * split.columns), n
    if role == "weight_gradient":
        return k / (split.inner * split.rows), n / split.columns, m
    return split.forward(m, n, k)


def gemm_table(config: Configuration) -> Gemms:
    """Every product of `GEMMS` on one device, (points, kernels). [elements]"""
    rows = []
    for name, (part, role) in GEMMS.items():
        split = config.split(part)
        m, n, k = shares(split, role, *part_sizes(config, part, role))
        if name == "projection_b_wt":  # transposed in the reference while whole, unlike other gradients
            m, n = np.where(split.sharded, m, n), np.where(split.sharded, n, m)
        rows.append((Label(name, role, part), (m, n, k, 1.0, config.element_bytes, 1.0)))
    return Gemms.stack(rows)


def gemm_prices(config: Configuration, machine: Hardware) -> GemmPrices:
    """Evaluate every product: rules GT1 to GT5.

    Each result costs 15 FLOP and 5 per strip of k beside its multiply-adds (GT4), which the native model
    leaves to its tiles. Both levels see the whole product: tiles are not nested.
    """
    gemms = gemm_table(config)
    m, n, k = gemms.m, gemms.n, gemms.k
    wide = machine.map(per_kernel)
    reload = partial(reload_orders, gemms, element_bytes=per_kernel(config.element_bytes))
    dram, l2 = reload(edge=wide.l2_tile), reload(edge=wide.shared_memory_tile)
    flops = 2 * m * k * n + m * n * (15 + 5 * np.ceil(k / wide.shared_memory_tile))
    launch = per_kernel(config.launch_overhead)
    direct, swapped = (
        roofline(flops, beyond.traffic, wide, l2_bytes=within.traffic) + launch
        for beyond, within in zip(dram, l2, strict=True)
    )
    return GemmPrices(
        gemms=gemms, flops=flops, dram=dram, l2=l2, swapped=swapped < direct, time=np.minimum(direct, swapped)
    )


def pointwise_prices(config: Configuration, machine: Hardware) -> dict[str, KernelPrice]:
    """The LSTM cell and the softmax, forward and backward: rules PW1 to PW4, and section 8 where split.

    Backward, the cell counts batch * hidden_size without the gates, and the local accumulation of weight
    gradients moves elements without the word size, as in the reference. Split cells do the same work both
    ways and leave the accumulation out.
    """
    hidden, softmax = config.split("hidden"), config.split("softmax")
    w, batch, size, vocab = config.element_bytes, config.shard_batch, config.hidden_size, config.vocab_size
    cell, weights = batch * config.gate_size, 2 * size * config.gate_size
    logits = config.tokens * vocab
    gates_here, logits_here = cell / hidden.shards, logits / softmax.shards
    forward_softmax = np.where(softmax.sharded, 3 * logits_here, config.tokens * (3 * vocab - 1))
    rows = {  # split, launches, FLOP and bytes whole, FLOP and bytes split
        "Hidden_f": (hidden, LSTM_LAUNCHES, cell * (1 + 5 / 4 + 1), w * cell * (6 + 2 * 5 / 4),
                     4 * gates_here, 11 * w * gates_here),
        "Hidden_b": (hidden, LSTM_LAUNCHES, batch * size * 3.25 + weights,
                     w * batch * size * 8.5 + 3 * weights, 4 * gates_here, 11 * w * gates_here),
        "Softmax_f": (softmax, SOFTMAX_LAUNCHES, forward_softmax, w * logits * 7,
                      forward_softmax, 7 * w * logits_here),
        "Softmax_b": (softmax, SOFTMAX_LAUNCHES, 5 * logits, w * logits * 11,
                      5 * logits_here, 11 * w * logits_here),
    }  # fmt: skip
    prices = {}
    for name, (split, launches, flops, moved, split_flops, split_moved) in rows.items():
        work = np.where(split.sharded, split_flops, flops)
        traffic = np.where(split.sharded, split_moved, moved)
        launched = np.where(split.sharded, SPLIT_LAUNCHES, launches) * config.launch_overhead
        prices[name] = KernelPrice(work, traffic, roofline(work, traffic, machine) + launched)
    return prices


#: Weights of each part that the optimizer updates. There is none for the embedding.
OPTIMIZED = ("Hidden", "Projection", "Softmax")


def optimizer_prices(config: Configuration, machine: Hardware) -> dict[tuple[str, str], KernelPrice]:
    """Cost of clipping and update of each part's weights, whole even where products are split. [FLOP], [B], [s]

    Keys are (part, kernel of `OPTIMIZER_KERNELS`); launches are not included.
    """
    size = config.hidden_size
    weights = {
        "Hidden": 2 * size * config.gate_size,
        "Projection": size * config.projection_size,
        "Softmax": size * config.vocab_size,
    }
    prices = {}
    for part in OPTIMIZED:
        for kernel in ("gradclip", "apply_grad"):
            flops, moved = optimizer_work(kernel, weights[part], element_bytes=config.element_bytes)
            prices[part, kernel] = KernelPrice(flops, moved, roofline(flops, moved, machine))
    return prices


#: Messages below this size are not cut into pieces. [B]
SMALLEST_MESSAGE = 128.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Passes(Columns):
    """Times of one pass over each part; (points,) columns."""

    cell_forward: FloatArray = column("s")  #: one cell, one time step
    cell_backward: FloatArray = column("s")
    reduction: FloatArray = column("s")  #: gradients of one layer over data shards, and its optimizer
    softmax_forward: FloatArray = column("s")
    softmax_backward: FloatArray = column("s")
    softmax_optimizer: FloatArray = column("s")
    embedding_forward: FloatArray = column("s")
    embedding_backward: FloatArray = column("s")
    projection_forward: FloatArray = column("s")  #: never charged
    projection_backward: FloatArray = column("s")  #: never charged


@dataclass(frozen=True, slots=True)
class DeepflowLinks:
    """The ring of links between devices, with what the arithmetic of a reduction takes on a device."""

    config: Configuration
    machine: Hardware

    def exchange(self, amount: FloatArray) -> FloatArray:
        """Time to pass an amount on, without latency. [s]"""
        return amount / self.machine.link_bandwidth

    def ring(self, collective: str, rows: FloatArray, columns: FloatArray, members: FloatArray) -> FloatArray:
        """Time of a ring collective (a key of `RING`) on a matrix, with the additions of a reduction, (points,). [s]

        `rows` and `columns` are those of the whole matrix [elements]; one of `members` alone sends nothing. [-]

        Messages under 128 bytes are charged their bytes as if these were seconds, and additions of whole
        messages: so the reference has it.
        """
        config, machine = self.config, self.machine
        elements = rows * columns
        message = config.element_bytes * elements
        share = 1.0 if collective == "all_reduce" else 1 / members
        steps, sent = RING[collective](members)
        small = message < SMALLEST_MESSAGE
        transfer = np.where(small, message * share, steps * config.link_latency + self.exchange(sent * message))
        piece = elements / members
        pieces = roofline(piece, 3 * config.element_bytes * piece, machine) + config.launch_overhead
        whole = (members - 1) * elements
        additions = np.where(
            small, roofline(whole, 3 * config.element_bytes * whole, machine) * share, pieces * (members - 1)
        )
        reduced = 0.0 if collective == "all_gather" else additions
        return np.where(members > 1, transfer + reduced, 0.0)

    def between_products(self, part: str) -> tuple[FloatArray, FloatArray]:
        """Collectives of a part's split products, forward and backward. [s]

        The gathers that a column-row split needs on the way back are counted twice, as in the reference.
        """
        split = self.config.split(part)
        a, b = split.dim1, split.dim2
        m, n, k = part_sizes(self.config, part, "forward")
        cr_forward = self.ring("reduce_scatter", m, n, a)
        rc_forward = self.ring("all_gather", m / a, n, b)
        m, n, k = part_sizes(self.config, part, "weight_gradient")
        cr_backward = 2 * self.ring("all_gather", m, n, a)
        rc_backward = (
            self.ring("all_gather", k, m, a)
            + 2 * self.ring("all_gather", m, n / b, a)
            + self.ring("all_gather", m / a, n, b)
            + self.ring("all_gather", k, n, b)
            + self.ring("all_gather", m / a, k, b)
        )
        return (
            np.where(split.is_cr, cr_forward, np.where(split.is_rc, rc_forward, 0.0)),
            np.where(split.is_cr, cr_backward, np.where(split.is_rc, rc_backward, 0.0)),
        )

    def between_cells(self) -> tuple[FloatArray, FloatArray]:
        """Exchange around a split cell's pointwise part, forward and backward: elements, not bytes. [s]"""
        split = self.config.split("hidden")
        gates = self.config.shard_batch * self.config.gate_size
        forward = self.exchange(3 * (gates / split.shards))
        backward = np.where(split.is_rc, self.exchange(3 * (gates / split.columns)), forward)
        return np.where(split.sharded, forward, 0.0), np.where(split.sharded, backward, 0.0)

    def partial_sums(self) -> FloatArray:
        """Sums of a split softmax's rows. [s]"""
        split = self.config.split("softmax")
        w, tokens = self.config.element_bytes, self.config.tokens
        by_rows = self.exchange(w * (tokens / split.dim1) * split.dim2)
        by_inner = self.exchange(w * tokens * split.dim1)
        return np.where(split.is_rc, by_rows, np.where(split.is_cr, by_inner, 0.0))


def passes(
    config: Configuration,
    machine: Hardware,
    gemms: GemmPrices,
    pointwise: dict[str, KernelPrice],
    optimizer: dict[tuple[str, str], KernelPrice],
) -> Passes:
    """Times of every part: rules TT1 to TT3 and EM2, with the collectives of section 8.

    Kernel times are formed first and then added from left to right, on which their last digits depend.

    The backward pass of a row-column projection follows the rule of all split products. It differs from
    the reference's program, which prints the time of the forward pass there once more.
    """
    links = DeepflowLinks(config, machine)
    gemm = {name: gemms.time[:, index] for index, name in enumerate(GEMMS)}
    to_cell, from_cell = links.between_products("hidden")
    cell_forward, cell_backward = links.between_cells()
    to_softmax, from_softmax = links.between_products("softmax")
    to_projection, from_projection = links.between_products("projection")

    size = config.hidden_size
    embedded = config.element_bytes * config.tokens * size
    embedding = 2 * embedded / machine.dram_bandwidth + MEMORY_LATENCY + config.launch_overhead
    hop = links.exchange(embedded) + config.link_latency
    scattered = np.where(config.dp > 1, hop * 2 * (config.dp - 1), 0.0)
    updates = {part: optimizer[part, "gradclip"].time + optimizer[part, "apply_grad"].time for part, _ in optimizer}
    return Passes(
        cell_forward=gemm["Cf"] + pointwise["Hidden_f"].time + to_cell + cell_forward,
        cell_backward=gemm["Cb_act"] + gemm["Cb_wt"] + pointwise["Hidden_b"].time + from_cell + cell_backward,
        reduction=links.ring("all_reduce", 2 * size, config.gate_size, config.dp) + updates["Hidden"],
        softmax_forward=gemm["softmax_f"] + pointwise["Softmax_f"].time + to_softmax + links.partial_sums(),
        softmax_backward=gemm["softmax_b_wt"] + gemm["softmax_b_act"] + pointwise["Softmax_b"].time
        + from_softmax,
        softmax_optimizer=updates["Softmax"],
        embedding_forward=embedding,
        embedding_backward=embedding + scattered,
        projection_forward=gemm["projection"] + to_projection,
        projection_backward=gemm["projection_b_wt"] + gemm["projection_b_act"] + from_projection,
    )  # fmt: skip


def step_time(config: Configuration, machine: Hardware, times: Passes) -> FloatArray:
    """Time of one step, (points,): rule TT4, and the transfer-bound regimes of section 8. [s]

    Layers form a pipeline over time steps and stages; a stage-to-stage transfer hides behind the stage's cells where
    these take longer.

    Odd, and kept: the optimizer of the hidden layers is charged once, not per layer; that of the softmax
    once; the projection never. The native model charges each where it runs.
    """
    layers, steps, stages = config.num_layers, config.seq_len, config.hlp
    cf, cb, reduction = times.cell_forward, times.cell_backward, times.reduction
    stage_layers = layers / stages
    message = config.element_bytes * config.shard_batch * config.hidden_size
    hop = np.where(config.lp > 1, message / machine.link_bandwidth, 0.0)
    hops, all_hops = hop * (stages - 1), (steps + stages - 2) * hop

    hidden_forward, hidden_backward = hop <= stage_layers * cf, hop < stage_layers * cb
    slow_reduction = cb < reduction
    forward = np.where(hidden_forward, (layers + stage_layers * (steps - 1)) * cf + hops, layers * cf + all_hops)
    backward = np.where(
        hidden_forward | hidden_backward,
        np.where(
            slow_reduction,
            (layers + stage_layers * (steps - 2) + 1) * cb + stage_layers * reduction,
            (layers + stage_layers * (steps - 1)) * cb + hops + reduction,
        ),
        np.where(
            slow_reduction,
            (layers - stage_layers + 1) * cb + all_hops + stage_layers * reduction,
            layers * cb + all_hops + reduction,
        ),
    )
    outside = (
        times.softmax_forward
        + times.softmax_backward
        + times.embedding_forward
        + times.embedding_backward
        + times.softmax_optimizer
    )
    return outside + forward + backward
