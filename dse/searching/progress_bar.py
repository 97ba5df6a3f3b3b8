"""Progress bar of a search (tqdm), and callbacks of a run, those of `optuna.Study.optimize`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from optuna.study import Study
from optuna.trial import FrozenTrial

from costmodel.errors import printable
from costmodel.formats.quantity import readable
from dse.searching.batches.loop import Progress
from dse.spaces.space import Space

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


@contextmanager
def reporting(
    space: Space, wanted: Callable[[Progress], None] | bool | None
) -> Iterator[Callable[[Progress], None] | None]:
    """The function that a search calls after every batch: the caller's, or one that draws a bar."""
    if not isinstance(wanted, bool):
        yield wanted
        return
    if not wanted:
        yield None
        return
    with bar(space) as update:
        yield update


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
