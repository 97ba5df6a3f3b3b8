"""Reports of DeepFlow configurations: every figure that the reference prints, as text and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from costmodel.columns import FloatArray, per_kernel
from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import readable
from costmodel.kernels.kernel_tables import total
from costmodel.lstm import Split
from dse.adapters.deepflow.configuration import Configuration, Hardware, hardware
from dse.adapters.deepflow.step import (
    GEMMS,
    OPTIMIZED,
    GemmPrices,
    KernelPrice,
    Passes,
    gemm_prices,
    optimizer_prices,
    passes,
    pointwise_prices,
    step_time,
)
from dse.output import percent
from dse.reporting.design_table import facts, ruled_table

#: What the bytes of a part are for.
PURPOSES = ("weight", "activation", "pointwise")
Elements = tuple[FloatArray, ...]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes by (part, purpose); (points,) columns."""

    bytes: dict[tuple[str, str], FloatArray]

    def of(self, part: str) -> FloatArray:
        """A part, whatever for. [B]"""
        return self.bytes[part, "weight"] + self.bytes[part, "activation"] + self.bytes[part, "pointwise"]

    def to(self, purpose: str) -> FloatArray:
        """A purpose, whichever part. [B]"""
        hidden_and_softmax = self.bytes["hidden", purpose] + self.bytes["softmax", purpose]
        return hidden_and_softmax + self.bytes["projection", purpose] + self.bytes["embedding", purpose]

    @property
    def total(self) -> FloatArray:
        """Bytes of all parts; rule MF1. [B]"""
        return self.of("embedding") + self.of("hidden") + self.of("softmax") + self.of("projection")


def footprint(config: Configuration, *, sharded: bool) -> Footprint:
    """Bytes of a data shard, of the whole model or, if `sharded`, of one model shard; (points,). [B]

    Shares are true fractions. Weights of the embedding are never shared out.
    """
    whole = Split(np.zeros(1), np.ones(1), np.ones(1))
    parts = {part: elements(config, config.split(part) if sharded else whole) for part, elements in ELEMENTS.items()}
    stages = config.hlp if sharded else np.ones(1)
    parts["hidden"] = tuple(count / stages for count in parts["hidden"])
    return Footprint(
        {
            (part, purpose): count * config.element_bytes
            for part, counts in parts.items()
            for purpose, count in zip(PURPOSES, counts, strict=True)
        }
    )


def shard_sizes(config: Configuration, split: Split) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sequences of one shard; pieces of the inner dimension, and of the columns. [-]"""
    return config.shard_batch / split.rows, np.where(split.is_rc, 1.0, split.dim1), split.columns


def hidden_elements(config: Configuration, split: Split) -> Elements:
    """Elements of the cells, of all layers and steps. [elements]"""
    batch, inner, columns = shard_sizes(config, split)
    inputs, steps = 2 * config.hidden_size / inner, config.seq_len * config.num_layers
    weights = (inputs + 1) * (config.gate_size / columns) * config.num_layers
    return weights, batch * inputs * steps, 9 * steps * (batch * inputs / 2)


def softmax_elements(config: Configuration, split: Split) -> Elements:
    """Elements of the softmax, which counts projection_size inputs here, unlike its products. [elements]"""
    batch, inner, columns = shard_sizes(config, split)
    words, rows = config.vocab_size / columns, batch * config.seq_len
    return (config.projection_size / inner + 1) * words, rows * words, 2 * rows * words + rows


def projection_elements(config: Configuration, split: Split) -> Elements:
    """Elements of the projection. [elements]"""
    batch, inner, columns = shard_sizes(config, split)
    outputs = config.projection_size / columns
    projected = batch * config.seq_len * outputs
    return (config.hidden_size / inner + 1) * outputs, projected, projected


def embedding_elements(config: Configuration, split: Split) -> Elements:
    """Elements of the embedding. [elements]"""
    batch = config.shard_batch / np.where(split.is_cr, split.dim1, split.dim1 * split.dim2)
    size = config.hidden_size
    return config.vocab_size * size, batch * config.seq_len * size, np.zeros_like(batch)


#: Part -> elements by purpose.
ELEMENTS: Mapping[str, Callable[[Configuration, Split], Elements]] = {
    "embedding": embedding_elements,
    "hidden": hidden_elements,
    "softmax": softmax_elements,
    "projection": projection_elements,
}


def step_energy(config: Configuration, gemms: GemmPrices, pointwise: dict[str, KernelPrice]) -> FloatArray:
    """Energy of one step of all data shards, (points,); NaN where products are split. [J]

    It includes cells, softmax, embedding, stage transfers, and the reduction over data shards. The reference leaves the
    energy of split products open.

    The reference counts its energies by an older set of kernels, which is not known well enough to be
    repeated: these are its rules with the counts of the times. Like its own, they leave the optimizer,
    the projection, and the shared memory out.
    """
    by_gemm = (
        gemms.flops * per_kernel(config.flop_energy)
        + gemms.traffic("dram") * per_kernel(config.dram_energy)
        + gemms.traffic("l2") * per_kernel(config.l2_energy)
    )

    def energy(part: str, *names: str) -> FloatArray:
        places = [index for index, (of_part, _) in enumerate(GEMMS.values()) if of_part == part]
        products = total(by_gemm[:, places])
        for name in names:
            kernel = pointwise[name]
            products = products + (kernel.flops * config.flop_energy + kernel.dram_bytes * config.dram_energy)
        return products

    cells = config.num_layers * config.seq_len * energy("hidden", "Hidden_f", "Hidden_b")
    embedded = config.element_bytes * config.tokens * config.hidden_size
    embedding = 2 * (2 * embedded * config.dram_energy)
    transfers = config.element_bytes * config.shard_batch * config.hidden_size * config.link_energy
    shard = cells + energy("softmax", "Softmax_f", "Softmax_b") + embedding + transfers * (config.lp - 1)

    weights = 2 * config.hidden_size * config.gate_size
    reduction = (
        2 * config.element_bytes * weights * config.link_energy
        + weights * config.flop_energy
        + 3 * config.element_bytes * weights * config.dram_energy
    )
    whole = ~(config.split("hidden").sharded | config.split("softmax").sharded)
    return np.where(whole, config.dp * shard + reduction * (config.dp - 1), np.nan)


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

    (points,) columns, the same bits for a row in any batch. [s], [B], [J]
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
        kernels = {"applyGrad": report.optimizer[part, "apply_grad"], "gradclip": report.optimizer[part, "gradclip"]}
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
    for index, name in enumerate(GEMMS):
        for order, order_name in enumerate(("direct", "swapped")):
            for level, reload in (("gmem", prices.dram[order]), ("l2mem", prices.l2[order])):
                for operand, factor in (("AB", reload.of_a), ("AC", reload.of_c), ("BC", reload.of_b)):
                    yield f"{name}.{order_name}.{level}.reload_{operand}", factor[:, index]
        for order, order_name in enumerate(("direct", "swapped")):
            yield f"{name}.{order_name}.inflection_point", report.machine.inflection
            yield f"{name}.{order_name}.comp_int", prices.intensity(order)[:, index]
        yield f"{name}.GEMM_flop", prices.flops[:, index]
        yield f"{name}.GEMM_gmem", prices.traffic("dram")[:, index]
        yield f"{name}.GEMM_l2mem", prices.traffic("l2")[:, index]
        yield f"{name}.GEMM_time", prices.time[:, index]


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
    """Times of a pass over each part, and the number of parameters."""
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
    """Memory of a data shard and of a model shard, both with the sums by purpose of the former."""
    capacity = report.machine.dram_capacity
    for table, levels in (("mem1", report.whole), ("mem2", report.shard)):
        yield f"{table}.total", levels.total / GIB
        for part in ("embedding", "hidden", "softmax", "projection"):
            yield f"{table}.{part}", levels.of(part) / GIB
        yield f"{table}.kind_total", report.whole.total / GIB
        for purpose in ("weight", "activation", "pointwise"):
            yield f"{table}.kind_{purpose}", report.whole.to(purpose) / GIB
        yield f"{table}.overflow", levels.total / capacity


def result_figures(report: DeepflowReport) -> Iterator[Figure]:
    """Time, budget, energy and power of a step."""
    yield "Time", report.step_time
    yield "time_per_step", report.step_time_budget
    yield "energy", report.energy
    yield "power", report.energy / report.step_time


Figures = dict[str, float | int]

#: What binds a kernel, as the tables write it.
_COMPUTE, _MEMORY = "compute", "memory"

#: Time of a pass over a part -> its name in the report, in the order in which they run.
_PASSES: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["passes"]
#: Figure -> its name and unit in the report.
_HARDWARE: Final[Mapping[str, tuple[str, str]]] = {
    name: (words[0], words[1]) for name, words in data_beside(__file__, "tables.yaml")["hardware"].items()
}


def figures(report: DeepflowReport) -> Figures:
    """Every figure of the first configuration of a report; whole numbers as such."""
    values = {name: float(column[0]) for name, column in report.figures().items()}
    return {name: int(v) if v.is_integer() else v for name, v in values.items()}


def deepflow_report(report: DeepflowReport) -> list[RenderableType]:
    """The first configuration of a report in tables, section by section."""
    named_figures = figures(report)
    sections: list[tuple[str, RenderableType]] = [
        ("Matrix products", gemm_table(named_figures)),
        ("Pointwise kernels and optimizer", pointwise_table(named_figures)),
        ("Memory", memory_table(named_figures)),
        ("Parameters", Text(f"{named_figures['parameters']:.2f} billion")),
        ("Hardware", facts((text, f"{named_figures[key]:,.1f} {unit}") for key, (text, unit) in _HARDWARE.items())),
        ("Parallelism", facts(split_rows(named_figures))),
        ("Step", facts(step_rows(named_figures))),
    ]  # fmt: skip
    shown: list[RenderableType] = []
    for heading, table in sections:
        shown += [Text(heading, style="bold"), Text(), table, Text()]
    return shown[:-1]


def gemm_table(found: Figures) -> Table:
    """Reload factors, work, traffic and time of each product."""
    table = ruled_table("product", "DRAM reloads\nAB AC BC", "L2 reloads\nAB AC BC", "work", "DRAM\ntraffic",
                     "L2\ntraffic", "FLOP/B", "bound by", "time")  # fmt: skip
    for name in GEMMS:
        reloads = [
            " ".join(str(found[f"{name}.direct.{level}.reload_{operand}"]) for operand in ("AB", "AC", "BC"))
            for level in ("gmem", "l2mem")
        ]
        intensity = found[f"{name}.direct.comp_int"]
        table.add_row(
            name,
            *reloads,
            readable(found[f"{name}.GEMM_flop"], "FLOP"),
            readable(found[f"{name}.GEMM_gmem"], "B"),
            readable(found[f"{name}.GEMM_l2mem"], "B"),
            f"{intensity:.2f}",
            bound(intensity, found[f"{name}.direct.inflection_point"]),
            readable(found[f"{name}.GEMM_time"], "s", digits=4),
        )
    return table


def pointwise_table(found: Figures) -> Table:
    """Work, traffic and time of the kernels without reuse."""
    table = ruled_table("kernel", "work", "DRAM\ntraffic", "FLOP/B", "bound by", "time")
    kernels = {
        "cell, forward": ("Hidden_f", "Hidden_f.point_{}"),
        "cell, backward": ("Hidden_b", "Hidden_b.point_{}"),
        "softmax, forward": ("Softmax_f", "Softmax_f.point_{}"),
        "softmax, backward": ("Softmax_b", "Softmax_b.point_{}"),
    }
    for part in OPTIMIZED:
        for kernel, text in (("gradclip", "gradient clipping"), ("applyGrad", "update")):
            kernels[f"{part.lower()}, {text}"] = (f"{part}.{kernel}", f"{part}.{kernel}_{{}}")
    for text, (name, key) in kernels.items():
        intensity = found[f"{name}.comp_int"]
        table.add_row(
            text,
            readable(found[key.format("flop")], "FLOP"),
            readable(found[key.format("mem")], "B"),
            f"{intensity:.2f}",
            bound(intensity, found[f"{name}.inflection_point"]),
            readable(found[key.format("time")], "s", digits=4),
        )
    for text, key in (("embedding, forward", "Embedding_f.mem"), ("embedding, backward", "Embedding_b.mem")):
        time = found[f"sum.{key.lower().removesuffix('.mem')}"]
        table.add_row(text, "", readable(found[key], "B"), "", _MEMORY, readable(time, "s", digits=4))
    return table


def memory_table(found: Figures) -> Table:
    """Bytes by part of a data shard and of a model shard of it, by purpose, and against the capacity."""
    table = ruled_table("", "data shard", "model shard")
    rows = {part: part for part in ("embedding", "hidden", "softmax", "projection", "total")}
    rows |= {f"kind_{purpose}": f"of it {purpose}" for purpose in ("weight", "activation", "pointwise")}
    for key, text in rows.items():
        table.add_row(text, *(gib(found[f"{memory}.{key}"]) for memory in ("mem1", "mem2")))
    table.add_row("total over capacity", *(f"{found[f'{m}.overflow']:.3g}" for m in ("mem1", "mem2")))
    return table


def split_rows(found: Figures) -> list[tuple[str, str]]:
    """The split of the model."""
    kinds = {-1: "whole", 1: "column-row", 2: "row-column"}
    rows = [("data shards", str(found["par1.dp"])), ("pipeline stages", str(found["par1.lp"])),
            ("stages of hidden layers", str(found["par1.hlp"]))]  # fmt: skip
    for part in ("hidden", "softmax", "embedding"):
        dims = f"{found[f'par1.kp_{part}_dim1']} x {found[f'par1.kp_{part}_dim2']}"
        kind = kinds[int(found[f"par1.kp_{part}_type"])]
        rows.append((part, kind if kind == "whole" else f"{kind} {dims}"))
    return rows


def step_rows(found: Figures) -> list[tuple[str, str]]:
    """Passes, and what they make up."""
    total = found["Time"]
    rows = [(text, readable(found[key], "s", digits=4)) for key, text in _PASSES.items()]
    softmax = (found["sum.softmax_f"] + found["sum.softmax_b"]) / total
    return [
        *rows,
        ("step", f"{readable(total, 's', digits=6)}, {percent(softmax)} of it softmax"),
        ("step, wished for an epoch a day at batch 32", readable(found["time_per_step"], "s", digits=5)),
        *energy_rows(found),
    ]


def energy_rows(found: Figures) -> list[tuple[str, str]]:
    """Energy and power, where the rules tell them."""
    if found["energy"] != found["energy"]:
        return [("energy of a step", "not known where products are split")]
    return [("energy of a step", readable(found["energy"], "J")), ("power", readable(found["power"], "W"))]


def bound(intensity: float, inflection: float) -> str:
    """The resource that limits a kernel of some arithmetic intensity."""
    return _MEMORY if intensity < inflection else _COMPUTE


def gib(value: float) -> str:
    """A size in GiB, which is what the reference counts in."""
    return f"{value:,.1f} GiB"
