"""Why one design and not another: the difference of their steps as a waterfall that adds up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dse.explaining.explanation import Explanation, Path, frame, records, summed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Difference:
    """Two designs: what the second takes more than the first, leaf by leaf."""

    one: Explanation
    other: Explanation

    @property
    def time(self) -> pd.DataFrame:
        """``path`` and ``seconds``: what the other takes more; they add up to the difference of steps. [s]"""
        return frame(tree_difference(self.one.time, self.other.time, "seconds"), "seconds")

    @property
    def memory(self) -> pd.DataFrame:
        """``path`` and ``bytes``: what the other needs more on its fullest stage. [B]"""
        return frame(tree_difference(self.one.memory, self.other.memory, "bytes"), "bytes")

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Parameters that differ, with their values in both; None where one has no such. [SI units]"""
        one, other = self.one.params, self.other.params
        names = dict.fromkeys((*one, *other))
        pairs = {name: (one.get(name), other.get(name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def to_json(self) -> dict[str, Any]:
        """``difference`` and ``memory_difference`` as JSON has them, beside what the other design is."""
        return {
            "against": {
                **({"trial": self.other.trial} if self.other.trial is not None else {}),
                **{key: self.other.record[key] for key in ("params", "values", "margins", "breakdown")},
            },
            "difference": records(self.time),
            "memory_difference": records(self.memory),
        }


def tree_difference(one: pd.DataFrame, other: pd.DataFrame, column: str) -> dict[Path, float]:
    """Leaves of another tree less those of one, by path; those that are alike are left out. [of the tree]"""
    pairs = [*zip(other["path"], other[column], strict=True), *zip(one["path"], -one[column], strict=True)]
    return {path: value for path, value in summed(pairs).items() if value}


def gathered(table: pd.DataFrame, column: str, depth: Callable[[Path], int]) -> dict[Path, float]:
    """Leaves added up to branches of a depth each, the largest change first. [of the tree]"""
    pairs = zip((path[: depth(path)] for path in table["path"]), table[column], strict=True)
    return dict(sorted(summed(pairs).items(), key=lambda item: -abs(item[1])))
