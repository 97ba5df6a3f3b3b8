"""DeepFlow's step: passes of each part, collectives of split products, and the closed-form schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import Columns, FloatArray, column
from costmodel.kernels.collectives import RING
from dse.adapters.deepflow.configuration import MEMORY_LATENCY, Configuration, Hardware, roofline
from dse.adapters.deepflow.kernels import GEMMS, GemmPrices, KernelPrice, part_sizes

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
    gemm = {name: gemms.time[:, place] for place, name in enumerate(GEMMS)}
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
    own = layers / stages
    message = config.element_bytes * config.shard_batch * config.hidden_size
    hop = np.where(config.lp > 1, message / machine.link_bandwidth, 0.0)
    hops, all_hops = hop * (stages - 1), (steps + stages - 2) * hop

    hidden_forward, hidden_backward = hop <= own * cf, hop < own * cb
    slow_reduction = cb < reduction
    forward = np.where(hidden_forward, (layers + own * (steps - 1)) * cf + hops, layers * cf + all_hops)
    backward = np.where(
        hidden_forward | hidden_backward,
        np.where(
            slow_reduction,
            (layers + own * (steps - 2) + 1) * cb + own * reduction,
            (layers + own * (steps - 1)) * cb + hops + reduction,
        ),
        np.where(
            slow_reduction, (layers - own + 1) * cb + all_hops + own * reduction, layers * cb + all_hops + reduction
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
