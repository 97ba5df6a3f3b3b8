"""Prices all trials of a study anew and stores what comes out, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.errors import DseError
from costmodel.profiles.rules import WorkloadRules
from dse.fronts.pareto import as_costs
from dse.pricing.space_rules import rules_for
from dse.pricing.workers import Jobs
from dse.searching.batches.claims import REVISION, drop_waiting
from dse.searching.batches.history import BOX
from dse.searching.batches.sampler_memory import check_memories
from dse.searching.record.checking import Repriced, blocks
from dse.searching.record.creation import (
    ACCEPTED,
    DIGEST,
    FINGERPRINT,
    SPACE,
    SPACE_NAME,
    box_around,
    digest,
    drawn_designs,
)
from dse.searching.record.renewal import renewed_memories
from dse.searching.samplers.exact_search import WINNERS
from dse.searching.trials.trial_attributes import (
    BEFORE,
    BREAKDOWN,
    FEASIBLE_BEFORE,
    WORST,
    finite,
    trial_attributes,
)
from dse.spaces.sections.objectives import keyed
from dse.spaces.space import Batch, Space
from dse.storage.optuna_store import Store, StoredStudy
from dse.storage.rewriting import NewFigures, rewrite


@dataclass
class Repricing:
    """What pricing all trials of a study anew has changed."""

    trials: int = 0
    changed: int = 0
    no_longer_feasible: int = 0
    newly_feasible: int = 0
    largest: dict[str, float] = field(default_factory=dict)  #: objective -> largest relative change [-]


@dataclass
class _Everything:
    """Designs and costs of all trials, as they come out."""

    designs: list[Batch] = field(default_factory=list)
    costs: list[FloatArray] = field(default_factory=list)

    def joined(self) -> tuple[Batch, FloatArray]:
        names = self.designs[0] if self.designs else {}
        designs = {name: np.concatenate([own[name] for own in self.designs]) for name in names}
        return designs, np.concatenate(self.costs) if self.costs else np.empty((0, 0))


def reprice(store: Store, stored: StoredStudy, space: Space, profile: str, *, adopts: bool, jobs: Jobs = 1
            ) -> Repricing:  # fmt: skip
    """Price all trials of a study anew: their figures, the study's box, and what its sampler has found.

    The values before stay beside the new ones. Batches that wait for their turn are dropped, so that they are
    proposed again. Others see all of it or nothing; those who search the study meanwhile end with a message.

    Parameters
    ----------
    store : Store
        The database, open for writing.
    stored : StoredStudy
        The study.
    space, profile : Space, str
        What prices its trials from now on.
    adopts : bool
        Whether that is another space than the study's.
    jobs : int or Workers
        Processes that price, or who else does. [-]

    Raises
    ------
    DseError
        If a trial is none of the space that is adopted; then nothing is changed.
    """
    rules, found, every = rules_for(space, profile), Repricing(), _Everything()
    with store.turn(stored.study_id):
        stored = store.study(stored.name)
        check_memories(space, stored, store.where)
        columns = store.columns(stored, attribute=BREAKDOWN)
        for part in blocks(store, columns, space, rules, jobs):
            if adopts and not part.legal.all():
                first = part.stored.columns.numbers[np.argmin(part.legal)]
                raise DseError(
                    f"study {stored.name!r}: trial {first} is no design of this space; start another with "
                    "--study"
                )
            rewrite(store.database, _changed(part, found))
            every.designs.append({name: codes[part.legal] for name, codes in part.stored.designs.items()})
            every.costs.append(_costs(part))
        attributes = _renewed(stored, space, rules, profile, every)
        store.set_user_attrs(stored.study_id, attributes)
        drop_waiting(store, stored.study_id)
    return found


def _renewed(stored: StoredStudy, space: Space, rules: WorkloadRules, profile: str, every: _Everything
             ) -> dict[str, Any]:  # fmt: skip
    """Attributes of the study that follow from its prices."""
    drawn, own = drawn_designs(space, profile), stored.user_attrs
    memories = renewed_memories(space, rules, own, *every.joined()) if every.designs else {}
    return {
        SPACE: space.text,
        SPACE_NAME: space.name,
        FINGERPRINT: space.fingerprint,
        BOX: box_around(space, profile, *drawn),
        DIGEST: digest(space, *drawn),
        ACCEPTED: 0,
        REVISION: own.get(REVISION, 0) + 1,
        **memories,
    }


def _costs(part: Repriced) -> FloatArray:
    """(legal trials, objectives) Less is better; NaN where infeasible. [the unit of each]"""
    costs = as_costs(part.evaluation.values, [o.direction for o in part.stored.space.objectives])
    costs[~part.evaluation.feasible] = np.nan
    return costs[part.legal]


def _changed(part: Repriced, found: Repricing) -> NewFigures:
    """What is to be written of some trials; those whose figures stay are left alone."""
    rows = np.flatnonzero(part.differ())
    stored, evaluation = part.stored, part.evaluation.take(rows)
    objectives, violations = finite(evaluation, part.minimize)
    before = stored.columns.take(rows)
    _count(part, rows, objectives, found)
    attributes: list[dict[str, Any]] = [
        {**own, BEFORE: was}
        for own, was in zip(
            trial_attributes(stored.space, evaluation),
            _before(stored.space, before.objectives, before.feasible),
            strict=True,
        )
    ]
    winners = _winners(part)
    for row, own in zip(rows.tolist(), attributes, strict=True):
        if row in winners:
            own[WINNERS] = winners[row]
    whole = np.logical_and.reduce(np.isfinite(evaluation.values), axis=1)
    limits = [limit.key for limit in stored.space.limits]
    return NewFigures(before.ids, objectives, violations, limits, whole, attributes)


def _count(part: Repriced, rows: IntArray, objectives: FloatArray, found: Repricing) -> None:
    """Take note of what has changed."""
    columns, evaluation = part.stored.columns, part.evaluation
    found.trials += len(part.stored)
    found.changed += rows.size
    found.no_longer_feasible += int((columns.feasible & ~evaluation.feasible & part.legal).sum())
    found.newly_feasible += int((~columns.feasible & evaluation.feasible & part.legal).sum())
    before = columns.objectives[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.abs(objectives / before - 1)
    for place, objective in enumerate(part.stored.space.objectives):
        share = np.nan_to_num(shares[:, place], nan=0.0, posinf=np.inf).max(initial=0.0)
        found.largest[objective.name] = max(float(share), found.largest.get(objective.name, 0.0))


def _before(space: Space, objectives: FloatArray, feasible: BoolArray) -> list[dict[str, float]]:
    """The objectives that trials had, by name; without what was no number."""
    names = [keyed(f"{o.name}_before", o.unit) for o in space.objectives]
    return [
        {name: value for name, value in zip(names, own, strict=True) if abs(value) < WORST}
        | {FEASIBLE_BEFORE: was}
        for own, was in zip(objectives.tolist(), feasible.tolist(), strict=True)
    ]


def _winners(part: Repriced) -> Mapping[int, list[dict[str, Any]]]:
    """Row -> what it has found beside itself, with the values of now; without what is feasible no more."""
    evaluation = part.winners
    if evaluation is None or part.legal_winners is None:
        return {}
    keys = [objective.key for objective in part.stored.space.objectives]
    found: dict[int, list[dict[str, Any]]] = {row: [] for row, _, _ in part.stored.winners}
    usable = evaluation.feasible & part.legal_winners
    for (row, _, own), values, feasible in zip(
        part.stored.winners, evaluation.values.tolist(), usable.tolist(), strict=True
    ):
        if feasible:
            found[row].append({**own, "values": dict(zip(keys, values, strict=True))})
    return found
