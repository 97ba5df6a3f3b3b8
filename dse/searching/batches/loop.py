"""The search loop: propose a batch, evaluate it in one call, store it in one transaction; and its progress bar (tqdm).

Batch k is proposed only from full batches before it, with random numbers that follow from the study's seed and k. So
the trials of a study do not depend on interruptions, on the parts of its budget, or on the number of its processes:
`samplers.archive` lists the inputs of a batch.

Batches become trials in their order. A process claims its batch by an attribute of the study; a batch that is finished
before earlier ones is parked in another attribute, and becomes trials when these are stored, by any process. A claim is
a courtesy: two processes that work on one batch find the same trials, and the first to store them wins. So a claim that
a process left behind when it died does not delay the others for long.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TextIO

from optuna.study import Study
from optuna.trial import FrozenTrial

from costmodel.errors import DseError, printable
from costmodel.formats.quantity import readable
from costmodel.rules.rules import WorkloadRules
from dse.pricing.workers import Jobs
from dse.searching.batches.history import Batch, History, Plan
from dse.searching.trials.trial_table import check_trials
from dse.spaces.space import Space
from dse.storage.optuna_store import Store, StoredStudy
from dse.storage.trial_columns import packed_trial, unpacked_trial

#: Study attributes, before the number of a batch: its process, and its trials while it waits for others.
CLAIM: Final = "dse:claim:"
PARKED: Final = "dse:parked:"

#: How long a claim of another machine counts from the first look at it: at least, and as a multiple of the longest
#: batch of this process. [s], [-]
PATIENCE: Final = 30.0
BATCHES: Final = 4.0
#: The shortest and the longest time between two checks of other processes. [s]
SHORTEST, LONGEST = 0.02, 0.5


class BatchClaims:
    """The batches of a study, as one process takes and stores them."""

    def __init__(self, store: Store, study_id: int, history: History, budget: int) -> None:
        self._store = store
        self._study_id = study_id
        self._history = history
        self._budget = budget
        self._me = {"host": machine_name(), "process": os.getpid()}
        self._taken: int | None = None
        self._since = time.monotonic()  # when it was taken
        self._seen: dict[tuple[str, int, float], float] = {}  # claims of others, and when they were first seen
        self._longest = 0.0  # of batches here
        self._pause = SHORTEST

    def take(self) -> int | None:
        """A batch to work on, or that is parked and can be stored; None once others have stored some. [-]"""
        complete = self._history.complete
        while self._taken is None:
            self.look()
            if self._history.complete != complete:
                return None
            if self._free() is not None:
                with self._store.turn(self._study_id):
                    self.look()
                    if self._history.complete == complete:
                        self._claim()
            else:
                time.sleep(self._pause)
                self._pause = min(2 * self._pause, LONGEST)
        return self._taken

    def look(self) -> None:
        """Learn of trials that others have stored."""
        if self._store.rows(self._study_id) != self._history.rows:
            self._history.refresh()

    def _claim(self) -> None:
        """Take the first batch that is free, within a turn."""
        self._taken, self._since, self._pause = self._free(), time.monotonic(), SHORTEST
        if self._taken is not None:
            claim = {**self._me, "time": time.time()}
            self._store.set_user_attrs(self._study_id, {f"{CLAIM}{self._taken}": claim})

    def _free(self) -> int | None:
        """The first batch that nobody works on; none that is parked but the next to be stored. [-]"""
        window = self._history.window(self._budget)
        parked = self._store.named(self._study_id, PARKED)
        claimed = self._store.named(self._study_id, CLAIM)
        for number in window:
            if f"{PARKED}{number}" in parked and number > window.start:
                continue
            name = f"{CLAIM}{number}"
            if name not in claimed or not self._respected(self._store.user_attr(self._study_id, name)):
                return number
        return None

    def _respected(self, claim: Mapping[str, Any] | None) -> bool:
        """True if a claim belongs to another process that may be at work."""
        if claim is None:
            return False
        with self._store.reading(self._study_id, "study_user_attributes"):
            if self._me.items() <= claim.items():
                return False
            host, process, since = str(claim["host"]), index(claim["process"]), float(claim["time"])
            if host == self._me["host"] and not alive(process):
                return False
        first_seen = self._seen.setdefault((host, process, since), time.monotonic())  # clocks of machines differ
        return time.monotonic() - first_seen < max(PATIENCE, BATCHES * self._longest)

    def parked(self, number: int) -> Batch | None:
        """A batch that was finished before its turn, if that has come."""
        name = f"{PARKED}{number}"
        packed = self._store.user_attr(self._study_id, name)
        if packed is None:
            return None
        with self._store.reading(self._study_id, "study_user_attributes"):
            finished = [unpacked_trial(trial, self._history.distributions) for trial in packed["trials"]]
            check_trials(finished)
            batch = Batch(number, index(packed["base"]), finished=finished, memory=dict(packed["memory"]))
        if not self._history.due(batch, self._budget):
            self._store.drop_user_attrs(self._study_id, [name])
            return None
        return batch

    def settle(self, batch: Batch) -> int:
        """Store a batch, or park it if it comes before its turn, and take another; trials stored. [-]"""
        self._longest = max(self._longest, time.monotonic() - self._since)
        with self._store.turn(self._study_id):
            self.look()  # here, where nobody adds trials: elsewhere, one who adds many would outrun it
            added = self._settled(batch)
            self._claim()
        return added

    def _settled(self, batch: Batch) -> int:
        """Store or park a batch, within a turn and with all known that is stored; trials stored. [-]"""
        history, store, study_id, number = self._history, self._store, self._study_id, batch.number
        done, added = [f"{CLAIM}{number}"], 0
        if number > history.current:
            packed = {"base": batch.base, "trials": [*map(packed_trial, batch.finished)], "memory": batch.memory}
            store.set_user_attrs(study_id, {f"{PARKED}{number}": packed})
        elif due := history.due(batch, self._budget):
            finished, batch.finished, added = batch.finished, due, len(due)
            attributes = history.attributes(batch)
            store.append(study_id, due, after=history.rows, user_attrs=attributes)
            history.stored(batch, attributes)
            batch.finished = finished
            done += [] if history.due(batch, sys.maxsize) else [f"{PARKED}{number}"]
        store.drop_user_attrs(study_id, done)
        return added

    def release(self) -> None:
        """Give a batch that was taken back to the others."""
        if self._taken is not None:
            self._store.drop_user_attrs(self._study_id, [f"{CLAIM}{self._taken}"])
            self._taken = None


def machine_name() -> str:
    """Name of the machine whose processes `alive` finds: a container has separate processes, and may share a name."""
    name = [socket.gethostname()]
    with suppress(OSError):  # Linux
        name.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        name.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(name)


def alive(process: int) -> bool:
    """True if a process of that number may exist on this machine."""
    if os.name != "posix":  # elsewhere the question would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass(frozen=True)
class Progress:
    """Where a search stands after a batch."""

    complete: int  #: finished trials of the study
    budget: int
    infeasible: int
    best: Mapping[str, float]  #: objective -> best value among the feasible designs


@dataclass
class Outcome:
    """The result of a search."""

    complete: int = 0  #: finished trials of the study, old and new
    added: int = 0  #: those that this search stored
    failed: int = 0  #: trials that another program left unfinished, now marked as failed
    exhausted: bool = False  #: every legal design has been evaluated
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("sampling", "evaluation", "storage", "waiting"), 0.0)
    )

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time of a block to `seconds`."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += perf_counter() - start


def search(
    store: Store, stored: StoredStudy, space: Space, plan: Plan, budget: int, *, rules: WorkloadRules | None = None,
    jobs: Jobs = 1, progress: Callable[[Progress], None] | None = None,
    stops: Callable[[Sequence[FrozenTrial]], bool] | None = None,
) -> Outcome:  # fmt: skip
    """Add trials until the study holds `budget` finished ones, or every legal design.

    Several processes may search one study: they share its batches, as `dse.searching.batches.loop` says. An
    interruption, or a database that fails, loses the batch that the process has and nothing else: it follows
    from those before it, so that the next run proposes it again.
    """
    outcome = Outcome(failed=store.fail_running(stored.study_id))
    with outcome.timed("storage"):
        history = History(space, plan, store, stored, rules, jobs)
        claims = BatchClaims(store, stored.study_id, history, budget)
    try:
        while True:
            outcome.complete = history.complete
            if progress:
                progress(Progress(history.complete, budget, history.infeasible, history.best()))
            if history.complete >= budget:
                return outcome
            added = work(outcome, history, claims, budget)
            stopped = added and stops and stops(store.trials(stored.study_id, added))
            if outcome.exhausted or stopped:
                outcome.complete = history.complete
                claims.release()
                return outcome
    except KeyboardInterrupt:
        with suppress(DseError), store.database.hurried():  # a claim that stays there does no harm
            claims.release()
        raise


def work(outcome: Outcome, history: History, claims: BatchClaims, budget: int) -> range:
    """Take a batch, evaluate it unless that is done, and store it; or wait until others have stored some.

    Returns the numbers of the trials that were stored. [-]
    """
    none = range(0)
    with outcome.timed("waiting"):
        number = claims.take()
    if number is None:
        return none
    with outcome.timed("storage"):
        batch = claims.parked(number)
    if batch is None:
        with outcome.timed("sampling"):
            batch = history.proposed(number, budget)
        outcome.exhausted = batch is not None and not batch.proposals
        if batch is None or outcome.exhausted:
            claims.release()
            return none
        with outcome.timed("evaluation"):
            history.evaluate(batch)
    with outcome.timed("storage"):
        added = claims.settle(batch)
    outcome.added += added
    return range(history.rows - added, history.rows)


Callback = Callable[[Study, FrozenTrial], None]


def stopped(study: Study, callbacks: Sequence[Callback], trials: Sequence[FrozenTrial]) -> bool:
    """True if some callback ends the run by ``study.stop()``, after each was called with each trial."""
    study._stop_flag, study._thread_local.in_optimize_loop = False, True  # else `stop` refuses
    try:
        for trial in trials:
            for callback in callbacks:
                callback(study, trial)
    finally:
        study._thread_local.in_optimize_loop = False
    return study._stop_flag


def state(space: Space, progress: Progress) -> str:
    """Infeasible count and best values, in words."""
    best = [
        f"{objective.name} {readable(progress.best[objective.key], objective.unit)}"
        for objective in space.objectives
        if objective.key in progress.best
    ]
    return f"{progress.infeasible} infeasible" + (f", best {', '.join(best)}" if best else "")


def reporting(
    space: Space, wanted: Callable[[Progress], None] | bool | None
) -> AbstractContextManager[Callable[[Progress], None] | None]:
    """A block with the function that a search calls after every batch: the caller's, or one that draws a bar."""
    if isinstance(wanted, bool):
        return bar(space) if wanted else nullcontext()
    return nullcontext(wanted)


@contextmanager
def bar(space: Space, file: TextIO | None = None) -> Iterator[Callable[[Progress], None]]:
    """A function that draws a bar after each batch, on a terminal (which keeps none) or stderr."""
    from tqdm.auto import tqdm

    with tqdm(unit=" trials", file=file, leave=file is None) as shown:

        def update(progress: Progress) -> None:
            if shown.total != progress.budget:
                shown.reset(total=progress.budget)
            shown.set_postfix_str(printable(state(space, progress)), refresh=False)
            shown.update(progress.complete - shown.n)

        yield update
        shown.refresh()
