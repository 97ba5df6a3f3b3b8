"""What samplers have left for the batches to come, checked when it is read, so that they can rely on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from dse.searching.batches.learning_study import PARENTS
from dse.searching.samplers.archive import Archive
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED, FOUND
from dse.spaces.lattice import Lattice
from dse.spaces.space import Space
from dse.storage.damage import DAMAGED, damaged
from dse.storage.shapes import is_count, is_text, list_of

#: Study attribute: what a sampler remembers after a batch (a genetic sampler, its parents).
MEMORY: Final = "dse:sampler_memory"


def check_memory(space: Space, memory: Any, trials: int, where: str, place: str) -> None:
    """Refuse what is no memory of a sampler.

    Parameters
    ----------
    space : Space
        What the study searches.
    memory : object
        Study attribute that holds what a sampler remembers after a batch.
    trials : int
        Of how many trials it may name some as parents. [-]
    where, place : str
        The storage as shown, and what of it that is.

    Raises
    ------
    DseError
        If it is none, or its designs are none of the space.
    """
    try:
        fits = isinstance(memory, dict) and all(
            list_of(lambda own: is_count(own) and own < trials, value)
            for key, value in memory.items()
            if PARENTS in key
        )
        fits = fits and (FOUND not in memory or _is_found(space, memory[FOUND]))
    except DAMAGED:
        fits = False
    if not fits:
        raise damaged(where, place, str(memory), "what a sampler of this space remembers")


def _is_found(space: Space, found: Mapping[str, Any]) -> bool:
    """Whether that is what a screening search has found; what is no mapping raises one of `DAMAGED`."""
    archive = Archive.unpacked(found["archive"], len(space.parameters), len(space.objectives))
    designs = np.concatenate([archive.places, archive.reserve, archive.climbers.places])
    counts = all(is_count(found[name]) for name in ("batches", "starts", DESIGNS_PRICED))
    return counts and is_text(found["focus"]) and _are_places(space, designs)


def _are_places(space: Space, places: FloatArray) -> bool:
    """Whether designs, (designs, parameters), are places that `Lattice` knows."""
    sizes = Lattice(space).sizes
    listed = places[:, sizes > 0]
    inside = (listed >= 0) & (listed < sizes[sizes > 0]) & (listed == np.floor(listed))
    return bool(np.isfinite(places).all() and inside.all())
