"""Intervals of designs of a space, for its formulas and beside the records of designs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.errors import DseError
from costmodel.profiles.registry import NATIVE
from costmodel.training.model import ModelShape
from dse.predictions.columns import ends
from dse.predictions.intervals import EVIDENCE, Interval, interval, widest

if TYPE_CHECKING:
    from costmodel.columns import FloatArray
    from costmodel.steps.breakdown import Breakdown
    from dse.spaces.space import Space

#: What records of designs have beside what is stored.
RECORD_KEYS: Final = ("step_time_low_s", "step_time_high_s", "evidence")

Record = dict[str, Any]


def space_interval(space: Space, known: Mapping[str, Any], points: int) -> Interval:
    """Intervals of designs of which everything is known that needs no evaluation; (points,) columns. [-]"""
    if not isinstance(space.model, ModelShape):
        return widest(points)
    quantities = {name: known[name] for name in space.system.units() if name in known}
    tp, cp, pp, dp = (np.asarray(known.get(name, 1.0)) for name in ("tp", "cp", "pp", "dp"))
    found = interval(
        space.framework,
        space.system.with_quantities(quantities),
        world_size=known.get("world_size", tp * cp * pp * dp),
        tp=tp,
        pp=pp,
        precision=known.get("precision", 0.0),
        experts=space.model.num_experts > 0,
    )
    return Interval(
        np.broadcast_to(found.low, (points,)),
        np.broadcast_to(found.high, (points,)),
        np.broadcast_to(found.evidence, (points,)),
    )


def interval_columns(
    space: Space, known: Mapping[str, Any], breakdown: Breakdown, profile: str
) -> dict[str, FloatArray]:
    """Ends of the intervals of a batch of designs as columns for formulas: `dse.predictions.columns.ends`.

    Raises
    ------
    DseError
        If the profile has none: what validation leaves is of the native cost model.
    """
    if profile != NATIVE:
        raise DseError(f"space {space.name}: profile {profile} has no intervals; native does")
    return ends(breakdown, space_interval(space, known, int(np.size(breakdown.step_time))))


def with_intervals(space: Space, records: Sequence[Record], profile: str) -> list[Record]:
    """The same records of designs with the interval of their step time, and what it rests on."""
    if not records or profile != NATIVE or space.workloads:
        return [*records]
    known = space.known_values(space.encode([record["params"] for record in records]))
    found = space_interval(space, known, len(records))
    times = np.array([record["breakdown"].get("step_time_s", np.nan) for record in records])
    columns = (times * found.low).tolist(), (times * found.high).tolist(), found.evidence.tolist()
    return [
        {**record, "step_time_low_s": low, "step_time_high_s": high, "evidence": EVIDENCE[evidence]}
        for record, low, high, evidence in zip(records, *columns, strict=True)
    ]
