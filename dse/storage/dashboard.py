"""Studies as optuna-dashboard can show them: numbers in columns of their own, the feasible front alone.

The dashboard sorts by attributes that are numbers, and takes its front from all finished trials, whatever
they violate. So it is given each trial with its tables laid out, and the infeasible ones as pruned. Nothing
of this is stored: an attribute for each number would make databases 1.9 times as large, and take 2.4 times
as long to write.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from copy import copy
from typing import Any

from optuna.storages import RDBStorage, _CachedStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from costmodel.errors import DseError
from costmodel.installation import installation
from dse.storage.database import optuna_url
from dse.storage.optuna_store import Store


class DashboardStorage(_CachedStorage):
    """Optuna's storage of a database, whose finished trials are `laid_out`."""

    def __init__(self, url: str) -> None:
        # Optuna never closes its connections; without a pool it holds none between calls.
        super().__init__(RDBStorage(optuna_url(url), engine_kwargs={"poolclass": NullPool}))
        self._laid_out: dict[int, FrozenTrial] = {}

    def shown_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials of a study as the dashboard shows them."""
        shown = [self._shown(trial) for trial in super().get_all_trials(study_id, deepcopy=False)]
        return [trial for trial in shown if states is None or trial.state in states]

    get_all_trials = shown_trials  # what Optuna calls it

    def _shown(self, trial: FrozenTrial) -> FrozenTrial:
        """A trial laid out, once it is finished and so stays as it is."""
        if not trial.state.is_finished():
            return trial
        known = self._laid_out.get(trial._trial_id)
        if known is None:
            known = self._laid_out[trial._trial_id] = laid_out(trial)
        return known


def laid_out(trial: FrozenTrial) -> FrozenTrial:
    """A finished trial with each number of its tables as an attribute, pruned if it is infeasible."""
    shown = copy(trial)
    shown.user_attrs = {}
    for name, value in trial.user_attrs.items():
        if isinstance(value, Mapping):
            prefix = "margin_" if name == "margins" else ""
            shown.user_attrs |= {f"{prefix}{key}": number for key, number in value.items()}
        elif isinstance(value, int | float | str):
            shown.user_attrs[name] = value
    if trial.state == TrialState.COMPLETE and any(value > 0 for value in trial.constraints.values()):
        shown.state = TrialState.PRUNED
    return shown


def dashboard(url: str) -> Any:
    """The WSGI application of optuna-dashboard for a database of studies.

    Raises `DseError` if it is not installed, or there is no such database.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise DseError(f"needs optuna-dashboard: {installation('dashboard')}") from None
    with Store(url, "read"):  # a clear message where there is none
        pass
    return wsgi(DashboardStorage(url))
