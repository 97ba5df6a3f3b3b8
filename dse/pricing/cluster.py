"""Tasks on the workers of a Dask cluster, which have to run the same program as this process.

The scheduler passes tasks on as bytes. It never reads designs or spaces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from time import monotonic
from typing import Any, Final, TypeVar

from costmodel.errors import DseError, ParameterError
from costmodel.installation import installation
from dse.pricing.identity import program_digest

Result = TypeVar("Result")
Item = TypeVar("Item")

#: Longest time without an answer of the scheduler, without a worker, and between two looks at both. [s]
ANSWER, WORKERS, LOOK = 30.0, 120.0, 2.0
#: Tasks under way for each thread of the cluster.
TASKS_PER_THREAD: Final = 3


def map_on_cluster(
    scheduler: str | None, function: Callable[[Item], Result], items: Sequence[Item], *, ordered: bool
) -> Iterator[Result]:
    """Results of a function for each item, from the workers of a cluster.

    Raises `DseError` if the scheduler or all workers are lost, or a worker fails or runs another program.
    """
    with closing(_Cluster(scheduler)) as cluster:
        waiting = iter(enumerate(items))
        running: dict[Any, int] = {}
        results: dict[int, Result] = {}
        position = 0
        while True:
            while len(running) < cluster.room and (task := next(waiting, None)):
                running[cluster.submit(function, task[1])] = task[0]
            if not running:
                return
            for future in cluster.finished(running):
                results[running.pop(future)] = cluster.result(future)
            while ready := [position] if position in results else [] if ordered else [*results]:
                position += 1
                yield results.pop(ready[0])


class _Cluster:
    """A connection to the scheduler of a cluster."""

    def __init__(self, scheduler: str | None) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise ParameterError(f"{{backend}} dask needs the extra: {installation('dask')}") from None
        if scheduler is None:
            raise ParameterError("{backend} dask: name the cluster with {scheduler}, such as tcp://10.0.0.1:8786")
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors become one line of this command
        self.scheduler, self.room, self.looked, self.worked = scheduler, TASKS_PER_THREAD, 0.0, monotonic()
        try:
            self.client = Client(scheduler, timeout="10s")
        except (OSError, ValueError) as error:
            text = " ".join(str(error).split())
            raise DseError(f"scheduler {scheduler}: does not answer ({text}); is it running?") from None

    def look(self) -> None:
        """Ask the scheduler for its workers; raises `DseError` if it is lost, or has had none for too long."""
        known = self.asked(lambda: self.client.sync(self.client.scheduler.identity, callback_timeout=ANSWER))
        workers = known["workers"]
        self.looked = monotonic()
        self.room = TASKS_PER_THREAD * max(1, sum(worker["nthreads"] for worker in workers.values()))
        if workers:
            self.worked = self.looked
        elif self.looked - self.worked > WORKERS:
            raise DseError(f"scheduler {self.scheduler}: no worker for {WORKERS:.0f} s; start some: dask worker")

    def submit(self, function: Callable[[Item], Result], item: Item) -> Any:
        """The future of a task."""
        from distributed.protocol import serialize_bytes

        task = serialize_bytes((function, item))
        return self.asked(lambda: self.client.submit(run_task, program_digest(), task, pure=False))

    def finished(self, running: dict[Any, int]) -> list[Any]:
        """Futures that have ended, at least one."""
        from distributed import wait

        while not (ended := self.timely(lambda: wait([*running], timeout=LOOK, return_when="FIRST_COMPLETED").done)):
            self.look()
        if monotonic() - self.looked > LOOK:
            self.look()
        return list(ended[0])

    def result(self, future: Any) -> Any:
        """The result of a future that has ended; if its worker is lost meanwhile, it is computed again."""
        while future.status != "error":
            if results := self.timely(lambda: future.result(timeout=ANSWER)):
                return results[0]
            self.look()
        error = future.exception(timeout=ANSWER)
        if isinstance(error, DseError):
            raise error
        raise DseError(f"scheduler {self.scheduler}: a worker failed: {type(error).__name__}: {error}") from error

    def timely(self, call: Callable[[], Result]) -> list[Result]:
        """The result of a call of Dask; none if it does not come in time."""

        def tried() -> list[Result]:
            with suppress(TimeoutError):
                return [call()]
            return []

        return self.asked(tried)

    def asked(self, call: Callable[[], Result]) -> Result:
        """The result of a call of Dask; raises `DseError` if the scheduler is lost."""
        try:
            return call()
        except Exception:  # Dask raises errors of many kinds, and some change from one release to the next
            raise DseError(
                f"scheduler {self.scheduler}: lost; start it again, then repeat the command "
                "(`dse enumerate --checkpoint FILE` continues from its finished parts)"
            ) from None

    def close(self) -> None:
        """End the connection; Dask cancels the tasks that nobody waits for."""
        with suppress(Exception):  # of a scheduler that is lost
            self.client.close(timeout=LOOK)


def run_task(program: str, task: bytes) -> Any:
    """Run a task on a worker; raises `DseError` if the worker runs another program than the command."""
    import socket

    from distributed.protocol import deserialize_bytes

    if program != program_digest():
        raise DseError(
            f"worker on {socket.gethostname()}: runs another dse or NumPy ({program_digest()}) than this command "
            f"({program}); install the same version everywhere"
        )
    function, item = deserialize_bytes(task)
    return function(item)
