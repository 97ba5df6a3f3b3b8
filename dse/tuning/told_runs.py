"""Tell and remove runs of trials on a real cluster."""

from __future__ import annotations

import math
import secrets
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from costmodel.errors import DseError
from dse.searching.study import BaseStudy
from dse.searching.trials.measured_runs import PREFIX, MeasuredRun
from dse.storage.optuna_store import Store

#: Failures: out of memory, or anything else, which says nothing about memory.
OUT_OF_MEMORY, OTHER = FAILURES = ("oom", "other")


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


def remove(study: BaseStudy, run: str) -> None:
    """Remove a run that was told by mistake. Raises `DseError` if there is no run of that identity."""
    known = [one.id for one in study.told_runs()]
    if run not in known:
        raise DseError(f"study {study.name!r}: no run {run!r}; its runs: {', '.join(known) or 'none'}")
    with Store(study.storage, "write") as store:
        store.set_user_attrs(study._stored.study_id, {PREFIX + run: None})


def run_records(study: BaseStudy) -> list[dict[str, Any]]:
    """Runs of a study as tables have them, with predicted step times and memory. [s], [B]"""
    runs = study.told_runs()
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
