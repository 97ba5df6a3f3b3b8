"""The finished trials of a study, as samplers learn from them: an in-memory twin of what is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from numpy.random import SeedSequence
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from costmodel.columns import FloatArray
from costmodel.steps.breakdown import with_unit_suffix
from dse.pricing.evaluation import Evaluation
from dse.pricing.profiles import SpaceRules
from dse.search.samplers import Key, SpaceExhausted, legal_sampler
from dse.search.screening_sampler import DESIGNS_PRICED, FOUND
from dse.spaces.space import Space
from dse.storage.optuna_store import StoredStudy

#: Study attribute: what a sampler remembers between batches (a genetic sampler, its parents).
MEMORY = "dse:sampler_memory"

#: Trial attributes: what the evaluation of a design says beside the objectives.
BREAKDOWN, DERIVED, MARGINS = "breakdown", "derived", "margins"


@dataclass(frozen=True)
class Plan:
    """How a study proposes designs; fixed when the study is created."""

    sampler: str
    seed: int
    batch_size: int


class History:
    """Proposes the next batch of a study from its full batches, and learns what came of it.

    Parameters
    ----------
    space, plan : Space, Plan
        What the study searches, and how.
    stored : StoredStudy
        The study, as the database holds it.
    trials : sequence of FrozenTrial
        Every trial of it, in any state. Only those that dse evaluated count; other programs may add theirs.
    rules : SpaceRules, optional
        What evaluates designs; by default the native cost model.
    """

    def __init__(
        self,
        space: Space,
        plan: Plan,
        stored: StoredStudy,
        trials: Sequence[FrozenTrial],
        rules: SpaceRules | None = None,
    ) -> None:
        self.space = space
        self.rules = rules
        self.plan = plan
        self.rows = len(trials)  #: trials in the database, in any state
        complete = [trial for trial in trials if is_priced(trial)]
        self.complete = len(complete)
        self.infeasible = sum(not is_feasible(trial) for trial in complete)
        self.stale = False  #: whether the database must be read again before the next batch
        self._minimize = np.array([direction == "minimize" for direction in stored.directions])
        self._best = np.where(self._minimize, math.inf, -math.inf)
        for trial in complete:
            self._improve(trial)
        full = self.complete // plan.batch_size * plan.batch_size
        self._tail = {self._key(trial) for trial in complete[full:]}
        self._storage = InMemoryStorage()
        with quiet():
            self._study = optuna.create_study(storage=self._storage, directions=list(stored.directions))
        self._study_id = self._storage.get_study_id_from_name(self._study.study_name)
        self._seen = {self._key(trial) for trial in complete[:full]}
        for trial in complete[:full]:
            self._storage.create_new_trial(self._study_id, lesson(trial))
        for key, value in stored.user_attrs.get(MEMORY, {}).items():
            self._storage.set_study_system_attr(self._study_id, key, value)

    def _key(self, trial: FrozenTrial | Trial) -> Key:
        return self.space.legal.key(trial.params)

    def _improve(self, trial: FrozenTrial) -> None:
        if is_feasible(trial):
            values = np.asarray(trial.values)
            self._best = np.where(
                self._minimize, np.minimum(self._best, values), np.maximum(self._best, values)
            )

    def best(self) -> dict[str, float]:
        """Objective -> best value among the feasible designs; empty when there is none."""
        if self.infeasible == self.complete:
            return {}
        return {o.key: float(best) for o, best in zip(self.space.objectives, self._best, strict=True)}

    def proposals(self) -> list[Trial]:
        """The designs of the batch in progress that are not yet stored; none when the space is exhausted."""
        number = self.complete // self.plan.batch_size
        seeds = SeedSequence([self.plan.seed, number])
        sampler = legal_sampler(self.plan.sampler, self.space, seeds, self._seen, self.rules)
        self._study.sampler = sampler
        asked = []
        try:
            for _ in range(self.plan.batch_size):
                asked.append(self._study.ask(sampler.distributions))
        except SpaceExhausted:
            pass  # the batch ends early; the next one will be empty
        left = self.plan.batch_size - self.complete % self.plan.batch_size
        return [trial for trial in asked if self._key(trial) not in self._tail][:left]

    def finished(self, proposals: Sequence[Trial], evaluation: Evaluation) -> list[FrozenTrial]:
        """Tell the sampler what became of its proposals; the finished trials, ready to be stored."""
        attributes = trial_attributes(self.space, evaluation)
        values, violations = finite(evaluation, self._minimize)
        finished = []
        for row, trial in enumerate(proposals):
            for limit, violation in zip(self.space.limits, violations[row], strict=True):
                trial.set_constraint(limit.key, float(violation))
            if not np.isfinite(evaluation.values[row]).all():
                trial.set_constraint("finite_objectives", 1.0)
            frozen = self._study.tell(trial, values[row].tolist())
            for key, value in attributes[row].items():
                frozen.set_user_attr(key, value)
            finished.append(frozen)
        return finished

    def memory(self, added: Sequence[FrozenTrial]) -> dict[str, Any]:
        """Study attributes to store with some trials: what the sampler remembers when its batch is whole.

        The newest entries are enough: the parents of a generation follow from those of the one before.
        """
        attrs = self._storage.get_study_system_attrs(self._study_id)
        whole = (self.complete + len(added)) % self.plan.batch_size == 0
        count = {DESIGNS_PRICED: attrs[FOUND][DESIGNS_PRICED]} if FOUND in attrs else {}
        return {**count, MEMORY: dict(list(attrs.items())[-2:])} if whole and attrs else count

    def stored(self, finished: Sequence[FrozenTrial]) -> None:
        """Count trials that the database has accepted."""
        self.stale = bool(self._tail) or len(finished) < self.plan.batch_size
        self.rows += len(finished)
        self.complete += len(finished)
        self.infeasible += sum(not is_feasible(trial) for trial in finished)
        for trial in finished:
            self._seen.add(self._key(trial))
            self._improve(trial)


def is_priced(trial: FrozenTrial) -> bool:
    """Whether a trial is finished, and by dse: other programs may add trials, which say less."""
    return trial.state == TrialState.COMPLETE and BREAKDOWN in trial.user_attrs


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


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from announcing studies that only exist in memory."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
