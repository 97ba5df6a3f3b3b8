"""The exact front of a space: of every legal design, evaluated or ruled out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from costmodel.columns import FloatArray, short_repr
from costmodel.errors import ParameterError
from costmodel.rules.rules import WorkloadRules
from dse.pricing.evaluated import Evaluation
from dse.pricing.evaluation import evaluate
from dse.pricing.record_columns import with_intervals
from dse.pricing.records import design_records
from dse.pricing.space_rules import NATIVE
from dse.pricing.workers import Pricer, Workers
from dse.searching.exact.bounds import problem_of
from dse.searching.exact.branching import BoundBroken, Search
from dse.searching.exact.enumeration import CHUNK, Tally, costs_of, tally
from dse.searching.trials.trial_table import flat
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

#: Most designs that one worker evaluates before it says what it found.
STEP: Final = 1 << 18
#: Most designs that are listed: hours on one core; and from how many on bounds are tried instead.
MOST_DESIGNS: Final = 1e9
BOUNDED_FROM: Final = 2e6

Method = Literal["auto", "list", "bounds"]


@dataclass(frozen=True, slots=True)
class Headway:
    """Progress of an enumeration."""

    priced: int  #: designs evaluated, and corners of boxes
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
    priced: int  #: designs that were evaluated; bounds rule out the others
    tally: Tally | None  #: what all designs come to, where each was evaluated
    profile: str = NATIVE  #: rules that evaluated them

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
        """One row per design, with the columns of a study's front but for those of trials."""
        import pandas as pd

        return pd.DataFrame([flat(record) | {"feasible": True} for record in self.records()])


def exact_front(
    space: Space,
    *,
    rules: WorkloadRules | None = None,
    workers: Workers | None = None,
    method: Method = "auto",
    best: Sequence[float] | None = None,
    progress: Callable[[Headway], None] | None = None,
    partial_too: bool = False,
) -> ExactFront:
    """The front of all legal designs of a finite space.

    Parameters
    ----------
    space : Space
        What to enumerate.
    rules : WorkloadRules, optional
        What evaluates designs; by default the native cost model.
    workers : Workers, optional
        Who evaluates designs; by default this process alone.
    method : str
        "list" evaluates every design, "bounds" rules most of them out; "auto" takes bounds from
        `BOUNDED_FROM` designs on where there are any. The front is the same.
    best : sequence of float, optional
        Costs, one per objective, that designs are counted against where they are listed. [the unit of each]
    progress : callable, optional
        Called now and then.
    partial_too : bool
        Where designs are listed and a KeyboardInterrupt comes, give the front of those evaluated so far.

    Raises
    ------
    DseError
        If the space is not finite, or has too many designs for the method.
    """
    workers, pricer = workers or Workers(), Pricer.of(space, rules)
    bounded = method == "bounds" or (method == "auto" and BOUNDED_FROM < space.legal.count < np.inf)
    search = by_bounds(pricer, workers, progress) if bounded else None
    if search is not None:
        designs, priced, counts = search.designs, search.priced, None
    elif method == "bounds":
        raise ParameterError(
            f"space {space.name}: bounds are known of transformers under native rules whose machine is open, "
            "for objectives of time, memory, price and power, where more of it never slows a step; enumerate "
            "it with {method} list"
        )
    else:
        counts = listed(pricer, workers, best, progress, partial_too)
        designs, priced = space.legal.at(counts.numbers), counts.legal
    evaluation = evaluate(space, designs, rules=pricer.rules)
    order = np.lexsort([*list(designs.values())[::-1], *costs_of(space, evaluation).T[::-1]])
    designs = {name: values[order] for name, values in designs.items()}
    legal, found = int(space.legal.count), evaluation.take(order)
    return ExactFront(space, designs, found, legal, priced, counts, pricer.rules.profile)


def by_bounds(pricer: Pricer, workers: Workers, progress: Callable[[Headway], None] | None) -> Search | None:
    """The search by bounds of a space; None where bounds are unknown, or a design breaks its own bound."""
    problem = problem_of(pricer)
    if problem is None:
        return None
    search = Search(problem, workers)
    try:
        search.run(lambda priced, boxes: progress(Headway(priced, None, None, boxes)) if progress else None)
    except BoundBroken:
        return None
    return search


def listed(
    pricer: Pricer,
    workers: Workers,
    best: Sequence[float] | None,
    progress: Callable[[Headway], None] | None,
    partial_too: bool,
) -> Tally:
    """Evaluate every legal design, a range of numbers at a time; arguments are those of `exact_front`.

    Only fronts are kept: the front of all designs is that of the fronts of the ranges, however they are cut.
    """
    space = pricer.space
    count = numbered(space)
    function = partial(tally, pricer, tuple([-np.inf] * len(space.objectives) if best is None else best))
    step = min(STEP, max(CHUNK, count // (16 * workers.jobs)))
    total = Tally.empty(space)
    try:
        for own in workers.map_ranges(function, count, step, scattered=True):
            total = total + own
            if progress:
                progress(Headway(total.legal, count, total.feasible))
    except KeyboardInterrupt:
        if not (partial_too and total.legal):
            raise
    return total


def numbered(space: Space) -> int:
    """Number of designs to list. [-]

    Raises
    ------
    DseError
        If the space is not finite, or has more than `MOST_DESIGNS`.
    """
    if MOST_DESIGNS < space.legal.count < np.inf:
        raise ParameterError(
            f"space {space.name}: {space.legal.count:.3g} legal designs are too many to evaluate; pin some "
            "parameters with {set}, or search, and compare the study with a longer search: {reference} STUDY"
        )
    next(space.legal.enumerate(1), None)  # says which parameter has no list of options
    return int(space.legal.count)
