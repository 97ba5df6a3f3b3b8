"""Why a profile has no number for designs, and what would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.pricing.profiles import DFMODEL

if TYPE_CHECKING:
    from costmodel.columns import FloatArray
    from costmodel.machine.system import System
    from costmodel.training.design import DesignPoints
    from costmodel.training.model import ModelShape
    from dse.spaces.space import Space


def reasons(profile: str, space: Space, params: Mapping[str, Any]) -> list[str]:
    """Why one design without a number has none, and what would do; nothing where that is not known.

    Parameters
    ----------
    profile : str
        What prices, one of `dse.pricing.profiles.PROFILES`.
    space : Space
        Where the design comes from.
    params : mapping
        Its parameters.
    """
    if profile not in DFMODEL:
        return []
    from costmodel.profiles import dfmodel

    inputs = _inputs(space, space.encode([params]))
    return dfmodel.reasons(*inputs, generation=profile.removeprefix("dfmodel-"))


def remedies_for(profile: str, space: Space, columns: Mapping[str, FloatArray]) -> str:
    """What designs without a number want for, with how many do, and what would do; empty where not known.

    Parameters
    ----------
    profile : str
        What prices, one of `dse.pricing.profiles.PROFILES`.
    space : Space
        Where the designs come from.
    columns : mapping of (points,) arrays
        Their parameters, as `Space.encode` gives them. [SI units]
    """
    if profile not in DFMODEL or not any(values.size for values in columns.values()):
        return ""
    from costmodel.profiles.dfmodel.design import GAPS

    model, _, design = _inputs(space, columns)
    missing = {gap: gap.missing(model, design) for gap in GAPS}
    told = {gap.column: rows.sum() for gap, rows in missing.items()}
    pins = {gap.column: gap.pin for gap in GAPS if told[gap.column]}
    too_large = ~np.any([*missing.values()], axis=0)  # what has no number though it could: the SRAM
    told["SRAM"] = too_large.sum()
    larger = too_large & (design.tile_size > 1)
    pins |= {"tile_size": "1"} if larger.any() else {}
    counts = ", ".join(f"{name} ({count})" for name, count in told.items() if count)
    remedies = [" ".join(f"--set {name}={pin}" for name, pin in pins.items())] if pins else []
    remedies += ["more SRAM, or a larger tp"] if np.any(too_large & ~larger) else []
    return f"for {counts}; take {', and '.join(remedies)}"


def _inputs(space: Space, columns: Mapping[str, FloatArray]) -> tuple[ModelShape, System, DesignPoints]:
    """Model, system and layouts of designs of a transformer."""
    from costmodel.training.design import DesignPoints
    from costmodel.training.model import ModelShape
    from dse.pricing.evaluation import priced_inputs

    system, design = priced_inputs(space, columns)
    assert isinstance(space.model, ModelShape)
    assert isinstance(design, DesignPoints)
    return space.model, system, design
