"""State of a search: designs seen, counts, and the trials that its sampler learns from.

A batch depends only on the batches before it in its share. So any number of processes, started and killed at any time,
store the same trials as one process: the next process proposes, evaluates and stores. A sampler of Optuna learns from a
study in memory with all finished trials, the last generation, or none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import optuna
from numpy.random import SeedSequence
from optuna.samplers import BaseGASampler, BaseSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from costmodel.rules.rules import WorkloadRules
from dse.fronts import Box
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate, kernel_choices
from dse.pricing.workers import Jobs
from dse.searching.samplers.archive import Archive, DesignShare, Key, Known, base_of
from dse.searching.samplers.exact_search import WINNERS, InnerSearch, WholeDesign, winner_values
from dse.searching.samplers.samplers import LegalSampler, SpaceExhausted, legal_sampler
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED, FOUND, ScreeningSampler
from dse.searching.trials.trial_table import BREAKDOWN, finite, lesson, stored_winners, trial_attributes
from dse.spaces.sections.parameters import Direction
from dse.spaces.space import Space
from dse.storage.optuna_store import Moment, Store, StoredStudy
from dse.storage.trial_columns import TrialColumns

#: Which of the finished trials a sampler reads.
Lessons = Literal["all", "generation", "none"]

#: Part of the study attributes of genetic samplers that list trials: the parents of a generation.
PARENTS = ":parent:"

#: Trials after which a study is built again from the few that its sampler reads.
MOST_TRIALS = 400


class LearningStudy:
    """The trials that a sampler reads, as an Optuna study in memory.

    It grows by the trials that it requests, one for each share; where the sampler reads only a few trials, it is built
    again from these after `MOST_TRIALS`, so that a batch takes no longer the larger the study is. Trials are known by
    their places, from 0, among the finished ones.
    """

    def __init__(self, directions: Sequence[Direction], lessons: Lessons, batch_size: int, concurrency: int) -> None:
        self._directions = list(directions)
        self._lessons = lessons
        self._batch_size = batch_size
        self._concurrency = concurrency
        self._trials: dict[int, FrozenTrial] = {}  # place -> trial
        self._study: optuna.Study  # the last one
        self._places: list[int] = []  # of its trials
        self._grown: dict[int, tuple[optuna.Study, list[int]]] = {}  # studies of the first N trials

    def needed(self, places: Iterable[int], first: int, memories: Iterable[Mapping[str, Any]]) -> list[int]:
        """Places among some that the sampler reads where batches may go on from trial `first` and later,
        with one of some memories."""
        if self._lessons != "generation":
            return list(places) if self._lessons == "all" else []
        parents = {parent for memory in memories for key, named in memory.items() if PARENTS in key for parent in named}
        return [number for number in places if number >= first or number in parents]

    def learn(self, trials: Mapping[int, FrozenTrial]) -> None:
        """Take over finished trials that are needed."""
        self._trials |= trials

    def keep(self, first: int, memories: Sequence[Mapping[str, Any]]) -> None:
        """Let go of trials that no batch to come needs."""
        if self._lessons == "generation":
            self._trials = {number: self._trials[number] for number in self.needed(self._trials, first, memories)}

    def grow(self, places: range) -> None:
        """Go on with the last study: all that it asked for became trials at these places."""
        oldest = places.stop - self._concurrency * self._batch_size
        self._grown = {full: grown for full, grown in self._grown.items() if full > oldest}
        self._grown[places.stop] = self._study, [*self._places, *places]

    def go_on(self, full: int, memory: Mapping[str, Any]) -> None:
        """Go on with a study of the trials that the sampler reads among the first `full`, which fill their batches."""
        study, self._places = self._grown.pop(full, (None, []))
        if study is None or (self._lessons != "all" and len(self._places) >= MOST_TRIALS):
            known = [number for number in sorted(self._trials) if number < full]
            self._places = self.needed(known, full - self._batch_size, [memory])
            with quiet():
                study = optuna.create_study(storage=InMemoryStorage(), directions=self._directions)
            for number in self._places:
                study._storage.create_new_trial(study._study_id, self._trials[number])
        self._study = study
        numbers = {old: number for number, old in enumerate(self._places)}
        for key, value in memory.items():
            listed = [numbers[parent] for parent in value] if PARENTS in key else value
            study._storage.set_study_system_attr(study._study_id, key, listed)

    def asked(self, sampler: LegalSampler) -> FrozenTrial:
        """The next proposal of a sampler, as a running trial of the last study.

        `optuna.Study.ask` copies the trial and compares distributions for each parameter; here all are set at once.
        """
        study = self._study
        study.sampler, study._thread_local.cached_all_trials = sampler, None
        trial_id = study._storage.create_new_trial(study._study_id)
        sampler.before_trial(study, study._storage.get_trial(trial_id))
        # No sampler is asked for a design that is pinned as a whole: there is one.
        running, of = study._storage.get_trial(trial_id), sampler.distributions
        params = sampler.sample_relative(study, running, of) if sampler.varying else sampler.drawn()
        trial = study._storage.get_trial(trial_id)  # another than `running` where the sampler has set attributes
        trial.params = {name: of[name].to_external_repr(of[name].to_internal_repr(params[name])) for name in of}
        trial.distributions = of
        return trial

    def told(self, trial: FrozenTrial, values: list[float], user_attrs: Mapping[str, Any]) -> FrozenTrial:
        """The finished trial, as `optuna.Study.tell` makes it, with attributes that samplers do not read."""
        study, trial_id, done = self._study, trial._trial_id, TrialState.COMPLETE
        study._thread_local.cached_all_trials = None
        study.sampler.after_trial(study, trial, done, values)
        study._storage.set_trial_state_values(trial_id, done, values)
        finished = copy(study._storage.get_trial(trial_id))
        finished.user_attrs = {**finished.user_attrs, **user_attrs}
        return finished

    def memory(self) -> dict[str, Any]:
        """The memory of the sampler after a whole batch, with positions of trials.

        The newest entries are enough: the parents of a generation follow from those of the one before.
        """
        attributes = self._study._storage.get_study_system_attrs(self._study._study_id)
        return {
            key: [self._places[number] for number in value] if PARENTS in key else value
            for key, value in list(attributes.items())[-2:]
        }


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from announcing studies that only exist in memory."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


#: Study attribute: state of a sampler after a batch (for a genetic sampler, its parents).
MEMORY = "dse:sampler_memory"
#: Study attribute: counts and best values of the trials before the last batch; `summary` of a study adds later trials.
COUNTED = "dse:counted"
#: Study attribute: corners of the box in which its hypervolume is measured.
BOX = "dse:hypervolume_box"


@dataclass(frozen=True)
class Plan:
    """Settings by which a study proposes designs; fixed when the study is created."""

    sampler: str
    seed: int
    batch_size: int
    focus: str = ""  #: a condition that every new design satisfies; it may change while a study runs
    concurrency: int = 1  #: batches that may be under way at a time
    custom: BaseSampler | None = None  #: proposes in the place of `sampler`, in this process


@dataclass
class Batch:
    """Trials that are proposed, evaluated and stored together."""

    number: int
    base: int  #: the batch from which it goes on
    proposals: list[FrozenTrial] = field(default_factory=list)
    finished: list[FrozenTrial] = field(default_factory=list)
    memory: Mapping[str, Any] = field(default_factory=dict)  #: state of the sampler


class History:
    """Proposes batches of a study from the batches before them, and records their results."""

    def __init__(
        self, space: Space, plan: Plan, store: Store, stored: StoredStudy, rules: WorkloadRules | None = None,
        jobs: Jobs = 1,
    ) -> None:  # fmt: skip
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
        self._batches: dict[Key, int] = {}  # design -> its batch, of the full ones
        self._tail: list[Key] = []  # designs of the batch in progress
        self._short = -1  # a batch that needs more designs than those of its share
        sampler = legal_sampler(plan.sampler, space, SeedSequence(0), (), rules, custom=plan.custom)
        lessons: Lessons = "generation" if isinstance(sampler.base, BaseGASampler) else "all"
        if sampler.base is None or isinstance(sampler.base, optuna.samplers.RandomSampler | ScreeningSampler):
            lessons = "none"
        self._learning = LearningStudy(stored.directions, lessons, plan.batch_size, plan.concurrency)
        self._memories: dict[int, Mapping[str, Any]] = {}  # of the last batches
        self._inner: InnerSearch | None = None
        if space.inner:
            box = Box(*(np.array(corner) for corner in stored.user_attrs[BOX]))
            self._inner = InnerSearch(space, rules or rules_for(space), box, plan.batch_size, plan.concurrency)
        self.distributions = {p.name: p.distribution for p in space.recorded}
        self._records_kernels = bool(space.solved)
        self._starts = [space.outer.key(start) for start in space.starting_points]
        self.refresh()

    @property
    def current(self) -> int:
        """The batch in progress: the first that is not full. [-]"""
        return self.complete // self.plan.batch_size

    # Reading the study.

    def refresh(self) -> None:
        """Read the trials of the database that are not known yet."""
        with self._store.database.transaction():
            self._refresh()

    def _refresh(self) -> None:
        """Read new trials of a database as it is at one moment."""
        moment = self._store.moment(self._stored, attribute=BREAKDOWN, first=self.rows)
        stored = moment.params.keys()
        if stored and not all(parameter.name in stored for parameter in self.space.solved):
            self._records_kernels = False  # an earlier version began the study, and all trials are alike
        with self._store.reading(self._stored.study_id, "trial_params"):
            designs = zip(*moment.params.values(), strict=True)
            keys = [self.space.outer.key(dict(zip(moment.params, design, strict=True))) for design in designs]
        places = range(self.complete, self.complete + len(keys))
        values = [objective.key for objective in self.space.objectives]
        winners = stored_winners(self._store, self._stored, values, first=self.rows) if self._inner else {}
        self._count(keys, moment.trials, winners)
        self.rows = moment.rows
        kept = range(max(self.current - 2 * self.plan.concurrency + 1, 0), self.current)
        with self._store.reading(self._stored.study_id, "study_user_attributes"):
            self._memories = {number: self._memory(moment, number) for number in kept}
        needed = self._needed(places)
        ids = moment.trials.ids[np.array(needed, dtype=np.intp) - places.start]
        lessons = self._store.some_trials(self._stored.study_id, ids, user_attrs=False)
        self._learning.learn(dict(zip(needed, map(self._sampled, lessons), strict=True)))

    def _sampled(self, trial: FrozenTrial) -> FrozenTrial:
        """A trial with the parameters that samplers propose alone."""
        if self.space.solved:
            names = self.space.by_name
            trial.params = {name: value for name, value in trial.params.items() if name in names}
            trial.distributions = {name: self.distributions[name] for name in trial.params}
        return trial

    def _memory(self, moment: Moment, number: int) -> Mapping[str, Any]:
        """The memory of the sampler after a batch."""
        memory: Mapping[str, Any] = moment.user_attrs.get(self._slot(number), {})
        if FOUND in memory:
            Archive.unpacked(memory[FOUND]["archive"], len(self.space.parameters), len(self.space.objectives))
        return memory

    def _slot(self, number: int) -> str:
        """Study attribute with the memory of a batch: those from which batches may go on have one each."""
        slots = 2 * self.plan.concurrency - 1
        return MEMORY if slots == 1 else f"{MEMORY}:{number % slots}"

    def _needed(self, places: Sequence[int]) -> list[int]:
        """Trials among some that a sampler may read; those that none reads any more are forgotten."""
        first = max(self.current - self.plan.concurrency, 0)
        memories = [memory for number, memory in self._memories.items() if number >= first]
        self._learning.keep(first * self.plan.batch_size, memories)
        return self._learning.needed(places, first * self.plan.batch_size, memories)

    def _count(self, keys: Sequence[Key], trials: TrialColumns, winners: Mapping[int, Any]) -> None:
        """Record finished trials, and their winners."""
        first = self.complete - len(self._tail)
        self.complete += len(keys)
        self.infeasible += int((~trials.feasible).sum())
        fronts = [trials.objectives[trials.feasible]]
        if self._inner:
            fronts = winner_values([o.key for o in self.space.objectives], trials, winners)
            self._inner.learn(fronts)
        values = np.vstack([self._best, *fronts])
        self._best = np.where(self._minimize, values.min(axis=0), values.max(axis=0))
        self._tail += keys
        full = len(self._tail) // self.plan.batch_size * self.plan.batch_size
        for number, key in enumerate(self._tail[:full], start=first):
            self._batches.setdefault(key, number // self.plan.batch_size)
        self._tail = self._tail[full:]

    def best(self) -> dict[str, float]:
        """Objective -> best value among the feasible designs; empty when there is none."""
        if self.infeasible == self.complete:
            return {}
        return {o.key: float(best) for o, best in zip(self.space.objectives, self._best, strict=True)}

    # Proposals.

    def window(self, budget: int) -> range:
        """Batches that can be proposed and evaluated now, within a budget of trials.

        A batch that the budget cuts short has to wait until it is the batch in progress, and so has one that
        its share cannot fill, and all while designs to start from are not evaluated.
        """
        first, whole = self.current, budget // self.plan.batch_size
        stop = max(min(first + self.plan.concurrency, whole), first + 1)
        if first == 0 or self._pending(first - 1):
            stop = first + 1
        if first < self._short < stop:
            stop = self._short
        return range(first, stop if self.complete < budget else first)

    def _pending(self, last: int) -> bool:
        """True if initial designs are missing from the trials of the batches up to one."""
        memory = self._memories.get(last, {})
        if FOUND in memory:
            return bool(memory[FOUND]["starts"] < len(self._starts))
        known = Known(self._batches, last)
        return any(start not in known for start in self._starts)

    def proposed(self, number: int, budget: int) -> Batch | None:
        """A batch, as far as it is not stored and within the budget; None where it has to wait for others.

        It goes on from the batch before it in its share. In its turn, it goes on from the batch right before
        it, and takes designs of all shares, where its share has too few of them.
        """
        concurrency, own_turn = self.plan.concurrency, number == self.current
        alone = concurrency == 1 or number == 0 or (own_turn and self._pending(number - 1))
        batch = self._asked(number, number - 1 if alone else base_of(number, concurrency), alone=alone)
        if not alone and (len(batch.proposals) < self.plan.batch_size or self._clashes(number, batch.proposals)):
            if not own_turn:
                self._short = number
                return None
            batch = self._asked(number, number - 1, alone=True)
        if own_turn:
            batch.proposals = self._left(batch.proposals, budget)
        return batch

    def due(self, batch: Batch, budget: int) -> list[FrozenTrial]:
        """The finished trials of a batch that can be stored now, within the budget.

        There are none if it is not its turn, or if others have found its designs.
        """
        clashing = batch.number != self.current or self._clashes(batch.number, batch.finished)
        return [] if clashing else self._left(batch.finished, budget)

    def _left(self, trials: Sequence[FrozenTrial], budget: int) -> list[FrozenTrial]:
        """Trials among some that are left to be stored of the batch in progress, within the budget."""
        done, left = set(self._tail), self.plan.batch_size - len(self._tail)
        fresh = [trial for trial in trials if self.space.outer.key(trial.params) not in done]
        return fresh[: min(left, budget - self.complete)]

    def _clashes(self, number: int, trials: Sequence[FrozenTrial]) -> bool:
        """True if designs of a batch are trials of earlier batches."""
        known = Known(self._batches, number - 1)
        return any(self.space.outer.key(trial.params) in known for trial in trials)

    def _asked(self, number: int, base: int, *, alone: bool) -> Batch:
        """The designs of a batch that goes on from another; fewer where no more are found."""
        concurrency, parameters = self.plan.concurrency, self.space.outer.space.parameters
        sampler = legal_sampler(
            self.plan.sampler,
            self.space,
            SeedSequence([self.plan.seed, number]),
            Known(self._batches, base),
            self.rules,
            custom=self.plan.custom,
            share=None if alone else DesignShare(number % concurrency, concurrency, parameters),
            focus=self.plan.focus,
            jobs=self.jobs,
        )
        self._learning.go_on((base + 1) * self.plan.batch_size, self._memories.get(base, {}))
        size = self.plan.batch_size if sampler.varying else max(0, 1 - self.complete)
        asked = []
        try:
            for _ in range(size):
                asked.append(self._learning.asked(sampler))
        except SpaceExhausted:
            pass  # the batch ends early; the next one will be empty
        return Batch(number, base, asked)

    # Finished designs.

    def evaluate(self, batch: Batch) -> None:
        """Turn the proposals of a batch into finished trials: exact parameters are solved for each."""
        designs = [WholeDesign(trial.params) for trial in batch.proposals]
        if self._inner:
            begun, outer = batch.number == self.current, [design.params for design in designs]
            designs = self._inner.whole(outer, self.jobs, base=batch.base, begun=begun)
        columns = self.space.encode([design.params for design in designs])
        evaluation = evaluate(self.space, columns, rules=self.rules, jobs=self.jobs)
        attributes = trial_attributes(self.space, evaluation)
        values, violations = finite(evaluation, self._minimize)
        choices = kernel_choices(self.space, columns) if self._records_kernels else [{}] * len(designs)
        for row, (trial, design) in enumerate(zip(batch.proposals, designs, strict=True)):
            for limit, violation in zip(self.space.limits, violations[row], strict=True):
                trial.set_constraint(limit.key, violation)
            if not np.isfinite(evaluation.values[row]).all():
                trial.set_constraint("finite_objectives", 1.0)
            told = self._learning.told(trial, values[row].tolist(), attributes[row])
            finished = self._completed(told, design) if self._inner else told
            if choices[row]:
                finished.params = {**finished.params, **choices[row]}
                finished.distributions = self.distributions
            batch.finished.append(finished)
        batch.memory = self._learning.memory()

    def _completed(self, trial: FrozenTrial, design: WholeDesign) -> FrozenTrial:
        """A finished trial with its inner parameters, and its other winners."""
        trial.params, trial.distributions = design.params, self.distributions
        trial.set_user_attr(WINNERS, design.winners)
        trial.set_user_attr(DESIGNS_PRICED, trial.user_attrs.get(DESIGNS_PRICED, 0) + design.evaluated)
        return trial

    def attributes(self, batch: Batch) -> dict[str, Any]:
        """Study attributes to store with a batch: counts, and the memory of the sampler when the batch is whole."""
        memory = {**batch.memory}
        counted = {"rows": self.rows, "complete": self.complete, "infeasible": self.infeasible, "best": self.best()}
        count: dict[str, Any] = {COUNTED: counted}
        if FOUND in memory:
            before, base = (
                self._memories.get(number, {}).get(FOUND, {}).get(DESIGNS_PRICED, 0)
                for number in (batch.number - 1, batch.base)
            )
            count[DESIGNS_PRICED] = memory[FOUND][DESIGNS_PRICED] + before - base
            memory[FOUND] = {**memory[FOUND], DESIGNS_PRICED: count[DESIGNS_PRICED]}
        whole = len(self._tail) + len(batch.finished) == self.plan.batch_size
        return {**count, self._slot(batch.number): memory} if whole and memory else count

    def stored(self, batch: Batch, attributes: Mapping[str, Any]) -> None:
        """Take note of a batch that the database has accepted."""
        finished = batch.finished
        places = range(self.complete, self.complete + len(finished))
        if batch.proposals and len(finished) == self.plan.batch_size:
            self._learning.grow(places)
        if self._slot(batch.number) in attributes:
            self._memories[batch.number] = attributes[self._slot(batch.number)]
            self._memories.pop(batch.number - 2 * self.plan.concurrency + 1, None)
        keys = [self.space.outer.key(trial.params) for trial in finished]
        values = np.array([trial.values for trial in finished])
        feasible = np.array([all(excess <= 0 for excess in trial.constraints.values()) for trial in finished])
        numbers = np.arange(len(finished))
        winners = {number: trial.user_attrs.get(WINNERS, ()) for number, trial in enumerate(finished)}
        self._count(keys, TrialColumns(numbers, numbers, values, feasible), winners)
        self.rows += len(finished)
        needed = self._needed(places)
        self._learning.learn({number: lesson(finished[number - places.start]) for number in needed})
