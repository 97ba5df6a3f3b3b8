"""Figures of set-ups of the second and present generation: everything that DeepFlow writes into its summaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.lstm import Split
from dse.adapters.deepflow.chips import DEGREES, Values, chip
from dse.adapters.deepflow.configuration import PARTS
from dse.adapters.deepflow.model_steps import Device, lstm_times, split_products, step_times, token_times
from dse.adapters.deepflow.setups import UNITS, ChipSetup, problems
from dse.adapters.deepflow.step import GIB, MIB, WHOLE, footprint, memory_figures, plain, total_bytes
from dse.adapters.deepflow.tiled_products import INNERMOST, NONE, ORDERS

Figures = Iterator[tuple[str, FloatArray]]


def lstm_figures(setup: ChipSetup, device: Device, capacity: FloatArray) -> Figures:
    """Memory, split and times of an LSTM language model."""
    work, times = setup.workload, lstm_times(setup.workload, device)
    whole = footprint(work, dict.fromkeys(PARTS, WHOLE), np.ones(1), later=True)
    stages = np.where(work.lp > 2, work.lp - 2, work.lp)
    shard = footprint(work, dict.fromkeys(PARTS, work.split("hidden")), stages, later=True)
    largest = np.maximum(*(sum(shard[part], np.zeros(1)) for part in ("hidden", "embedding")))
    total = np.where(work.lp == 1, total_bytes(shard), np.where(work.lp >= 4, largest, 0.0))
    yield from memory_figures("mem1", whole, total_bytes(whole), capacity, whole).items()
    yield from memory_figures("mem2", shard, total, capacity, shard).items()
    for name in ("dp", "lp", *(f"kp_{part}_{end}" for part in PARTS for end in ("dim1", "dim2"))):
        yield f"par.{name}", setup.split(name)
    yield from ((f"sum.{name}", values) for name, values in times.items())
    yield "Time", times["forward"] + times["backward"]
    yield "parameters", work.num_parameters / 1e9


def product_split(setup: ChipSetup) -> Split:
    """The split of products of no LSTM."""
    kp1, kp2 = setup.split("kp1"), setup.split("kp2")
    return Split(np.where((kp1 == 1) & (kp2 == 1), 0.0, setup.split("t")), kp1, kp2)


def gemm_figures(setup: ChipSetup, device: Device, capacity: FloatArray) -> Figures:
    """Time of one product with the collective of its split, traffic, and the fastest loop order and tiles."""
    split, (m, k, n) = product_split(setup), (setup.model(key) for key in "MKN")
    local = split_products(split, m, k, n)[0]
    exchanged = setup.rules["nested"] & (split.kind == 0)  # K and N of a product that is not split
    chosen = device.products([[*np.where(exchanged, (m, n, k), local)]])
    order = chosen.order[:, 0].astype(int)
    yield "Time", chosen.time[:, 0] + device.between_products(split, m, k, n)[0]
    yield from ((f"L{level}", chosen.traffic[:, 0, level]) for level in range(4))
    yield "order", np.where(exchanged, np.array([1, 0, 4, 5, 2, 3])[order], order)  # k and n of a loop order exchanged
    for level, tile in enumerate((*np.moveaxis(chosen.tiles[:, 0], 0, -1), local)):
        yield from ((f"tile{level}.{name}", edge) for name, edge in zip("mkn", tile, strict=True))


def llm_figures(setup: ChipSetup, device: Device, capacity: FloatArray) -> Figures:
    """Times of all tokens and, with one pipeline stage, of a training step."""
    yield from token_times(setup, device, product_split(setup)).items()
    alone = setup.split("lp") == 1
    if np.any(alone):
        yield from ((name, np.where(alone, times, np.nan)) for name, times in step_times(setup, device).items())


#: Mode -> figures of a set-up.
_MODES: Final = {"LSTM": lstm_figures, "GEMM": gemm_figures, "LLM": llm_figures}


def hardware_figures(blocks: Mapping[str, Values]) -> Figures:
    """Rates and sizes before utilization, then the blocks of the chip with the used shares of their resources. [%]"""
    yield "hw.throughput", blocks["core"]["throughput"] / 1e12
    for index, level in enumerate(list(blocks.values())[1:5]):
        yield from ((f"hw.L{index}_bw", level["bandwidth"] / GIB), (f"hw.L{index}_size", level["size"] / MIB))
    yield from ((f"hw.{name}_bw", blocks[name]["bandwidth"] / GIB) for name in DEGREES)
    for name, block in blocks.items():
        yield from ((f"{name}.{key}", values / UNITS.get(key, 1.0)) for key, values in block.items())
        for key in [key[4:] for key in block if key.startswith("eff_")]:
            yield f"{name}.{key}_util", block[f"eff_{key}"] / block[f"tot_{key}"] * 100


def setup_figures(setup: ChipSetup) -> Values:
    """Every figure of a set-up by its name, (points,): times in seconds, others in the units of DeepFlow's summary.

    Bandwidths are in GiB/s, sizes of levels in MiB, other sizes in GiB, throughput in TFLOP/s, clocks in GHz.
    """
    with np.errstate(all="ignore"):
        blocks = chip(setup.sheet, states=setup.rules["states"])
        figures = _MODES[setup.mode](setup, Device.of(setup, blocks), list(blocks.values())[4]["size"])
        return dict(hardware_figures(blocks)) | dict(figures)


#: Reasons why DeepFlow stops, never stops drawing tiles, or ends with no time, that figures show.
CRAMPED: Final = "memory_hierarchy: a level has no bandwidth, or no room for as many tiles as DeepFlow draws"
TOO_HIGH: Final = "power_breakdown.DRAM: its voltage exceeds max_voltage, where DeepFlow stops; lower the power"
ENDLESS: Final = "a split or a level has no bandwidth, so that the step never ends; give links or memories power"


def outcomes(setup: ChipSetup) -> tuple[Values, list[str]]:
    """Figures of set-ups, NaN where DeepFlow does not run, none where it runs none; and the reasons, (points,).

    A reason is "" where DeepFlow runs.
    """
    points = max(values.size for values in setup.sheet.values())
    reasons = np.full(points, "", dtype=object)
    for reason, broken in problems(setup):
        reasons[np.broadcast_to(broken, points) & (reasons == "")] = reason
    rows, figures = np.flatnonzero(reasons == ""), Values()
    if rows.size:
        part = replace(setup, sheet={path: v[rows] if v.size > 1 else v for path, v in setup.sheet.items()})
        figures = setup_figures(part)
        too_high = setup.rules["states"] & (figures["DRAM.operating_voltage"] == figures["DRAM.voltage_upperbound"])
        time = figures["Time"]
        stopped = np.where(np.isnan(time), CRAMPED, np.where(time < np.inf, "", ENDLESS))
        reasons[rows] = np.where(too_high, TOO_HIGH, stopped)
    whole = {name: np.full(points, np.nan) for name in figures if np.any(reasons == "")}
    for name, values in whole.items():
        values[rows] = np.where(reasons[rows] == "", figures[name], np.nan)
    return whole, reasons.tolist()


def printed_figures(setup: ChipSetup) -> dict[str, Any]:
    """The figures of one set-up, with words for a loop order; a `DseError` if DeepFlow stops, or ends with no time."""
    values, [reason] = outcomes(setup)
    if reason:
        raise DseError(reason)
    figures = plain(values)
    if "order" in figures:
        orders = ["".join("mkn"[axis] for axis in order) for order in ORDERS[NONE]]
        figures["order"] = (orders if setup.rules["nested"] else INNERMOST)[figures["order"]]
        figures["tile"] = [[figures.pop(f"tile{level}.{name}") for name in "mkn"] for level in range(4)]
    return figures
