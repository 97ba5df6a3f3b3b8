"""Meaning of each name that a formula may use, in a line: `meanings.yaml` has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from costmodel.formats.input_files import data_beside


@cache
def _tables() -> Mapping[str, Mapping[str, str]]:
    """Group of names -> name -> its meaning."""
    tables: Mapping[str, Mapping[str, str]] = data_beside(__file__)
    return tables


def meaning(name: str, memories: Collection[str] = (), tiers: Collection[str] = ()) -> str:
    """Meaning of a name, in a line; "" for a name that a space makes up.

    >>> meaning("tp"), meaning("sram_bandwidth", memories=["sram"])
    ('ranks that share each layer: tensor parallelism', 'bandwidth of sram')
    """
    tables = _tables()
    for group in ("design", "run", "model", "machine", "results"):
        if name in tables[group]:
            return tables[group][name]
    if name.endswith("_fraction"):
        return f"share of the package's power which {name.removesuffix('_fraction')} takes"
    for owners, table in ((memories, tables["of_a_memory"]), (tiers, tables["of_a_tier"])):
        for owner in owners:
            own = name.removeprefix(f"{owner}_")
            if own != name and own in table:
                return table[own].format(owner)
    if name.endswith("_sharding"):
        return f"how kernel {name.removesuffix('_sharding')} is split, where sharding is sample"
    if name.endswith(("_tile_m", "_tile_n")):
        return f"edge of {name[:-7]}'s output tile along {name[-1]}"
    return ""
