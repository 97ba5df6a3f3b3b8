"""Distance between a study and the result of a long search, where a space is too large for its exact front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import SeedSequence

from costmodel.columns import short_repr
from dse.fronts.pareto import non_dominated
from dse.pricing.space_rules import rules_for
from dse.pricing.workers import Jobs
from dse.searching.exact.certificate import best_costs, match_gaps, regrets, sought_designs, sought_space
from dse.searching.samplers.archive import Archive
from dse.searching.samplers.screening import Screening
from dse.searching.samplers.screening_sampler import ScreeningSampler
from dse.searching.study import BaseStudy

#: Trials for which a reference run prices designs at once.
TRIALS: Final = 10_000
#: What its random numbers come from, beside those of any study.
SEED: Final = 2**31


@dataclass(frozen=True)
class Reference:
    """Distance between the front of a study and that of a long search; better designs than either may exist."""

    __repr__ = short_repr

    study: str
    trials: int
    designs_priced: int  #: by the reference run
    hypervolume_ratio: float  #: of the study's front to that of both together, in the study's box
    gaps: dict[str, float]  #: objective -> how much worse than the best known its best value is, relative
    worst_gap: float  #: every design known is matched by one of the study's within this share


def reference(study: BaseStudy, jobs: Jobs = 1) -> Reference:
    """Compare a study with a search that prices as many designs as ten thousand of its trials would.

    Raises `DseError` if the study has found nothing feasible.
    """
    lowest, space = best_costs(study), sought_space(study)
    rules = rules_for(space, study.profile)
    sampler = ScreeningSampler(space, rules=rules, jobs=jobs)
    shape = len(study.space.parameters), len(study.space.objectives)
    search = Screening(
        sampler.lattice,
        sampler.priced,
        Archive.empty(*shape),
        TRIALS * sampler.designs_per_trial,
        np.random.default_rng(SeedSequence([SEED])),
    )
    found = sought_designs(study).front().costs
    known = np.concatenate([search.run(0, np.empty((0, shape[0]))).costs, found])
    known = known[non_dominated(known)]
    names = [objective.name for objective in study.space.objectives]
    return Reference(
        study=study.name,
        trials=len(study.table),
        designs_priced=search.priced,
        hypervolume_ratio=study.box.hypervolume(found) / study.box.hypervolume(known),
        gaps=dict(zip(names, regrets(lowest, known).tolist(), strict=True)),
        worst_gap=float(match_gaps(found, known).max()),
    )
