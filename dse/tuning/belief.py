"""The times and memory that designs are believed to have on a cluster, given runs of some; and the design to run next.

Real fabrics reach a third of the rate of their links where many nodes exchange, hosts differ, and software changes. An
`Ensemble` of machines draws each constant around its built-in value (`dse.calibration.constants`). Times on all of them
give the correlation of the times of two designs: a slow fabric delays all designs that exchange gradients, so a run of
one of them is informative about the others.

Log step times are jointly normal. Their mean is that of the ensemble, at the level of the expected times of a plan;
their covariance is that of the machines, plus a level that all designs share (software, clocks), a part that is smooth
over the layout, and a part of each design alone.
Runs condition the normal distribution, which is exact (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, chapter 2), and scale it: runs as predicted leave less doubt, surprises more, as in a Student-t process with
`PRIOR_RUNS` degrees of freedom (Shah, Wilson and Ghahramani 2014). Runs condition the constants of the machines too,
which shows those that differ from the built-in ones. Memory is treated in the same way; a run that died counts as one
that needed a little more than the capacity.

The next run is the design with the largest expected gain over the best run so far, until that gain is not worth one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from scipy.special import ndtr

from costmodel import step
from costmodel.columns import BoolArray, FloatArray, grouped
from costmodel.training.design import DesignPoints
from costmodel.training.run import TransformerRun
from dse.calibration.constants import Constant, candidates
from dse.calibration.posterior import NOISE, conditioned, pooled_noise
from dse.predictions import NINETY

#: Machines that are drawn; their order is fixed. [-]
MACHINES: Final = 128
#: Designs that are evaluated at once. [-]
AT_ONCE: Final = 16384
#: Order of the constants that are drawn; those of links follow.
DRAWN: Final = ("sustained", "dram_efficiency", "software_pointwise_kernels", "dp_collective_cores", "host_dispatch",
                "host_straggler")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Logarithms of the step times of designs on drawn machines."""

    constants: tuple[Constant, ...]  #: that differ
    factors: FloatArray  #: logarithms of their factors, (machines, constants) [-]
    log_times: FloatArray  #: (machines, designs) [log s]
    middle: FloatArray  #: their means, all moved so that half of the designs take the expected time, (designs,) [log s]


def ensemble(run: TransformerRun, expected: FloatArray) -> Ensemble:
    """Step times of a run's designs on drawn machines, the built-in one first; `expected` times (designs,) in s."""
    design: DesignPoints = run.design
    points, known = run.num_points, run.system.quantities()
    every = [one for kind in candidates(run.system).values() for one in kind if one.spread > 0]
    every.sort(key=lambda one: DRAWN.index(one.name) if one.name in DRAWN else len(DRAWN))
    constants = [one for one in every if (known[one.name] > 0).all()]
    names = [one.name for one in constants]
    shipped, high = np.array([[float(np.ravel(known[one.name])[0]), one.high] for one in constants]).T
    draws = np.random.default_rng(0).standard_normal((MACHINES, len(names)))
    draws[0] = 0
    outermost = f"{run.system.network[-1].name}_efficiency"
    lowered = np.where(np.array(names) == outermost, -np.abs(draws), draws)
    factors = np.minimum(lowered * [one.spread for one in constants], np.log(high / shipped))
    log_times = np.empty((MACHINES, points))
    block = max(AT_ONCE // points, 1)
    for first in range(0, MACHINES, block):
        drawn = np.arange(first, min(first + block, MACHINES))
        rows = np.tile(np.arange(points), drawn.size)
        values = {
            name: np.broadcast_to(known[name], (points,))[rows] * np.exp(np.repeat(factors[drawn, column], points))
            for column, name in enumerate(names)
        }
        many = replace(run, system=run.system.take(rows).with_quantities(values), design=design.take(rows))
        times = step(many.model, many.system, many.design).step_time
        log_times[drawn] = np.log(times).reshape(drawn.size, points)
    means = log_times.mean(axis=0)
    return Ensemble(tuple(constants), factors, log_times, means + np.median(np.log(expected) - means))


#: Share of the machines' deviations that proposals use, and standard deviations of log step times in addition: of all
#: designs together, of neighbours, of a design alone. They are close to the largest marginal likelihood of twelve
#: sweeps, and of any eleven of these. [-]
MACHINE, ERRORS = 0.4, (0.4, 0.25, 0.2)
#: The same of the logarithm of peak memory. Reserved memory of a run says little about a run that needs more: an
#: allocator reserves all that it can get, so that runs near the limit show less than they would take.
MEMORY_ERRORS, MEMORY_NOISE = (0.05, 0.05, 0.1), 0.1
#: Distance over which neighbours are alike, in doublings of a size; a switch counts as `SWITCH` doublings. [-]
REACH, SWITCH = 2.0, 2.0
#: Memory that a run that died is assumed to need beyond the capacity, as a logarithm, and the deviation of that. [-]
BEYOND: Final = 0.05
#: Standard deviation of a first run by all of these and a usual ensemble; least share of it where predictions are known
#: to be good. [-]
WHOLE, LEAST_DOUBT = 0.45, 0.1
#: Runs that the deviations above are worth when real runs scale them. [-]
PRIOR_RUNS: Final = 4
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
        values, vectors = np.linalg.eigh(self.covariance[np.ix_(rows, rows)] + 1e-9 * np.eye(rows.size))
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


@dataclass(frozen=True, slots=True)
class RunCandidates:
    """Designs from which the next run is chosen."""

    machines: Ensemble
    design: DesignPoints
    memory: FloatArray  #: predicted peak memory, (designs,) [B]
    capacity: float  #: of a chip [B]
    doubt: float = 1.0  #: share of the deviations that holds here, of `doubt_of` [-]

    def believed(self, runs: Sequence[Told]) -> Belief:
        """Condition the distributions of the designs on some runs."""
        machines, doubt = self.machines, self.doubt
        rows, surprise, noise = self.surprises(runs)
        near, alone = likeness(self.design, self.memory.size), np.eye(self.memory.size)
        prior = MACHINE**2 * np.cov(machines.log_times.T, bias=True) + errors(ERRORS, near, alone, doubt)
        change, covariance, size = conditioned(prior, rows, surprise, noise)
        needs = np.log(self.memory / self.capacity)
        known = [run for run in runs if run.step_time > 0 or run.out_of_memory]
        places = [run.candidate for run in known]
        seen = np.array([_memory_seen(run, needs[run.candidate], self.capacity) for run in known]) - needs[places]
        sure = np.array([BEYOND if run.out_of_memory else MEMORY_NOISE for run in known])
        prior = errors(MEMORY_ERRORS, near, alone, doubt)
        memory_change, memory_covariance, _ = conditioned(prior, places, seen, doubt * sure)
        return Belief(
            mean=machines.middle + change,
            covariance=covariance * (PRIOR_RUNS + size) / (PRIOR_RUNS + len(rows)),
            memory_mean=needs + memory_change,
            memory_deviation=np.sqrt(np.maximum(np.diag(memory_covariance), 1e-12)),
            noise=noise,
        )

    def surprises(self, runs: Sequence[Told]) -> tuple[list[int], FloatArray, float]:
        """Designs of the runs with a time, logarithms of measured over mean times, and the noise of a run. [-]"""
        rows = [run.candidate for run in runs if run.step_time > 0]
        surprise = np.log([run.step_time for run in runs if run.step_time > 0]) - self.machines.middle[rows]
        return rows, surprise, noise_of(runs, self.doubt * NOISE)

    def constants(self, runs: Sequence[Told]) -> tuple[FloatArray, FloatArray]:
        """Means and deviations of logarithms of factors of constants, of all their spread, after runs, (constants,)."""
        rows, surprise, noise = self.surprises(runs)
        count, factors = len(rows), self.machines.factors
        prior = np.atleast_2d(np.cov(np.hstack([self.machines.log_times[:, rows], factors]).T, bias=True))
        near = likeness(self.design.take(np.array(rows, dtype=int)), count)
        prior[:count, :count] += errors(ERRORS, near, np.equal.outer(rows, rows), self.doubt)
        change, covariance, size = conditioned(prior, range(count), surprise, noise)
        left = np.maximum(np.diag(covariance)[count:], 0.0) * (PRIOR_RUNS + size) / (PRIOR_RUNS + count)
        return factors.mean(axis=0) + change[count:], np.sqrt(left)


def errors(deviations: Sequence[float], near: FloatArray, alone: FloatArray | BoolArray, doubt: float) -> FloatArray:
    """Covariance of the errors of designs: of all together, of those that are `near`, of one `alone`; like `near`."""
    level, smooth, single = (doubt * np.asarray(deviations)) ** 2
    return np.asarray(level + smooth * near + single * alone)


def likeness(design: DesignPoints, points: int) -> FloatArray:
    """Correlation of the smooth errors of each pair of designs, (points, points): 1 for equal layouts. [-]"""
    square = np.zeros((points, points))
    for name, column in design.columns().items():
        values = np.broadcast_to(column, (points,))
        if name in DERIVED or (values == values[:1]).all():
            continue
        if name in SIZES:
            doublings = np.log2(np.maximum(values, 1))
            square += (doublings[:, None] - doublings) ** 2
        else:
            square += SWITCH**2 * (values[:, None] != values)
    return np.exp(-square / (2 * REACH**2))


def times_of(runs: Sequence[Told]) -> dict[int, list[float]]:
    """Step times of each candidate that ran. [s]"""
    return grouped((run.candidate, run.step_time) for run in runs if run.step_time > 0)


def noise_of(runs: Sequence[Told], usual: float = NOISE) -> float:
    """Standard deviation of log step times of one design, from repeats and the usual one. [-]"""
    logs = [np.log(times) for times in times_of(runs).values()]
    degrees = sum(len(times) - 1 for times in logs)
    return pooled_noise(sum(float(np.var(times)) * len(times) for times in logs), degrees, usual)


def _memory_seen(run: Told, predicted: float, capacity: float) -> float:
    """The logarithm of memory over capacity that a run shows."""
    if run.out_of_memory:
        return max(predicted, 0.0) + BEYOND
    return math.log(run.peak_memory / capacity) if run.peak_memory > 0 else min(predicted, 0.0)


#: A gain that is worth another run, and the chance of it below which runs end. [-]
WORTH, UNLIKELY = 0.02, 0.05
#: Least chance to fit of a design that is proposed, as long as there is one. [-]
LIKELY: Final = 0.75
#: Two designs whose means are closer than this many standard deviations of their difference are repeated. [-]
UNDECIDED: Final = 1.0


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
        repeat = () if again is None else (_next(now, again, best_time, repeats=True),)
        return Decision(repeat, chance, best, best_time, now)
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
    means = [(float(np.mean(times)), candidate) for candidate, times in times_of(runs).items()]
    return min(means)[::-1] if means else (None, math.inf)


def undecided(runs: Sequence[Told], noise: float) -> int | None:
    """The best two candidates' one with fewer runs, if repeats show noise that is larger than their difference."""
    best = sorted((float(np.mean(times)), len(times), candidate) for candidate, times in times_of(runs).items())[:2]
    if len(best) < 2 or max(map(len, times_of(runs).values())) < 2 or noise <= WORTH:
        return None
    (first, count, _), (second, other_count, _) = best
    if math.log(second / first) > UNDECIDED * noise * math.hypot(count**-0.5, other_count**-0.5):
        return None
    return min(best, key=lambda one: one[1])[2]


def _next(view: Belief, candidate: int, best_time: float, *, repeats: bool = False) -> Next:
    mean = view.mean[candidate]
    half = NINETY * math.hypot(view.deviation[candidate], view.noise)
    gain = float(view.gain(best_time)[candidate]) if math.isfinite(best_time) else math.nan
    return Next(candidate, math.exp(mean), math.exp(mean - half), math.exp(mean + half),
                float(view.fits[candidate]), gain, repeats)  # fmt: skip
