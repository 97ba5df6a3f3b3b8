"""A study: a space, its sampler, and its trials, all in one database.

The space is stored as text with the study, and so are seed, sampler and profile. A study therefore continues on any
machine, and refuses a space or a cost model with other results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import index
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from costmodel.columns import IntArray
from costmodel.errors import DseError, ParameterError
from costmodel.rules.registry import NATIVE
from dse.arguments import Layouts, checked_methods
from dse.fronts import Box, thinned
from dse.pricing.evaluated import rules_for
from dse.pricing.workers import Jobs
from dse.searching import study_attributes
from dse.searching.batches.history import BOX, COUNTED, Plan
from dse.searching.batches.loop import Callback, Outcome, Progress, reporting, search, stopped
from dse.searching.price_check import Mismatch, mismatches, price_change
from dse.searching.samplers.samplers import DEFAULT_SAMPLER, sampler_choice
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED
from dse.searching.trials.measured_runs import MeasuredRun, told_runs
from dse.searching.trials.trial_table import (
    BREAKDOWN,
    Details,
    TrialTable,
    check_trials,
    stored_winners,
    winner_columns,
)
from dse.spaces.space import Params, Space
from dse.storage.database import optuna_url, storage_url
from dse.storage.optuna_store import METRIC_NAMES, Store, StoredStudy

if TYPE_CHECKING:
    import pandas as pd


#: Lines that say how two spaces differ, at most.
MOST_LINES: Final = 4


class OtherStudy(DseError):
    """A study of that name searches another space, or its trials were evaluated by another cost model."""


@checked_methods
class BaseStudy:
    """A stored study and the search that adds to it; nothing is kept open between calls."""

    def __init__(self, stored: StoredStudy, space: Space, storage: str) -> None:
        self.name = stored.name
        self.space = space
        self.storage = storage
        self.attributes = stored.user_attrs
        self._stored = stored
        self._table: TrialTable | None = None
        self._counts: Counter[TrialState] = Counter()

    @classmethod
    def create(
        cls, space: Space, name: str | None = None, *, storage: str | None = None, seed: int = 0,
        sampler: str | None = None, profile: str = NATIVE,
    ) -> Self:  # fmt: skip
        """Create a study in a database.

        `name` is by default that of the space, `storage` a database URL, by default ``$DSE_STORAGE`` or
        ``sqlite:///dse.db``. The same `seed` gives the same trials. [-] `sampler` is one of
        `dse.searching.samplers.samplers.SAMPLERS`, `profile` one of `costmodel.rules.registry.profiles()`.

        Raises `DseError` if there is a study of that name, or the database cannot be used.
        """
        storage, name = storage_url(storage), name or space.name
        attributes = study_attributes.new_attributes(space, sampler or DEFAULT_SAMPLER, seed, profile)
        with Store(storage, "create") as store:
            if store.find(name):
                raise DseError(f"study {name!r}: already in {store.where}; continue it, or choose another name")
            return cls(study_attributes.new_study(store, name, space, attributes), space, storage)

    @classmethod
    def load(cls, name: str, *, storage: str | None = None) -> Self:
        """The study of that name, its space included.

        Raises `DseError` if there is no such study, or dse did not make it.
        """
        storage = storage_url(storage)
        with Store(storage, "read") as store:
            stored = store.study(name)
            return cls(stored, study_attributes.stored_space(store, stored), storage)

    @classmethod
    def open(
        cls, space: Space, name: str | None = None, *, storage: str | None = None, seed: int | None = None,
        sampler: str | None = None, profile: str | None = None,
    ) -> Self:  # fmt: skip
        """The study of that name if it searches this very space, else a new one.

        Raises `OtherStudy` if the study of that name searches another space, `DseError` if it has another seed, sampler
        or profile than asked for.
        """
        storage, name = storage_url(storage), name or space.name
        chosen = sampler or DEFAULT_SAMPLER
        sampler_choice(chosen)  # a wrong name is reported before a database comes into being
        rules_for(space, profile or NATIVE)
        with Store(storage, "create") as store:
            stored = store.find(name)
            if stored is None:
                attributes = study_attributes.new_attributes(space, chosen, seed or 0, profile or NATIVE)
                stored = study_attributes.new_study(store, name, space, attributes)
            study_attributes.check_attributes(store, stored)
            same = stored.user_attrs[study_attributes.FINGERPRINT] == space.fingerprint
            study = cls(stored, space if same else study_attributes.stored_space(store, stored), storage)
        study._refuse_mixing(seed=seed, sampler=sampler, profile=profile)
        study._refuse_other(space)
        return study

    def _refuse_mixing(self, **asked: Any) -> None:
        """Refuse to search with another seed, sampler or profile than the study has; None is as it is."""
        has = {"seed": self.plan.seed, "sampler": self.plan.sampler, "profile": self.profile}
        for what, value in asked.items():
            if value is not None and value != has[what]:
                raise ParameterError(
                    f"study {self.name!r}: has {what} {has[what]}, not {value}; continue it with "
                    f"`dse resume {quote(self.name)}`, or start another with {{study}}"
                )

    def _refuse_other(self, space: Space) -> None:
        """Refuse a space that is not the study's, with the difference and a remedy."""
        if space.fingerprint == self.space.fingerprint:
            return
        keys = " and ".join(study_attributes.differences(self.space, space)) or "definition"
        lines = study_attributes.changed_values(self.space, space)
        more = [f"and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
        values = "; ".join([*lines[:MOST_LINES], *more])
        what = f"(differs in {keys})" + (f": {values}" if values else "")
        raise OtherStudy(
            f"study {self.name!r}: searches another space {what}; continue it with "
            f"`dse resume {quote(self.name)}`, or {self._anew}"
        )

    @property
    def _anew(self) -> str:
        """Advice where the trials of a study cannot be continued."""
        command = f"dse search ... --study NEW --warm-start {quote(self.name)}"
        return f"start a new study from its best designs: `{command}`"

    def changes(self) -> list[str]:
        """Changes since the trials of the study were evaluated, one line each; none where results stay the same.

        Some of its trials, or all where they are few, are evaluated again with its space.
        """
        with Store(self.storage, "read") as store, store.database.transaction():
            columns = store.columns(self._stored, attribute=BREAKDOWN)
            changed = price_change(store, self._stored, columns, self.space, rules_for(self.space, self.profile))
        return [*self.other_version(), changed] if changed else []

    def other_version(self) -> list[str]:
        """Which dse made the study, as a line, where that is not this one."""
        was, now = self.attributes.get(study_attributes.VERSIONS, {}).get("dse"), study_attributes.versions()["dse"]
        return [f"version: dse {was} stored, {now} now"] if was not in (None, now) else []

    def refuse_changes(self) -> None:
        """Raise `OtherStudy` if the cost model gives other results for the trials than are stored."""
        if changed := self.changes():
            raise OtherStudy(
                f"study {self.name!r}: its trials were evaluated differently: {'; '.join(changed)}; "
                f"`dse studies {quote(self.name)} --check` lists the differences; {self._anew}"
            )

    def differing(self, jobs: Jobs = 1, *, most: int | None = None) -> Iterator[tuple[int, list[Mismatch]]]:
        """Stored figures that differ in any bit from those of the cost model now.

        Yields, for each block, the number of trials and the figures that differ. `most` trials are evaluated, spread
        over all of them (default: all). [-]
        """
        with Store(self.storage, "read") as store, store.database.transaction():
            columns = store.columns(self._stored, attribute=BREAKDOWN)
            columns = columns if most is None else columns.take(thinned(np.arange(len(columns.ids)), most))
            yield from mismatches(store, self._stored, columns, self.space, rules_for(self.space, self.profile), jobs)

    @property
    def foreign(self) -> int:
        """Finished trials of other programs, whose evaluation is unknown. [-]"""
        with Store(self.storage, "read") as store, store.database.transaction():
            finished = store.counts(self._stored.study_id)[TrialState.COMPLETE]
            return int(finished - len(store.columns(self._stored, attribute=BREAKDOWN).ids))

    def steer(self, focus: str | None, starts: Layouts) -> None:
        """Change the focus of its next batches, for this run and those that resume it.

        `focus` is a condition, such as ``step_time < 15 s``; "" lifts it. `starts` are (partial) designs to evaluate
        first.

        Raises `DseError` if the space has no design with that focus, or the sampler supports none.
        """
        changes: dict[str, Any] = {}
        if focus is not None:
            if self.plan.sampler != DEFAULT_SAMPLER:
                raise DseError(f"study {self.name!r}: a focus needs sampler {DEFAULT_SAMPLER}, it has "
                               f"{self.plan.sampler}")  # fmt: skip
            if focus:
                self.space.within_focus(focus)
            changes[study_attributes.FOCUS] = focus
        if starts:
            self.space = self.space.with_layouts(starts)
            changes[study_attributes.SPACE] = self.space.text
        if changes:
            self.attributes = {**self.attributes, **changes}
            with Store(self.storage, "write") as store:
                store.set_user_attrs(self._stored.study_id, changes)

    @property
    def plan(self) -> Plan:
        """Settings by which the study proposes designs."""
        stored = self.attributes
        focus, concurrency = stored.get(study_attributes.FOCUS, ""), stored.get(study_attributes.CONCURRENCY, 1)
        fixed = study_attributes.SAMPLER, study_attributes.SEED, study_attributes.BATCH_SIZE
        sampler, seed, batch_size = (stored[name] for name in fixed)
        return Plan(sampler, seed, batch_size, focus, concurrency)

    @property
    def profile(self) -> str:
        """Name of the rules that evaluate its designs."""
        return str(self.attributes.get(study_attributes.PROFILE, NATIVE))

    @property
    def budget(self) -> int:
        """Finished trials that the last run was to reach. [-]

        Raises `DseError` if there was no run yet.
        """
        if study_attributes.BUDGET not in self.attributes:
            raise DseError(f"study {self.name!r}: did not run yet and has no budget; name one")
        return int(self.attributes[study_attributes.BUDGET])

    def run(
        self, budget: int | None = None, *, jobs: Jobs = 1, sampler: BaseSampler | None = None,
        progress: Callable[[Progress], None] | bool | None = None, callbacks: Sequence[Callback] = (),
    ) -> Outcome:  # fmt: skip
        """Search until the study holds `budget` finished trials in all, or every legal design.

        A KeyboardInterrupt passes through; all batches before it are stored.

        Parameters
        ----------
        budget : int, optional
            Finished trials in all, those of earlier runs included; by default that of the last run. It
            is stored, so that a run that was killed can be resumed to its end. [-]
        jobs : int or Workers
            Processes that evaluate designs, or who else does. [-]
        sampler : BaseSampler, optional
            A sampler of Optuna or yours, which proposes in the place of the study's for this run. Proposals are made
            legal and new; it learns from all trials of the study. The same trials come again only if it proposes the
            same.
        progress : callable or bool, optional
            Called at the start and after every batch; True draws a bar, in notebooks too.
        callbacks : sequence of callables
            Called with the study in Optuna's hands and each trial that this run stored, once its batch is;
            ``study.stop()`` there ends the run, as in `optuna.Study.optimize`.
        """
        budget = self.budget if budget is None else budget
        self.refuse_changes()
        with Store(self.storage, "write") as store, reporting(self.space, progress) as update:
            if budget != self.attributes.get(study_attributes.BUDGET):
                self.attributes = {**self.attributes, study_attributes.BUDGET: budget}
                store.set_user_attrs(self._stored.study_id, {study_attributes.BUDGET: budget})
            plan, rules = replace(self.plan, custom=sampler), rules_for(self.space, self.profile)
            stops = partial(stopped, self.optuna, callbacks) if callbacks else None
            return search(
                store, self._stored, self.space, plan, budget, rules=rules, jobs=jobs, progress=update, stops=stops
            )

    @property
    def table(self) -> TrialTable:
        """The finished trials, read again when there are more of them."""
        study_id = self._stored.study_id
        with Store(self.storage, "read") as store, store.database.transaction():
            counts = store.counts(study_id)
            if self._table is None or counts != self._counts:
                columns, winners = store.columns(self._stored, attribute=BREAKDOWN), None
                if self.space.inner:
                    keys = [objective.key for objective in self.space.objectives]
                    winners = winner_columns(keys, columns, stored_winners(store, self._stored, keys))
                self._table = TrialTable(
                    self.space, columns, self._trials, self.profile, winners, Details(self.storage, self._stored)
                )
                self._counts = counts
            return self._table

    def _trials(self, ids: IntArray) -> list[FrozenTrial]:
        """All that is known of some trials."""
        with Store(self.storage, "read") as store:
            trials = store.some_trials(self._stored.study_id, ids)
            with store.reading(self._stored.study_id, "trial_params"):
                _ = [trial.params[name] for trial in trials for name in self.space.by_name]
            with store.reading(self._stored.study_id, "trial_user_attributes"):
                check_trials(trials)
        return trials

    def trials(self) -> pd.DataFrame:
        """All finished trials; names of columns end in their units."""
        return self.table.to_frame()

    def pareto_front(self) -> pd.DataFrame:
        """The feasible designs found that no other beats, the best of the first objective first."""
        return self.table.front().to_frame()

    def told_runs(self) -> list[MeasuredRun]:
        """Runs of trials on a real cluster, in the order of time; `DseError` if they are damaged."""
        return told_runs(self.storage, self.name)

    def design(self, trial: int | None = None) -> tuple[int, Params]:
        """A finished trial and its parameters; by default the best one by the first objective. [-]

        Raises `DseError` if there is none.
        """
        table = self.table.found()
        rows = np.flatnonzero(table.numbers == trial)
        if trial is None:
            table, rows = table.front(), np.arange(1)
            if not len(table):
                raise ParameterError(f"study {self.name!r}: has no feasible design yet; name a {{trial}}")
        elif not rows.size:
            table = self.table
            rows = np.flatnonzero(table.numbers == trial)
        if not rows.size:
            raise DseError(f"study {self.name!r}: has no finished trial {trial}")
        [finished] = table.take(rows[:1]).trials
        return finished.number, dict(finished.params)

    @property
    def designs_priced(self) -> int:
        """Designs that were evaluated to find its trials; 0 where only the trials were evaluated. [-]"""
        with Store(self.storage, "read") as store:
            if self.space.inner:
                return sum(store.attribute(self._stored, DESIGNS_PRICED).values())
            return int(store.study(self.name).user_attrs.get(DESIGNS_PRICED, 0))

    @cached_property
    def box(self) -> Box:
        """Where hypervolume is measured: between the best and the worst values of legal random designs."""
        ideal, reference = (np.array(corner) for corner in self.attributes[BOX])
        return Box(ideal, reference)

    @property
    def hypervolume(self) -> float:
        """Volume that the front dominates, as a multiple of `box`; above 1 where it exceeds the ideal. [-]"""
        return self.box.hypervolume(self.table.front().costs)

    def hypervolume_history(self, most: int | None = None) -> pd.DataFrame:
        """Hypervolume after each finished trial: ``trial`` and ``hypervolume``; of `most` trials, evenly spread. [-]"""
        import pandas as pd

        table, designs = self.table, self.table.found()
        last = np.searchsorted(designs.numbers, table.numbers, side="right") - 1
        costs = np.full_like(designs.costs, np.nan)
        rows = thinned(np.arange(len(designs)), most or len(designs))
        costs[rows] = designs.costs[rows]
        return pd.DataFrame({"trial": table.numbers, "hypervolume": self.box.history(costs)[last]})

    @cached_property
    def optuna(self) -> optuna.Study:
        """The study in Optuna's hands, for its plots, importances and dashboards."""
        from sqlalchemy.pool import NullPool

        # Optuna never closes its connections; without a pool it holds none between calls.
        storage = optuna.storages.RDBStorage(optuna_url(self.storage), engine_kwargs={"poolclass": NullPool})
        return optuna.load_study(study_name=self.name, storage=storage)


@dataclass(frozen=True)
class Summary:
    """One study of a database, in a line."""

    name: str
    space: str | None  #: None when dse did not make the study
    sampler: str | None
    complete: int
    failed: int
    running: int
    infeasible: int  #: of those that were read
    best: Mapping[str, float]  #: objective -> best value among the feasible trials that were read
    unread: int  #: trials behind the last stored counts that were too many to read [-]


#: Trials that `studies` reads at most, in all studies together, where no search has stored their counts.
MOST_UNCOUNTED: Final = 20_000


def studies(storage: str | None = None, study: str | None = None) -> list[Summary]:
    """The studies of a database, the oldest first; of one `study` all trials are read.

    Raises `DseError` if there is no database, or it cannot be read.
    """
    with Store(storage_url(storage), "read") as store, store.database.transaction():
        names = [name for name in store.names() if study in (None, name)]
        most = np.inf if study else MOST_UNCOUNTED // max(len(names), 1)
        return [summary(store, store.study(name), most) for name in names]


def summary(store: Store, stored: StoredStudy, most: float) -> Summary:
    """Counts and best values of one study: those that were stored with its last batch, and of trials since then.

    If there are more than `most` trials since then, all are counted, and no others are read. [-]
    """
    counts = store.counts(stored.study_id)
    ours = study_attributes.SPACE in stored.user_attrs
    if ours:
        study_attributes.check_attributes(store, stored)
    with store.reading(stored.study_id, "study_system_attributes"):
        usual = [f"value_{number}" for number in range(len(stored.directions))]
        names = ["".join(name) for name in stored.system_attrs.get(METRIC_NAMES) or usual]  # no text, no name
    with store.reading(stored.study_id, f"study_user_attributes: {COUNTED}"):
        before = stored.user_attrs.get(COUNTED, {"rows": 0, "complete": 0, "infeasible": 0, "best": {}})
        rows, complete, infeasible = (index(before[name]) for name in ("rows", "complete", "infeasible"))
        known = np.array([[float(before["best"][name]) for name in names]] if before["best"] else [])
    since = store.rows(stored.study_id) - rows
    unread = since if since > most else 0
    designs = columns = store.columns(stored, attribute=BREAKDOWN if ours else None, first=rows + unread)
    if study_attributes.INNER in stored.user_attrs:
        designs = winner_columns(names, columns, stored_winners(store, stored, names, first=rows + unread))
    feasible = np.vstack([known.reshape(-1, len(stored.directions)), designs.objectives[designs.feasible]])
    best = {
        name: float(values.min() if direction == "minimize" else values.max())
        for name, direction, values in zip(names, stored.directions, feasible.T, strict=False)
        if len(feasible)
    }
    return Summary(
        name=stored.name,
        space=stored.user_attrs.get(study_attributes.SPACE_NAME),
        sampler=stored.user_attrs.get(study_attributes.SAMPLER),
        complete=counts[TrialState.COMPLETE] if unread else complete + len(columns.ids),
        failed=counts[TrialState.FAIL],
        running=counts[TrialState.RUNNING],
        infeasible=infeasible + int((~columns.feasible).sum()),
        best=best,
        unread=unread,
    )
