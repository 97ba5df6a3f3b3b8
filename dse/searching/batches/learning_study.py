"""The study in memory from which a sampler learns: all finished trials, the last generation, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import optuna
from optuna.samplers import BaseGASampler, BaseSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial

from dse.searching.samplers.screening_sampler import ScreeningSampler
from dse.spaces.sections.parameters import Direction

#: Which of the finished trials a sampler reads.
Lessons = Literal["all", "generation", "none"]

#: Part of the study attributes of genetic samplers that list trials: the parents of a generation.
PARENTS = ":parent:"

#: Trials after which a study is made anew from the few that its sampler reads.
MOST_TRIALS = 400


def lessons_of(base: BaseSampler | None) -> Lessons:
    """Which trials a sampler reads: a genetic one breeds from the last generation and its parents."""
    if base is None or isinstance(base, optuna.samplers.RandomSampler | ScreeningSampler):
        return "none"
    return "generation" if isinstance(base, BaseGASampler) else "all"


class LearningStudy:
    """The trials that a sampler reads, as an Optuna study in memory.

    It grows by what it asks for, one for each share; where the sampler reads but a few trials, it is made
    anew from these after `MOST_TRIALS`, so that a batch takes no longer the larger the study is. Trials are
    known by their places, from 0, among the finished ones.
    """

    def __init__(self, directions: Sequence[Direction], lessons: Lessons, batch_size: int, concurrency: int) -> None:
        self._directions = list(directions)
        self._lessons = lessons
        self._batch_size = batch_size
        self._concurrency = concurrency
        self._trials: dict[int, FrozenTrial] = {}  # place -> trial
        self._study: optuna.Study | None = None
        self._places: list[int] = []  # of the trials of `_study`
        self._grown: dict[int, tuple[optuna.Study, list[int]]] = {}  # studies of the first so many trials

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
        if self._study is not None:
            oldest = places.stop - self._concurrency * self._batch_size
            self._grown = {full: grown for full, grown in self._grown.items() if full > oldest}
            self._grown[places.stop] = self._study, [*self._places, *places]

    def study(self, full: int, memory: Mapping[str, Any]) -> optuna.Study:
        """A study that knows what the sampler reads of the first `full` trials, which fill their batches."""
        self._study, self._places = self._grown.pop(full, (None, []))
        if self._study is None or (self._lessons != "all" and len(self._places) >= MOST_TRIALS):
            known = [number for number in sorted(self._trials) if number < full]
            self._places = self.needed(known, full - self._batch_size, [memory])
            with quiet():
                self._study = optuna.create_study(storage=InMemoryStorage(), directions=self._directions)
            for number in self._places:
                self._study._storage.create_new_trial(self._study._study_id, self._trials[number])
        numbers = {old: number for number, old in enumerate(self._places)}
        for key, value in memory.items():
            listed = [numbers[parent] for parent in value] if PARENTS in key else value
            self._study._storage.set_study_system_attr(self._study._study_id, key, listed)
        return self._study

    def memory(self) -> dict[str, Any]:
        """The memory of the sampler after a whole batch, with positions of trials.

        The newest entries are enough: the parents of a generation follow from those of the one before.
        """
        if self._study is None:
            return {}
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
