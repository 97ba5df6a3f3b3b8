"""The search loop: propose a batch, evaluate it in one call, store it in one transaction.

Batch k is proposed from full batches before it alone, with random numbers that follow from the study's seed and k. So
the trials of a study do not depend on where it was interrupted, on how its budget was dealt out, or on how many
processes work on it: `samplers.concurrent_batches` says what a batch knows, `batches.claims` who works on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter

from optuna.trial import FrozenTrial

from costmodel.errors import DseError
from costmodel.rules.rules import WorkloadRules
from dse.pricing.workers import Jobs
from dse.searching.batches.claims import BatchClaims
from dse.searching.batches.history import History, Plan
from dse.spaces.space import Space
from dse.storage.optuna_store import Store, StoredStudy


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
    store: Store,
    stored: StoredStudy,
    space: Space,
    plan: Plan,
    budget: int,
    *,
    rules: WorkloadRules | None = None,
    jobs: Jobs = 1,
    progress: Callable[[Progress], None] | None = None,
    stops: Callable[[Sequence[FrozenTrial]], bool] | None = None,
) -> Outcome:
    """Add trials until the study holds `budget` finished ones, or every legal design.

    Several processes may search one study: they share its batches, as `dse.searching.batches.claims` says. An
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
            stopped = added and stops and stops(store.numbered(stored.study_id, added))
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
