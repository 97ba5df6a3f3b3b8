"""Predicted against measured memory: peaks, parts of them that a source prints, and runs that did not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from costmodel import System
from dse.validation.expressed import Expressed
from dse.validation.table import WORDS, MeasuredRow

#: Sizes of memory that differ by more are those of another chip: they are stated in GB or in GiB. [-]
OTHER_MEMORY: Final = 0.1


def counted_memory(row: MeasuredRow, run: Expressed, cost: Mapping[str, float]) -> float:
    """The part of a predicted memory that a row's figure counts. [B]"""
    kind = row.mem_kind.split("(")[0]
    parts = next((parts for word, parts in WORDS["memory"].items() if word in kind), ("peak_memory",))
    counted = math.fsum(cost[part] for part in parts)
    held = run.machine.quantities.get("software_fragmentation", 0.0) if "reserved" in kind else 0.0
    return counted * (1 + held)


def is_peak(row: MeasuredRow) -> bool:
    """True if a row's memory is the peak of a run, not a part of it that was computed."""
    return row.mem_kind != "" and "per GPU" not in row.mem_kind


def usable_memory(system: System, stated: float) -> float:
    """Memory of a chip that runs may use: the system's, unless a row states the size of another one. [B]

    The capacity of a system is the usable one, a little below the size by which memory is sold. `stated` is the size
    that the row states, 0 for none. [GB]
    """
    known = system.dram.capacity.item(), system.dram.sold_capacity.item()
    other = stated and all(abs(stated * 1e9 - size) > OTHER_MEMORY * size for size in known)
    return stated * 1e9 if other else known[0]


def measured_memory(row: MeasuredRow) -> float:
    """Memory of a row; infinite for a run that did not fit, nan where it says nothing. [B]"""
    if row.mem_gb.startswith(">") or row.mem_kind.startswith("OOM"):
        return math.inf
    return float(row.mem_gb) * (2.0**30 if "GiB" in row.mem_kind else 1e9) if row.mem_gb else math.nan
