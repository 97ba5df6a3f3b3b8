"""Predicted against measured memory: peaks, parts of them that a source prints, and runs that did not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from dse.validation.table import MeasuredRow

#: Parts of the memory that a measured figure counts, by words in `mem_kind`; all of it unless they say so.
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "parameters+gradients+optimizer": ("weights_memory", "gradients_memory", "optimizer_memory"),
    "activations": ("activations_memory",),
    "allocated": (
        *("weights_memory", "gradients_memory", "optimizer_memory"),
        *("activations_memory", "buffers_memory"),
    ),
}


def counted_memory(row: MeasuredRow, cost: Mapping[str, float]) -> float:
    """The part of a predicted memory that a row's figure counts. [B]"""
    kind = row.mem_kind.split("(")[0]
    parts = next((parts for word, parts in PARTS.items() if word in kind), ("peak_memory",))
    return math.fsum(cost[part] for part in parts)


def measured_memory(row: MeasuredRow) -> float:
    """Memory of a row; infinite for a run that did not fit, nan where it says nothing. [B]"""
    if row.mem_gb.startswith(">") or row.mem_kind.startswith("OOM"):
        return math.inf
    return float(row.mem_gb) * (2.0**30 if "GiB" in row.mem_kind else 1e9) if row.mem_gb else math.nan
