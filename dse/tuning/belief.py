"""The times and memory that designs are believed to have on a cluster, given runs of some of them.

Log step times are jointly normal. Their mean is that of an `Ensemble` of machines; their covariance is what the
machines give, plus a level that all designs share (software, clocks), a part that is smooth over the layout, and a
part of each design alone. Runs condition the normal distribution, which is exact (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, chapter 2), and scale it: runs that come as predicted leave less doubt, surprises
more, as in a Student-t process with `PRIOR_RUNS` degrees of freedom (Shah, Wilson and Ghahramani 2014). The constants
of the machines move with the times, so that runs say which of them differ from the shipped ones. Memory is believed in
the same way; a run that died counts as one that needed a little more than there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy.special import ndtr

from costmodel.columns import BoolArray, FloatArray
from costmodel.training.design import DesignPoints
from dse.predictions.intervals import NINETY
from dse.tuning.uncertain_machine import Ensemble

#: Standard deviations of log step times beside those of machines: of all designs together, of neighbours, of a
#: design alone; and of two runs of one design, unless repeats say more. [-]
LEVEL, SMOOTH, ALONE, NOISE = 0.3, 0.3, 0.1, 0.05
#: The same of the logarithm of peak memory. What a run reserved says little of a run that needs more: an allocator
#: reserves what it can get, so that runs near the limit show less than they would take.
MEMORY_LEVEL, MEMORY_SMOOTH, MEMORY_ALONE, MEMORY_NOISE = 0.05, 0.05, 0.1, 0.1
#: Distance over which neighbours are alike: doublings of a size, of which a switch counts as `SWITCH`. [-]
REACH, SWITCH = 2.0, 2.0
#: What a run that died is taken to need beyond the memory, as a logarithm, and the deviation of that. [-]
BEYOND: Final = 0.05
#: Standard deviation of a first run by all of these and a usual ensemble; least share of it where predictions are known
#: to be good. [-]
WHOLE, LEAST_DOUBT = 0.45, 0.1
#: Runs that the deviations above are worth when real runs scale them. [-]
PRIOR_RUNS: Final = 4
#: Weight of `NOISE` beside the spread of repeats, in runs. [-]
PRIOR_REPEATS: Final = 4
#: Columns of designs that count in doublings; other columns differ or do not.
SIZES: Final = ("tp", "cp", "ep", "etp", "pp", "vpp", "dp", "micro_batch_size")
#: Columns that follow from others.
DERIVED: Final = ("gradient_accumulation_steps", "group_size")
#: Draws from which the chance of an improvement is counted. [-]
DRAWS: Final = 4000


class Told(NamedTuple):
    """A run of a candidate: its step time and memory, nan where unknown."""

    candidate: int
    step_time: float  #: nan for a run that died [s]
    peak_memory: float = math.nan  #: of everything on the chip [B]
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Belief:
    """Normal distributions of the logarithms of step times and of peak memory over capacity, (designs,)."""

    mean: FloatArray  #: of log step times [log s]
    covariance: FloatArray  #: (designs, designs)
    memory_mean: FloatArray  #: of the logarithm of peak memory over capacity
    memory_deviation: FloatArray
    constants: FloatArray  #: means of the logarithms of factors of the machine's constants, (constants,)
    constants_deviation: FloatArray
    noise: float  #: of a run [-]

    @property
    def deviation(self) -> FloatArray:
        """Standard deviation of log step times, (designs,). [-]"""
        return np.sqrt(np.maximum(np.diag(self.covariance), 1e-12))

    @property
    def fits(self) -> FloatArray:
        """Chance that each design fits in memory, (designs,). [-]"""
        chance: FloatArray = ndtr(-self.memory_mean / self.memory_deviation)
        return chance

    def gain(self, best: float) -> FloatArray:
        """Expected gain over a best step time: mean of the part by which a design is faster, times its chance to fit.

        (designs,), as a share. [-]
        """
        distance = (math.log(best) - self.mean) / self.deviation
        density = np.exp(-(distance**2) / 2) / math.sqrt(2 * math.pi)
        return np.asarray(self.deviation * (distance * ndtr(distance) + density) * self.fits)

    def chance_below(self, time: float, designs: BoolArray) -> float:
        """Chance that some design of a mask fits and is faster than a time. [-]"""
        rows = np.flatnonzero(designs)
        if not rows.size:
            return 0.0
        random = np.random.default_rng(0)
        within = self.covariance[np.ix_(rows, rows)] + 1e-9 * np.eye(rows.size)
        values, vectors = np.linalg.eigh(within)
        draws = random.standard_normal((DRAWS, rows.size)) * np.sqrt(np.maximum(values, 0))
        times = self.mean[rows] + draws @ vectors.T
        fit = random.random((DRAWS, rows.size)) < self.fits[rows]
        return float(np.mean(((times < math.log(time)) & fit).any(axis=1)))


def doubt_of(low: FloatArray, high: FloatArray) -> float:
    """Share of the deviations that remains where 90 % intervals of predictions are narrow. [-]

    >>> doubt_of(np.array([0.96]), np.array([1.05])), doubt_of(np.array([0.5]), np.array([4.0]))
    (0.1, 1.0)
    """
    width = float(np.median(np.log(high / low))) / (2 * NINETY)
    return min(max(width / WHOLE, LEAST_DOUBT), 1.0)


def belief(
    machines: Ensemble, design: DesignPoints, memory: FloatArray, capacity: float, runs: Sequence[Told], doubt: float
) -> Belief:
    """Condition the distributions of designs on some runs.

    Parameters
    ----------
    machines : Ensemble
        Step times of the designs on drawn machines.
    design : DesignPoints
        The designs, (designs,).
    memory : FloatArray
        Predicted peak memory, (designs,). [B]
    capacity : float
        Memory of a chip. [B]
    runs : sequence of Told
        Runs of designs by their places.
    doubt : float
        Share of the deviations that holds here. [-]
    """
    points = memory.size
    near, alone = likeness(design, points), np.eye(points)
    centred = machines.log_times - machines.log_times.mean(axis=0)
    prior = centred.T @ centred / len(centred) + doubt**2 * (LEVEL**2 + SMOOTH**2 * near + ALONE**2 * alone)
    timed = [run for run in runs if run.step_time > 0]
    noise, rows = noise_of(timed, doubt * NOISE), [run.candidate for run in timed]
    surprise = np.log([run.step_time for run in timed]) - machines.log_times.mean(axis=0)[rows]
    mean, covariance = conditioned(prior, rows, surprise, noise)
    drift = machines.factors - machines.factors.mean(axis=0)
    weights, together = _weights(prior, rows, noise), drift.T @ centred / len(centred)
    scale = (PRIOR_RUNS + float(surprise @ weights @ surprise)) / (PRIOR_RUNS + len(rows))
    constants = machines.factors.mean(axis=0) + together[:, rows] @ weights @ surprise
    explained = np.einsum("ci,ij,cj->c", together[:, rows], weights, together[:, rows])
    needs, known = np.log(memory / capacity), [run for run in runs if run.step_time > 0 or run.out_of_memory]
    memory_covariance = doubt**2 * (MEMORY_LEVEL**2 + MEMORY_SMOOTH**2 * near + MEMORY_ALONE**2 * alone)
    memory_mean = needs
    if known:
        places = [run.candidate for run in known]
        seen = np.array([_memory_seen(run, needs[run.candidate], capacity) for run in known]) - needs[places]
        sure = np.array([BEYOND if run.out_of_memory else MEMORY_NOISE for run in known])
        shift, memory_covariance = conditioned(memory_covariance, places, seen, doubt * sure)
        memory_mean = needs + shift
    return Belief(
        mean=machines.log_times.mean(axis=0) + mean,
        covariance=scale * covariance,
        memory_mean=memory_mean,
        memory_deviation=np.sqrt(np.maximum(np.diag(memory_covariance), 1e-12)),
        constants=constants,
        constants_deviation=np.sqrt(np.maximum(scale * (drift.var(axis=0) - explained), 0.0)),
        noise=noise,
    )


def conditioned(
    prior: FloatArray, rows: Sequence[int], surprise: FloatArray, noise: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """Change of the mean, and the covariance, of a normal distribution after noisy values of some of its entries.

    >>> change, left = conditioned(np.array([[1.0, 0.8], [0.8, 1.0]]), [0], np.array([2.0]), 1e-9)
    >>> change.round(3).tolist(), left.round(3).tolist()
    ([2.0, 1.6], [[0.0, 0.0], [0.0, 0.36]])
    """
    across = prior[:, rows] @ _weights(prior, rows, noise)
    return across @ surprise, prior - across @ prior[rows]


def _weights(prior: FloatArray, rows: Sequence[int], noise: FloatArray | float) -> FloatArray:
    return np.asarray(np.linalg.inv(prior[np.ix_(rows, rows)] + np.square(noise) * np.eye(len(rows))))


def likeness(design: DesignPoints, points: int) -> FloatArray:
    """Correlation of the smooth errors of each pair of designs, (points, points): 1 for equal layouts. [-]"""
    square = np.zeros((points, points))
    for name, column in design.columns().items():
        values = np.broadcast_to(column, (points,))
        if name in DERIVED or np.ptp(values) == 0:
            continue
        if name in SIZES:
            doublings = np.log2(np.maximum(values, 1))
            square += (doublings[:, None] - doublings) ** 2
        else:
            square += SWITCH**2 * (values[:, None] != values)
    return np.exp(-square / (2 * REACH**2))


def noise_of(runs: Sequence[Told], usual: float = NOISE) -> float:
    """Standard deviation of log step times of one design, from repeats and the usual one. [-]"""
    logs: dict[int, list[float]] = {}
    for run in runs:
        logs.setdefault(run.candidate, []).append(math.log(run.step_time))
    squares = sum(float(np.var(times)) * len(times) for times in logs.values())
    degrees = sum(len(times) - 1 for times in logs.values())
    return math.sqrt((squares + PRIOR_REPEATS * usual**2) / (degrees + PRIOR_REPEATS))


def _memory_seen(run: Told, predicted: float, capacity: float) -> float:
    """The logarithm of memory over capacity that a run shows."""
    if run.out_of_memory:
        return max(predicted, 0.0) + BEYOND
    return math.log(run.peak_memory / capacity) if run.peak_memory > 0 else min(predicted, 0.0)
