"""Bounds that no design of a space can beat, for spaces too large for an exact front; the search stops halfway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import short_repr
from costmodel.errors import DseError
from dse.pricing.evaluated import rules_for
from dse.pricing.workers import Pricer, Workers
from dse.searching.exact.bounds import problem_of
from dse.searching.exact.branching import BoundBroken, Search
from dse.searching.exact.certificate import best_costs, regrets, sought_space
from dse.searching.study import BaseStudy

#: Designs that are evaluated for a bound, unless said otherwise.
EVALUATIONS: Final = 1_000_000


@dataclass(frozen=True)
class StudyBound:
    """Largest distance between the best values of a study and the best possible values."""

    __repr__ = short_repr

    study: str
    trials: int
    designs_priced: int  #: designs that were evaluated, and corners of boxes
    boxes_left: int  #: boxes of designs that were not looked into; 0: the bound is reached by a design
    limits: dict[str, float]  #: objective, with its unit -> value that no legal design is better than
    gaps: dict[str, float]  #: objective -> how much worse than that the study's best value is, relative


def study_bound(
    study: BaseStudy,
    workers: Workers | None = None,
    *,
    evaluations: float = EVALUATIONS,
    progress: Callable[[int, int], None] | None = None,
) -> StudyBound:
    """Bound the best values of a study's space by a branch and bound that stops after some evaluations.

    Raises `DseError` if the study has found nothing feasible, or no bounds are known of its space.
    """
    lowest, space = best_costs(study), sought_space(study)
    problem = problem_of(Pricer.of(space, rules_for(space, study.profile)))
    unknown = DseError(
        f"space {space.name}: no bounds exist: its machine is closed, or more of a quantity may slow a step; "
        "a longer search of another seed shows the designs that this study lacks"
    )
    if problem is None:
        raise unknown
    search = Search(problem, workers or Workers())
    try:
        search.run(progress, enough=evaluations)
    except BoundBroken:
        raise unknown from None
    least = np.minimum(search.least(), lowest)
    signs = [-1.0 if objective.direction == "maximize" else 1.0 for objective in space.objectives]
    names = [objective.name for objective in space.objectives]
    return StudyBound(
        study=study.name,
        trials=len(study.table),
        designs_priced=search.priced,
        boxes_left=sum(map(len, search.waiting)),
        limits=dict(zip((objective.key for objective in space.objectives), (least * signs).tolist(), strict=True)),
        gaps=dict(zip(names, regrets(lowest, least[np.newaxis]).tolist(), strict=True)),
    )
