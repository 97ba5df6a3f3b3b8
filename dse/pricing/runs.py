"""Whole training runs beside the records of designs, where their space has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dse.spaces.objectives import keyed
from dse.spaces.runs import UNITS, has_run

if TYPE_CHECKING:
    from dse.spaces.space import Space


def with_runs(space: Space, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same records of designs; `run` has the columns of their runs, names ending in their units."""
    if not has_run(space.data):
        return [*records]
    tokens = space.given["tokens"]
    return [{**record, "run": {"tokens": tokens, **_columns(record["derived"])}} for record in records]


def _columns(derived: dict[str, float]) -> dict[str, float]:
    return {keyed(name, unit): derived[name] for name, unit in UNITS.items() if name in derived}
