"""A study: a space, how it is searched, and what was found, all in one database."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from costmodel.columns import IntArray
from costmodel.errors import DseError
from dse.fronts.hypervolume import Box
from dse.fronts.pareto import as_costs
from dse.pricing.evaluation import evaluate, remedies
from dse.pricing.profiles import NATIVE, rules_for
from dse.pricing.workers import Jobs
from dse.search.finished import BREAKDOWN
from dse.search.history import BOX, Plan
from dse.search.inner import WINNERS
from dse.search.loop import Outcome, Progress, search
from dse.search.samplers import DEFAULT_SAMPLER, lanes_of, sampler_choice
from dse.search.screening_sampler import DESIGNS_PRICED
from dse.search.trial_table import TrialTable
from dse.search.winners import winner_columns
from dse.spaces.space import Params, Space
from dse.storage.database import optuna_url, storage_url
from dse.storage.optuna_store import Store, StoredStudy

if TYPE_CHECKING:
    import pandas as pd

#: Attributes of a study in the database, beside those of `dse.search.history`.
SPACE, SPACE_NAME, FINGERPRINT = "dse:space", "dse:space_name", "dse:fingerprint"
SAMPLER, SEED, BATCH_SIZE = "dse:sampler", "dse:seed", "dse:batch_size"
BUDGET, PROFILE, FOCUS, VERSIONS = "dse:budget", "dse:profile", "dse:focus", "dse:versions"
LANES, INNER = "dse:lanes", "dse:exact_parameters"

#: Legal designs, drawn when a study is created, that span the box in which hypervolume is measured; and of
#: machines, each of which has all layouts of its workloads priced.
BOX_SAMPLE, MACHINES_SAMPLE = 1024, 64


class Study:
    """A study in a database. `create`, `load` or `open` one; `run` it; read `trials` and `pareto_front`.

    Nothing is kept open between calls, so a study that another process continues is read afresh.
    """

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
        cls,
        space: Space,
        name: str | None = None,
        *,
        storage: str | None = None,
        seed: int = 0,
        sampler: str | None = None,
        profile: str = NATIVE,
    ) -> Study:
        """Start a study.

        Parameters
        ----------
        space : Space
            What to search.
        name : str, optional
            Name of the study; the space's own by default.
        storage : str, optional
            Database URL; ``$DSE_STORAGE`` or ``sqlite:///dse.db`` by default.
        seed : int
            The same seed gives the same trials. [-]
        sampler : str, optional
            One of `dse.search.samplers.SAMPLERS`.
        profile : str
            The rules that evaluate designs, one of `dse.pricing.profiles.PROFILES`.

        Raises
        ------
        DseError
            If there is a study of that name, or the database cannot be used.
        """
        storage, name = storage_url(storage), name or space.name
        attributes = new_attributes(space, sampler or DEFAULT_SAMPLER, seed, profile)
        with Store(storage, "create") as store:
            if store.find(name):
                raise DseError(
                    f"study {name!r}: already in {store.where}; continue it, or choose another name"
                )
            return cls(new_study(store, name, space, attributes), space, storage)

    @classmethod
    def load(cls, name: str, *, storage: str | None = None) -> Study:
        """The study of that name, its space included.

        Raises
        ------
        DseError
            If there is no such study, or dse did not make it.
        """
        storage = storage_url(storage)
        with Store(storage, "read") as store:
            return cls.of(store.study(name), storage)

    @classmethod
    def of(cls, stored: StoredStudy, storage: str) -> Study:
        """The study that a database holds; a `DseError` if dse did not make it."""
        if SPACE not in stored.user_attrs:
            raise DseError(
                f"study {stored.name!r}: not made by dse, it holds no search space; use optuna.load_study"
            )
        return cls(stored, Space.from_text(stored.user_attrs[SPACE]), storage)

    @classmethod
    def open(
        cls,
        space: Space,
        name: str | None = None,
        *,
        storage: str | None = None,
        seed: int | None = None,
        sampler: str | None = None,
        profile: str | None = None,
    ) -> Study:
        """The study of that name if it searches this very space, else a new one.

        Raises
        ------
        DseError
            If the study of that name searches another space, or with another seed, sampler or profile than
            asked for.
        """
        storage, name = storage_url(storage), name or space.name
        sampler_choice(
            sampler or DEFAULT_SAMPLER
        )  # a wrong name is reported before a database comes into being
        rules_for(space, profile or NATIVE)
        with Store(storage, "create") as store:
            stored = store.find(name)
            if stored is None:
                attributes = new_attributes(space, sampler or DEFAULT_SAMPLER, seed or 0, profile or NATIVE)
                stored = new_study(store, name, space, attributes)
        same = stored.user_attrs.get(FINGERPRINT) == space.fingerprint
        study = cls(stored, space, storage) if same else cls.of(stored, storage)
        study._check_same(space, seed, sampler, profile)
        return study

    def steer(self, focus: str | None, starts: Mapping[str, Params]) -> None:
        """Change what its next batches seek, for this run and those that resume it.

        Parameters
        ----------
        focus : str, optional
            A condition, such as ``step_time < 15 s``, beside which no design is sought; "" lifts it.
        starts : mapping
            Designs to be evaluated first, or parts of such, by name.

        Raises
        ------
        DseError
            If the space has no such designs, or the sampler knows no focus.
        """
        changes: dict[str, Any] = {}
        if focus is not None:
            if self.plan.sampler != DEFAULT_SAMPLER:
                raise DseError(f"study {self.name!r}: a focus needs sampler {DEFAULT_SAMPLER}, it has "
                               f"{self.plan.sampler}")  # fmt: skip
            if focus:
                self.space.within_focus(focus)
            changes[FOCUS] = focus
        if starts:
            self.space = self.space.with_layouts(starts)
            changes[SPACE] = self.space.text
        if changes:
            self.attributes = {**self.attributes, **changes}
            with Store(self.storage, "write") as store:
                store.set_user_attrs(self._stored.study_id, changes)

    def _check_same(self, space: Space, seed: int | None, sampler: str | None, profile: str | None) -> None:
        """Refuse what would mix two searches in one study."""
        advice = f"continue it with `dse resume {self.name}`, or start another with --study"
        if self.attributes[FINGERPRINT] != space.fingerprint:
            differing = " and ".join(differences(self.space, space)) or "definition"
            raise DseError(f"study {self.name!r}: searches another space (differs in {differing}); {advice}")
        for what, asked, has in (
            ("seed", seed, self.plan.seed),
            ("sampler", sampler, self.plan.sampler),
            ("profile", profile, self.profile),
        ):
            if asked is not None and asked != has:
                raise DseError(f"study {self.name!r}: has {what} {has}, not {asked}; {advice}")

    @property
    def plan(self) -> Plan:
        """How the study proposes designs."""
        own = self.attributes
        focus, lanes = own.get(FOCUS, ""), own.get(LANES, 1)
        return Plan(own[SAMPLER], own[SEED], own[BATCH_SIZE], focus, lanes)

    @property
    def profile(self) -> str:
        """Name of the rules that price its designs."""
        return str(self.attributes.get(PROFILE, NATIVE))

    @property
    def budget(self) -> int:
        """Finished trials that the last run was to reach. [-]

        Raises
        ------
        DseError
            If there was no run yet.
        """
        if BUDGET not in self.attributes:
            raise DseError(f"study {self.name!r}: was not run yet, so it has no budget; give it one")
        return int(self.attributes[BUDGET])

    def run(
        self,
        budget: int | None = None,
        *,
        jobs: Jobs = 1,
        progress: Callable[[Progress], None] | None = None,
    ) -> Outcome:
        """Search until the study holds `budget` finished trials in all, or every legal design.

        A KeyboardInterrupt passes through; all batches before it are stored.

        Parameters
        ----------
        budget : int, optional
            Finished trials in all, those of earlier runs included; by default that of the last run. It
            is stored, so that a run that was killed can be resumed to its end. [-]
        jobs : int or Workers
            Processes that evaluate designs, or who else does. [-]
        progress : callable, optional
            Called at the start and after every batch.
        """
        budget = self.budget if budget is None else budget
        if budget < 1:
            raise DseError(f"study {self.name!r}: budget {budget}: expected at least 1")
        with Store(self.storage, "write") as store:
            if budget != self.attributes.get(BUDGET):
                self.attributes = {**self.attributes, BUDGET: budget}
                store.set_user_attrs(self._stored.study_id, {BUDGET: budget})
            return search(
                store,
                self._stored,
                self.space,
                self.plan,
                budget,
                rules=rules_for(self.space, self.profile),
                jobs=jobs,
                progress=progress,
            )

    @property
    def table(self) -> TrialTable:
        """The finished trials, read again when there are more of them."""
        study_id = self._stored.study_id
        with Store(self.storage, "read") as store:
            counts = store.counts(study_id)
            if self._table is None or counts != self._counts:
                columns, found = store.columns(self._stored, attribute=BREAKDOWN), None
                if self.space.inner:
                    keys = [objective.key for objective in self.space.objectives]
                    found = winner_columns(keys, columns, store.attribute(self._stored, WINNERS))
                self._table = TrialTable(self.space, columns, self._trials, self.profile, found)
                self._counts = counts
            return self._table

    def _trials(self, ids: IntArray) -> list[FrozenTrial]:
        """All that is known of some trials."""
        with Store(self.storage, "read") as store:
            return store.some_trials(ids)

    def trials(self) -> pd.DataFrame:
        """All finished trials; names of columns end in their units."""
        return self.table.to_frame()

    def pareto_front(self) -> pd.DataFrame:
        """The feasible designs found that no other beats, the best of the first objective first."""
        return self.table.front().to_frame()

    @property
    def designs_priced(self) -> int:
        """Designs that were priced to find its trials; 0 where each trial is all that was priced. [-]"""
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
        """Share of `box` that the front dominates. [-]"""
        return self.box.hypervolume(self.table.front().costs)

    def hypervolume_history(self) -> pd.DataFrame:
        """Hypervolume after each finished trial: columns ``trial`` and ``hypervolume``."""
        import pandas as pd

        table, found = self.table, self.table.found()
        last = np.searchsorted(found.numbers, table.numbers, side="right") - 1
        return pd.DataFrame({"trial": table.numbers, "hypervolume": self.box.history(found.costs)[last]})

    @cached_property
    def optuna(self) -> optuna.Study:
        """The same study in Optuna's hands, for its plots, importances and dashboards."""
        from sqlalchemy.pool import NullPool

        # Optuna never closes its connections; without a pool it holds none between calls.
        storage = optuna.storages.RDBStorage(optuna_url(self.storage), engine_kwargs={"poolclass": NullPool})
        return optuna.load_study(study_name=self.name, storage=storage)


def new_attributes(space: Space, sampler: str, seed: int, profile: str = NATIVE) -> dict[str, Any]:
    """What a study keeps about itself, so that the database alone is enough to go on."""
    return {
        SPACE: space.text,
        SPACE_NAME: space.name,
        FINGERPRINT: space.fingerprint,
        SAMPLER: sampler,
        SEED: seed,
        BATCH_SIZE: sampler_choice(sampler).batch_size,
        LANES: lanes_of(sampler, space),
        PROFILE: profile,
        BOX: sampled_box(space, profile),
        VERSIONS: versions(),
    } | ({INNER: [parameter.name for parameter in space.inner]} if space.inner else {})


def new_study(store: Store, name: str, space: Space, attributes: Mapping[str, Any]) -> StoredStudy:
    """Store a study that has no trials yet; if another process was first, its study."""
    return store.create_study(
        name,
        [objective.direction for objective in space.objectives],
        metric_names=[objective.key for objective in space.objectives],
        user_attrs=attributes,
    )


def sampled_box(space: Space, profile: str = NATIVE) -> list[list[float]]:
    """Ideal and reference point from random legal designs, the feasible ones if there are any.

    It depends on space and profile alone, so hypervolumes of studies of one space can be compared.
    """
    points = MACHINES_SAMPLE if space.workloads else BOX_SAMPLE
    designs = space.legal.random(points, np.random.default_rng(0))
    evaluation = evaluate(space, designs, rules=rules_for(space, profile))
    costs = as_costs(evaluation.values, [objective.direction for objective in space.objectives])
    usable = np.isfinite(costs).all(axis=1)
    if (usable & evaluation.feasible).any():
        usable &= evaluation.feasible
    if not usable.any():
        unpriced = np.isnan(evaluation.breakdown.step_time)
        wanting = remedies(space, profile, {name: column[unpriced] for name, column in designs.items()})
        raise DseError(
            f"space {space.name}: no legal design has finite objectives under profile {profile}"
            + (f", {wanting}" if wanting else "; check its expressions, and what the profile knows")
        )
    box = Box.around(costs[usable])
    return [box.ideal.tolist(), box.reference.tolist()]


def versions() -> dict[str, str]:
    """What made a study: program and libraries."""
    return {
        "dse": version("dse"),
        "optuna": optuna.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def differences(one: Space, other: Space) -> list[str]:
    """Which keys of two spaces differ, as their files spell them."""
    texts = yaml.safe_load(one.text), yaml.safe_load(other.text)
    keys = dict.fromkeys(key for text in texts for key in text if key != "description")
    return [key for key in keys if texts[0].get(key) != texts[1].get(key)]
