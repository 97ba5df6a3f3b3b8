"""Designs of a study from which the next run is chosen, and its real runs: reported, removed, and read from logs.

A plan stores its front, but the fastest layout of the real machine may lie off it. So legal designs of the space join
the candidates, and get a trial number once one is proposed.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.formats.input_files import dump
from costmodel.formats.quantity import readable
from costmodel.rules.registry import NATIVE
from costmodel.training.design import DesignPoints
from dse.calibration.constants import LearnedConstant, with_learned
from dse.calibration.posterior import are_learned
from dse.pricing.evaluated import space_interval
from dse.pricing.evaluation import evaluate, transformer_run
from dse.registry import measurement_reader
from dse.searching.study import BaseStudy
from dse.searching.trials.measured_runs import PREFIX, MeasuredRun, with_units
from dse.spaces.space import Params, Space
from dse.storage.optuna_store import Store
from dse.tuning.belief import Next, RunCandidates, Told, decide, doubt_of, ensemble

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
        if not (0 < value < math.inf or (name, value) == ("spread", 0)):
            raise DseError(f"{name} {value}: expected a number above 0")
    told = datetime.now(UTC).isoformat(timespec="milliseconds")
    run = MeasuredRun(id=secrets.token_hex(4), trial=int(trial), failed=failed, software=software, told=told, **known)
    stored = {name: value for name, value in asdict(run).items() if name != "id" and value == value}
    with Store(study.storage, "write") as store:
        store.set_user_attrs(study._stored.study_id, {PREFIX + run.id: stored})
    return run


def impossible(study: BaseStudy, run: MeasuredRun) -> str:
    """A line on a run that chips cannot have: a step faster than their peak rate, or more memory; "" for others."""
    [record] = study.table.take(np.flatnonzero(study.table.numbers == run.trial)).records()
    chip, columns = study.space.system.chip, record["breakdown"]
    rates = (1.0, *(float(np.max(rate)) for rate in (chip.fp8_speedup, chip.mx_speedup, chip.fp4_speedup)))
    least = columns["step_time_s"] * columns["mfu"] / max(rates)
    capacity = float(np.max(study.space.system.dram.capacity))
    time, peak = readable(run.step_time, "s"), readable(run.peak_memory, "B")
    fast = [f"{time} a step: at the peak rate it takes {readable(least, 's')}"] if run.step_time < least else []
    large = [f"{peak} of memory: a chip has {readable(capacity, 'B')}"] if run.peak_memory > capacity else []
    return "; ".join([*fast, *large])


def remove(study: BaseStudy, run: str) -> None:
    """Remove a run that was reported by mistake. Raises `DseError` if no run has that identity."""
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


#: Most legal designs that are evaluated, and most candidates besides those that ran. [-]
EVALUATED, MOST = 1 << 15, 192
#: Beginning of the names of designs that tuning adds to a study.
ADDED: Final = "tune_"


@dataclass(frozen=True, slots=True)
class StudyCandidates:
    """Candidates of a study, in the order of predicted step times."""

    candidates: RunCandidates
    params: tuple[Params, ...]
    trials: tuple[int | None, ...]  #: None for designs that are not trials yet
    reserved: FloatArray  #: predicted memory outside the framework's allocator, (designs,) [B]

    def told(self, runs: Iterable[MeasuredRun]) -> list[Told]:
        """Runs of trials as runs of candidates; measured peaks of an allocator become peaks of all memory."""
        rows = {trial: at for at, trial in enumerate(self.trials) if trial is not None}
        whole = self.candidates.memory / (self.candidates.memory - self.reserved)
        return [
            Told(at, run.step_time, run.peak_memory * float(whole[at]), run.failed == OUT_OF_MEMORY)
            for run in runs
            if (at := rows.get(run.trial)) is not None
        ]


def study_candidates(study: BaseStudy, runs: Sequence[MeasuredRun]) -> StudyCandidates:
    """Candidates of a study; trials with runs are among them.

    Raises `DseError` if the machine of the study is open, or its designs are not layouts of one training run.
    """
    space = study.space
    machine = sorted(space.by_name.keys() & space.system.units())
    if space.workloads or space.inner or study.profile != NATIVE:
        raise DseError(f"study {study.name!r}: tuning needs layouts of one training run, by the native cost model")
    if machine:
        raise DseError(f"study {study.name!r}: opens the machine ({', '.join(machine)}); tune a plan of one machine")
    trials = {trial.number: trial for block in study.table.blocks() for trial in block.trials}
    stored = space.encode([{name: trial.params[name] for name in space.by_name} for trial in trials.values()])
    few = space.legal.count <= EVALUATED
    drawn = space.legal.enumerate(EVALUATED) if few else [space.legal.random(EVALUATED, np.random.default_rng(0))]
    batches = [stored, *drawn]
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in stored}
    rows = np.stack([*columns.values()], axis=1)
    numbers: list[int | None] = [*trials, *[None] * (len(rows) - len(trials))]
    first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    columns, numbers = {name: values[first] for name, values in columns.items()}, [numbers[row] for row in first]
    evaluation = evaluate(space, columns)
    ran = np.isin([-1 if number is None else number for number in numbers], [one.trial for one in runs])
    time = np.where(evaluation.feasible | ran, evaluation.breakdown.columns()["step_time"], np.inf)
    order = np.argsort(np.where(ran, 0, time), kind="stable")[: MOST + int(ran.sum())]
    order = order[np.isfinite(time[order])]
    order = order[np.argsort(time[order], kind="stable")]
    if not order.size:
        raise DseError(f"study {study.name!r}: no design satisfies the limits of the study")
    columns = {name: values[order] for name, values in columns.items()}
    run, costs = transformer_run(space, columns, DesignPoints), evaluation.take(order).breakdown.columns()
    interval = space_interval(space, space.known_values(columns), order.size)
    doubt = doubt_of(interval.low, interval.high)
    capacity = float(np.ravel(run.system.dram.capacity)[0])
    return StudyCandidates(
        RunCandidates(ensemble(run, interval.expected(costs)), run.design, costs["peak_memory"], capacity, doubt),
        tuple(space.decode(columns)),
        tuple(numbers[row] for row in order),
        costs["reserved_memory"],
    )


@dataclass(frozen=True, slots=True)
class Proposal(Next):
    """A trial to run next."""

    trial: int
    params: Params


@dataclass(frozen=True, slots=True)
class Tuning:
    """Trials to run next, none if it is time to stop, and the evidence of earlier runs."""

    proposals: tuple[Proposal, ...]
    chance: float  #: that some layout is 2 % faster than the best run; nan without one [-]
    best: int | None  #: trial of the best run
    best_time: float  #: mean of its runs [s]
    runs: tuple[MeasuredRun, ...]
    expected: dict[int, float]  #: step time of each trial that ran, as the cost model had it before any run [s]
    learned: tuple[LearnedConstant, ...]

    def to_json(self) -> dict[str, Any]:
        """The record as JSON has it: names end in their units."""
        record = with_units(asdict(self))
        return {**record, **{name: [with_units(row) for row in record[name]] for name in ("proposals", "runs")}}


def tuning(study: BaseStudy, parallel: int = 1) -> Tuning:
    """Choose the next runs of a study; proposed designs that are not trials yet become trials.

    Raises `DseError` if the study cannot be tuned. `parallel` is how many runs there can be at once. [-]
    """
    runs = study.told_runs()
    known = study_candidates(study, runs)
    decision = decide(known.candidates, known.told(runs), parallel)
    numbers = _numbered(study, known, decision.runs)
    shipped = np.exp(known.candidates.machines.log_times[0])
    return Tuning(
        proposals=tuple(
            Proposal(**asdict(one), trial=numbers[one.candidate], params=known.params[one.candidate])
            for one in decision.runs
        ),
        chance=decision.chance,
        best=None if decision.best is None else known.trials[decision.best],
        best_time=decision.best_time,
        runs=tuple(runs),
        expected={
            trial: float(shipped[known.trials.index(trial)]) for trial in {one.trial for one in runs} & {*known.trials}
        },
        learned=tuple(learned(study.space, known.candidates, known.told(runs))),
    )


def _numbered(study: BaseStudy, known: StudyCandidates, chosen: Sequence[Next]) -> dict[int, int]:
    """Candidate -> number of its trial; chosen candidates without a trial become trials."""
    new = [one.candidate for one in chosen if known.trials[one.candidate] is None]
    numbers = {row: trial for row, trial in enumerate(known.trials) if trial is not None}
    if not new:
        return numbers
    names = sum(name.startswith(ADDED) for name in study.space.layouts)
    study.steer(None, {f"{ADDED}{names + at}": known.params[row] for at, row in enumerate(new)})
    study.run(len(study.table) + len(new))
    every = (trial for block in study.table.blocks() for trial in block.trials)
    trials = {tuple(trial.params[name] for name in study.space.by_name): trial.number for trial in every}
    if lost := [row for row in new if tuple(known.params[row].values()) not in trials]:
        raise DseError(f"study {study.name!r}: a search did not finish the trial {known.params[lost[0]]}")
    return {**numbers, **{row: trials[tuple(known.params[row].values())] for row in new}}


def learned(space: Space, known: RunCandidates, runs: Sequence[Told]) -> Iterable[LearnedConstant]:
    """Constants that runs moved, or know twice as well, and that differ from the built-in ones by their deviation."""
    machines, system = known.machines, space.system
    (mean, spread), (after, left) = known.constants([]), known.constants(runs)
    moved = are_learned(after, left, spread) & (np.abs(after - mean) > left) | are_learned(after, left, spread / 2)
    for at in np.flatnonzero(moved):
        constant = machines.constants[at]
        value = system.quantities()[constant.name].item() * math.exp(after[at])
        yield constant.learned(system, value, value * float(left[at]))


def tell_log(study: BaseStudy, trial: int, log: str | Path) -> MeasuredRun:
    """Store the step time after warm-up and the peak memory of a log, or that its run ran out of memory.

    Raises `DseError` if there is no such trial, or the log has no lines that are known.
    """
    number, _ = study.design(trial)
    [record] = study.table.take((study.table.numbers == number).nonzero()[0]).records()
    breakdown = record["breakdown"]
    tokens_of_gpu = breakdown["tokens_per_second_per_gpu"] * breakdown["step_time_s"]
    return tell(study, number, **measurement_reader("run_log")(Path(log), tokens_of_gpu))


def learned_system(study: BaseStudy, learned: Sequence[LearnedConstant]) -> str:
    """The system of a study as a file, with the constants that runs moved.

    Raises `DseError` if runs moved none yet.
    """
    if not learned:
        raise DseError(f"study {study.name!r}: its runs moved no constant of the machine yet")
    base, source = study.space.system, f"dse tune, runs of study {study.name}"
    text = dump({key: value for key, value in study.space.data["system"].items() if key != "name"})
    return with_learned(text, base, ((one, source) for one in learned), f"{base.name} by runs of study {study.name}")
