"""DeepFlow's kernels: matrix products, pointwise kernels and optimizer, with their counts and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from costmodel.columns import BoolArray, FloatArray, per_kernel
from costmodel.kernels.gemm import Reload, reload_orders
from costmodel.lstm.model import Dimensions, Split
from costmodel.workload.kernel_tables import Gemms, Label, optimizer_work
from dse.adapters.deepflow.configuration import Configuration, Hardware, roofline

#: Kernel launches of a pointwise kernel that runs whole; one that is split is launched once.
LSTM_LAUNCHES, SOFTMAX_LAUNCHES, SPLIT_LAUNCHES = 15, 4, 1

#: Matrix product -> part of the model whose split it has, and its role.
GEMMS: Mapping[str, tuple[str, str]] = {
    "Cf": ("hidden", "forward"),
    "Cb_act": ("hidden", "activation_gradient"),
    "Cb_wt": ("hidden", "weight_gradient"),
    "softmax_f": ("softmax", "forward"),
    "softmax_b_wt": ("softmax", "weight_gradient"),
    "softmax_b_act": ("softmax", "activation_gradient"),
    "projection": ("projection", "forward"),
    "projection_b_wt": ("projection", "weight_gradient"),
    "projection_b_act": ("projection", "activation_gradient"),
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
