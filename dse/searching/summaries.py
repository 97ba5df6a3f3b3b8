"""The studies of a database, one line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

import numpy as np
from optuna.trial import TrialState

from dse.searching.batches.history import COUNTED
from dse.searching.study_attributes import INNER, SAMPLER, SPACE, SPACE_NAME, check_attributes
from dse.searching.trials.exact_winners import stored_winners, winner_columns
from dse.searching.trials.trial_attributes import BREAKDOWN
from dse.storage.database import storage_url
from dse.storage.optuna_store import METRIC_NAMES, Store, StoredStudy


@dataclass(frozen=True)
class Summary:
    """One study of a database, in a line."""

    name: str
    space: str | None  #: None when dse did not make the study
    sampler: str | None
    complete: int
    failed: int
    running: int
    infeasible: int
    best: Mapping[str, float]  #: objective -> best value among the feasible trials


def studies(storage: str | None = None) -> list[Summary]:
    """The studies of a database, the oldest first.

    Raises `DseError` if there is no database, or it cannot be read.
    """
    with Store(storage_url(storage), "read") as store, store.snapshot():
        return [summary(store, store.study(name)) for name in store.names()]


def summary(store: Store, stored: StoredStudy) -> Summary:
    """Counts and best values of one study: those that were stored with its last batch, and of the trials since then."""
    counts = store.counts(stored.study_id)
    ours = SPACE in stored.user_attrs
    if ours:
        check_attributes(store, stored)
    with store.reading(stored.study_id, "study_system_attributes"):
        usual = [f"value_{number}" for number in range(len(stored.directions))]
        names = ["".join(name) for name in stored.system_attrs.get(METRIC_NAMES) or usual]  # no text, no name
    with store.reading(stored.study_id, f"study_user_attributes: {COUNTED}"):
        before = stored.user_attrs.get(COUNTED, {"rows": 0, "complete": 0, "infeasible": 0, "best": {}})
        rows, complete, infeasible = (index(before[name]) for name in ("rows", "complete", "infeasible"))
        known = np.array([[float(before["best"][name]) for name in names]] if before["best"] else [])
    columns = store.columns(stored, attribute=BREAKDOWN if ours else None, first=rows)
    designs = columns
    if INNER in stored.user_attrs:
        designs = winner_columns(names, columns, stored_winners(store, stored, names, first=rows))
    feasible = np.vstack([known.reshape(-1, len(stored.directions)), designs.objectives[designs.feasible]])
    best = {
        name: float(values.min() if direction == "minimize" else values.max())
        for name, direction, values in zip(names, stored.directions, feasible.T, strict=False)
        if len(feasible)
    }
    return Summary(
        name=stored.name,
        space=stored.user_attrs.get(SPACE_NAME),
        sampler=stored.user_attrs.get(SAMPLER),
        complete=complete + len(columns.ids),
        failed=counts[TrialState.FAIL],
        running=counts[TrialState.RUNNING],
        infeasible=infeasible + int((~columns.feasible).sum()),
        best=best,
    )
