"""Callbacks of a run: those of `optuna.Study.optimize`, called with each trial that it stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optuna.study import Study
from optuna.trial import FrozenTrial

Callback = Callable[[Study, FrozenTrial], None]


def stopped(study: Study, callbacks: Sequence[Callback], trials: Sequence[FrozenTrial]) -> bool:
    """Whether some callback ends the run by ``study.stop()``, after each was called with each trial."""
    study._stop_flag, study._thread_local.in_optimize_loop = False, True  # else `stop` refuses
    try:
        for trial in trials:
            for callback in callbacks:
                callback(study, trial)
    finally:
        study._thread_local.in_optimize_loop = False
    return study._stop_flag
