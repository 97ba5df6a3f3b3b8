"""A finished study judged by the worse ends of its intervals: the same designs, ranked by what may come."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np
from optuna.trial import FrozenTrial

from costmodel.columns import IntArray
from costmodel.errors import ParameterError
from dse.fronts.hypervolume import Box
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate
from dse.searching.study import BaseStudy
from dse.searching.study_attributes import sampled_box
from dse.searching.trials.trial_attributes import BREAKDOWN, finite, trial_attributes
from dse.searching.trials.trial_table import TrialTable
from dse.storage.optuna_store import StoredStudy


class RobustStudy(BaseStudy):
    """A study whose trials are judged by the worse ends of intervals; nothing of it is stored.

    Raises `DseError` if the space has exact parameters: what was kept of each trial was chosen by the predictions.
    """

    def __init__(self, study: BaseStudy) -> None:
        if study.space.inner:
            raise ParameterError(
                f"study {study.name!r}: has exact parameters, whose winners were chosen by predictions; "
                "search with {robust} instead"
            )
        stored: StoredStudy = study._stored
        super().__init__(stored, study.space.robust(), study.storage)
        self._nominal = study
        self._judged: tuple[TrialTable, TrialTable] | None = None

    @property
    def table(self) -> TrialTable:
        """The finished trials, as they are judged now; read again when there are more of them."""
        nominal = self._nominal.table
        if self._judged is None or self._judged[0] is not nominal:
            self._judged = nominal, self._table_of(nominal)
        return self._judged[1]

    @cached_property
    def box(self) -> Box:
        """Where hypervolume is measured: as of a study that is searched so."""
        ideal, reference = (np.array(corner) for corner in sampled_box(self.space, self.profile))
        return Box(ideal, reference)

    def _table_of(self, nominal: TrialTable) -> TrialTable:
        """Trials with the values, limits and derived columns of the robust space."""
        trials = nominal.trials
        columns = self.space.encode([trial.params for trial in trials])
        found = evaluate(self.space, columns, rules=rules_for(self.space, self.profile))
        minimize = np.array([objective.direction == "minimize" for objective in self.space.objectives])
        judged = replace(nominal.columns, objectives=finite(found, minimize)[0], feasible=found.feasible, winners=None)
        attributes = trial_attributes(self.space, found)
        own = {trial.number: place for place, trial in enumerate(trials)}

        def load(ids: IntArray) -> list[FrozenTrial]:
            wanted = {int(one) for one in ids}
            return [
                with_attributes(trial, attributes[own[trial.number]]) for trial in trials if trial._trial_id in wanted
            ]

        return TrialTable(self.space, judged, load, self.profile)


def with_attributes(trial: FrozenTrial, attributes: dict[str, dict[str, float]]) -> FrozenTrial:
    """A trial with other margins and derived columns; its breakdown is what is predicted."""
    changed = copy(trial)
    kept = {BREAKDOWN: trial.user_attrs[BREAKDOWN]} if BREAKDOWN in trial.user_attrs else {}
    changed.user_attrs = {**trial.user_attrs, **attributes, **kept}
    return changed
