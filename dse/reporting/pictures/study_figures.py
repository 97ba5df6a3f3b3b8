"""The designs of a study as figures show them: its front, designs that it beats, and the best so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from dse.fronts.thinning import thinned
from dse.reporting.answers import picks, title
from dse.reporting.pictures.front import CLOUD, FrontPicture, Shown, front_figure
from dse.reporting.pictures.style import picture, words
from dse.searching.trials.trial_table import TrialTable
from dse.spaces.space import Space

#: Feasible designs beside the front that parallel coordinates show.
LINES: Final = 400


def study_picture(table: TrialTable, name: str, form: str) -> bytes:
    """The front of a study as a picture file of one of `dse.reporting.pictures.style.FORMS`.

    Raises `DseError` if it has no feasible trials.
    """
    if not table.feasible.any():
        raise DseError(f"study {name!r}: no feasible trials, so no front")
    return picture(front_figure(front_picture(table), f"Pareto front of {name}"), form)


def line_records(table: TrialTable) -> list[dict[str, Any]]:
    """Designs of parallel coordinates: the front, then at most `LINES` other feasible trials."""
    front = table.front()
    others = np.flatnonzero(table.feasible & ~np.isin(table.numbers, front.numbers))
    return [*front.records(), *table.take(thinned(others, LINES)).records()]


def front_picture(table: TrialTable) -> FrontPicture:
    """The designs of a study as they are drawn."""
    if len(table.space.objectives) == 1:
        return best_picture(table)
    front = table.front()
    records = front.records()
    beaten = table.feasible & ~np.isin(table.numbers, front.numbers)
    return FrontPicture(
        axes=[Shown(o.name, o.unit, o.direction) for o in table.space.objectives],
        front=front.values,
        texts=design_texts(table.space, records),
        dominated=thinned(table.take(np.flatnonzero(beaten)).values, CLOUD),
        notable=picks(table.space, records) if records else {},
    )


def best_picture(table: TrialTable) -> FrontPicture:
    """Every trial that was the best so far of a single objective, by its number."""
    rows = improvements(table.costs[:, 0])
    beaten = np.setdiff1d(np.flatnonzero(np.isfinite(table.costs[:, 0])), rows)
    best, [objective] = table.take(rows), table.space.objectives
    return FrontPicture(
        axes=[Shown("trial", "-"), Shown(objective.name, objective.unit, objective.direction)],
        front=by_trial(best),
        texts=design_texts(table.space, best.records()),
        dominated=thinned(by_trial(table.take(beaten)), CLOUD),
        name="best so far",
        notable={len(rows) - 1: title(objective)} if len(rows) else {},
    )


def by_trial(table: TrialTable) -> FloatArray:
    """(trials, 2) Number and only value of each. [-, the unit of the objective]"""
    return np.column_stack([table.numbers.astype(np.float64), table.values[:, 0]])


def improvements(costs: FloatArray) -> Any:
    """Rows that are better than all before them; NaN is worse than anything.

    >>> improvements(np.array([np.nan, 3.0, 4.0, 2.0])).tolist()
    [1, 3]
    """
    known = np.where(np.isnan(costs), np.inf, costs)
    before = np.concatenate([[np.inf], np.minimum.accumulate(known)[:-1]])
    return np.flatnonzero(known < before)


def design_texts(space: Space, records: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Tooltips of designs: trial, values, and parameters that differ."""
    shared = {p.name for p in space.parameters if len({r["params"][p.name] for r in records}) <= 1}
    own = [p for p in space.parameters if p.name not in shared or len(records) == 1]
    return [
        {
            "trial": str(record["trial"]),
            **{words(o.name): readable(record["values"][o.key], o.unit) for o in space.objectives},
            **{p.name: p.shown(record["params"][p.name]) for p in own},
        }
        for record in records
    ]
