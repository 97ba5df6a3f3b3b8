"""The next run: the design with the largest expected gain over the best run so far, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.training.design import DesignPoints
from dse.predictions.intervals import NINETY
from dse.tuning.belief import Belief, Told, belief
from dse.tuning.uncertain_machine import Ensemble

#: A gain that is worth another run, and the chance of it below which runs end. [-]
WORTH, UNLIKELY = 0.02, 0.05
#: Least chance to fit of a design that is proposed, as long as there is one. [-]
LIKELY: Final = 0.75
#: Two designs whose means are closer than this many standard deviations of their difference are repeated. [-]
UNDECIDED: Final = 1.0


@dataclass(frozen=True, slots=True)
class RunCandidates:
    """Designs of which one is run next."""

    machines: Ensemble
    design: DesignPoints
    memory: FloatArray  #: predicted peak memory, (designs,) [B]
    capacity: float  #: of a chip [B]
    doubt: float = 1.0  #: share of the deviations that holds here, of `doubt_of` [-]

    def believed(self, runs: Sequence[Told]) -> Belief:
        """The belief about the designs after some runs."""
        return belief(self.machines, self.design, self.memory, self.capacity, runs, self.doubt)


@dataclass(frozen=True, slots=True)
class Next:
    """A run that is proposed."""

    candidate: int
    step_time: float  #: expected [s]
    low: float  #: interval that holds it nine times of ten [s]
    high: float
    fits: float  #: chance [-]
    gain: float  #: expected gain over the best run; nan without one [-]
    repeats: bool  #: whether noise decides between the best runs


@dataclass(frozen=True, slots=True)
class Decision:
    """The next runs; none if it is time to stop."""

    runs: tuple[Next, ...]
    chance: float  #: that some design is `WORTH` faster than the best run; nan without one [-]
    best: int | None  #: candidate of the best run
    best_time: float  #: mean of its runs [s]
    belief: Belief


def decide(candidates: RunCandidates, runs: Sequence[Told], parallel: int = 1) -> Decision:
    """Choose the next runs; none if a gain of `WORTH` is unlikely.

    The first run is the design with the least expected time among those likely to fit. Several at once are chosen one
    after the other, as if each gave the expected time.
    """
    now = candidates.believed(runs)
    best, best_time = best_run(runs)
    tried = np.zeros(candidates.memory.size, dtype=bool)
    tried[[run.candidate for run in runs]] = True
    chance = now.chance_below(best_time / (1 + WORTH), ~tried) if best is not None else math.nan
    if best is not None and chance < UNLIKELY:
        again = undecided(runs, now.noise)
        return Decision(() if again is None else (_next(now, again, best_time, repeats=True),), chance, best,
                        best_time, now)  # fmt: skip
    chosen, imagined, view = list[Next](), list(runs), now
    for _ in range(min(parallel, int((~tried).sum()))):
        candidate = choice(view, best_time, tried)
        chosen.append(_next(view, candidate, best_time))
        tried[candidate] = True
        imagined.append(Told(candidate, math.exp(view.mean[candidate])))
        view = candidates.believed(imagined)
    return Decision(tuple(chosen), chance, best, best_time, now)


def choice(view: Belief, best_time: float, tried: BoolArray) -> int:
    """The design to run: the largest expected gain, or without a best time the least expected time that fits."""
    first = np.log(np.maximum(view.fits, 1e-300)) - view.mean
    score = view.gain(best_time) if math.isfinite(best_time) else first
    likely = (view.fits >= LIKELY) & ~tried
    return int(np.argmax(np.where(likely if likely.any() else ~tried, score, -np.inf)))


def best_run(runs: Sequence[Told]) -> tuple[int | None, float]:
    """The candidate whose runs have the least mean time, and that time; none if nothing ran. [s]"""
    means = {run.candidate: _mean(runs, run.candidate) for run in runs if run.step_time > 0}
    if not means:
        return None, math.inf
    best = min(means, key=lambda candidate: means[candidate])
    return best, means[best]


def undecided(runs: Sequence[Told], noise: float) -> int | None:
    """The best two candidates' one with fewer runs, if repeats show noise that is larger than their difference."""
    counts = {run.candidate: sum(o.candidate == run.candidate for o in runs) for run in runs if run.step_time > 0}
    if len(counts) < 2 or max(counts.values()) < 2 or noise <= WORTH:
        return None
    first, second = sorted(counts, key=lambda candidate: _mean(runs, candidate))[:2]
    apart = math.log(_mean(runs, second) / _mean(runs, first))
    if apart > UNDECIDED * noise * math.hypot(counts[first] ** -0.5, counts[second] ** -0.5):
        return None
    return min((first, second), key=lambda candidate: counts[candidate])


def _mean(runs: Sequence[Told], candidate: int) -> float:
    return float(np.mean([run.step_time for run in runs if run.candidate == candidate and run.step_time > 0]))


def _next(view: Belief, candidate: int, best_time: float, *, repeats: bool = False) -> Next:
    mean = view.mean[candidate]
    half = NINETY * math.hypot(view.deviation[candidate], view.noise)
    gain = float(view.gain(best_time)[candidate]) if math.isfinite(best_time) else math.nan
    return Next(candidate, math.exp(mean), math.exp(mean - half), math.exp(mean + half),
                float(view.fits[candidate]), gain, repeats)  # fmt: skip
