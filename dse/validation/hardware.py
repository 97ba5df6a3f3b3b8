"""Hardware as tables of measurements name it, and the shipped systems that it stands for."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from costmodel import System, system_names
from costmodel.formats.shipped import current_name
from dse.validation.expressed import Machine, NotExpressed, system_named
from dse.validation.table import MeasuredRow

#: Pattern of names of hardware -> the shipped system, and what differs from it as the name itself says; the
#: first that is found counts. What the name of a node or cluster leaves open stays out: a V100 or
#: an A100 on PCIe, a superchip whose host is part of its memory.
HARDWARE: Final[tuple[tuple[str, str, dict[str, float]], ...]] = (
    (r"V100.*(SXM3|DGX-2)", "v100_32g_dgx2", {}),
    (r"V100.*(SXM2|DGX-1|vTrain)", "v100_32g_dgx1", {}),
    (r"A100(?!.*PCIe).*\b40 ?GB", "a100_40g_dgx", {}),
    (r"A100(?!.*PCIe)", "a100_80g_dgx", {}),
    (r"A800", "a800_80g_dgx", {}),
    (
        r"H100.* 96 ?GB HBM2e 2\.4 TB/s \(500 W\)",
        "h100_80g_dgx",
        # The clock as the root of power, from 700 W.
        {"dram_capacity": 96e9, "dram_bandwidth": 2.4e12, "sustained": 0.676},
    ),
    (r"H100.*PCIe", "h100_80g_pcie", {}),
    (r"H100[- ]NVL\b", "h100_94g_nvl", {}),
    (r"H100", "h100_80g_dgx", {}),
    (r"H800", "h800_80g_dgx", {}),
    (r"\bH200", "h200_141g_dgx", {}),
    (r"\bH20\b", "h20_96g_dgx", {}),
    (r"GB200", "gb200_186g_nvl72", {}),
    (r"GB300", "gb300_288g_nvl72", {}),
    (r"\bB200", "b200_180g_dgx", {}),
    (r"\bB300", "b300_288g_dgx", {}),
    (r"MI250X", "mi250x_64g_die", {}),
    (r"MI300X", "mi300x_192g", {}),
    (r"MI325X", "mi325x_256g", {}),
    (r"MI355X", "mi355x_288g", {}),
    (r"Gaudi ?2", "gaudi2_96g", {}),
    (r"Gaudi ?3", "gaudi3_128g", {}),
    (r"TPU ?v4", "tpu_v4_pod", {}),
    (r"TPU ?v5p", "tpu_v5p_pod", {}),
    (r"TPU ?v5(e|lite)", "tpu_v5e_pod", {}),
    (r"TPU ?v6e|Trillium", "tpu_v6e_pod", {}),
    (r"TPU ?v?7|Ironwood", "tpu_v7_pod", {}),
    (r"Trainium ?2|Trn2", "trainium2_96g", {}),
)

#: System -> what fabrics are called that join its nodes by others than its own, and the system with these. A
#: bandwidth "over the job" is printed of a cluster of AWS.
FABRICS: Final[dict[str, tuple[str, str]]] = {
    "h100_80g_dgx": (r"EFA|over the job", "h100_80g_efa"),
    "b200_180g_dgx": (r"EFA", "b200_180g_efa"),
}

#: How rows state a fabric: adapters, the rate of one, and whose they are.
STATED_RATE: Final = r"(?:(\d+)x )?(?:[A-Za-z ]*)(?<![\d.])(\d+(?:\.\d+)?) Gb/s(?: [A-Za-z]+)*?(?: per (node|GPU)|\)|$)"

#: Chips of a node where a row does not say.
NODE: Final = 8.0


def machine_of(row: MeasuredRow, system: str | None = None) -> Machine:
    """The machine of a row: one that is asked for, or a shipped one with the fabric that the row states.

    Raises `NotExpressed` if no system ships that the row's hardware stands for.
    """
    if system is not None:
        return Machine(system)
    if row.hw in _shipped_systems():
        return Machine(row.hw)
    name, differing = next(
        ((name, differing) for pattern, name, differing in HARDWARE if re.search(pattern, row.hw)), ("", {})
    )
    if not name and (name := current_name(row.hw, "systems")) not in _shipped_systems():
        raise NotExpressed(f"a system for {row.hw or 'its hardware'}")
    called, other = FABRICS.get(name, ("$^", name))
    name = other if re.search(called, f"{row.hw} {row.inter_node}") else name
    rate = fabric_rate(row.inter_node or row.hw, row.gpus_per_node or NODE, system_named(name))
    return Machine(name, {**differing, **({"fabric_bandwidth": rate} if rate else {})})


@cache
def _shipped_systems() -> frozenset[str]:
    return frozenset(system_names())


def fabric_rate(text: str, per_node: float, system: System) -> float | None:
    """Bandwidth between nodes of one GPU, as a row writes it; None where it states none. [B/s]

    A measured bus bandwidth of an all-reduce over the job is that of as many rings as GPUs of a node, one
    for each adapter: at most what the shipped adapters deliver.
    """
    measured = re.match(r"measured all-reduce ([\d.]+) GB/s", text)
    if measured:
        tier = system.network[-1]
        share = float(measured[1]) * 1e9 / per_node / tier.efficiency.item()
        return min(share, tier.bandwidth.item())
    each = re.search(
        r"(?:(\d+)x )?(?:[A-Za-z ]*)(?<![\d.])(\d+(?:\.\d+)?) Gb/s(?: [A-Za-z]+)*?(?: per (node|GPU)|\)|$)", text
    )
    if not each:
        return None
    bits = float(each[1] or 1) * float(each[2]) * 1e9
    shared = each[3] == "node" or (each[3] is None and each[1])
    return bits / 8 / (per_node if shared else 1.0)
