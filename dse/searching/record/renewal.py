"""What the screening sampler of a study has found, once the study's designs are priced anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.profiles.rules import WorkloadRules
from dse.fronts.pareto import non_dominated
from dse.searching.batches.sampler_memory import MEMORY
from dse.searching.samplers.archive import Archive, least_beaten
from dse.searching.samplers.screening_sampler import FOUND, RESERVE, ScreeningSampler
from dse.spaces.space import Batch, Space

#: Designs of a space that is priced whole that are priced in one call.
AT_ONCE: Final = 16384


def renewed_memories(
    space: Space, rules: WorkloadRules, attributes: Mapping[str, Any], trials: Batch, costs: FloatArray
) -> dict[str, Any]:
    """Study attributes with what batches have found, their designs priced by the rules as they are now.

    Designs of the archives and of the trials' front stand together; neighbours count as not looked at.
    Genetic samplers remember trials, whose values are new by themselves, and others remember nothing.

    Parameters
    ----------
    space, rules : Space, WorkloadRules
        What is searched, and what prices it.
    attributes : mapping
        Those of the study.
    trials : Batch
        Designs of all trials. [SI units]
    costs : (trials, objectives) array
        Their costs, NaN where infeasible. [the unit of each]
    """
    memories = {
        key: own
        for key, own in attributes.items()
        if key.startswith(MEMORY) and isinstance(own, Mapping) and FOUND in own
    }
    return {key: {**own, FOUND: renewed(space, rules, own[FOUND], trials, costs)}
            for key, own in memories.items()}  # fmt: skip


def renewed(
    space: Space, rules: WorkloadRules, found: Mapping[str, Any], trials: Batch, costs: FloatArray
) -> dict[str, Any]:
    """What one batch has found; arguments as of `renewed_memories`."""
    sampler = ScreeningSampler(space, rules=rules, focus=found["focus"])
    lattice, sent = sampler.lattice, sampler.lattice.places(trials)
    archive = Archive.unpacked(found["archive"], len(space.parameters), len(space.objectives))
    best = sent if found["focus"] else sent[non_dominated(costs)]  # within a focus it may be any of them
    places = np.concatenate([archive.places, archive.reserve, best])
    if archive.complete:
        places = np.concatenate([lattice.places(part) for part in lattice.space.legal.enumerate(AT_ONCE)])
    places = np.unique(places[lattice.legal(places)], axis=0)
    own_costs, violations = sampler.priced(places)
    climbers = archive.climbers
    if len(climbers.places):
        there, broken = sampler.priced(climbers.places)
        climbers = replace(climbers, costs=there, violations=broken)
    empty = replace(Archive.empty(len(space.parameters), len(space.objectives)), complete=archive.complete)
    front = empty.joined(places, own_costs, ties=archive.complete).thinned()
    front = replace(front, sent=among(front.places, sent), climbers=climbers)
    order = np.argsort(violations, kind="stable")
    if len(front.places):
        order = least_beaten(own_costs, front.costs, RESERVE + len(front.places))
    beaten = places[order]
    reserve = beaten[~among(beaten, front.places)][:RESERVE]
    return {**found, "archive": replace(front, reserve=reserve).packed()}


def among(places: FloatArray, others: FloatArray) -> BoolArray:
    """(designs,) Which designs are among others; a row of places each. [-]"""
    known = {row.tobytes() for row in others}
    return np.array([row.tobytes() in known for row in places], dtype=bool)
