"""The report of one configuration by DeepFlow's rules, as text and as a record for other programs."""

from __future__ import annotations

from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.adapters.deepflow.kernels import GEMMS, OPTIMIZED
from dse.adapters.deepflow.report import DeepflowReport
from dse.output.text import percent
from dse.reporting.design_table import facts, ruled_table

Figures = dict[str, float | int]

#: What binds a kernel, as the tables write it.
_COMPUTE, _MEMORY = "compute", "memory"

#: Time of a pass over a part -> its name in the report, in the order in which they run.
_PASSES: Final = {
    "sum.embedding_f": "embedding, forward",
    "sum.Cf": "cell, forward",
    "sum.projection_f": "projection, forward (not charged)",
    "sum.softmax_f": "softmax, forward",
    "sum.softmax_b": "softmax, backward",
    "sum.projection_b": "projection, backward (not charged)",
    "sum.Cb": "cell, backward",
    "sum.embedding_b": "embedding, backward",
    "sum.R": "reduction and optimizer of the cells",
}
#: Figure -> its name and unit in the report.
_HARDWARE: Final = {
    "hw.throughput": ("throughput", "TFLOP/s"),
    "hw.mem_bw": ("DRAM bandwidth", "GiB/s"),
    "hw.mem_size": ("DRAM capacity", "GiB"),
    "hw.L2_bw": ("L2 bandwidth", "TiB/s"),
    "hw.L2_size": ("L2 capacity", "MiB"),
    "hw.sm_size": ("shared memory capacity", "MiB"),
    "hw.link_bw": ("link bandwidth", "GiB/s"),
}


def figures(report: DeepflowReport) -> Figures:
    """Every figure of the first configuration of a report; whole numbers as such."""
    values = {name: float(column[0]) for name, column in report.figures().items()}
    return {name: int(v) if v.is_integer() else v for name, v in values.items()}


def deepflow_report(report: DeepflowReport) -> list[RenderableType]:
    """The first configuration of a report in tables, section by section."""
    found = figures(report)
    sections: list[tuple[str, RenderableType]] = [
        ("Matrix products", gemm_table(found)),
        ("Pointwise kernels and optimizer", pointwise_table(found)),
        ("Memory", memory_table(found)),
        ("Parameters", Text(f"{found['parameters']:.2f} billion")),
        ("Hardware", facts((text, f"{found[key]:,.1f} {unit}") for key, (text, unit) in _HARDWARE.items())),
        ("Parallelism", facts(split_rows(found))),
        ("Step", facts(step_rows(found))),
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
