"""Distance between the front of a study and the exact front of its space, as far as it is known.

Three answers: exact (the front was enumerated), bounded (a bounded search that stops halfway has a bound of all
designs), or unknown. For an unknown distance the study names the objectives whose best design is proved; if there are
none, the designs around its best one are evaluated, and it says how many of them were better.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, short_repr
from costmodel.errors import DseError
from dse.fronts import FrontIndex
from dse.pricing.evaluated import costs_of, nominal_rate, rules_for
from dse.pricing.evaluation import evaluate
from dse.pricing.workers import Pricer, Workers
from dse.searching.batches.history import MEMORY
from dse.searching.bounding.bounds import problem_of
from dse.searching.bounding.branching import BoundBroken, LeastCosts, Search, start
from dse.searching.exact.exact_front import ExactFront, Method, exact_front, unbounded
from dse.searching.samplers.archive import Archive
from dse.searching.samplers.screening_sampler import FOUND
from dse.searching.study import BaseStudy
from dse.searching.trials.trial_table import TrialTable
from dse.spaces.lattice import Lattice
from dse.spaces.space import Space
from dse.storage.optuna_store import Store

#: A space is quick where its designs take so long at their nominal rate. [s]
QUICK: Final = 2.0


@dataclass(frozen=True)
class Certificate:
    """Distance between the front of a study and the exact front."""

    __repr__ = short_repr

    study: str
    focus: str  #: condition that the exact front keeps, "" for all designs
    trials: int
    hypervolume_ratio: float  #: of the study's front to the exact one, in the study's box; 1 where that has none
    found: int  #: designs of the exact front that the study has evaluated
    of: int  #: designs of the exact front
    gaps: dict[str, float]  #: objective -> how much worse than the best possible its best value is, relative
    #: Objective -> feasible designs better than the study's best; None where bounds ruled them out, without a count.
    ranks: dict[str, int | None]
    worst_gap: float  #: every exact design is matched by one of the study's within this share, in all objectives
    worst_missed: dict[str, Any] | None  #: parameters of the exact design that is matched worst, if any is not


@dataclass(frozen=True)
class Surroundings:
    """Search around the best design of a study whose distance to the exact front is unknown."""

    study: str
    trials: int
    evaluated: int  #: designs that were evaluated for its trials
    proved: tuple[str, ...]  #: objectives whose best design bounds prove to be the best of all
    objective: str  #: by which the design is the best
    designs: int  #: legal designs that differ from it in one option, by two steps, or in one component
    better: int  #: feasible ones of them that are better
    open_machine: bool  #: True if the space chooses quantities of the machine, without which no bounds exist


def surroundings(study: BaseStudy) -> Surroundings | None:
    """Evaluate the designs around the best one; None where each is a search, or nothing is feasible."""
    space, front = sought_space(study), sought_designs(study).front()
    if space.workloads or space.inner or not len(front):
        return None
    lattice, [best] = Lattice(space), front.take(np.arange(1)).trials
    here = lattice.places(space.encode([best.params]))
    moved = [lattice.moved(here, moves)[0] for moves in (lattice.lines, lattice.pairs)]
    around = np.concatenate([*moved, *lattice.varied(here[0])])
    places = np.unique(around[(around != here).any(axis=1)], axis=0)
    costs = costs_of(space, evaluate(space, lattice.columns(places), rules=rules_for(space, study.profile)))
    return Surroundings(
        study=study.name,
        trials=len(study.table),
        evaluated=study.designs_priced or len(study.table),
        proved=proved_objectives(study, front.costs.min(axis=0)),
        objective=space.objectives[0].name,
        designs=len(places),
        better=int((costs[:, 0] < front.costs[0, 0]).sum()),
        open_machine=not {*space.system.units()}.isdisjoint(space.chosen),
    )


def certificate(study: BaseStudy, exact: ExactFront) -> Certificate:
    """Compare a study with the exact front of its space.

    Raises `DseError` if the study searches another space, or there is nothing to compare.
    """
    if sought_space(study).fingerprint != exact.space.fingerprint:
        raise DseError(f"study {study.name!r}: searches another space; leave SPACE out to enumerate its own")
    table = sought_designs(study)
    costs, best = front_costs(study, table), exact.costs
    key = study.space.legal.key
    seen = {key(params) for block in table.blocks() for params in block.designs()}
    names = [objective.name for objective in study.space.objectives]
    short = match_gaps(costs, best)
    worst = int(np.argmax(short))
    gaps = regrets(costs.min(axis=0), best)
    better = [None if gap > 0 else 0 for gap in gaps.tolist()] if exact.tally is None else exact.tally.better.tolist()
    return Certificate(
        study=study.name,
        focus=study.plan.focus,
        trials=len(study.table),
        hypervolume_ratio=study.box.hypervolume(costs) / whole if (whole := study.box.hypervolume(best)) else 1.0,
        found=sum(key(params) in seen for params in exact.space.decode(exact.designs)),
        of=len(best),
        gaps=dict(zip(names, gaps.tolist(), strict=True)),
        ranks=dict(zip(names, better, strict=True)),
        worst_gap=float(short[worst]),
        worst_missed=exact.records()[worst]["params"] if short[worst] > 0 else None,
    )


def sought_space(study: BaseStudy) -> Space:
    """The space of a study, with the condition of its focus."""
    return study.space.focused(study.plan.focus) if study.plan.focus else study.space


def sought_designs(study: BaseStudy) -> TrialTable:
    """The designs that a study has found, those within its focus."""
    table, space = study.table.found(), sought_space(study)
    if not study.plan.focus or not len(table):
        return table
    designs = space.encode(table.designs())
    kept = evaluate(space, designs, rules=rules_for(space, study.profile)).feasible
    return table.take(np.flatnonzero(kept))


def front_costs(study: BaseStudy, table: TrialTable) -> FloatArray:
    """(designs, objectives) Costs of the front of a study's designs. [the unit of each]

    Raises `DseError` if none of them is feasible.
    """
    if not len(costs := table.front().costs):
        raise DseError(f"study {study.name!r}: no feasible design found, nothing to certify")
    return costs


def best_costs(study: BaseStudy) -> FloatArray:
    """(objectives,) Least costs of a study's feasible trials, within its focus. [the unit of each]"""
    return np.asarray(front_costs(study, sought_designs(study)).min(axis=0))


def regrets(lowest: FloatArray, best: FloatArray) -> FloatArray:
    """(objectives,) By how much the least costs found miss the least of a front, relative to these. [-]"""
    least = best.min(axis=0)
    return np.asarray((lowest - least) / np.maximum(np.abs(least), np.finfo(float).tiny), dtype=np.float64)


def match_gaps(costs: FloatArray, best: FloatArray) -> FloatArray:
    """Shortfall of the nearest of some designs from each exact one, in its worst objective.

    Relative to the costs of the exact design; 0 where it is matched. [-]
    """
    worst = np.full((len(best), len(costs)), -np.inf)
    for values, exact in zip(costs.T, best.T, strict=True):
        scale = np.where(exact == 0, 1.0, np.abs(exact))
        np.maximum(worst, (values - exact[:, np.newaxis]) / scale[:, np.newaxis], out=worst)
    return np.asarray(worst.min(axis=1), dtype=np.float64)


def certified(study: BaseStudy, workers: Workers | None = None, *, method: Method = "auto") -> Certificate:
    """The certificate of a study, its space enumerated for it by a method of `exact_front`."""
    space, best = sought_space(study), best_costs(study).tolist()
    rules = rules_for(space, study.profile)
    return certificate(study, exact_front(space, rules=rules, workers=workers, method=method, best=best))


def quick_certificate(study: BaseStudy) -> Certificate | None:
    """The certificate of a study that evaluated its space whole, or could in `QUICK` at its nominal rate; else None."""
    if not len(sought_designs(study).front()):
        return None
    if exact := remembered_front(study):
        return certificate(study, exact)
    return certified(study) if study.space.legal.count <= QUICK * nominal_rate(study.space) else None


def remembered_front(study: BaseStudy) -> ExactFront | None:
    """The exact front from the memory of a sampler that has found it, checked; else None."""
    space = sought_space(study)
    for archive in (one for one in archives(study) if one.complete and not one.thin):
        designs = Lattice(space).columns(archive.places)
        evaluation, count = evaluate(space, designs, rules=rules_for(space, study.profile)), int(space.legal.count)
        if np.allclose(costs_of(space, evaluation), archive.costs, rtol=1e-9, atol=0):
            return ExactFront(space, designs, evaluation, count, count, None, study.profile)
    return None


def proved_objectives(study: BaseStudy, least: FloatArray) -> tuple[str, ...]:
    """Objectives whose least cost a sampler has proved by bounds, if it is that of the study. [the unit of each]"""
    best = [archive.costs.min(axis=0) for archive in archives(study) if archive.best_proved and len(archive.costs)]
    proved = least <= np.min(best, axis=0) if best else ()
    return tuple(objective.name for objective, one in zip(study.space.objectives, proved, strict=False) if one)


def archives(study: BaseStudy) -> list[Archive]:
    """Memories of a sampler that has searched the study with its focus."""
    shape = len(study.space.parameters), len(study.space.objectives)
    with Store(study.storage, "read") as store:
        stored = store.study(study.name)
        with store.reading(stored.study_id, "study_user_attributes"):
            memories = [of[FOUND] for name, of in stored.user_attrs.items() if name.startswith(MEMORY) and FOUND in of]
            return [Archive.unpacked(one["archive"], *shape) for one in memories if one["focus"] == study.plan.focus]


#: Designs that are evaluated for a bound, unless said otherwise.
EVALUATIONS: Final = 1_000_000


@dataclass(frozen=True)
class StudyBound:
    """Largest distance between the best values of a study and the best possible values."""

    __repr__ = short_repr

    study: str
    trials: int
    designs_priced: int  #: designs that were evaluated, and corners of boxes
    proved: bool  #: True if formulas prove the bounds; else no evaluated design is better than them
    interrupted: bool  #: True if a signal ended it before the number of evaluations
    boxes_left: int  #: boxes of designs that were not looked into; 0: the bound is reached by a design
    limits: dict[str, float]  #: objective, with its unit -> value that no legal design is better than
    gaps: dict[str, float]  #: objective -> how much worse than that the study's best value is, relative
    hypervolume_ratio: float  #: least share of the exact front's hypervolume, in the study's box


def study_bound(
    study: BaseStudy, workers: Workers | None = None, *, evaluations: float = EVALUATIONS,
    progress: Callable[[int, int], None] | None = None,
) -> StudyBound:  # fmt: skip
    """Bound the best values of a study's space by a branch and bound that stops after some evaluations, or a signal.

    A first search bounds the best value of each objective, with at most half of the evaluations; a second the front.

    Raises `DseError` if the study has no feasible design, or no bounds are known of its space.
    """
    known, space = front_costs(study, sought_designs(study)), sought_space(study)
    problem = problem_of(Pricer(space, rules_for(space, study.profile)))
    unknown = unbounded(space, "a longer search of another seed shows the designs that this study lacks")
    if problem is None:
        raise unknown
    try:
        boxes = start(problem)
        best, search = (Search(problem, workers or Workers(), boxes, known, of) for of in (LeastCosts, FrontIndex))
        with suppress(KeyboardInterrupt):
            best.run(progress, enough=evaluations / 2)
            search.front, search.evaluated = best.front, best.evaluated
            search.run(progress, enough=evaluations)
    except BoundBroken:
        raise unknown from None
    bounds = search.bounds()
    lowest, least = known.min(axis=0), np.maximum(bounds.min(axis=0), best.bounds().min(axis=0))
    whole = study.box.hypervolume(bounds)
    return StudyBound(
        study=study.name,
        trials=len(study.table),
        designs_priced=max(best.evaluated, search.evaluated),
        proved=problem.proved,
        interrupted=bool(search.waiting) and search.evaluated < evaluations,
        boxes_left=sum(map(len, search.waiting)),
        limits={o.key: o.cost(value) for o, value in zip(space.objectives, least.tolist(), strict=True)},
        gaps=dict(zip((o.name for o in space.objectives), regrets(lowest, least[np.newaxis]).tolist(), strict=True)),
        hypervolume_ratio=study.box.hypervolume(known) / whole if whole else 1.0,
    )
