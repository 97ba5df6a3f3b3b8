"""Predicted times of rows of kernel tables: arrays of shapes in, arrays of times out.

A product includes the casts of its input to 8 or 4 bits. A grouped row is the module of an engine: it gathers tokens by
expert, multiplies twice with an activation between, and adds up the results. Collectives are those of nccl-tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from costmodel import System
from costmodel.columns import FloatArray
from costmodel.formats import shipped
from costmodel.formats.input_files import data_beside
from costmodel.kernels.kernel_cost import pointwise_time
from costmodel.kernels.kernel_tables import Gemms, Label, Pointwise
from costmodel.kernels.products import attention_cost, gemm_cost
from costmodel.training.precision import FORMATS
from dse.adapters.aiconfigurator.tables import KINDS, KernelSample, samples
from dse.validation.expressed import system_named
from dse.validation.kernels import OUTPUT_BYTES, attention_work, burst_time, collective_time, product_time
from dse.validation.summary import error_record

#: System -> library and family of kernels of experts -> constants, fitted by benchmarks/kernel_libraries.py.
EXPERTS: Final[Mapping[str, Any]] = data_beside(__file__, "experts.yaml")
#: Columns of a shape, by name; (rows,) each. [-], [elements], [B]
Shape = Mapping[str, FloatArray]


def sample_times(sample: KernelSample, system: System) -> FloatArray:
    """Predicted times of the rows of a sample; a machine of one value for all rows, or one for each; (rows,). [s]"""
    varied = any(values.size > 1 for values in system.quantities().values())
    times = np.zeros(len(sample.rows))
    for name, rows in sample.rows.groupby("format", observed=True).indices.items():
        part = sample.rows.iloc[rows]
        shape = {column: part[column].to_numpy(dtype=float) for column in KINDS[sample.kind]["shape"]}
        if sample.kind == "grouped":
            shape["gated"] = np.where(part["kernel"].str.contains("nongated"), 1.0, 2.0)
        if sample.kind == "collectives":
            shape["message_bytes"] = part["message_bytes"].to_numpy(dtype=float)
        time, machine = partial(TIMES[sample.kind], shape, str(name)), system.take(rows) if varied else system
        times[rows] = time(machine) if sample.kind == "collectives" else burst_time(time, machine)
    return times


def products_time(shape: Shape, precision: str, system: System) -> FloatArray:
    """Times of products, with the casts of their inputs; engines know the scale of 4-bit inputs before; (rows,). [s]"""
    is_fp4, modules = FORMATS[precision].units == "fp4", system.modules
    maxima = 0.0 if is_fp4 else FORMATS[precision].maxima
    m, n, k = shape.values()
    times = product_time(m, n, k, precision, system, casting=np.ones(1), maxima=maxima)
    return np.asarray(times + maxima * modules.maximum_floor + is_fp4 * modules.fp4_floor)


def grouped_time(shape: Shape, precision: str, system: System) -> FloatArray:
    """Times of the experts of one rank, tokens spread evenly over all experts; (rows,). [s]"""
    number_format = FORMATS[precision]
    size = number_format.element_bytes if number_format.units else OUTPUT_BYTES
    tokens, width, inner = shape["num_tokens"], shape["hidden_size"], shape["inter_size"] / shape["moe_tp_size"]
    pairs = np.maximum(tokens * shape["topk"] / shape["moe_ep_size"], 1.0)
    modules, units = system.modules, number_format.units
    experts = np.minimum(shape["num_experts"] / shape["moe_ep_size"], np.floor(pairs))
    sizes = {"up": (shape["gated"] * inner, width), "down": (width, inner)}
    gemms = Gemms.stack([
        (Label(name, "forward", "layer", runs="grouped"), (pairs / experts, n, k, experts, OUTPUT_BYTES, 1.0))
        for name, (n, k) in sizes.items()
    ])  # fmt: skip
    rate = system.chip.format_rate(number_format.units) if number_format.units else np.ones(1)
    products = gemm_cost(gemms, system, element_bytes=size, rate=rate).time.sum(axis=1)
    pairs = pairs * (1 + modules.other_pairs * (shape["moe_ep_size"] - 1))
    passes = Pointwise.stack([
        (Label("gather", "forward", "layer", runs="sorting"), (2 * OUTPUT_BYTES * pairs * width, 0.0, 1.0)),
        (Label("activation", "forward", "layer"), (OUTPUT_BYTES * pairs * inner * (shape["gated"] + 1), 0.0, 1.0)),
        (Label("sum", "forward", "layer", runs="sorting"), (OUTPUT_BYTES * (pairs + tokens) * width, 0.0, 1.0)),
    ])  # fmt: skip
    casts = (units != "") * modules.cast_passes + (units in ("block", "mx")) * modules.block_passes
    rate = system.dram.bandwidth * system.dram.efficiency
    extra = modules.experts_floor + casts * OUTPUT_BYTES * pairs * (width + inner) / rate
    return np.asarray(products + pointwise_time(passes, system)[0].sum(axis=1) + extra)


def attention_time(shape: Shape, precision: str, system: System) -> FloatArray:
    """Times of causal attention, forward, in 16 bits; (rows,). [s]"""
    core = attention_work(*(shape[name] for name in KINDS["attention"]["shape"]))
    passes = system.modules.attention_passes * core.once / (system.dram.bandwidth * system.dram.efficiency)
    return np.asarray(attention_cost(core, "forward", system).time + system.modules.attention_floor + passes)


#: Kind of tables -> times of its rows: their shapes, their format or collective, the machine.
TIMES: Final[Mapping[str, Callable[[Shape, str, System], FloatArray]]] = {
    "products": products_time, "grouped": grouped_time, "attention": attention_time,
    "collectives": lambda shape, name, system: collective_time(name, shape["message_bytes"], shape["num_gpus"], system),
}  # fmt: skip


#: Columns that errors are grouped by: of current releases by format and size, and by kernel; of all by release.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "sizes": ("kind", "system", "format", "size"),
    "kernels": ("kind", "system", "format", "library", "release", "kernel"),
    "releases": ("kind", "system", "library", "release", "current"),
}


def library_system(system: str, library: str) -> System:
    """A built-in system with constants of a library or a family of its kernels (`vllm triton`); any other as it is."""
    name = shipped.current_name(system, "systems")
    path = shipped.ROOT / "kernels" / library.split()[0] / f"{name}.yaml"
    constants = EXPERTS.get(name, {}).get(library, {}).get("constants", {})
    known = system_named(str(path) if path.is_file() else system)
    return known.with_quantities({quantity: np.array([value]) for quantity, value in constants.items()})


def library_times(sample: KernelSample) -> FloatArray:
    """Predicted times of the rows of a sample, each with the constants of its library; (rows,). [s]"""
    times = np.zeros(len(sample.rows))
    for family, rows in sample.rows.groupby("family", observed=True).indices.items():
        system = library_system(sample.system, str(family))
        times[rows] = sample_times(replace(sample, rows=sample.rows.iloc[rows]), system)
    return times


def table_errors(folder: Path, *, system: str | None, library: str, rows: int, seed: int = 0) -> dict[str, Any]:
    """Errors of kernels of the tables in a folder as one JSON object, with the rows that were set aside and why.

    Parameters are those of `samples`.
    """
    tables, left_out, read = [], [], 0
    for sample in samples(folder, system=system, library=library, rows=rows, seed=seed):
        name = {"kind": sample.kind, "system": sample.folder}
        times = {"error": library_times(sample), "in_steps": sample_times(sample, system_named(sample.system))}
        errors = {column: predicted / sample.rows["measured"] - 1 for column, predicted in times.items()}
        tables.append(sample.rows.assign(**name, **errors))
        left_out += [{**name, "reason": reason, "rows": count} for reason, count in sample.left_out.items() if count]
        read += sample.read
    table = pd.concat(tables, ignore_index=True)
    groups = {name: table if "current" in keys else table[table["current"]] for name, keys in GROUPS.items()}
    return {
        "rows_in_tables": read, "rows_compared": len(table), "rows_asked": rows, "seed": seed,
        "kept_apart": "shapes whose SHA-1 begins with 8 to f",
        "hashed": {kind: ",".join(about["shape"]) for kind, about in KINDS.items()},
        "left_out": left_out, **{name: grouped_errors(groups[name], keys) for name, keys in GROUPS.items()},
    }  # fmt: skip


def grouped_errors(table: pd.DataFrame, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Errors of each group of rows, of all of them and of those that are kept apart from fits. [%]

    `in_steps` are errors of the latter with the constants that training steps use.
    """
    return [
        {
            **dict(zip(keys, names, strict=True)),
            "rows": len(part),
            **error_record(part["error"]),
            "kept_apart": {"rows": int(part["kept_apart"].sum()), **error_record(part["error"][part["kept_apart"]])},
            "in_steps": error_record(part["in_steps"][part["kept_apart"]]),
        }
        for names, part in table.groupby([*keys], observed=True)
    ]
