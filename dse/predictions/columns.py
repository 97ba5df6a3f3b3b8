"""Intervals of predictions as columns of formulas, and in place of what a search is judged by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from costmodel.columns import FloatArray
from costmodel.steps.breakdown import UNIT_SUFFIX, Breakdown
from dse.predictions.intervals import Interval

#: Columns beside those of a breakdown, and their units: ends of the interval that holds nine of ten.
INTERVAL_UNITS: Final[Mapping[str, str]] = {
    "step_time_low": "s",
    "step_time_high": "s",
    "tokens_per_second_low": "1/s",
    "mfu_low": "-",
}
#: The same with their units, as tables show them -> the column.
INTERVAL_KEYS: Final = {name + UNIT_SUFFIX[unit]: name for name, unit in INTERVAL_UNITS.items()}

#: Column of a breakdown -> its end that is worse.
WORSE_END: Final[Mapping[str, str]] = {
    "step_time": "step_time_high",
    "step_time_s": "step_time_high_s",
    "tokens_per_second": "tokens_per_second_low",
    "mfu": "mfu_low",
}


def ends(breakdown: Breakdown, own: Interval) -> dict[str, FloatArray]:
    """The columns of `INTERVAL_UNITS`, under both of their names; (points,) each. [s], [1/s], [-]"""
    columns = {
        "step_time_low": breakdown.step_time * own.low,
        "step_time_high": breakdown.step_time * own.high,
        "tokens_per_second_low": breakdown.tokens_per_second / own.high,
        "mfu_low": breakdown.mfu / own.high,
    }
    return {**columns, **{key: columns[name] for key, name in INTERVAL_KEYS.items()}}


def at_worse_ends(data: Mapping[str, Any]) -> dict[str, Any]:
    """A space, as its file has it, that is judged by the worse ends of intervals.

    Objectives, limits and derived columns read them wherever they read a step's time, rate or utilization.
    """
    changed = dict(data)
    for key in ("derived", "constraints"):
        if isinstance(data.get(key), Mapping):
            changed[key] = {name: _worse(text) for name, text in data[key].items()}
    objectives = data.get("objectives")
    if isinstance(objectives, Mapping):
        changed["objectives"] = {
            direction: _worse(names) if isinstance(names, str) else [_worse(name) for name in names]
            for direction, names in objectives.items()
        }
    return changed


def _worse(text: Any) -> Any:
    """A formula with the names of worse ends."""
    if not isinstance(text, str):
        return text
    words = "|".join(WORSE_END)
    return re.sub(rf"\b({words})\b", lambda found: WORSE_END[found[1]], text)
