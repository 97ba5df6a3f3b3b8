"""Memory fit: the predicted peak, beside the error of predicted peaks on measured runs.

Of the runs that ship with a measured peak, nine of ten take at most `high` times the predicted memory, and
nine of ten at least `low` times. A design fits where the higher end does, does not fit where the lower end
does not, and is tight in between. The room that a plan leaves free (`headroom_share`) follows from `high`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: What can be said of a design's memory.
FITS, TIGHT, DOES_NOT_FIT = VERDICTS = ("fits", "tight", "does not fit")

#: Fewer runs than this are no distribution of their own. [-]
FEWEST_RUNS: Final = 16


@dataclass(frozen=True, slots=True)
class PeakSpread:
    """Spread of measured peaks of memory over predicted ones."""

    software: str  #: whose runs these are, in words
    runs: int
    low: float  #: 10th percentile of measured over predicted [-]
    high: float  #: 90th percentile [-]

    @property
    def headroom_share(self) -> float:
        """Share of a chip's memory that a plan leaves free. [-]"""
        return max(1 - 1 / self.high, 0.0)

    def verdict(self, peak: float, capacity: float) -> str:
        """The verdict on a design, a word of `VERDICTS`."""
        if peak * self.low > capacity:
            return DOES_NOT_FIT
        return FITS if peak * max(self.high, 1.0) <= capacity else TIGHT

    def __str__(self) -> str:
        """The spread in words."""
        return (
            f"measured peaks of {self.software} are {self.low:g} to {self.high:g} times the predicted ones "
            f"(80 % of {self.runs} runs)"
        )


#: Start of a framework's name -> the spread of the shipped runs of such frameworks, the first that is found.
#: Frameworks with fewer than `FEWEST_RUNS` runs have that of all (fitted: `tests/test_memory_fit.py`
#: works it out of `dse/validation/data`).
SPREADS: Final[Mapping[str, PeakSpread]] = {
    "megatron_core@20": PeakSpread("Megatron-LM of 2022", 20, 0.93, 1.01),
    "megatron_core": PeakSpread("Megatron Core", 20, 0.94, 1.05),
    "nanotron": PeakSpread("nanotron", 60, 0.91, 1.27),
    "": PeakSpread("all frameworks", 108, 0.91, 1.2),
}


def peak_spread(framework: str) -> PeakSpread:
    """The spread of measured peaks that designs of a framework are judged by."""
    name = framework or "megatron_core"
    return next(spread for start, spread in SPREADS.items() if name.startswith(start))
