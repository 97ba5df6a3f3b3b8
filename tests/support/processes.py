"""Processes of the tests: forks, searches, and those that begin with a statement, such as a limit."""

import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

#: A shell that runs the tests in the background has them ignore Ctrl-C; what is tested must not.
HEEDING = "signal.signal(signal.SIGINT, signal.SIG_DFL)"


def python_after(statement: str, *arguments: str | bytes) -> list[str | bytes]:
    """The command of Python with arguments, after a statement that may use `signal` and `resource`.

    `subprocess`'s own hook between fork and exec is not safe beside the threads of a compiler in the process
    of the tests.
    """
    again = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", f"import os, resource, signal, sys; {statement}; {again}", *arguments]


def signal_of(work: Callable[[], object]) -> int:
    """The signal that ends a fork of this process, which calls a function; 0 if the function returns."""
    with warnings.catch_warnings():  # a test before may have imported JAX, which warns of forks
        warnings.simplefilter("ignore", RuntimeWarning)
        process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(process, 0)[1])


def begun(statement: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of Python, after a statement, whose output and errors are pipes."""
    command, pipe = python_after(statement, *arguments), subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def searching(url: str, budget: int) -> ForkServerProcess:
    """A process that goes on with the study named shared, about to begin.

    It is forked from one that has imported all, so that a start takes no second.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dse.api.study", "dse.searching.batches.loop", "tests.support.processes"])
    here, far_end = context.Pipe(duplex=False)
    process = context.Process(target=search, args=(url, budget, far_end))
    process.start()
    far_end.close()
    here.recv()
    return process


def search(url: str, budget: int, ready: Connection) -> None:
    """Say that all is imported, then go on with the study named shared."""
    from dse.api.study import Study

    study = Study.load("shared", storage=url)
    ready.send(None)
    study.run(budget)


def exit_codes(processes: list[ForkServerProcess]) -> list[int | None]:
    """Exit codes of processes, once all have ended."""
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]
