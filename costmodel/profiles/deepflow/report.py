"""Prices configurations, and names every figure that the reference prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray
from costmodel.profiles.deepflow.configuration import Configuration
from costmodel.profiles.deepflow.energy import step_energy
from costmodel.profiles.deepflow.footprint import Footprint, footprint
from costmodel.profiles.deepflow.hardware import Hardware, hardware
from costmodel.profiles.deepflow.kernels import (
    GEMMS,
    OPTIMIZED,
    GemmPrices,
    KernelPrice,
    gemm_prices,
    optimizer_prices,
    pointwise_prices,
)
from costmodel.profiles.deepflow.step import Passes, passes, step_time

Figure = tuple[str, FloatArray]

#: The reference's code of each kind of split.
PRINTED_KINDS = np.array([-1.0, 1.0, 2.0])
GIB, MIB, TIB = 2.0**30, 2.0**20, 2.0**40

#: The budget of time per step (rule TT5): one day over the steps that an epoch takes. The data set is
#: `DATA_SCALE` times so many tokens, and a step is taken to have 32 sequences, whatever the batch.
DATA_SCALE, DATA_TOKENS, BUDGET_BATCH, DAY = 100, 768_648_884, 32, 86400.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DeepflowReport:
    """Everything that the profile says about each configuration."""

    config: Configuration
    machine: Hardware
    gemms: GemmPrices
    pointwise: dict[str, KernelPrice]
    optimizer: dict[tuple[str, str], KernelPrice]
    passes: Passes
    whole: Footprint  #: of a data shard
    shard: Footprint  #: of a model shard of it
    step_time: FloatArray  #: [s]
    energy: FloatArray  #: [J]

    @property
    def num_parameters(self) -> FloatArray:
        """Weights and biases; rule NP1. [-]"""
        config = self.config
        size, vocab = config.hidden_size, config.vocab_size
        cells = (2 * size + 1) * config.gate_size * config.num_layers
        return vocab * size + cells + size * config.projection_size + (size + 1) * vocab

    @property
    def step_time_budget(self) -> FloatArray:
        """Time that one step may take for an epoch a day: a wish, no prediction. [s]"""
        steps = np.floor(DATA_SCALE * DATA_TOKENS / (BUDGET_BATCH * self.config.seq_len))
        return DAY / steps

    def figures(self) -> dict[str, FloatArray]:
        """Every figure by the name of what the reference prints, (points,) columns.

        Times are in seconds, traffic in bytes; hardware and memory in the reference's Tflop/s, GiB, MiB,
        GiB/s and TiB/s, throughput and DRAM bandwidth before derating; parameters in 1e9.
        """
        groups = (
            optimizer_figures(self), gemm_figures(self), pointwise_figures(self), split_figures(self),
            pass_figures(self), hardware_figures(self), memory_figures(self), result_figures(self),
        )  # fmt: skip
        shape = np.broadcast_shapes(*(v.shape for v in self.config.columns().values()), (1,))
        with np.errstate(divide="ignore", invalid="ignore"):
            return {name: np.broadcast_to(values, shape) for group in groups for name, values in group}


def price(config: Configuration) -> DeepflowReport:
    """Price configurations by the rules of DeepFlow's first generation.

    Parameters
    ----------
    config : Configuration
        One row per configuration. Nothing is refused here: a split that needs links without power for
        them, or a level without capacity, takes infinitely long or gives no number.

    Returns
    -------
    report : DeepflowReport
        (points,) columns, the same bits for a row whatever stands beside it. [s], [B], [J]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        machine = hardware(config)
        gemms, pointwise = gemm_prices(config, machine), pointwise_prices(config, machine)
        optimizer = optimizer_prices(config, machine)
        times = passes(config, machine, gemms, pointwise, optimizer)
        return DeepflowReport(
            config=config,
            machine=machine,
            gemms=gemms,
            pointwise=pointwise,
            optimizer=optimizer,
            passes=times,
            whole=footprint(config, sharded=False),
            shard=footprint(config, sharded=True),
            step_time=step_time(config, machine, times),
            energy=step_energy(config, gemms, pointwise),
        )


def optimizer_figures(report: DeepflowReport) -> Iterator[Figure]:
    """The optimizer's kernels, part by part."""
    for part in OPTIMIZED:
        kernels = {
            "applyGrad": report.optimizer[part, "apply_grad"],
            "gradclip": report.optimizer[part, "gradclip"],
        }
        for name, kernel in kernels.items():
            yield f"{part}.{name}.inflection_point", report.machine.inflection
            yield f"{part}.{name}.comp_int", kernel.intensity
        for name, kernel in reversed(kernels.items()):
            yield f"{part}.{name}_flop", kernel.flops
            yield f"{part}.{name}_mem", kernel.dram_bytes
            yield f"{part}.{name}_time", kernel.time


def gemm_figures(report: DeepflowReport) -> Iterator[Figure]:
    """Reload factors, work, traffic and time of each product.

    Where the swapped order is run, work, traffic and time are of that order.
    """
    prices = report.gemms
    for place, name in enumerate(GEMMS):
        for order, order_name in enumerate(("direct", "swapped")):
            for level, reload in (("gmem", prices.dram[order]), ("l2mem", prices.l2[order])):
                for operand, factor in (("AB", reload.of_a), ("AC", reload.of_c), ("BC", reload.of_b)):
                    yield f"{name}.{order_name}.{level}.reload_{operand}", factor[:, place]
        for order, order_name in enumerate(("direct", "swapped")):
            yield f"{name}.{order_name}.inflection_point", report.machine.inflection
            yield f"{name}.{order_name}.comp_int", prices.intensity(order)[:, place]
        yield f"{name}.GEMM_flop", prices.flops[:, place]
        yield f"{name}.GEMM_gmem", prices.traffic("dram")[:, place]
        yield f"{name}.GEMM_l2mem", prices.traffic("l2")[:, place]
        yield f"{name}.GEMM_time", prices.time[:, place]


def pointwise_figures(report: DeepflowReport) -> Iterator[Figure]:
    """The pointwise kernels, and the embedding's traffic."""
    for name, kernel in report.pointwise.items():
        yield f"{name}.inflection_point", report.machine.inflection
        yield f"{name}.comp_int", kernel.intensity
        yield f"{name}.point_flop", kernel.flops
        yield f"{name}.point_mem", kernel.dram_bytes
        yield f"{name}.point_time", kernel.time
    config = report.config
    for name in ("Embedding_f.mem", "Embedding_b.mem"):
        yield name, 2 * config.tokens * config.hidden_size * config.element_bytes


def split_figures(report: DeepflowReport) -> Iterator[Figure]:
    """The parallelism, as the reference prints it twice."""
    config = report.config
    sizes = [("dp", config.dp), ("lp", config.lp), ("hlp", config.hlp)]
    parts = ("hidden", "softmax", "embedding")
    for name, size in sizes:
        yield f"par1.{name}", size
    for part in parts:
        yield f"par1.kp_{part}_dim1", config.split(part).dim1
        yield f"par1.kp_{part}_dim2", config.split(part).dim2
    for part in parts:
        yield f"par1.kp_{part}_type", PRINTED_KINDS[config.split(part).kind.astype(np.intp)]
    for name, size in sizes:
        yield f"par2.{name}", size
    for part in ("hidden", "softmax", "projection"):
        yield f"par2.kp_{part}_dim1", config.split(part).dim1
        yield f"par2.kp_{part}_dim2", config.split(part).dim2
    yield "par2.kp_embedding", config.embedding_dim1 * config.embedding_dim2


def pass_figures(report: DeepflowReport) -> Iterator[Figure]:
    """Times of the parts."""
    times = report.passes
    yield "sum.Cf", times.cell_forward
    yield "sum.Cb", times.cell_backward
    yield "sum.R", times.reduction
    for part in ("softmax", "embedding", "projection"):
        yield f"sum.{part}_f", getattr(times, f"{part}_forward")
        yield f"sum.{part}_b", getattr(times, f"{part}_backward")
    yield "parameters", report.num_parameters / 1e9


def hardware_figures(report: DeepflowReport) -> Iterator[Figure]:
    """The machine, as bought rather than as derated."""
    config, machine = report.config, report.machine
    yield "hw.throughput", machine.flop_rate / config.core_derate / 1e12
    yield "hw.mem_bw", machine.dram_bandwidth / config.dram_derate / GIB
    yield "hw.mem_size", machine.dram_capacity / GIB
    yield "hw.L2_bw", machine.l2_bandwidth / TIB
    yield "hw.L2_size", machine.l2_capacity / MIB
    yield "hw.sm_size", machine.shared_memory_capacity / MIB
    yield "hw.link_bw", machine.link_bandwidth / GIB


def memory_figures(report: DeepflowReport) -> Iterator[Figure]:
    """Both memory tables. The second repeats the first one's sums by purpose, as the reference does."""
    capacity = report.machine.dram_capacity
    for table, own in (("mem1", report.whole), ("mem2", report.shard)):
        yield f"{table}.total", own.total / GIB
        for part in ("embedding", "hidden", "softmax", "projection"):
            yield f"{table}.{part}", own.of(part) / GIB
        yield f"{table}.kind_total", report.whole.total / GIB
        for purpose in ("weight", "activation", "pointwise"):
            yield f"{table}.kind_{purpose}", report.whole.to(purpose) / GIB
        yield f"{table}.overflow", own.total / capacity


def result_figures(report: DeepflowReport) -> Iterator[Figure]:
    """The step."""
    yield "Time", report.step_time
    yield "time_per_step", report.step_time_budget
    yield "energy", report.energy
    yield "power", report.energy / report.step_time
