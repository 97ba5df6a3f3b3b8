"""Several machines as one whose quantities hold a value for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodel.machine.system import System


def stacked(systems: Sequence[System]) -> list[tuple[list[int], System]]:
    """Machines that are priced together, by their places, those of equal parts as one.

    Parameters
    ----------
    systems : sequence of System
        Each quantity holds one value.

    Returns
    -------
    stacks : list of (places, System)
        Each quantity of a stack's system holds a value for each of its places.
    """
    alike: dict[tuple[str, ...], list[int]] = {}
    for place, system in enumerate(systems):
        alike.setdefault(tuple(system.parts()), []).append(place)
    stacks = []
    for places in alike.values():
        tables: list[dict[str, Any]] = [systems[place].quantities() for place in places]
        values = {name: np.array([float(np.ravel(table[name])[0]) for table in tables]) for name in tables[0]}
        stacks.append((places, systems[places[0]].with_quantities(values)))
    return stacks
