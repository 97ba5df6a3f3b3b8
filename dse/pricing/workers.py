"""Work on ranges of numbers, in this process, in others of this machine, or on the workers of a cluster.

`Workers.map` has one form for all three. A worker builds the space from its text and checks a digest of results, so
that another version of the cost model cannot mix in. Workers end with their parent."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from numbers import Integral
from random import Random
from typing import Any, Literal, TypeVar

from costmodel.errors import DseError, ParameterError
from costmodel.rules.registry import REGISTERED, REGISTERED_WORK, Profile, register_profile, register_work
from costmodel.rules.rules import Rules, WorkloadRules
from dse.pricing.evaluated import rules_for
from dse.spaces.formulas.expressions import OWN, UnitFunction
from dse.spaces.space import Space

#: Interval between two looks of a worker for its master, and the largest number of processes. [s], [-]
LOOK, MOST_JOBS = 1.0, 1024


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A block that Ctrl-C and the like reach when it is done; it must not take long."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def end_with(master: int) -> None:
    """Have this process end once its parent, a process of that number, is gone: it may have been killed."""

    def watch() -> None:
        while os.getppid() == master:
            time.sleep(LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


Backend = Literal["processes", "dask"]

Result = TypeVar("Result")
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Pricer:
    """A space and the rules that evaluate its designs; to another process it goes as the space's text, with the user's
    objects that it needs: functions that its formulas call, a registered profile and work."""

    space: Space
    rules: WorkloadRules

    @classmethod
    def of(cls, space: Space, rules: WorkloadRules | None = None) -> Pricer:
        """Pricer of a space, with the native rules unless others are given."""
        return cls(space, rules or rules_for(space))

    def __reduce__(self) -> tuple[Callable[..., Pricer], tuple[object, ...]]:
        registered = REGISTERED.get(self.rules.profile), REGISTERED_WORK.get(self.space.workload.work.name)
        return _sent_pricer, (self.space.text, self.rules.profile, self.space.own_functions, *registered, self.digest)

    @cached_property
    def digest(self) -> str:
        """Digest of the results of some designs of the space."""
        from dse.pricing.identity import results_digest

        return results_digest(self.space, self.rules)


def _sent_pricer(
    text: str, profile: str, functions: Sequence[UnitFunction], own_profile: Profile | None,
    own_work: Rules[Any] | None, digest: str,
) -> Pricer:  # fmt: skip
    """Build the pricer that was sent to a worker, and register the functions, profile and work of the user there.

    Raises `DseError` if designs come to other results than in the process that sent it.
    """
    OWN.update({function.name: function for function in functions})
    if own_work:
        register_work(own_work)
    if own_profile:
        register_profile(own_profile)
    pricer = _pricer(text, profile)
    if pricer.digest != digest:
        raise DseError(
            f"worker on {socket.gethostname()}: its cost model gives other results for space {pricer.space.name} than "
            "the command's; install the same versions on machines with the same processors"
        )
    return pricer


@lru_cache(maxsize=4)
def _pricer(text: str, profile: str) -> Pricer:
    """Build the pricer of a space's text in a worker, which keeps it."""
    space = Space.from_text(text)
    return Pricer(space, rules_for(space, profile))


@dataclass(frozen=True)
class Workers:
    """Who works: this process, some processes of this machine, or the workers of a Dask cluster."""

    jobs: int = 1  #: processes; a cluster has as many workers as it has
    backend: Backend = "processes"
    scheduler: str | None = None  #: address of the cluster, such as tcp://10.0.0.1:8786

    def __post_init__(self) -> None:
        if not isinstance(self.jobs, Integral) or not 1 <= self.jobs <= MOST_JOBS:
            raise ParameterError(f"{{jobs}}: expected a whole number from 1 to {MOST_JOBS:,}, not {self.jobs!r}")

    @property
    def here(self) -> bool:
        """True if all work is done in this process."""
        return self.backend == "processes" and self.jobs == 1

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, ordered: bool = True
    ) -> Iterator[Result]:
        """Results of a function for each of some items, which go to the workers one by one."""
        if self.here or len(items) < 2:
            yield from map(function, items)
            return
        if self.backend == "dask":
            from dse.pricing.cluster import map_on_cluster

            yield from map_on_cluster(self.scheduler, function, items, ordered=ordered)
            return
        from multiprocessing import resource_tracker

        from joblib import Parallel, delayed
        from joblib.externals.loky.backend import resource_tracker as joblib_tracker

        task = partial(_for_master, os.getpid(), function)
        form = "generator" if ordered else "generator_unordered"
        resource_tracker.ensure_running()  # else it begins below, and lets signals through
        joblib_tracker.ensure_running()
        with uninterrupted():  # workers begin here, and inherit it: Ctrl-C ends us, and we end them
            results = Parallel(self.jobs, "loky", return_as=form)(delayed(task)(item) for item in items)
        yield from results


#: A number of processes on this machine, or a pool of workers.
Jobs = int | Workers


def workers_of(jobs: Jobs) -> Workers:
    """Workers for a number of processes, or the workers that are given."""
    return jobs if isinstance(jobs, Workers) else Workers(jobs)


def scattered(items: Sequence[Item]) -> list[Item]:
    """Items in a random order that is the same in each run, the last one last, so that progress is representative."""
    first = list(items[:-1])
    Random(0).shuffle(first)
    return [*first, *items[-1:]]


def _for_master(master: int, function: Callable[[Item], Result], item: Item) -> Result:
    """A function of an item, in a process that ends with the one of that number."""
    end_with(master)
    return function(item)
