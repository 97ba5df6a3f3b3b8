"""The exact front of a space: of every legal design, evaluated or ruled out.

A space of few designs is listed whole. A larger one is divided into subtrees, whose lower bounds rule out those that
cannot reach the front. Both ways give the same designs, and both can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from costmodel.columns import FloatArray, short_repr
from costmodel.errors import DseError, ParameterError
from costmodel.rules.registry import NATIVE
from costmodel.rules.rules import WorkloadRules
from dse.pricing.evaluated import Evaluation, costs_of, with_intervals
from dse.pricing.evaluation import design_records, evaluate
from dse.pricing.workers import Pricer, Workers, scattered
from dse.searching.bounding.bounds import Problem, problem_of
from dse.searching.bounding.branching import BoundBroken, Search, start
from dse.searching.exact.checkpoint import UNITS, Checkpoint, Finished, merged
from dse.searching.exact.enumeration import CHUNK, Tally, unit_tally
from dse.searching.trials.trial_table import flat
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

#: Most designs that one worker evaluates before it reports.
STEP: Final = 1 << 18
#: Most designs that are listed: hours on one core; and from how many on bounds are tried instead.
MOST_DESIGNS: Final = 1e9
BOUNDED_FROM: Final = 2e6

Method = Literal["auto", "list", "bounds"]
#: Every design was evaluated; or bounds rule others out, which formulas prove, or all evaluated designs agree with.
Proof = Literal["list", "bounds", "numerical bounds"]


@dataclass(frozen=True, slots=True)
class Headway:
    """Progress of an enumeration."""

    evaluated: int  #: designs evaluated, and corners of boxes
    total: float | None  #: designs to evaluate; None where bounds decide
    feasible: int | None  #: of those evaluated; None where bounds decide
    boxes: int = 0  #: boxes of designs not yet looked into


@dataclass(frozen=True)
class ExactFront:
    """The designs of a space that no legal design beats, the best of the first objective first."""

    __repr__ = short_repr

    space: Space
    designs: dict[str, FloatArray]  #: encoded parameters, (points,) each
    evaluation: Evaluation
    legal: int  #: legal designs
    evaluated: int  #: designs that were evaluated; bounds rule out the others
    tally: Tally | None  #: counts of all designs, where each was evaluated
    profile: str = NATIVE  #: rules that evaluated them
    proof: Proof = "list"

    @property
    def is_partial(self) -> bool:
        """True if the front covers only some legal designs, since the listing was interrupted."""
        return self.tally is not None and self.tally.legal < self.legal

    @property
    def infeasible(self) -> int | None:
        """Legal designs that break a limit, or have no number; None where not all were evaluated."""
        return None if self.tally is None else self.tally.legal - self.tally.feasible

    @property
    def costs(self) -> FloatArray:
        """(points, objectives) Values turned so that less is better. [the unit of each]"""
        return costs_of(self.space, self.evaluation)

    @property
    def broken(self) -> dict[str, int]:
        """Limit -> legal designs that break it; and how many keep all, yet have no number. None uncounted."""
        if self.tally is None:
            return {}
        names = [*(limit.name for limit in self.space.limits), "no number"]
        counts = [*self.tally.broken.tolist(), self.tally.unpriced]
        return dict(zip(names, counts, strict=True))

    @property
    def best(self) -> dict[str, int]:
        """Objective -> row of the design that is best in it, of equal ones the best in the others."""
        costs = self.costs
        first = [int(np.lexsort([*costs.T[::-1], column])[0]) for column in costs.T] if len(costs) else []
        return dict(zip((objective.name for objective in self.space.objectives), first, strict=False))

    def records(self) -> list[dict[str, Any]]:
        """One nested record per design, as in JSON output; names end in their units."""
        records = design_records(self.space, self.designs, self.evaluation)
        return with_intervals(self.space, records, self.profile)

    def to_frame(self) -> pd.DataFrame:
        """One row per design, with the columns of a study's front except those of trials."""
        import pandas as pd

        return pd.DataFrame([flat(record) | {"feasible": True} for record in self.records()])


def exact_front(
    space: Space, *, rules: WorkloadRules | None = None, workers: Workers | None = None, method: Method = "auto",
    best: Sequence[float] | None = None, progress: Callable[[Headway], None] | None = None,
    partial_too: bool = False, checkpoint: Path | None = None, part: tuple[int, int] = (1, 1),
) -> ExactFront:  # fmt: skip
    """The front of all legal designs of a finite space.

    `method` "list" evaluates every design, and "bounds" rules most of them out. "auto" takes bounds from `BOUNDED_FROM`
    designs on, or beyond `MOST_DESIGNS` if they have no proof. The front is the same. A listing counts the designs that
    are better than `best`, costs of each objective. [the unit of each] With `partial_too`, a KeyboardInterrupt ends a
    listing with the front of the designs evaluated so far. `checkpoint` names a file that stores finished units: the
    same call continues from it after any death of its process. `part` is the number of a part, from 1, and the number
    of parts. [-] `merged_front` puts the checkpoints of all parts together.

    Raises `DseError` if the space is not finite or too large for the method, or the file holds another enumeration.
    """
    pricer = Pricer.of(space, rules)
    bounded = method == "bounds" or (method == "auto" and BOUNDED_FROM < space.legal.count < np.inf)
    problem = problem_of(pricer) if bounded else None
    if problem and not problem.proved and method == "auto" and space.legal.count <= MOST_DESIGNS:
        problem = None
    if method == "bounds" and problem is None:
        raise unbounded(space)
    while True:
        numbered(space, np.inf if problem else MOST_DESIGNS)
        proof: Proof = "list" if problem is None else "bounds" if problem.proved else "numerical bounds"
        with closing(Checkpoint(checkpoint, pricer, proof, best, part)) as saved:
            work = _Work(pricer, workers or Workers(), saved, part, progress or (lambda headway: None))
            try:
                work.by_bounds(problem) if problem else work.listed(best)
            except BoundBroken:
                if method == "bounds" or checkpoint is not None:
                    raise unbounded(space) from None
                problem = None
                continue
            except KeyboardInterrupt:
                if problem or not (partial_too and saved.finished.units):
                    raise
            return front_of(pricer, saved.finished, proof)


def unbounded(space: Space, remedy: str = "enumerate it with {method} list") -> ParameterError:
    """The error of a space without bounds, with a remedy."""
    return ParameterError(
        f"space {space.name}: bounds are known of transformers under native rules whose machine is open, "
        f"for objectives of time, memory, price and power, where more of it slows no evaluated design; {remedy}"
    )


def merged_front(paths: Sequence[Path], best: Sequence[float] | None = None) -> ExactFront:
    """The exact front of a space from the checkpoints of all its parts.

    Raises `DseError` if a part is missing or not finished, or files belong to different enumerations or programs, or
    count designs against other costs than `best`.
    """
    pricer, header, total = merged(paths)
    if best is not None and header["best"] != list(best):
        raise DseError(f"{paths[0]}: was made without --certify, or for other trials; leave it out")
    proof, parts = header["method"], header["of"]
    units = UNITS * parts if proof != "list" else len(ranges_of(numbered(pricer.space), parts))
    missing = sorted({unit % parts + 1 for unit in {*range(units)} - {*total.units}})
    if missing:
        names = ", ".join(f"{part}/{parts}" for part in missing[:5]) + ", ..." * (len(missing) > 5)
        raise DseError(f"parts that are missing or not finished: {names}; run `dse enumerate SPACE --part ... -o FILE`")
    return front_of(pricer, total, proof)


def front_of(pricer: Pricer, total: Finished, proof: Proof) -> ExactFront:
    """The front of some units, evaluated again, the best of the first objective first."""
    space, legal = pricer.space, int(pricer.space.legal.count)
    if proof != "list":
        counts, evaluated = None, sum(total.counts)
        designs = dict(zip((parameter.name for parameter in space.parameters), total.rows.T, strict=True))
    else:
        counts = Tally.counted(space, total.counts, total.rows[:, 0], total.costs)
        designs, evaluated = space.legal.at(counts.numbers), counts.legal
    evaluation = evaluate(space, designs, rules=pricer.rules)
    costs = costs_of(space, evaluation)
    if costs.shape != total.costs.shape or not np.allclose(costs, total.costs, rtol=1e-9, atol=0):
        raise DseError("designs of the front cost something else alone: a checkpoint was changed, or dse has a fault")
    order = np.lexsort([*list(designs.values())[::-1], *costs.T[::-1]])
    designs = {name: values[order] for name, values in designs.items()}
    return ExactFront(space, designs, evaluation.take(order), legal, evaluated, counts, pricer.rules.profile, proof)


@dataclass(frozen=True)
class _Work:
    """The units of a part of an enumeration that are not finished."""

    pricer: Pricer
    workers: Workers
    saved: Checkpoint
    part: tuple[int, int]
    progress: Callable[[Headway], None]

    def by_bounds(self, problem: Problem) -> None:
        """Search the boxes of the part; costs of finished units rule out boxes of later ones."""
        boxes, units = start(problem), UNITS * self.part[1] if self.saved.log else 1
        for unit in {*range(self.part[0] - 1, units, self.part[1])} - {*self.saved.finished.units}:
            done = sum(self.saved.finished.counts)
            search = Search(problem, self.workers, boxes.take(slice(unit, None, units)), self.saved.finished.costs)
            search.run(lambda evaluated, left, done=done: self.progress(Headway(done + evaluated, None, None, left)))  # type: ignore[misc]
            self.saved.add(unit, [search.evaluated], np.stack([*search.designs.values()], axis=1), search.costs)

    def listed(self, best: Sequence[float] | None) -> None:
        """Evaluate every design of the part, a range of numbers at a time.

        Only fronts are kept: the front of all designs is that of the fronts of the ranges, however they are cut.
        """
        space = self.pricer.space
        function = partial(unit_tally, self.pricer, tuple([-np.inf] * len(space.objectives) if best is None else best))
        jobs = None if self.saved.log else self.workers.jobs
        ranges = scattered(
            [*enumerate(ranges_of(int(space.legal.count), self.part[1], jobs))][self.part[0] - 1 :: self.part[1]]
        )
        count = sum(high - low for _, (low, high) in ranges)
        left = [task for task in ranges if task[0] not in self.saved.finished.units]
        for unit, tally in self.workers.map(function, left, ordered=False):
            self.saved.add(unit, tally.counts, tally.numbers[:, np.newaxis].astype(np.float64), tally.costs)
            legal, feasible = self.saved.finished.counts[:2]
            self.progress(Headway(legal, count, feasible))


def ranges_of(count: int, parts: int, jobs: int | None = None) -> list[tuple[int, int]]:
    """Ranges of numbers that workers list one at a time; those of parts do not depend on the number of processes."""
    fewest = -(-count // (UNITS * parts)) if jobs is None else max(CHUNK, count // (16 * jobs))
    step = max(1, min(STEP, fewest))
    return [(low, min(low + step, count)) for low in range(0, count, step)]


def numbered(space: Space, most: float = MOST_DESIGNS) -> int:
    """Number of designs to list. [-]

    Raises `DseError` if the space is not finite, or has more.
    """
    if most < space.legal.count < np.inf:
        raise ParameterError(
            f"space {space.name}: {space.legal.count:.3g} legal designs are too many to evaluate; pin some "
            "parameters with {set}, or search, and compare the study with a longer search: {reference} STUDY"
        )
    next(space.legal.enumerate(1), None)  # says which parameter has no list of options
    return int(space.legal.count)
