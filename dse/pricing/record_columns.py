"""Further columns of records of designs: intervals of predictions, and whole training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.errors import DseError
from costmodel.rules.registry import NATIVE
from costmodel.rules.rules import TRAINING
from costmodel.steps.result.breakdown import Breakdown
from dse.predictions.intervals import EVIDENCE, Interval, ends, interval, widest
from dse.spaces.sections.objectives import keyed
from dse.spaces.sections.training_run import UNITS, has_run

if TYPE_CHECKING:
    from costmodel.columns import FloatArray
    from costmodel.steps.result.breakdown import ResultTable
    from dse.spaces.space import Space
#: Column of tables of designs: which winner of its trial a design is.
WINNER: Final = "winner"

#: What records of designs have beside what is stored.
RECORD_KEYS: Final = ("step_time_low_s", "step_time_high_s", "evidence")

Record = dict[str, Any]


def space_interval(space: Space, known: Mapping[str, Any], points: int) -> Interval:
    """Intervals of designs of which everything is known that needs no evaluation; (points,) columns. [-]"""
    if space.workload.work != TRAINING:
        return widest(points)
    quantities = {name: known[name] for name in space.system.units() if name in known}
    tp, cp, pp, dp = (np.asarray(known.get(name, 1.0)) for name in ("tp", "cp", "pp", "dp"))
    columns = {name: known[name] for name in ("precision", "schedule", "overlap_ep", "dispatcher") if name in known}
    found = interval(
        space.framework,
        space.system.with_quantities(quantities),
        space.model,
        world_size=known.get("world_size", tp * cp * pp * dp),
        tp=tp,
        pp=pp,
        cp=cp,
        **columns,
    )
    return Interval(
        np.broadcast_to(found.low, (points,)),
        np.broadcast_to(found.high, (points,)),
        np.broadcast_to(found.evidence, (points,)),
    )


def interval_columns(
    space: Space, known: Mapping[str, Any], breakdown: ResultTable, profile: str
) -> dict[str, FloatArray]:
    """Ends of the intervals of a batch of designs as columns for formulas: `dse.predictions.intervals.ends`.

    Raises `DseError` if there are none: what validation leaves is of training under the native cost model.
    """
    if profile != NATIVE:
        raise DseError(f"space {space.name}: profile {profile} has no intervals; native does")
    if not isinstance(breakdown, Breakdown):
        raise DseError(f"space {space.name}: {space.workload.work.name} has no intervals; training does")
    return ends(breakdown, space_interval(space, known, int(np.size(breakdown.step_time))))


def with_intervals(space: Space, records: Sequence[Record], profile: str) -> list[Record]:
    """Records of designs with the interval of their step time, and what it rests on."""
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


def with_runs(space: Space, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of designs with `run`: the columns of their runs, names ending in their units."""
    if not has_run(space.data):
        return [*records]
    tokens = space.given["tokens"]
    return [{**record, "run": {"tokens": tokens, **_columns(record["derived"])}} for record in records]


def _columns(derived: dict[str, float]) -> dict[str, float]:
    return {keyed(name, unit): derived[name] for name, unit in UNITS.items() if name in derived}
