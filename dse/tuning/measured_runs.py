"""Runs of trials on a real cluster: step time, memory or failure, stored as attributes of their study.

Each run is one attribute, written in one transaction, so that several people and processes can tell runs at once.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from costmodel.errors import DseError
from dse.searching.study import BaseStudy
from dse.storage.optuna_store import Store

#: Beginning of the names of attributes that hold runs.
PREFIX: Final = "dse:run:"
#: Names of records -> names with units.
UNITS: Final = {"step_time": "step_time_s", "low": "low_s", "high": "high_s", "best_time": "best_time_s",
                "expected": "expected_s", "peak_memory": "peak_memory_bytes"}  # fmt: skip
#: Failures: out of memory, or anything else, which says nothing about memory.
OUT_OF_MEMORY, OTHER = FAILURES = ("oom", "other")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """One run of a trial; nan where nothing was measured."""

    id: str
    trial: int
    step_time: float = math.nan  #: after warm-up [s]
    spread: float = math.nan  #: standard deviation of the step times over their median [-]
    peak_memory: float = math.nan  #: that the framework's allocator reserved [B]
    failed: str = ""  #: a word of `FAILURES`; "" for a run that trained
    software: str = ""
    told: str = ""  #: when, in UTC

    def to_json(self) -> dict[str, Any]:
        """The run as JSON has it."""
        return with_units(asdict(self))


def with_units(record: dict[str, Any]) -> dict[str, Any]:
    """A record of runs with names that end in their units, as JSON has it."""
    return {UNITS.get(name, name): value for name, value in record.items() if name != "candidate"}


def tell(study: BaseStudy, trial: int, *, failed: str = "", software: str = "", **numbers: float | None) -> MeasuredRun:
    """Store a run of a trial; `numbers` are `step_time`, `spread` and `peak_memory`. [s], [-], [B]

    Raises `DseError` if there is no such trial, or the run has neither a step time nor a failure.
    """
    study.design(trial)
    if failed not in ("", *FAILURES):
        raise DseError(f"failed {failed!r}: expected {' or '.join(FAILURES)}")
    known = {name: float(value) for name, value in numbers.items() if value is not None}
    if ("step_time" in known) == (failed != ""):
        raise DseError("a run has a step time or a failure: one of the two")
    for name, value in known.items():
        if not 0 < value < math.inf:
            raise DseError(f"{name} {value}: expected a number above 0")
    told = datetime.now(UTC).isoformat(timespec="milliseconds")
    run = MeasuredRun(id=secrets.token_hex(4), trial=int(trial), failed=failed, software=software, told=told, **known)
    stored = {name: value for name, value in asdict(run).items() if name != "id" and value == value}
    with Store(study.storage, "write") as store:
        store.set_user_attrs(study._stored.study_id, {PREFIX + run.id: stored})
    return run


def told_runs(study: BaseStudy) -> list[MeasuredRun]:
    """All runs of a study that were told and not removed, in the order of time."""
    with Store(study.storage, "read") as store:
        attributes = store.study(study.name).user_attrs
    stored = {key.removeprefix(PREFIX): row for key, row in attributes.items() if row and key.startswith(PREFIX)}
    try:
        return sorted((MeasuredRun(id=key, **row) for key, row in stored.items()), key=lambda one: (one.told, one.id))
    except TypeError as error:
        raise DseError(f"study {study.name!r}: its runs are damaged ({error})") from None


def remove(study: BaseStudy, run: str) -> None:
    """Remove a run that was told by mistake. Raises `DseError` if there is no run of that identity."""
    known = [one.id for one in told_runs(study)]
    if run not in known:
        raise DseError(f"study {study.name!r}: no run {run!r}; its runs: {', '.join(known) or 'none'}")
    with Store(study.storage, "write") as store:
        store.set_user_attrs(study._stored.study_id, {PREFIX + run: None})


def run_records(study: BaseStudy) -> list[dict[str, Any]]:
    """Runs of a study as tables have them, with predicted step times and memory. [s], [B]"""
    runs = told_runs(study)
    rows = np.flatnonzero(np.isin(study.table.numbers, [one.trial for one in runs]))
    predicted = {record["trial"]: record["breakdown"] for record in study.table.take(rows).records()} if runs else {}
    return [
        {
            "run": one.id,
            "trial": one.trial,
            "step_time_s": one.step_time,
            "predicted_step_time_s": predicted[one.trial]["step_time_s"],
            "spread": one.spread,
            "peak_memory_bytes": one.peak_memory,
            "predicted_peak_memory_bytes": predicted[one.trial]["peak_memory_bytes"],
            **{name: getattr(one, name) for name in ("failed", "software", "told")},
        }
        for one in runs
    ]
