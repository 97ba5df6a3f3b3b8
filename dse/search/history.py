"""What a search knows of its study: designs seen, counts, and what its sampler learns from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from optuna.trial import FrozenTrial, Trial

from costmodel.columns import FloatArray
from costmodel.steps.breakdown import with_unit_suffix
from dse.fronts.hypervolume import Box
from dse.pricing.evaluation import Evaluation
from dse.pricing.profiles import SpaceRules, rules_for
from dse.pricing.workers import Jobs
from dse.search.inner import WINNERS, InnerSearch, WholeDesign, winner_values
from dse.search.samplers import Key, LegalSampler, SpaceExhausted, legal_sampler
from dse.search.screening_sampler import DESIGNS_PRICED, FOUND
from dse.search.twin import Twin, lessons_of
from dse.spaces.space import Space
from dse.storage.optuna_store import Store, StoredStudy
from dse.storage.trial_columns import TrialColumns

#: Study attribute: what a sampler remembers between batches (a genetic sampler, its parents).
MEMORY = "dse:sampler_memory"
#: Study attribute: corners of the box in which its hypervolume is measured.
BOX = "dse:hypervolume_box"

#: Trial attributes: what the evaluation of a design says beside the objectives.
BREAKDOWN, DERIVED, MARGINS = "breakdown", "derived", "margins"


@dataclass(frozen=True)
class Plan:
    """How a study proposes designs; fixed when the study is created."""

    sampler: str
    seed: int
    batch_size: int
    focus: str = ""  #: a condition beside which no design is sought; it may change while a study runs


class History:
    """Proposes the next batch of a study from its full batches, and learns what came of it.

    Parameters
    ----------
    space, plan : Space, Plan
        What the study searches, and how.
    store : Store
        Where it is stored.
    stored : StoredStudy
        The study, as the database holds it. Only trials that dse evaluated count; other programs may add
        theirs.
    rules : SpaceRules, optional
        What evaluates designs; by default the native cost model.
    """

    def __init__(
        self,
        space: Space,
        plan: Plan,
        store: Store,
        stored: StoredStudy,
        rules: SpaceRules | None = None,
        jobs: Jobs = 1,
    ) -> None:
        self.space = space
        self.rules = rules
        self.jobs = jobs
        self.plan = plan
        self.rows = 0  #: trials in the database, in any state
        self.complete = 0
        self.infeasible = 0
        self._store = store
        self._stored = stored
        self._minimize = np.array([direction == "minimize" for direction in stored.directions])
        self._best = np.where(self._minimize, math.inf, -math.inf)
        self._seen: set[Key] = set()  # designs of the full batches
        self._tail: list[Key] = []  # designs of the batch in progress
        lessons = lessons_of(self._sampler(0).base)
        self._twin = Twin(stored.directions, lessons, plan.batch_size)
        self._inner = inner_search(space, rules, stored, plan) if space.inner else None
        self._distributions = {p.name: p.distribution() for p in space.parameters}
        self.refresh()

    def _sampler(self, number: int) -> LegalSampler:
        """The sampler of a batch."""
        seeds = SeedSequence([self.plan.seed, number])
        return legal_sampler(
            self.plan.sampler, self.space, seeds, self._seen, self.rules, self.plan.focus, self.jobs
        )

    def refresh(self) -> None:
        """Read what the database holds beyond what is known."""
        moment = self._store.moment(self._stored, attribute=BREAKDOWN, first=self.rows)
        designs = zip(*moment.params.values(), strict=True)
        keys = [self.space.outer.key(dict(zip(moment.params, design, strict=True))) for design in designs]
        places = range(self.complete, self.complete + len(keys))
        winners = self._store.attribute(self._stored, WINNERS, first=self.rows) if self._inner else {}
        self._count(keys, moment.trials, winners)
        self.rows = moment.rows
        self._twin.forget()
        self._twin.remember(moment.user_attrs.get(MEMORY, {}))
        needed = self._twin.needed(places, self.complete - len(self._tail))
        ids = moment.trials.ids[np.array(needed, dtype=np.intp) - places.start]
        lessons = self._store.some_trials(ids, user_attrs=False)
        self._twin.learn(dict(zip(needed, lessons, strict=True)))

    def _count(self, keys: Sequence[Key], trials: TrialColumns, winners: Mapping[int, Any]) -> None:
        """Take note of finished trials, and of what they have found beside themselves."""
        self.complete += len(keys)
        self.infeasible += int((~trials.feasible).sum())
        found = [trials.objectives[trials.feasible]]
        if self._inner:
            found = winner_values([o.key for o in self.space.objectives], trials, winners)
            self._inner.learn(found)
        values = np.vstack([self._best, *found])
        self._best = np.where(self._minimize, values.min(axis=0), values.max(axis=0))
        self._tail += keys
        full = len(self._tail) // self.plan.batch_size * self.plan.batch_size
        self._seen.update(self._tail[:full])
        self._tail = self._tail[full:]

    def best(self) -> dict[str, float]:
        """Objective -> best value among the feasible designs; empty when there is none."""
        if self.infeasible == self.complete:
            return {}
        return {o.key: float(best) for o, best in zip(self.space.objectives, self._best, strict=True)}

    def proposals(self) -> list[Trial]:
        """The designs of the batch in progress that are not yet stored; none when the space is exhausted."""
        sampler = self._sampler(self.complete // self.plan.batch_size)
        study = self._twin.study(self.complete - len(self._tail))
        study.sampler = sampler
        # Optuna asks no sampler for a design that is pinned as a whole: there is one.
        size = self.plan.batch_size if sampler.varying else max(0, 1 - self.complete)
        asked = []
        try:
            for _ in range(size):
                asked.append(study.ask(sampler.distributions))
        except SpaceExhausted:
            pass  # the batch ends early; the next one will be empty
        done, left = set(self._tail), self.plan.batch_size - len(self._tail)
        return [trial for trial in asked if self.space.outer.key(trial.params) not in done][:left]

    def whole(self, proposals: Sequence[Trial]) -> list[WholeDesign]:
        """The designs that some proposals become: what is exact is found for each."""
        designs = [trial.params for trial in proposals]
        return self._inner.whole(designs, self.jobs) if self._inner else [WholeDesign(own) for own in designs]

    def finished(
        self, proposals: Sequence[Trial], designs: Sequence[WholeDesign], evaluation: Evaluation
    ) -> list[FrozenTrial]:
        """Tell the sampler what became of its proposals; the finished trials, ready to be stored."""
        attributes = trial_attributes(self.space, evaluation)
        values, violations = finite(evaluation, self._minimize)
        finished = []
        for row, (trial, design) in enumerate(zip(proposals, designs, strict=True)):
            for limit, violation in zip(self.space.limits, violations[row], strict=True):
                trial.set_constraint(limit.key, float(violation))
            if not np.isfinite(evaluation.values[row]).all():
                trial.set_constraint("finite_objectives", 1.0)
            frozen = trial.study.tell(trial, values[row].tolist())
            for key, value in attributes[row].items():
                frozen.set_user_attr(key, value)
            finished.append(self._completed(frozen, design) if self._inner else frozen)
        return finished

    def _completed(self, trial: FrozenTrial, design: WholeDesign) -> FrozenTrial:
        """A finished trial with its inner parameters, and what else was found with it."""
        trial.params, trial.distributions = design.params, self._distributions
        trial.set_user_attr(WINNERS, design.winners)
        trial.set_user_attr(DESIGNS_PRICED, trial.user_attrs.get(DESIGNS_PRICED, 0) + design.priced)
        return trial

    def memory(self, added: int) -> dict[str, Any]:
        """Study attributes to store with some trials: what the sampler remembers when its batch is whole."""
        remembered = self._twin.memory()
        count = {DESIGNS_PRICED: remembered[FOUND][DESIGNS_PRICED]} if FOUND in remembered else {}
        whole = len(self._tail) + added == self.plan.batch_size
        return {**count, MEMORY: remembered} if whole and remembered else count

    def stored(self, finished: Sequence[FrozenTrial]) -> None:
        """Take note of trials that the database has accepted."""
        places = range(self.complete, self.complete + len(finished))
        if len(self._tail) + len(finished) == self.plan.batch_size:
            self._twin.remember(self._twin.memory())
        if len(finished) == self.plan.batch_size:
            self._twin.grow(places)
        else:
            self._twin.forget()
        keys = [self.space.outer.key(trial.params) for trial in finished]
        values = np.array([trial.values for trial in finished])
        feasible = np.array([is_feasible(trial) for trial in finished])
        numbers = np.arange(len(finished))
        winners = {number: trial.user_attrs.get(WINNERS, ()) for number, trial in enumerate(finished)}
        self._count(keys, TrialColumns(numbers, numbers, values, feasible), winners)
        self.rows += len(finished)
        needed = self._twin.needed(places, self.complete - len(self._tail))
        self._twin.learn({place: lesson(finished[place - places.start]) for place in needed})


def inner_search(space: Space, rules: SpaceRules | None, stored: StoredStudy, plan: Plan) -> InnerSearch:
    """What finds the inner designs of a study."""
    box = Box(*(np.array(corner) for corner in stored.user_attrs[BOX]))
    return InnerSearch(space, rules or rules_for(space), box, plan.batch_size)


def is_feasible(trial: FrozenTrial) -> bool:
    """Whether a finished trial keeps every limit."""
    return all(violation <= 0 for violation in trial.constraints.values())


def lesson(trial: FrozenTrial) -> FrozenTrial:
    """A trial without what samplers do not read."""
    learned = copy(trial)
    learned.user_attrs = {}
    return learned


def trial_attributes(space: Space, evaluation: Evaluation) -> list[dict[str, dict[str, float]]]:
    """Breakdown, derived columns and margins of each design, under names that end in their units."""
    tables: dict[str, Mapping[str, FloatArray]] = {
        BREAKDOWN: {
            with_unit_suffix(name): values for name, values in evaluation.breakdown.columns().items()
        },
        DERIVED: evaluation.derived,
        MARGINS: {limit.key: evaluation.margins[:, i] for i, limit in enumerate(space.limits)},
    }
    points = len(evaluation.values)
    rows: list[dict[str, dict[str, float]]] = [{table: {} for table in tables} for _ in range(points)]
    for table, columns in tables.items():
        for name, values in columns.items():
            for row, value in zip(rows, np.broadcast_to(values, (points,)).tolist(), strict=True):
                if math.isfinite(value):  # JSON, and so PostgreSQL, knows no other numbers
                    row[table][name] = value
    return rows


def finite(
    evaluation: Evaluation, minimize: np.ndarray[Any, np.dtype[np.bool_]]
) -> tuple[FloatArray, FloatArray]:
    """Values and violations with what is not finite made very bad: Optuna stores no NaN, and ranks no inf."""
    worst = np.where(minimize, WORST, -WORST)
    values = np.where(np.isfinite(evaluation.values), evaluation.values, worst)
    return values, np.nan_to_num(evaluation.violations, nan=WORST, posinf=WORST, neginf=0.0)


#: Stands for a value that is not finite; its square does not overflow.
WORST = 1e150
