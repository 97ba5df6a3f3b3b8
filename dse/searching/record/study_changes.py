"""What has changed since the trials of a study were priced, and what becomes of the study then."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any, Final, Literal

import numpy as np
from optuna.trial import TrialState

from costmodel.columns import IntArray
from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from dse.fronts.pareto import as_costs, non_dominated
from dse.pricing.space_rules import nominal_rate, rules_for
from dse.pricing.workers import Jobs
from dse.searching.batches.claims import REVISION, drop_waiting
from dse.searching.batches.history import Plan
from dse.searching.record.checking import DESIGN, Mismatch, Repriced, blocks, evaluated_legal, unpacked
from dse.searching.record.creation import (
    ACCEPTED,
    CONTINUED,
    DIGEST,
    FINGERPRINT,
    SPACE,
    SPACE_NAME,
    VERSIONS,
    differences,
    digest,
    drawn_designs,
    versions,
)
from dse.searching.record.digest import (
    content,
    content_changes,
    incompatible,
    shipped_changes,
    with_shipped,
)
from dse.searching.record.repricing import Repricing, reprice
from dse.searching.trials.exact_winners import winner_columns
from dse.searching.trials.stored_content import stored_winners
from dse.searching.trials.trial_attributes import BREAKDOWN, WORST
from dse.spaces.space import Space
from dse.storage.damage import DAMAGED, damaged
from dse.storage.database import shown
from dse.storage.optuna_store import Store, StoredStudy
from dse.storage.trial_columns import TrialColumns

#: What to do where a study was made otherwise than it would be now: say so, go on, or price all trials anew.
OnChanges = Literal["refuse", "accept", "reprice"]

#: CPU time that pricing trials may take before a run, by the nominal rate of their space, and how many these
#: are at least and at most: the best ones, and as many others. [s], [-]
LOOK_SECONDS: Final = 0.2
FEWEST, MOST = 8, 256
#: Lines that say what has changed, at most.
MOST_LINES: Final = 12

LOG = logging.getLogger(__name__)


class StudyChanges(ABC):
    """The part of a study that knows whether its trials are what the cost model gives."""

    name: str
    space: Space
    storage: str
    attributes: Mapping[str, Any]
    repricing: Repricing | None = None  #: what pricing all trials anew has changed, if that was done here
    _stored: StoredStudy

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """How the study proposes designs."""

    @property
    @abstractmethod
    def profile(self) -> str:
        """Name of the rules that price its designs."""

    def changes(self) -> list[str]:
        """What has changed since its trials were priced, a line each; nothing where they would be the same.

        Space, model and system are compared by what they say, the cost model by what it gives: for a few
        designs that the study remembers, for its best trials and for some others.
        """
        with Store(self.storage, "read") as store, store.snapshot():
            return self._changes(store)

    def content_changes(self) -> list[str]:
        """What has changed in its space, its model and its system since they were remembered, a line each."""
        remembered = self.attributes.get(DIGEST)
        if not remembered:
            return []
        lines = content_changes(remembered["content"], content(self.space), self.space)
        return [*lines, *shipped_changes(remembered["shipped"])]

    def _changes(self, store: Store) -> list[str]:
        own = store.study(self.name).user_attrs
        reference = (own.get(DIGEST) or {}).get("reference")
        accepted, was = own.get(ACCEPTED, 0), own.get(VERSIONS, {}).get("dse")
        lines, now = self.content_changes(), versions()["dse"]
        looked, differing = self._looked_at(store, accepted)
        lines += figure_lines(differing, looked)
        if reference and not differing:
            again = self._reference(reference)
            lines += figure_lines(again, len(reference["feasible"]), of_trials=False)
        if lines and was and was != now:
            lines.insert(0, f"version: dse {was} stored, {now} now")
        return lines

    def _reference(self, told: Mapping[str, Any]) -> list[Mismatch]:
        """What the cost model gives otherwise for the designs that the study remembers."""
        where = shown(self.storage)
        try:
            stored = unpacked(self.space, told)
            designs = stored.designs if len(stored) else {}
        except DAMAGED as error:
            place = f"study {self.name!r}: study_user_attributes: {DIGEST}"
            raise damaged(where, place, json.dumps(told), "designs and what was found for them") from error
        if not designs:
            return []
        own_legal, found = evaluated_legal(self.space, designs, rules_for(self.space, self.profile))
        return Repriced(stored, found, own_legal).differences()

    def _looked_at(self, store: Store, accepted: int) -> tuple[int, list[Mismatch]]:
        """How many trials were looked at, from a number on, and which of their figures are others."""
        columns = store.columns(self._stored, attribute=BREAKDOWN)
        columns = columns.take(np.flatnonzero(columns.numbers >= accepted))
        found = columns
        if self.space.inner:
            keys = [objective.key for objective in self.space.objectives]
            found = winner_columns(keys, columns, stored_winners(store, self._stored, keys))
        count = int(np.clip(LOOK_SECONDS * nominal_rate(self.space), FEWEST, MOST))
        rows = np.isin(columns.ids, found.ids[best_rows(found, self._stored.directions, count)])
        rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.intp)] = True
        some = columns.take(np.flatnonzero(rows))
        rules = rules_for(self.space, self.profile)
        differing = [own for part in blocks(store, some, self.space, rules) for own in part.differences()]
        return len(some.ids), differing

    def check_unchanged(self) -> None:
        """Refuse to go on where something has changed, and remember who goes on.

        Raises
        ------
        DseError
            Saying what has changed, and what would do.
        """
        with Store(self.storage, "read") as store, store.snapshot():
            own = store.study(self.name).user_attrs
            if own.get(REVISION) != self.attributes.get(REVISION):
                raise DseError(f"study {self.name!r}: was priced anew meanwhile; load it again")
            lines = self._changes(store)
        if lines:
            more = [f"... and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
            name = quote(self.name)
            raise DseError("\n".join([
                f"study {self.name!r}: something has changed since its trials were priced:",
                *(f"  {line}" for line in [*lines[:MOST_LINES], *more]),
                f"`dse resume {name} --reprice` prices all trials anew and keeps the old values too, "
                f"--accept-changes goes on with what is stored, `dse check {name}` lists what differs",
            ]))  # fmt: skip
        self._remember(own)

    def _remember(self, own: Mapping[str, Any]) -> None:
        """Keep which versions go on with the study; and the digest, of one that was made without."""
        now, known = versions(), [own.get(VERSIONS), *own.get(CONTINUED, ())]
        changes: dict[str, Any] = {}
        if DIGEST not in own:
            changes[DIGEST] = digest(self.space, *drawn_designs(self.space, self.profile))
            LOG.warning("dse: study %s was made without a digest; some of its trials were priced again and "
                        "are the same", self.name)  # fmt: skip
        if now not in known:
            changes[CONTINUED] = [*own.get(CONTINUED, ()), now]
            if (made := (own.get(VERSIONS) or {}).get("dse")) not in (None, now["dse"]):
                LOG.warning("dse: study %s was made by dse %s; %s prices its designs alike", self.name, made,
                            now["dse"])  # fmt: skip
        if changes:
            with Store(self.storage, "write") as store:
                store.set_user_attrs(self._stored.study_id, changes)
            self.attributes = {**self.attributes, **changes}

    def differing(self, jobs: Jobs = 1) -> Iterator[tuple[int, list[Mismatch]]]:
        """All trials priced again, some thousands at a time: how many, and the stored figures that differ."""
        with Store(self.storage, "read") as store, store.snapshot():
            columns = store.columns(self._stored, attribute=BREAKDOWN)
            rules = rules_for(self.space, self.profile)
            for part in blocks(store, columns, self.space, rules, jobs):
                yield len(part.stored), part.differences()

    @property
    def foreign(self) -> int:
        """Finished trials of other programs: nothing says how these were priced. [-]"""
        with Store(self.storage, "read") as store, store.snapshot():
            finished = store.counts(self._stored.study_id)[TrialState.COMPLETE]
            return int(finished - len(store.columns(self._stored, attribute=BREAKDOWN).ids))

    def settle(self, changes: OnChanges, space: Space | None = None, *, jobs: Jobs = 1) -> None:
        """Go on in spite of what has changed, or price all trials anew; "refuse" does nothing here.

        Parameters
        ----------
        changes : OnChanges
            What to do.
        space : Space, optional
            Another space that the study is to search from now on, with the same parameters and objectives.
        jobs : int or Workers
            Processes that price, or who else does. [-]

        Raises
        ------
        DseError
            If trials of the study cannot be trials of that space.
        """
        if changes == "accept" and (space is not None or self.changes()):
            self._accept(space)
        if changes == "reprice":
            self._reprice(space, jobs)

    def _reprice(self, space: Space | None, jobs: Jobs) -> None:
        """Price all trials anew; parts of the space that ship become what they are now."""
        shipped = (self.attributes.get(DIGEST) or {}).get("shipped", {})
        if space is None and shipped_changes(shipped):
            space = with_shipped(self.space)
        if space is not None and (why := incompatible(self.space, space)):
            raise DseError(f"study {self.name!r}: another space now (differs in {why}); start another study")
        adopts, space = space is not None, space or self.space
        with Store(self.storage, "write") as store:
            self.repricing = reprice(store, self._stored, space, self.profile, adopts=adopts, jobs=jobs)
            self._reload(store, space)

    def _accept(self, space: Space | None) -> None:
        """Take all trials as they are stored, and go on by what holds now."""
        space = space or self.space
        with Store(self.storage, "write") as store, store.turn(self._stored.study_id):
            own = store.study(self.name).user_attrs
            known, now = [own.get(VERSIONS), *own.get(CONTINUED, ())], versions()
            changes = {
                SPACE: space.text,
                SPACE_NAME: space.name,
                FINGERPRINT: space.fingerprint,
                DIGEST: digest(space, *drawn_designs(space, self.profile)),
                CONTINUED: [*own.get(CONTINUED, ()), *([] if now in known else [now])],
                ACCEPTED: store.rows(self._stored.study_id),
                REVISION: own.get(REVISION, 0) + 1,
            }
            store.set_user_attrs(self._stored.study_id, changes)
            drop_waiting(store, self._stored.study_id)
            self._reload(store, space)

    def _reload(self, store: Store, space: Space) -> None:
        """Know the study as it is stored now."""
        self._stored, self.space = store.study(self.name), space
        self.attributes = self._stored.user_attrs
        self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Let go of what was read of the trials."""


def best_rows(found: TrialColumns, directions: Sequence[str], count: int) -> IntArray:
    """Rows of feasible designs that none beats: the best of each objective, and so many others."""
    objectives = np.where(np.abs(found.objectives) < WORST, found.objectives, np.nan)
    costs = as_costs(objectives, directions)
    costs[~found.feasible] = np.nan
    front = np.flatnonzero(non_dominated(costs))
    if front.size <= count:
        return front
    best = front[costs[front].argmin(axis=0)]
    return np.union1d(best, front[np.linspace(0, front.size - 1, count).astype(np.intp)])


def figure_lines(differing: Sequence[Mismatch], looked: int, *, of_trials: bool = True) -> list[str]:
    """What the cost model gives otherwise than is stored, as one line: the first trial that tells, and how
    many do."""
    if not differing:
        return []
    trials = {own.trial for own in differing}
    own = next((own for own in differing if own.column.startswith(("values.", DESIGN))), differing[0])
    what = f"trial {own.trial}" if of_trials else f"reference design {own.trial}"
    told = f"{what}: {own.column.removeprefix('values.')}: {figure_text(own, own.stored)} stored, "
    told += f"the cost model gives {figure_text(own, own.model)}"
    return [f"{told} ({len(trials)} of {looked} looked at differ)"]


def figure_text(own: Mismatch, value: Any) -> str:
    """A figure of a difference for people."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    numbers = [v for v in (own.stored, own.model) if isinstance(v, int | float)]
    texts = [readable(float(number), own.unit, digits=4) for number in numbers]
    if len(texts) == 2 and texts[0] == texts[1]:
        return readable(float(value), own.unit, digits=12)
    return readable(float(value), own.unit, digits=4)


def refuse_mixing(study: StudyChanges, *, seed: int | None, sampler: str | None, profile: str | None) -> None:
    """Refuse what would mix two searches in one study; None is as it is.

    Parameters
    ----------
    study : StudyChanges
        The study.
    seed : int, optional
        [-]
    sampler, profile : str, optional
        Their names.

    Raises
    ------
    DseError
        Saying what the study has.
    """
    for what, asked, has in (
        ("seed", seed, study.plan.seed),
        ("sampler", sampler, study.plan.sampler),
        ("profile", profile, study.profile),
    ):
        if asked is not None and asked != has:
            raise DseError(
                f"study {study.name!r}: has {what} {has}, not {asked}; continue it with "
                f"`dse resume {quote(study.name)}`, or start another with --study"
            )


def refuse_other(study: StudyChanges, space: Space, changes: OnChanges) -> None:
    """Refuse a space that is not the study's, unless it is to be taken over.

    Raises
    ------
    DseError
        Saying what differs, and what would do.
    """
    if space.fingerprint == study.space.fingerprint:
        return
    keys = " and ".join(differences(study.space, space)) or "definition"
    why = incompatible(study.space, space)
    if changes != "refuse" and not why:
        return
    lines = content_changes(content(study.space), content(space), space)
    shown = "; ".join([*lines[:4], *([f"and {len(lines) - 4} more"] if len(lines) > 4 else [])])
    takes = "" if why else ", or take this space over with --accept-changes or --reprice"
    raise DseError(
        f"study {study.name!r}: searches another space (differs in {keys}): {shown}; continue it with "
        f"`dse resume {quote(study.name)}`, or start another with --study{takes}"
    )
