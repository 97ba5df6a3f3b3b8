"""Kernels of a step with what bounds each, and where it is beneath the roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from costmodel.machine.system import System
from dse.explain.paths import Path, Portion

if TYPE_CHECKING:
    import pandas as pd


def kernel_table(leaves: Iterable[Portion], system: System) -> pd.DataFrame:
    """A row for each kernel of a step on its slowest stage, in the order of the model.

    Parameters
    ----------
    leaves : iterable of Portion
        Of one design.
    system : System
        Its machine, one number for each quantity.

    Returns
    -------
    table : DataFrame
        ``path``, ``kind``, ``seconds``, ``launches``, ``flops``, ``LEVEL bytes`` for each memory level,
        ``bound``, ``intensity``, ``attained``, ``ceiling``. [s], [-], [FLOP], [B], [FLOP/B], [FLOP/s]
    """
    import pandas as pd

    rows: dict[Path, dict[str, float]] = {}
    kinds: dict[Path, str] = {}
    for leaf in leaves:
        if leaf.kind:
            own = rows.setdefault(leaf.path, {})
            own[leaf.quantity] = own.get(leaf.quantity, 0.0) + leaf.value
            kinds[leaf.path] = leaf.kind
    found = [
        {"path": path, "kind": kinds[path], **quantities(row, system)}
        for path, row in rows.items()
        if row["time"] > 0
    ]
    columns = [*found[0]] if found else ["path", "kind", *quantities({}, system)]
    return pd.DataFrame(found, columns=columns)


def quantities(row: Mapping[str, float], system: System) -> dict[str, float | str]:
    """What is known of a kernel, and its roofline; of several together too. [s], [FLOP], [B], [FLOP/s]"""
    seconds, flops = row.get("time", 0.0), row.get("flops", 0.0)
    moved = {level.name: row.get(f"{level.name} bytes", 0.0) for level in system.memory}
    farthest = moved[system.dram.name]
    intensity = flops / farthest if farthest else float("inf") if flops else 0.0
    peak = float(system.chip.peak_flop_rate)
    return {
        "seconds": seconds,
        "launches": row.get("launches", 0.0),
        "flops": flops,
        **{f"{name} bytes": value for name, value in moved.items()},
        "bound": bound(row, system),
        "intensity": intensity,
        "attained": flops / seconds if seconds else 0.0,
        "ceiling": min(peak, intensity * float(system.dram.bandwidth)),
    }


def bound(row: Mapping[str, float], system: System) -> str:
    """What most of a kernel's time is: launches, a level of memory, or arithmetic.

    The cost model says whether it waits for memory; among levels the one counts whose bytes take longest.
    """
    seconds = row.get("time", 0.0)
    launching = row.get("launches", 0.0) * float(system.chip.kernel_launch)
    if launching > seconds / 2:
        return "launch"
    if row.get("memory bound", 0.0) <= seconds / 2:
        return "arithmetic"
    transfer = {
        level.name: row.get(f"{level.name} bytes", 0.0) / float(level.bandwidth * level.efficiency)
        for level in system.memory
    }
    return max(transfer, key=lambda name: transfer[name])
