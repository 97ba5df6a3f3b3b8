"""What pricing all trials of a study anew has changed, in a line."""

from __future__ import annotations

from dse.records.text import counted, percent
from dse.searching.record.repricing import Repricing
from dse.spaces.space import Space

#: Relative changes beyond which a share says little. [-]
LARGE = 10.0


def repricing_text(space: Space, found: Repricing) -> str:
    """How many trials changed, by how much, and whether they are feasible still."""
    trials = f"{counted(found.trials, 'trial')} priced anew"
    if not found.changed:
        return f"{trials}: all are as stored"
    moved = [
        f"{objective.name} by up to {'a factor of ' if share > LARGE else ''}"
        + (f"{share + 1:,.0f}" if share > LARGE else percent(share))
        for objective in space.objectives
        if (share := found.largest.get(objective.name, 0.0)) > 0
    ]
    feasible = [
        f"{count:,} {words}"
        for count, words in (
            (found.no_longer_feasible, "no longer feasible"),
            (found.newly_feasible, "feasible now"),
        )
        if count
    ]
    parts = [f"{trials}: {found.changed:,} changed", *moved, *feasible]
    return ", ".join(parts) + "; old values are kept beside the new"
