"""What a person reads of a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from costmodel.formats.quantity import readable
from dse.report.text import counted, percent
from dse.spaces.space import Space

if TYPE_CHECKING:
    from dse.search.bound import StudyBound


def bound_text(bound: StudyBound, space: Space) -> Text:
    """How far a study's best values are at most from the best possible, in words."""
    units = {own.key: own.unit for own in space.objectives}
    told = [
        f"{name} no better than {_limit_text(limit, units[key])}, of which the best found is "
        + (f"within {percent(gap)}" if gap else "that")
        for (key, limit), (name, gap) in zip(bound.limits.items(), bound.gaps.items(), strict=True)
    ]
    left = f"{counted(bound.boxes_left, 'box')} left" if bound.boxes_left else "nothing left"
    return Text(
        f"Study {bound.study}, after {counted(bound.trials, 'trial')}: bounds of all legal designs, "
        f"{bound.designs_priced:,} evaluated and {left}: {'; '.join(told)}. This is a bound, no certificate: "
        "the best possible lies between."
    )


def _limit_text(value: float, unit: str) -> str:
    """A value of an objective with its unit."""
    return f"{value:,.4g}" if unit in ("-", "1/s") else readable(value, unit)
