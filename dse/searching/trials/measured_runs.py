"""Runs of trials on a real cluster, as their study stores them: step time, memory or failure.

Each run is one attribute of the study, written in one transaction, so that several people can tell runs at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

from costmodel.columns import grouped
from costmodel.errors import DseError
from dse.storage.optuna_store import Store

if TYPE_CHECKING:
    import pandas as pd

#: Beginning of the names of attributes that hold runs.
PREFIX: Final = "dse:run:"
#: Names of records -> names with units.
UNITS: Final = {"step_time": "step_time_s", "low": "low_s", "high": "high_s", "best_time": "best_time_s",
                "expected": "expected_s", "peak_memory": "peak_memory_bytes"}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """One run of a trial; nan where nothing was measured."""

    id: str
    trial: int
    step_time: float = math.nan  #: after warm-up [s]
    spread: float = math.nan  #: standard deviation of the step times over their median [-]
    peak_memory: float = math.nan  #: that the framework's allocator reserved [B]
    failed: str = ""  #: "oom", "other", or "" for a run that trained
    software: str = ""
    told: str = ""  #: when, in UTC

    def to_json(self) -> dict[str, Any]:
        """The run as JSON has it."""
        return with_units(asdict(self))


def with_units(record: dict[str, Any]) -> dict[str, Any]:
    """A record of runs with names that end in their units, as JSON has it."""
    return {UNITS.get(name, name): value for name, value in record.items() if name != "candidate"}


def told_runs(storage: str, study: str) -> list[MeasuredRun]:
    """Reported runs of a study that were not removed, in the order of time; `DseError` if they are damaged."""
    with Store(storage, "read") as store:
        attributes = store.study(study).user_attrs
    stored = {key.removeprefix(PREFIX): row for key, row in attributes.items() if row and key.startswith(PREFIX)}
    try:
        runs = [MeasuredRun(id=key, **row) for key, row in stored.items()]
        for run in runs:
            numbers = (value for value in (run.step_time, run.spread, run.peak_memory) if value == value)
            if type(run.trial) is not int or not all(0 <= value < 1e300 for value in numbers):
                raise TypeError(f"run {run.id}")
        return sorted(runs, key=lambda run: (run.told, run.id))
    except TypeError as error:
        raise DseError(f"study {study!r}: its runs are damaged ({error})") from None


def by_trial(
    runs: Sequence[MeasuredRun], name: Literal["step_time", "peak_memory"], of: Callable[[list[float]], float]
) -> dict[int, float]:
    """One number of the measured runs of each trial, such as the median of their step times. [s] or [B]"""
    numbers = grouped((run.trial, value) for run in runs if (value := getattr(run, name)) == value)
    return {trial: of(values) for trial, values in numbers.items()}


def with_measured(frame: pd.DataFrame, runs: Sequence[MeasuredRun]) -> pd.DataFrame:
    """A table of trials with their measurements, if there are any.

    ``measured_step_time_s`` is the median of a trial's runs, ``measured_peak_memory_bytes`` their maximum,
    ``measured_failed`` the last failure.
    """
    if not runs:
        return frame
    trial, failed = frame["trial"], {run.trial: run.failed for run in runs if run.failed}
    return frame.assign(
        measured_step_time_s=trial.map(by_trial(runs, "step_time", median)).astype(float),
        measured_peak_memory_bytes=trial.map(by_trial(runs, "peak_memory", max)).astype(float),
        measured_failed=[failed.get(number, "") for number in trial.tolist()],
    )
