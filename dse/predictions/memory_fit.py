"""Memory fit: the predicted peak, beside the error of predicted peaks on measured runs.

The 90 % interval of built-in runs with a measured peak is `low` to `high` times the predicted memory; half of them need
more than `middle` times. A design fits if the upper end does, and does not if the middle does not: 97 % of nanotron's
runs that died on 80 GB GPUs exceed it (Tazi et al. 2025), and 0.4 % of those that ran. In between it is tight. The room
that a plan leaves free (`headroom_share`) follows from `high`.
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
    low: float  #: 5th percentile of measured over predicted [-]
    middle: float  #: median [-]
    high: float  #: 95th percentile [-]

    @property
    def headroom_share(self) -> float:
        """Share of a chip's memory that a plan leaves free. [-]"""
        return max(1 - 1 / self.high, 0.0)

    def verdict(self, peak: float, capacity: float) -> str:
        """The verdict on a design, a word of `VERDICTS`."""
        if peak * self.middle > capacity:
            return DOES_NOT_FIT
        return FITS if peak * max(self.high, 1.0) <= capacity else TIGHT

    def __str__(self) -> str:
        """The spread in words."""
        return (
            f"measured peaks of {self.software} are {self.low:g} to {self.high:g} times the predicted ones "
            f"(90 % of {self.runs} runs)"
        )


#: Start of a framework's name -> the spread of the built-in runs of such frameworks, the first that is found; of all
#: where they have fewer than `FEWEST_RUNS` runs (fitted: `tests/dse/predictions/test_memory_fit.py`).
SPREADS: Final[Mapping[str, PeakSpread]] = {
    "megatron_core@20": PeakSpread("Megatron-LM of 2022", 20, 0.92, 0.95, 1.01),
    "megatron_core": PeakSpread("Megatron Core", 20, 0.94, 1.0, 1.08),
    "nanotron": PeakSpread("nanotron", 60, 0.89, 1.06, 1.25),
    "": PeakSpread("all frameworks", 108, 0.91, 1.01, 1.2),
}


def peak_spread(framework: str) -> PeakSpread:
    """The spread of measured peaks that designs of a framework are judged by."""
    name = framework or "megatron_core"
    return next(spread for start, spread in SPREADS.items() if name.startswith(start))
