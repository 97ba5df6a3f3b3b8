"""Tuning of a plan by real runs: `Study.ask`, `Study.tell`, and replays of measured sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel.errors import DseError
from costmodel.formats.input_files import dump
from dse.searching.study import BaseStudy
from dse.searching.trials.measured_runs import MeasuredRun
from dse.tuning.replay import RUNS, replay_record, replays
from dse.tuning.study_candidates import OUT_OF_MEMORY, Learned, read_log, tell
from dse.validation.table import read_table


def tell_log(study: BaseStudy, trial: int, log: str | Path) -> MeasuredRun:
    """Store the step time after warm-up and the peak memory of a log, or that its run died out of memory.

    Raises `DseError` if there is no such trial, or the log has no lines that are known.
    """
    number, _ = study.design(trial)
    [record] = study.table.take((study.table.numbers == number).nonzero()[0]).records()
    breakdown = record["breakdown"]
    run = read_log(Path(log), breakdown["tokens_per_second_per_gpu"] * breakdown["step_time_s"])
    numbers = {"step_time": run.step_time, "spread": run.spread or None, "peak_memory": run.peak_memory}
    return tell(study, number, failed=OUT_OF_MEMORY * run.out_of_memory, software=run.framework, **numbers)


def replay(file: str | Path, runs: int = RUNS) -> dict[str, Any]:
    """Replays of each group of a table of measured runs, as JSON has them.

    Raises `DseError` if the file cannot be read, or has no groups of runs. `runs` are told in each group at most. [-]
    """
    return replay_record(*replays(read_table(Path(file)), runs))


def learned_system(study: BaseStudy, learned: Sequence[Learned]) -> str:
    """The system of a study as a file, with the constants that runs moved.

    Raises `DseError` if runs moved none yet.
    """
    if not learned:
        raise DseError(f"study {study.name!r}: its runs moved no constant of the machine yet")
    base, data = study.space.system, dict[str, Any]()
    parts = {**{tier.name: ("network", tier.name) for tier in base.network}, "dram": ("memory", "dram"),
             "host": ("host",), "software": ("software",)}  # fmt: skip
    for one in learned:
        part, _, name = one.name.partition("_")
        section, name = (parts[part], name) if part in parts else (("chip",), one.name)
        target = data
        for key in section:
            target = target.setdefault(key, {})
        value = one.value if one.unit == "-" else f"{one.value:.6g} {one.unit}"
        source = f"runs of study {study.name}: {one.shipped:.6g} in {base.name}"
        target[name] = {"value": value, "kind": "fitted", "source": source}
    about = {"schema": "system/v1", "base": base.name, "description": f"{base.name} by runs of study {study.name}"}
    return dump({**about, **data})
