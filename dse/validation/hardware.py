"""Hardware names in tables of measurements, and the built-in systems that they stand for."""

from __future__ import annotations

import re
from typing import Any, Final

from costmodel import System, system_names
from costmodel.formats.shipped import current_name
from dse.validation.expressed import Machine, NotExpressed, system_named
from dse.validation.table import WORDS, MeasuredRow

#: How rows state a fabric: adapters, the rate of one, and whose they are.
STATED_RATE: Final = r"(?:(\d+)x )?(?:[A-Za-z ]*)(?<![\d.])(\d+(?:\.\d+)?) Gb/s(?: [A-Za-z]+)*?(?: per (node|GPU)|\)|$)"

#: Bytes of the all-reduce that jobs test their links with [B], and its bus bandwidth on healthy links. [B/s]
TESTED: Final = 2e9
HEALTHY: Final = 200e9

#: Chips of a node where a row does not say.
NODE: Final = 8.0


def machine_of(row: MeasuredRow, system: str | None = None) -> Machine:
    """The machine of a row: a requested one, or a built-in one with the fabric that the row states.

    Raises `NotExpressed` if no built-in system has the row's hardware.
    """
    if system is not None:
        return Machine(system)
    if row.hw in system_names():
        return Machine(row.hw)
    meant: dict[str, Any] = next(
        (meaning for pattern, meaning in WORDS["hardware"].items() if re.search(pattern, row.hw)), {}
    )
    name, differing = meant.get("system", ""), {key: float(meant[key]) for key in meant if key != "system"}
    if not name and (name := current_name(row.hw, "systems")) not in system_names():
        raise NotExpressed(f"a system for {row.hw or 'its hardware'}")
    per_node = row.gpus_per_node or NODE
    called, other = WORDS["fabrics"].get(name, ("$^", name))
    name = other if re.search(called, f"{row.hw} {row.inter_node}") else name
    if tested := re.match(r"measured all-reduce ([\d.]+) GB/s over the job", row.inter_node):
        waits = latencies(float(tested[1]) * 1e9, row.gpus, system_named(name))
        return Machine(name, {**differing, **(waits if row.gpus > per_node else {})})
    rate = fabric_rate(row.inter_node or row.hw, per_node)
    return Machine(name, {**differing, **({"fabric_bandwidth": rate} if rate else {})})


def latencies(bandwidth: float, gpus: float, system: System) -> dict[str, float]:
    """Latency of each tier of links by the bus bandwidth of an all-reduce over all GPUs of a job [B/s], in [s].

    Healthy jobs of 32 to 512 GPUs reach `HEALTHY`. In others the bandwidth falls as one over the number of GPUs: each
    step of a ring takes longer, 2 for each GPU. `TESTED` is fitted: tensor-parallel collectives of these jobs.
    """
    step = TESTED * (1 / bandwidth - 1 / HEALTHY) / gpus
    return {f"{tier.name}_latency": max(step, tier.latency.item()) for tier in system.network}


def fabric_rate(text: str, per_node: float) -> float | None:
    """Bandwidth between nodes of one GPU, as a row writes it; None where it states none. [B/s]"""
    match = re.search(STATED_RATE, text)
    if not match:
        return None
    bits = float(match[1] or 1) * float(match[2]) * 1e9
    shared = match[3] == "node" or (match[3] is None and match[1])
    return bits / 8 / (per_node if shared else 1.0)
